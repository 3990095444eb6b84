"""connect() in all its forms: waited for, polled, interrupted, by io_uring, again on the same socket."""

import ctypes
import errno
import os
import select
import signal
import socket
import struct
import time

import ring
from base import ECHO, Here, check, check_v4, echoes, errno_of, expect, expect_one, read_all, service, tcp, unreachable, where
from refusal import CLOSED


@service()
def SILENT(c, _):
    """Answers the first byte, and then nothing."""
    c.sendall(c.recv(1))
    read_all(c)


def connecting(number, address=None):
    s = tcp(0)
    rc = s.connect_ex((address or Here.peer, number))
    if rc not in (0, errno.EINPROGRESS):
        s.close()
        return None, rc
    return s, rc


@check
def non_blocking_connect():
    """select, poll and epoll see it become writable; SO_ERROR is 0; and it is connected."""
    for how in ("select", "poll", "epoll"):
        s, _ = connecting(ECHO)
        if how == "select":
            expect(select.select([], [s], [], 5)[1], [s])
        else:
            p = select.poll() if how == "poll" else select.epoll()
            p.register(s, select.POLLOUT)
            got = p.poll(5000 if how == "poll" else 5)
            expect([(f, e & ~select.POLLIN) for f, e in got], [(s.fileno(), select.POLLOUT)])
        expect(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), 0)
        expect(where(s.getpeername()), (Here.peer, ECHO))
        expect_one(s.connect_ex((Here.peer, ECHO)), (0, errno.EISCONN))
        s.settimeout(5)
        echoes(s)
        s.close()


@check
def non_blocking_connect_that_is_refused():
    """At once, by SO_ERROR, or by the first read: one of them must say it, and soon."""
    for _ in range(2):
        s, rc = connecting(CLOSED)
        if s is None:
            expect(rc, errno.ECONNREFUSED)
            continue
        p = select.poll()
        p.register(s, select.POLLIN)
        if not p.poll(1000):
            raise AssertionError("nothing in a second")
        got = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        expect_one(got, (errno.ECONNREFUSED, errno.ECONNRESET))
        s.close()


@check
def non_blocking_connect_to_nobody():
    for _ in range(2):
        s, rc = connecting(ECHO, Here.nobody)
        if rc == errno.EINPROGRESS and "client" in Here.no_hooks:
            select.select([], [s], [], 3)
            s, rc = None, s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        expect((s, rc), (None, unreachable()))


@check
def connect_with_a_send_timeout():
    with tcp(None) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 3, 0))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 300_000))
        s.connect((Here.peer, SILENT))
        s.sendall(b"x")
        expect(s.recv(1), b"x")
        start = time.monotonic()
        expect(errno_of(lambda: s.recv(1)), errno.EAGAIN)
        expect(0.2 < time.monotonic() - start < 1, True)


@check
def connect_interrupted_by_signals():
    """EINTR must not break a connect that goes on (PEP 475 retries with poll and SO_ERROR)."""
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        pid = os.getpid()
        if (child := os.fork()) == 0:
            for _ in range(300):
                os.kill(pid, signal.SIGUSR1)
                time.sleep(0.001)
            os._exit(0)
        for _ in range(100):
            with tcp(None) as s:
                s.connect((Here.peer, ECHO))
                echoes(s)
        os.waitpid(child, 0)
    finally:
        signal.signal(signal.SIGUSR1, before)


@check
def a_socket_is_used_again_after_a_refusal():
    """Linux allows another connect after a failed one; retry loops in C rely on it."""
    with tcp(None) as s:
        try:
            s.connect((Here.peer, CLOSED))
            return "connected: cannot tell"
        except ConnectionRefusedError:
            pass
        s.connect((Here.peer, ECHO))
        expect(where(s.getpeername()), (Here.peer, ECHO))
        s.settimeout(5)
        echoes(s)


@check
def a_socket_is_dissolved_and_connected_again():
    """connect(AF_UNSPEC) frees it for another peer."""
    with tcp() as s:
        s.connect((Here.peer, ECHO))
        dissolve(s)
        expect(errno_of(s.getpeername), errno.ENOTCONN)
        s.connect((Here.peer, SILENT))
        expect(where(s.getpeername()), (Here.peer, SILENT))
        s.sendall(b"x")
        expect(s.recv(1), b"x")


def dissolve(s):
    unspec = struct.pack("=H14s", socket.AF_UNSPEC, b"")
    if ctypes.CDLL(None, use_errno=True).connect(s.fileno(), unspec, len(unspec)):
        raise OSError(ctypes.get_errno(), "connect(AF_UNSPEC)")


@check_v4
def io_uring_connect():
    """In a child: what a ring leaves to do in its process would interrupt later system calls."""
    r, w = os.pipe()
    if os.fork() == 0:
        try:
            in_a_ring()
            os.write(w, b"ok")
        except Exception as e:
            os.write(w, repr(e).encode())
        os._exit(0)
    os.close(w)
    os.wait()
    said = os.read(r, 1000).decode()
    os.close(r)
    expect(said, "ok")


def in_a_ring():
    with tcp(None) as s:
        expect(ring.connect(s.fileno(), Here.peer, ECHO), 0)
        expect(where(s.getpeername()), (Here.peer, ECHO))
        expect(s.getsockname()[0], Here.own)
        s.settimeout(5)
        echoes(s)
    with tcp(None) as s:
        expect(ring.connect(s.fileno(), Here.nobody, ECHO), -unreachable())
