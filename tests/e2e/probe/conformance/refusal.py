"""Connections that must fail: quickly, by the right errno, and no longer than there is a reason."""

import errno
import socket
import time

from base import ECHO, Here, check, check_v4, dial, echoes, end, expect, expect_one, kind, listen, port, service, tcp, unreachable, within

CLOSED = port()
LATE = port()
ON_LOOPBACK = port()
SIX_ONLY = port()
RESTARTED = port()


@service()
def OPEN_LATE(c, _):
    """Listens at LATE from one message to the next."""
    c.recv(1)
    s = listen(LATE, echo)
    c.sendall(b"!")
    c.recv(1)
    end(s)


def echo(c, _):
    while part := c.recv(1 << 16):
        c.sendall(part)


@service()
def RESTART(c, _):
    """A server that is restarted again and again for a second and a half."""
    c.recv(1)
    for _ in range(5):
        s = listen(RESTARTED, echo)
        time.sleep(0.15)
        end(s)
        time.sleep(0.15)
    s = listen(RESTARTED, echo)
    c.sendall(b"!")
    c.recv(1)
    end(s)


def attempt(number, host=None):
    start = time.monotonic()
    try:
        with socket.create_connection((host or Here.peer, number), 5) as s:
            try:
                got = "data" if s.recv(1) else "eof"
            except OSError as e:
                got = "after connect: " + kind(e)
    except OSError as e:
        got = kind(e)
    took = time.monotonic() - start
    if took > 1:
        raise AssertionError(f"{got} after {took:.1f} s")
    return got


def refused(number, host=None):
    """ECONNREFUSED, for the first try maybe as a reset within moments of the connect."""
    first = attempt(number, host)
    second = attempt(number, host)
    expect(second, "ECONNREFUSED")
    expect_one(first.removeprefix("after connect: "), ("ECONNREFUSED", "ECONNRESET"))
    return first


@check
def refused_where_nobody_listens():
    return refused(CLOSED)


@check
def refused_by_a_listener_on_loopback_only():
    return refused(ON_LOOPBACK)


@check_v4
def refused_by_a_listener_for_ipv6_only():
    return refused(SIX_ONLY)


@check
def refused_at_port_zero():
    expect(attempt(0), "ECONNREFUSED")


@check
def unknown_address():
    expect(attempt(ECHO, Here.nobody), errno.errorcode[unreachable()])


@check_v4
def first_and_last_address():
    base = Here.peer.rsplit(".", 1)[0]
    expect(attempt(ECHO, base + ".0"), errno.errorcode[unreachable()])
    expect_one(attempt(ECHO, base + ".255"), (errno.errorcode[unreachable()], "EACCES"))


@check
def a_server_that_listens_late():
    try:
        with dial(LATE) as s:
            s.recv(1)
    except OSError:
        pass
    with dial(OPEN_LATE) as control:
        control.sendall(b"l")
        control.recv(1)
        start = time.monotonic()
        while True:
            try:
                with dial(LATE) as s:
                    echoes(s)
                    break
            except (ConnectionResetError, ConnectionRefusedError) as e:
                if time.monotonic() - start > 2:
                    raise AssertionError(f"{e!r} for 2 s after listen()")
                time.sleep(0.05)
        took = time.monotonic() - start
        control.sendall(b"c")
    time.sleep(0.1)
    refused(LATE)
    return f"{took:.2f} s"


@check
def a_server_that_restarts_is_there_or_refuses():
    """A program that retries must get through; no attempt may hang or meet anything else."""
    seen = {}
    with dial(RESTART, 10) as control:
        control.sendall(b"r")
        control.setblocking(False)
        while True:
            try:
                if control.recv(1):
                    break
            except BlockingIOError:
                pass
            start = time.monotonic()
            try:
                with dial(RESTARTED, 3) as s:
                    s.sendall(b"x")
                    got = "answered" if s.recv(1) else "eof"
            except OSError as e:
                got = kind(e)
            # Linux itself may drop a SYN that meets a listener in its last moment: one second more.
            if time.monotonic() - start > 2.5:
                raise AssertionError(f"{got} after {time.monotonic() - start:.1f} s")
            seen[got] = seen.get(got, 0) + 1
            time.sleep(0.005)

        def back():
            try:
                with dial(RESTARTED) as s:
                    echoes(s)
                return True
            except OSError:
                return False

        start = time.monotonic()
        within(1.5, "answer after the last restart", back)
        took = time.monotonic() - start
        control.setblocking(True)
        control.sendall(b"c")
    strange = set(seen) - {"answered", "ECONNREFUSED", "ECONNRESET", "eof", "EPIPE"}
    if strange or not seen.get("answered"):
        raise AssertionError(str(seen))
    return f"{seen}, there after {took:.2f} s"


@check
def a_refusal_costs_nothing():
    """What a retry loop does: a thousand refusals, all quick, and the rest still works."""
    start, slow = time.monotonic(), 0.0
    for _ in range(1000):
        before = time.monotonic()
        s = tcp()
        got = s.connect_ex((Here.peer, CLOSED))
        s.close()
        slow = max(slow, time.monotonic() - before)
        expect_one(got, (0, errno.ECONNREFUSED, errno.ECONNRESET, errno.EAGAIN))
    with dial(ECHO) as s:
        echoes(s)
    if slow > 1:
        raise AssertionError(f"one took {slow:.1f} s")
    return f"{(time.monotonic() - start) * 1e3:.0f} us each"
