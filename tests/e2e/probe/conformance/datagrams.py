"""UDP and ICMP: sizes, names, who speaks first, refusals, and the calls that carry many at once."""

import errno
import json
import os
import socket
import struct
import threading

from base import Here, background, check, check_v4, dial, errno_of, expect, kind, needs_hooks, port, service, where
from connects import dissolve

IP_RECVERR, IPV6_RECVERR, IP_PKTINFO = 11, 25, 8
ECHO, DUAL, PKTINFO, OTHER_PORT, CONNECTED, QUESTIONS = (port() for _ in range(6))
CLOSED, ON_VIP, BACK = port(), port(), port()
UDP_SEGMENT = 103


def udp(timeout=3.0, host=None, number=0, family=None):
    s = socket.socket(family or Here.family, socket.SOCK_DGRAM)
    s.settimeout(timeout)
    if host is not None:
        s.bind((host, number))
    return s


def loop(s, answer):
    def run():
        while True:
            data, ancillary, _, whom = s.recvmsg(70000, 200)
            answer(s, data, whom, ancillary)

    threading.Thread(target=run, daemon=True).start()


@background
def servers(vip):
    echo = lambda s, data, whom, _: s.sendto(data, whom)
    loop(udp(None, Here.any, ECHO), echo)
    loop(udp(None, vip, ON_VIP), echo)
    six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    six.bind(("::", DUAL))
    loop(six, lambda s, data, whom, _: s.sendto(whom[0].encode(), whom))
    info = udp(None, "0.0.0.0", PKTINFO, socket.AF_INET)
    info.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    loop(info, with_pktinfo)
    back = udp(None, "0.0.0.0", BACK, socket.AF_INET)
    back.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    loop(back, as_it_was_asked)
    loop(udp(None, Here.any, OTHER_PORT), lambda s, data, whom, _: udp(None, Here.any).sendto(data, whom))
    loop(udp(None, Here.any, CONNECTED), from_a_connected_one)
    loop(udp(None, Here.any, QUESTIONS), lambda s, data, whom, _: s.sendto(data[:2] + b"\x81\x80" + data[4:], whom))


def with_pktinfo(s, data, whom, ancillary):
    """Answers from the address that was asked, as DNS servers on several addresses do."""
    for level, what, value in ancillary:
        if (level, what) == (socket.IPPROTO_IP, IP_PKTINFO):
            index, _, to = struct.unpack("I4s4s", value)
            said = json.dumps([whom, socket.inet_ntoa(to)]).encode()
            back = struct.pack("I4s4s", 0, to, bytes(4))
            s.sendmsg([said], [(socket.IPPROTO_IP, IP_PKTINFO, back)], 0, whom)


def as_it_was_asked(s, data, whom, ancillary):
    """From the address and by the interface that it came to, in a train of datagrams, as QUIC servers do."""
    train = (socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("H", 500))
    s.sendmsg([data], ancillary, 0, whom)
    s.sendmsg([bytes(1200)], [*ancillary, train], 0, whom)


def from_a_connected_one(_, data, whom, __):
    with udp(3, Here.any) as s:
        s.connect(whom)
        s.send(json.dumps([where(s.getsockname()), where(s.getpeername())]).encode())


@service()
def SPEAK(c, _):
    """Sends the first datagram to where the client says it listens, and tells what came back."""
    host, number = json.loads(c.recv(200))
    with udp(3, Here.any) as s:
        s.sendto(b"first", (host, number))
        data, whom = s.recvfrom(100)
        c.sendall(json.dumps([data.decode(), where(whom), s.getsockname()[1]]).encode())


def asked(s, number, data=b"x", size=70000):
    s.sendto(data, (Here.peer, number))
    data, whom = s.recvfrom(size)
    return data, where(whom)


@check
def datagrams_of_all_sizes():
    longest = 65_507 if Here.family == socket.AF_INET else 65_527
    with udp() as s:
        for size in (1, 0, 512, 1400, 1472, 1473, 8972, 60_000, longest):
            data = os.urandom(size)
            got, whom = asked(s, ECHO, data)
            expect((len(got), whom), (size, (Here.peer, ECHO)))
            expect(got == data, True)
        expect(errno_of(lambda: s.sendto(bytes(longest + 1), (Here.peer, ECHO))), errno.EMSGSIZE)


@check
def a_connected_datagram_socket():
    with udp() as s:
        s.connect((Here.peer, ECHO))
        expect((where(s.getpeername()), s.getsockname()[0]), ((Here.peer, ECHO), Here.own))
        s.send(b"hello")
        expect(s.recv(10, socket.MSG_PEEK), b"hello")
        data, whom = s.recvfrom(10)
        expect((data, where(whom)), (b"hello", (Here.peer, ECHO)))
        s.send(b"0123456789")
        expect(s.recvmsg(4)[::2], (b"0123", socket.MSG_TRUNC))
        dissolve(s)
        expect(asked(s, ECHO, b"again"), (b"again", (Here.peer, ECHO)))


@check_v4
def a_v4_mapped_datagram_socket():
    with udp(family=socket.AF_INET6) as s:
        s.sendto(b"x", ("::ffff:" + Here.peer, ECHO))
        data, whom = s.recvfrom(10)
        expect((data, whom[:2]), (b"x", ("::ffff:" + Here.peer, ECHO)))
        s.connect(("::ffff:" + Here.peer, DUAL))
        s.send(b"x")
        expect(s.recv(100).decode(), "::ffff:" + Here.own)


@check_v4
def a_server_that_answers_from_the_address_it_was_asked_at():
    with udp() as s:
        said, whom = asked(s, PKTINFO)
        expect(whom, (Here.peer, PKTINFO))
        seen, to = json.loads(said)
        expect(seen[0], Here.own)


@check_v4
def a_server_that_answers_as_it_was_asked():
    with udp() as s:
        for _ in range(3):
            said, whom = asked(s, BACK)
            expect(whom, (Here.peer, BACK))
            expect([len(s.recv(2000)) for _ in range(3)], [500, 500, 200])


@check
def a_client_that_names_its_vip_as_source():
    """By a control message, as programs with several addresses do."""
    with udp() as s:
        own = socket.inet_pton(Here.family, Here.own)
        if Here.family == socket.AF_INET:
            info = (socket.IPPROTO_IP, IP_PKTINFO, struct.pack("I4s4s", 0, own, bytes(4)))
        else:
            info = (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, own + bytes(4))
        for number in (ECHO, ON_VIP):
            s.sendmsg([b"x"], [info], 0, (Here.peer, number))
            data, whom = s.recvfrom(10)
            expect((data, whom[:2]), (b"x", (Here.peer, number)))


@check
def a_server_that_answers_from_another_port():
    """As TFTP servers do."""
    with udp() as s:
        data, whom = asked(s, OTHER_PORT, b"tftp")
        expect((data, whom[0], whom[1] != OTHER_PORT), (b"tftp", Here.peer, True))


@check
def a_server_that_answers_from_a_connected_socket():
    with udp() as s:
        said, whom = asked(s, CONNECTED)
        mine, theirs = json.loads(said)
        expect((mine[0], theirs[0]), (Here.peer, Here.own))
        expect(list(whom), mine)


@check
def the_server_speaks_first():
    for connected in (False, True):
        with udp(3, Here.any) as s, dial(SPEAK) as control:
            control.sendall(json.dumps([Here.own, s.getsockname()[1]]).encode())
            data, whom = s.recvfrom(100)
            expect((data, whom[0]), (b"first", Here.peer))
            if connected:
                s.connect(whom)
                s.send(b"second")
            else:
                s.sendto(b"second", whom)
            said, seen, number = json.loads(control.recv(500))
            expect((said, seen, number), ("second", [Here.own, s.getsockname()[1]], whom[1]))


@check
def questions_and_answers():
    """A resolver's habit: a new socket for each question, many at once, an id in each."""
    pending = {}
    for _ in range(200):
        s = udp()
        ident = os.urandom(2)
        s.sendto(ident + b"\x01\x00" + b"question", (Here.peer, QUESTIONS))
        pending[s] = ident
    for s, ident in pending.items():
        data, whom = s.recvfrom(100)
        expect((data, where(whom)), (ident + b"\x81\x80question", (Here.peer, QUESTIONS)))
        s.close()


@check
def a_refusal_of_datagrams():
    """ECONNREFUSED for a connected socket; with IP_RECVERR for any, and the datagram comes back with it."""
    with udp() as s:
        s.connect((Here.peer, CLOSED))
        s.send(b"x")
        expect(errno_of(lambda: s.recv(10)), errno.ECONNREFUSED)
    with udp() as s:
        if Here.family == socket.AF_INET:
            s.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        else:
            s.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVERR, 1)
        s.sendto(b"lost", (Here.peer, CLOSED))
        expect(errno_of(lambda: s.recv(10)), errno.ECONNREFUSED)
        data, ancillary, *_ = s.recvmsg(100, 200, socket.MSG_ERRQUEUE)
        error = struct.unpack_from("IBBBBII", ancillary[0][2])
        expect((data, error[0], error[1]), (b"lost", errno.ECONNREFUSED, 2 if Here.family == socket.AF_INET else 3))
    with udp(0.5) as s:
        s.sendto(b"x", (Here.peer, CLOSED))
        expect(errno_of(lambda: s.recv(10)), None)  # an unconnected socket hears nothing: a timeout
        s.settimeout(3)
        expect(asked(s, ECHO), (b"x", (Here.peer, ECHO)))


@check
def datagrams_to_nobody():
    """An error at once, or after the first; or silence as from a dead host; never an answer."""
    with udp(0.5) as s:
        try:
            s.connect((Here.nobody, ECHO))
            s.send(b"x")
            raise AssertionError(f"an answer: {s.recv(10)!r}")
        except OSError as e:
            return kind(e)


@check
@needs_hooks("client")
def bound_to_the_interface_rl0_by_udp():
    with udp() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"rl0\0")
        expect(asked(s, ECHO), (b"x", (Here.peer, ECHO)))
