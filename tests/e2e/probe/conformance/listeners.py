"""How a server may listen, and how many may wait at its door."""

import errno
import select
import socket
import threading
import time

from base import ECHO, Here, background, check, dial, echoes, end, expect, expect_one, listen, needs_hooks, port, service, tcp, where
from refusal import ON_LOOPBACK, SIX_ONLY, echo

MPTCP = 262

ON_VIP = service(host="vip")(echo)
SHARED = service(share=True, times=4)(echo)
SHARED_ON_VIP = service(host="vip", share=True, times=3)(echo)
DUAL = service(host="::", family=socket.AF_INET6)(echo)
MAPPED_VIP = service(host="mapped-vip", family=socket.AF_INET6)(echo)
MULTIPATH = service(protocol=MPTCP)(echo)
MULTIPATH_DUAL = service(host="::", family=socket.AF_INET6, protocol=MPTCP)(echo)
MULTIPATH_ON_VIP = service(host="vip", protocol=MPTCP)(echo)
DEFERRED = service(before=lambda s: s.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 5))(echo)
FAST = service(before=lambda s: s.setsockopt(socket.IPPROTO_TCP, socket.TCP_FASTOPEN, 16))(echo)
FULL, QUEUE, RELISTEN = port(), port(), port()


@background
def others(_):
    listen(ON_LOOPBACK, echo, "127.0.0.1" if Here.family == socket.AF_INET else "::1")
    listen(SIX_ONLY, echo, "::", socket.AF_INET6, only6=True)


@background
def waiting(_):
    """Two listeners that nobody accepts from until a control connection says so."""
    for number, backlog in ((FULL, 2), (QUEUE, 512)):
        s = socket.create_server((Here.any, number), family=Here.family, backlog=backlog)
        held[number] = s


held = {}


@service()
def ACCEPT(c, _):
    number = int(c.recv(16))
    s = held[number]
    c.sendall(b"!")
    end = time.monotonic() + 15
    served = []
    while time.monotonic() < end:
        ready, _, _ = select.select([s, c], [], [], 1)
        if c in ready:
            break
        if s in ready:
            peer = s.accept()[0]
            t = threading.Thread(target=one, args=(peer,), daemon=True)
            t.start()
            served.append(t)


def one(c):
    with c:
        try:
            echo(c, None)
        except OSError:
            pass


@service()
def CHURN(c, _):
    """Opens and closes a listener a hundred times without a pause, then leaves it open for a while."""
    for _ in range(100):
        end(listen(RELISTEN, echo))
    s = listen(RELISTEN, echo)
    c.sendall(b"!")
    c.recv(1)
    end(s)


def answers(number, times=1):
    for _ in range(times):
        with dial(number) as s:
            echoes(s)


@check
def a_listener_on_the_vip_alone():
    answers(ON_VIP, 3)


@check
def a_listener_on_the_mapped_vip():
    answers(MAPPED_VIP, 3)


@check
def a_listener_for_both_families():
    answers(DUAL, 3)


@check
def listeners_that_share_a_port():
    answers(SHARED, 40)
    answers(SHARED_ON_VIP, 40)


@check
def multipath_listeners():
    """What Go's `net.Listen` makes by default since 1.24."""
    answers(MULTIPATH, 3)
    answers(MULTIPATH_DUAL, 3)
    answers(MULTIPATH_ON_VIP, 3)


@check
def multipath_client():
    for number in (ECHO, MULTIPATH):
        with tcp(5, MPTCP) as s:
            s.connect((Here.peer, number))
            expect(where(s.getpeername()), (Here.peer, number))
            expect(s.getsockname()[0], Here.own)
            echoes(s)


@check
def a_listener_that_defers_accept():
    answers(DEFERRED, 3)


@check
def a_listener_that_was_opened_a_hundred_times():
    with dial(CHURN, 10) as control:
        control.recv(1)
        limit = time.monotonic() + 1.5
        while True:
            try:
                return answers(RELISTEN)
            except OSError:
                if time.monotonic() > limit:
                    raise
                time.sleep(0.02)


@check
def fast_open_does_not_hang():
    for number in (FAST, ECHO):
        with tcp(None) as s:  # data in the SYN
            s.sendto(b"early", socket.MSG_FASTOPEN, (Here.peer, number))
            s.settimeout(5)
            expect(s.recv(10), b"early")
        with tcp() as s:  # TCP_FASTOPEN_CONNECT
            s.setsockopt(socket.IPPROTO_TCP, 30, 1)
            s.connect((Here.peer, number))
            echoes(s, b"later")


@check
def an_accept_queue_of_two_hundred():
    all_of_them(QUEUE, 200)


@check
def more_than_the_backlog():
    """They wait, as for any server that is slow to accept, and none is lost or refused."""
    return all_of_them(FULL, 12)


@check
def a_server_that_accepts_nobody_for_six_seconds():
    """Who found no place in its queue asks again and again, and gets in."""
    return all_of_them(FULL, 8, 6)


def all_of_them(number, count, after=0.5):
    waiting = []
    for _ in range(count):
        s = tcp(0)
        expect_one(s.connect_ex((Here.peer, number)), (0, errno.EINPROGRESS))
        waiting.append(s)
    time.sleep(after)
    start = time.monotonic()
    with dial(ACCEPT) as control:
        control.sendall(str(number).encode())
        control.recv(1)
        for s in waiting:
            s.settimeout(12)
            select.select([], [s], [], 12)
            expect(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), 0)
            # One after the other: Linux itself, without us, now and then loses the answer to a
            # connection that was beyond the backlog when data and end come together.
            s.sendall(b"x")
            expect(s.recv(1), b"x")
            s.close()
    return f"{time.monotonic() - start:.1f} s"


@check
@needs_hooks("client")
def own_listeners_at_the_ports_of_a_peer():
    """Every pod of a service uses one port, as client and as server: while connected, and after."""
    for reuse in (True, False):
        with dial(ECHO) as s:
            bound(ECHO, reuse)
            echoes(s)
        bound(ECHO, reuse)
    with dial(ON_VIP) as s:  # the peer ends first
        s.sendall(b"x")
        s.shutdown(socket.SHUT_WR)
        s.recv(1)
    bound(ON_VIP, True)


def bound(number, reuse):
    for host in (Here.any, Here.own):
        with socket.socket(Here.family) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
            s.bind((host, number))
            s.listen()
