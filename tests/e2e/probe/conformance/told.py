"""Ports that one end opens and tells the other, who connects at once: FTP's passive mode, callbacks, rendezvous."""

import errno
import socket
import struct
import threading

from base import Here, background, check, dial, echoes, expect, needs_hooks, port, read, service, tcp
from refusal import echo

TIMES = 100
BY_DATAGRAM = port()


def opened():
    """A listener at a port that nobody knows, for one connection; and the port, as it is told."""
    s = socket.create_server((Here.any, 0), family=Here.family)
    threading.Thread(target=serve, args=(s,), daemon=True).start()
    return struct.pack("!H", s.getsockname()[1])


def serve(s):
    with s:
        s.settimeout(5)
        try:
            with s.accept()[0] as c:
                echo(c, None)
        except OSError:
            pass


def told(number):
    return struct.unpack("!H", number)[0]


@service()
def PASSIVE(c, _):
    while c.recv(1):
        c.sendall(opened())


@service()
def BEHIND_BULK(c, _):
    """The number comes at the end of a megabyte, on whichever lane that is."""
    while c.recv(1):
        c.sendall(bytes(1 << 20))
        c.sendall(opened())


@service()
def CALLBACK(c, peer):
    while number := c.recv(2):
        with socket.create_connection((peer[0], told(number)), 5) as s:
            echoes(s)
        c.sendall(b"!")


@service()
def CLOSING(c, _):
    """Opens a port and says so, closes it and says so."""
    while c.recv(1):
        with socket.create_server((Here.any, 0), family=Here.family) as s:
            c.sendall(struct.pack("!H", s.getsockname()[1]))
            c.recv(1)
        c.sendall(b"!")


@background
def by_datagram(_):
    s = socket.socket(Here.family, socket.SOCK_DGRAM)
    s.bind((Here.any, BY_DATAGRAM))
    threading.Thread(target=answer, args=(s,), daemon=True).start()


def answer(s):
    while True:
        _, peer = s.recvfrom(16)
        s.sendto(opened(), peer)


@check
def a_port_is_open_as_soon_as_it_is_told():
    with dial(PASSIVE) as control:
        for _ in range(TIMES):
            control.sendall(b"?")
            with dial(told(read(control, 2))) as s:
                echoes(s)


@check
def a_port_that_is_told_at_the_end_of_bulk():
    with dial(BEHIND_BULK, 20) as control:
        for _ in range(12):
            control.sendall(b"?")
            with dial(told(read(control, (1 << 20) + 2)[-2:])) as s:
                echoes(s)


@check
def a_port_that_is_told_by_datagram():
    with socket.socket(Here.family, socket.SOCK_DGRAM) as u:
        u.settimeout(5)
        u.connect((Here.peer, BY_DATAGRAM))
        for _ in range(TIMES):
            u.send(b"?")
            with dial(told(u.recv(2))) as s:
                echoes(s)


@check
@needs_hooks("server")
def a_port_is_closed_as_soon_as_that_is_told():
    with dial(CLOSING) as control:
        for _ in range(TIMES):
            control.sendall(b"?")
            number = told(read(control, 2))
            control.sendall(b"?")
            read(control, 1)
            with tcp() as s:
                expect(s.connect_ex((Here.peer, number)), errno.ECONNREFUSED)


@check
def a_callback_at_once():
    with dial(CALLBACK) as control:
        for _ in range(TIMES):
            control.sendall(opened())
            read(control, 1)
