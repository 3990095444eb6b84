"""The ways in which programs call the kernel on a connection: receive flags, options, sending without copies."""

import errno
import fcntl
import os
import select
import socket
import struct
import termios
import time

from base import ECHO, Here, check, dial, echoes, errno_of, expect, read, read_all, service, within


@service()
def URGENT(c, _):
    c.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    c.sendall(read_all(c))


@service()
def DRIP(c, _):
    """Ten bytes, one by one."""
    c.recv(1)
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for i in b"0123456789":
        c.sendall(bytes([i]))
        time.sleep(0.02)
    c.recv(1)


@check
def receive_flags():
    with dial(ECHO) as s:
        s.sendall(b"0123456789")
        within(2, "answer", lambda: waiting(s) == 10)
        expect(s.recv(4, socket.MSG_PEEK), b"0123")
        expect(s.recv(4), b"0123")
        expect(len(s.recv(100, socket.MSG_TRUNC)), 6)  # thrown away, but counted
        s.setblocking(True)
        expect(errno_of(lambda: s.recv(1, socket.MSG_DONTWAIT)), errno.EAGAIN)
    with dial(DRIP) as s:
        s.setblocking(True)
        s.sendall(b"x")
        expect(s.recv(10, socket.MSG_WAITALL), b"0123456789")
        s.shutdown(socket.SHUT_WR)
        expect(s.recv(10, socket.MSG_WAITALL), b"")


def waiting(s):
    return struct.unpack("i", fcntl.ioctl(s, termios.FIONREAD, b"\0\0\0\0"))[0]


@check
def urgent_data_inline_is_in_its_place():
    with dial(URGENT) as s:
        s.sendall(b"abc")
        s.send(b"U", socket.MSG_OOB)
        s.sendall(b"def")
        s.shutdown(socket.SHUT_WR)
        expect(read_all(s), b"abcUdef")


@check
def options_hold():
    with dial(ECHO) as s:
        for level, option, value in [
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 1),
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 3000),
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            (socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1),
        ]:
            s.setsockopt(level, option, value)
            expect(s.getsockopt(level, option), value)
        info = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
        expect(info[0], 1)  # ESTABLISHED
        expect(0 < struct.unpack_from("I", info, 68)[0] < 1_000_000, True)  # round trip
        # Past a keepalive that nobody answered it would be dead.
        time.sleep(2.6)
        expect(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), 0)
        echoes(s)


@check
def corked_writes_leave_when_they_are_let():
    with dial(ECHO) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        for i in range(10):
            s.sendall(b"%d" % i)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
        expect(read(s, 10), b"0123456789")


@check
def vectors_and_more():
    with dial(ECHO) as s:
        s.sendmsg([b"ab", b"", b"cd"])
        s.send(b"ef", socket.MSG_MORE)
        s.send(b"gh")
        expect(read(s, 8), b"abcdefgh")
        s.sendall(b"12345678")
        parts = [bytearray(3), bytearray(3), bytearray(2)]
        within(2, "answer", lambda: waiting(s) == 8)
        expect(s.recvmsg_into(parts)[0], 8)
        expect(b"".join(parts), b"12345678")


@check
def send_without_copying():
    """MSG_ZEROCOPY: the notice comes, and so do the bytes."""
    data = os.urandom(1 << 18)
    with dial(ECHO) as s:
        s.setsockopt(socket.SOL_SOCKET, 60, 1)
        sent = s.send(data, 0x4000000)
        s.sendall(data[sent:])
        expect(read(s, len(data)), data)

        def notice():
            try:
                return s.recvmsg(0, 100, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)[1]
            except BlockingIOError:
                return None

        expect(within(2, "notice", notice)[0][0], socket.IPPROTO_IP if Here.family == socket.AF_INET else socket.IPPROTO_IPV6)


@check
def sendfile_and_splice():
    data = os.urandom(3 << 20)
    with open("/tmp/sendfile", "w+b") as f, dial(ECHO) as s:
        f.write(data)
        f.flush()
        got, sent, spliced = bytearray(), 0, 0
        s.setblocking(False)
        r, w = os.pipe()
        while len(got) < 2 * len(data):
            readable, writable, _ = select.select([s], [s] if spliced < len(data) else [], [], 5)
            if not readable and not writable:
                raise AssertionError(f"stuck after {sent} sent, {spliced} spliced, {len(got)} back")
            if readable:
                got += s.recv(1 << 20)
            if writable and sent < len(data):
                sent += os.sendfile(s.fileno(), f.fileno(), sent, 1 << 20)
            elif writable:
                n = os.splice(f.fileno(), w, 1 << 16, offset_src=spliced)
                s.setblocking(True)
                while n:
                    part = os.splice(r, s.fileno(), n)
                    n, spliced = n - part, spliced + part
                s.setblocking(False)
        os.close(r)
        os.close(w)
        expect(bytes(got) == data + data, True)
    os.unlink("/tmp/sendfile")


@check
def a_connection_handed_to_another_process():
    """SCM_RIGHTS: the receiver has the same connection with the same names."""
    ours, theirs = socket.socketpair()
    with dial(ECHO) as s:
        if os.fork() == 0:
            fd = socket.recv_fds(theirs, 1, 1)[1][0]
            with socket.socket(fileno=fd) as c:
                c.sendall(repr((c.getsockname(), c.getpeername())).encode())
            os._exit(0)
        socket.send_fds(ours, [b"x"], [s.fileno()])
        want = repr((s.getsockname(), s.getpeername())).encode()
        os.wait()
        expect(read(s, len(want)), want)
