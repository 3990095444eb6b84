"""Much at once: volume with checksums, many connections, slow readers beside quick ones."""

import hashlib
import socket
import threading
import time

from base import ECHO, Here, check, dial, echoes, expect, files, read, read_all, service


@service()
def BOTH(c, _):
    size = int(read(c, 16).decode())
    t = threading.Thread(target=blast, args=(c, size, b"server"))
    t.start()
    c.settimeout(120)
    digest = drain(c, size)
    t.join()
    c.sendall(digest)


@service()
def HOLD(c, _):
    c.sendall(b"!")
    read_all(c)


@service()
def HASH(c, _):
    """Reads a few bytes at a time, then says what it has read."""
    h = hashlib.sha256()
    while part := c.recv(97):
        h.update(part)
    c.sendall(h.digest())


@service()
def STALL(c, _):
    """Reads nothing until the client has gone or says `go` elsewhere."""
    go.clear()
    go.wait(30)
    c.sendall(str(len(read_all(c))).encode())


@service()
def GO(c, _):
    go.set()
    c.sendall(b"!")


go = threading.Event()


def block(i, salt):
    return hashlib.sha256(salt + str(i).encode()).digest() * 2048


def blast(c, size, salt):
    for i in range(size // 65536):
        c.sendall(block(i, salt))


def drain(c, size):
    h = hashlib.sha256()
    while size:
        part = c.recv(min(size, 1 << 18))
        if not part:
            raise EOFError(f"{size} bytes are missing")
        h.update(part)
        size -= len(part)
    return h.digest()


@check
def both_ways_at_once():
    size = Here.mib << 20
    with dial(BOTH) as s:
        s.settimeout(120)
        s.sendall(str(size).encode().ljust(16))
        t = threading.Thread(target=blast, args=(s, size, b"client"))
        start = time.monotonic()
        t.start()
        got = drain(s, size)
        t.join()
        theirs = read(s, 32)
        took = time.monotonic() - start
    for salt, digest in ((b"server", got), (b"client", theirs)):
        h = hashlib.sha256()
        for i in range(size // 65536):
            h.update(block(i, salt))
        expect(digest, h.digest())
    return f"2 x {Here.mib} MiB, {2 * size / took / 1e6:.0f} MB/s"


@check
def a_thousand_at_once():
    files()
    held, start = [], time.monotonic()
    for _ in range(1000):
        held.append(dial(HOLD))
    for s in held:
        expect(s.recv(1), b"!")
    took = time.monotonic() - start
    with dial(ECHO) as s:
        echoes(s)
    for s in held:
        s.close()
    return f"{took:.1f} s"


@check
def ten_thousand_short_ones():
    start, n, lock, bad = time.monotonic(), [0], threading.Lock(), []

    def some():
        while True:
            with lock:
                if n[0] == Here.short or bad:
                    return
                n[0] += 1
            try:
                with dial(ECHO, 10) as s:
                    echoes(s)
            except Exception as e:
                bad.append(f"{n[0]}: {e!r}")

    threads = [threading.Thread(target=some) for _ in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if bad:
        raise AssertionError(bad[0])
    return f"{Here.short / (time.monotonic() - start):.0f}/s"


@check
def large_writes_and_tiny_reads():
    data = block(1, b"tiny") * 64  # 4 MiB
    with dial(HASH) as s:
        s.settimeout(20)
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
        expect(read(s, 32), hashlib.sha256(data).digest())


@check
def tiny_writes_in_order():
    data = block(2, b"tiny")[:20_000]
    with dial(HASH) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i in range(len(data)):
            s.send(data[i:i + 1])
        s.shutdown(socket.SHUT_WR)
        expect(read(s, 32), hashlib.sha256(data).digest())


@check
def a_stalled_reader_stalls_itself_alone():
    """The sender of the stalled flow blocks; all other flows go on as before; nothing of it is lost."""
    with dial(STALL) as stalled:
        stalled.setblocking(False)
        sent, last = 0, time.monotonic()
        while time.monotonic() - last < 0.5:
            try:
                sent += stalled.send(b"s" * 65536)
                last = time.monotonic()
            except BlockingIOError:
                time.sleep(0.01)
            if sent > 1 << 28:
                raise AssertionError("a reader that reads nothing took 256 MiB")
        slowest = 0.0
        for _ in range(200):
            start = time.monotonic()
            with dial(ECHO) as s:
                echoes(s)
            slowest = max(slowest, time.monotonic() - start)
        with dial(GO) as s:
            s.recv(1)
        stalled.settimeout(20)
        stalled.shutdown(socket.SHUT_WR)
        expect(int(read_all(stalled)), sent)
    if slowest > 0.5:
        raise AssertionError(f"another flow took {slowest:.2f} s")
    return f"{sent >> 10} KiB on their way, others at most {slowest * 1e3:.0f} ms"
