"""How a connection ends: EOF, half-close, reset, in either direction, and what must arrive before."""

import socket
import struct
import time

from base import ECHO, VERDICTS, check, dial, echoes, expect, expect_one, kind, linger0, read, read_all, service, told, token

BIG = 8 << 20


@service()
def FIRST(c, _):
    c.sendall(b"x" * 100_000)
    c.shutdown(socket.SHUT_WR)
    read_all(c)


@service()
def AT_ONCE(c, _):
    """Closes without a word."""


@service()
def RESET(c, _):
    c.recv(1)
    linger0(c)


@service()
def WATCH(c, _):
    """How the client's end came about, and after how many bytes."""
    t = read(c, 8)
    n = 0
    try:
        while part := c.recv(1 << 16):
            n += len(part)
        VERDICTS[t] = f"eof {n}"
    except OSError as e:
        VERDICTS[t] = f"{kind(e)} {n}"


@service()
def EARLY(c, _):
    """Answers and closes while most of the request is unread."""
    c.recv(1000)
    c.sendall(b"r" * 500)


@service()
def HALF(c, _):
    t = read(c, 8)
    c.sendall(b"bye")
    c.shutdown(socket.SHUT_WR)
    VERDICTS[t] = str(len(read_all(c)))


@service()
def LEAVE(c, _):
    """Sends much and closes while most of it is still on its way."""
    c.recv(1)
    c.sendall(b"z" * BIG)


@service()
def UNREAD(c, _):
    """Closes with something of the client's unread, which Linux answers with a reset."""
    read(c, 1)
    time.sleep(0.2)


@service()
def PUSH(c, _):
    """Sends for as long as the client takes it."""
    t = read(c, 8)
    try:
        while True:
            c.sendall(b"p" * 65536)
    except OSError as e:
        VERDICTS[t] = kind(e)


@check
def echo_and_eof():
    with dial(ECHO) as s:
        echoes(s, b"hello" * 1000)


@check
def eof_from_the_server_first():
    with dial(FIRST) as s:
        expect(len(read_all(s)), 100_000)


@check
def eof_without_a_byte():
    with dial(AT_ONCE) as s:
        start = time.monotonic()
        expect(s.recv(1), b"")
        if time.monotonic() - start > 1:
            raise AssertionError("late")


@check
def close_from_the_client_first():
    t = token()
    with dial(WATCH) as s:
        s.sendall(t + b"x" * 1000)
    expect(told(t), "eof 1000")


@check
def half_close_by_the_server():
    t = token()
    with dial(HALF) as s:
        s.sendall(t)
        expect(read_all(s), b"bye")
        time.sleep(0.2)
        s.sendall(b"y" * 300_000)
    expect(told(t), "300000")


@check
def half_close_by_the_client_then_a_late_answer():
    with dial(UNREAD) as s:
        s.sendall(b"x")
        s.shutdown(socket.SHUT_WR)
        start = time.monotonic()
        expect(s.recv(1), b"")
        if not 0.1 < time.monotonic() - start < 1:
            raise AssertionError("the end did not come with the server's close")


@check
def all_that_was_sent_before_a_close_arrives():
    t = token()
    with dial(WATCH) as s:
        s.sendall(t + b"x" * BIG)
    expect(told(t), f"eof {BIG}")
    with dial(LEAVE) as s:
        s.sendall(b"x")
        time.sleep(0.3)
        expect(len(read_all(s)), BIG)


@check
def close_that_lingers_waits_for_what_was_sent():
    t = token()
    with dial(WATCH) as s:
        s.setblocking(True)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 10))
        s.sendall(t + b"x" * BIG)
        start = time.monotonic()
    took = time.monotonic() - start
    expect(told(t), f"eof {BIG}")
    if took > 5:
        raise AssertionError(f"close took {took:.1f} s")


@check
def reset_from_the_server():
    with dial(RESET) as s:
        s.sendall(b"x")
        try:
            raise AssertionError(f"no reset but {s.recv(1)!r}")
        except ConnectionResetError:
            pass


@check
def reset_from_the_client_by_linger_0():
    t = token()
    with dial(WATCH) as s:
        s.sendall(t)
        time.sleep(0.1)
        linger0(s)
    expect(told(t).split()[0], "ECONNRESET")


@check
def what_was_sent_before_a_reset_arrives():
    """At once: the reset must not overtake it, nor the connection itself."""
    tokens = [token() for _ in range(40)]
    for t in tokens:
        with dial(WATCH) as s:
            s.sendall(t + b"data")
            linger0(s)
    for t in tokens:
        expect(told(t), "ECONNRESET 4")


@check
def an_early_answer_is_read_before_the_reset():
    """Servers answer "too large" while the client still sends."""
    for _ in range(20):
        with dial(EARLY) as s:
            got = b""
            try:
                s.sendall(bytes(BIG))
            except OSError:
                pass
            try:
                while part := s.recv(1000):
                    got += part
            except OSError:
                pass
            expect(len(got), 500)


@check
def reset_by_closing_with_bytes_unread():
    with dial(UNREAD) as s:
        s.sendall(b"xyz")
        try:
            raise AssertionError(f"no reset but {s.recv(1)!r}")
        except ConnectionResetError:
            pass
    t = token()
    with dial(PUSH) as s:
        s.sendall(t)
        s.recv(1)
    expect_one(told(t), ("ECONNRESET", "EPIPE"))


@check
def writing_to_a_server_that_has_gone_fails():
    with dial(AT_ONCE) as s:
        expect(s.recv(1), b"")
        start = time.monotonic()
        try:
            while time.monotonic() - start < 2:
                s.sendall(b"x")
                time.sleep(0.01)
            raise AssertionError("two seconds of writes to nobody")
        except (BrokenPipeError, ConnectionResetError):
            pass


@check
def shutdown_of_reading_leaves_writing():
    t = token()
    with dial(WATCH) as s:
        s.shutdown(socket.SHUT_RD)
        expect(s.recv(1), b"")
        s.sendall(t + b"x" * 100_000)
    expect(told(t), "eof 100000")


@check
def shutdown_of_both_ways_is_an_end():
    t = token()
    with dial(WATCH) as s:
        s.sendall(t + b"x")
        s.shutdown(socket.SHUT_RDWR)
        expect(s.recv(1), b"")
        expect(told(t), "eof 1")


@check
def both_ends_finish_at_the_same_time():
    for _ in range(50):
        with dial(FIRST) as s:
            s.shutdown(socket.SHUT_WR)
            expect(len(read_all(s)), 100_000)


@check
def connecting_and_leaving_is_an_end():
    """The server must see connections that never say a word come and go, not hang."""
    for i in range(20):
        s = dial(ECHO)
        if i % 2:
            linger0(s)
        s.close()
    with dial(ECHO) as s:
        echoes(s)
