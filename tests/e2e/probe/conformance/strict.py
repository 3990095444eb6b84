"""The stricter truths, chosen by name: what a relay between two kernels does not give by itself."""

import errno
import json
import socket
import struct
import time

import datagrams
from base import ECHO, Here, background, check, check_v4, dial, echoes, errno_of, expect, expect_one, listen, tcp
from connects import connecting
from refusal import CLOSED, LATE, ON_LOOPBACK, OPEN_LATE, echo

FORBIDDEN = 9901


@background
def forbidden(_):
    listen(FORBIDDEN, echo)
    datagrams.loop(datagrams.udp(None, Here.any, FORBIDDEN), lambda s, data, whom, _: s.sendto(data, whom))


@check
def refused_at_once_by_connect_itself():
    for number in (CLOSED, ON_LOOPBACK):
        for _ in range(3):
            with tcp() as s:
                expect(s.connect_ex((Here.peer, number)), errno.ECONNREFUSED)
            expect(connecting(number), (None, errno.ECONNREFUSED))


@check
def a_listener_is_there_at_once_and_gone_at_once():
    expect(connecting(LATE), (None, errno.ECONNREFUSED))
    with dial(OPEN_LATE) as control:
        control.sendall(b"l")
        control.recv(1)
        time.sleep(0.05)
        with dial(LATE) as s:
            echoes(s)
        control.sendall(b"c")
        control.recv(1)
    time.sleep(0.05)
    expect(connecting(LATE), (None, errno.ECONNREFUSED))


@check
def datagrams_of_sockets_bound_to_the_vip():
    for server in (datagrams.ON_VIP, datagrams.ECHO):
        for host in (Here.own, Here.any):
            with datagrams.udp(2, host) as s:
                expect(datagrams.asked(s, server), (b"x", (Here.peer, server)))
            with datagrams.udp(2, host) as s:
                s.connect((Here.peer, server))
                s.send(b"y")
                expect(s.recv(10), b"y")
                expect(s.getsockname()[0], Here.own)


@check
def a_foreign_vip_cannot_be_bound():
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(Here.family, kind) as s:
            expect(errno_of(lambda: s.bind((Here.peer, 0))), errno.EADDRNOTAVAIL)


@check_v4
def a_datagram_says_which_address_it_was_sent_to():
    with datagrams.udp() as s:
        said, _ = datagrams.asked(s, datagrams.PKTINFO)
        expect(json.loads(said)[1], Here.peer)


@check_v4
def the_error_queue_names_the_peer():
    with datagrams.udp() as s:
        s.setsockopt(socket.IPPROTO_IP, datagrams.IP_RECVERR, 1)
        s.sendto(b"lost", (Here.peer, datagrams.CLOSED))
        expect(errno_of(lambda: s.recv(10)), errno.ECONNREFUSED)
        _, ancillary, _, whom = s.recvmsg(100, 200, socket.MSG_ERRQUEUE)
        expect(whom, (Here.peer, datagrams.CLOSED))
        origin = struct.unpack_from("=H2x4s", ancillary[0][2], 16)
        expect(socket.inet_ntoa(origin[1]), Here.peer)


@check
def a_port_that_is_not_allowed_is_denied():
    """By connect() itself, whether somebody listens or not; datagrams at once or by silence."""
    with dial(ECHO) as s:
        echoes(s)
    for number in (FORBIDDEN, FORBIDDEN + 1):
        with tcp() as s:
            expect(s.connect_ex((Here.peer, number)), errno.EACCES)
    with datagrams.udp(0.5) as s:
        refused = errno_of(lambda: (s.connect((Here.peer, FORBIDDEN)), s.send(b"x"), s.recv(10)))
        expect_one(refused, (errno.EACCES, errno.EPERM, None))
    with datagrams.udp() as s:
        expect(datagrams.asked(s, datagrams.ECHO), (b"x", (Here.peer, datagrams.ECHO)))
