"""Addresses and names: what each end sees of itself and of the other, bound or not."""

import errno
import fcntl
import json
import os
import socket
import struct
import time

from base import ECHO, Here, check, check_v4, dial, echoes, end, expect, linger0, listen, needs_hooks, read_all, service, tcp, where


def say_names(c, peer):
    c.sendall(json.dumps([peer[:2], c.getpeername()[:2], c.getsockname()[:2]]).encode())


NAMES = service()(say_names)
DUAL_NAMES = service(host="::", family=socket.AF_INET6)(say_names)


@service()
def INHERITED(c, _):
    """A child that inherits the socket sees the same names."""
    if os.fork() == 0:
        copy = socket.socket(fileno=os.dup(c.fileno()))
        copy.sendall(json.dumps([copy.getpeername(), copy.getpeername(), copy.getsockname()]).encode())
        os._exit(0)
    os.wait()


def same_names(mine, theirs, seen, relayed=None):
    """Addresses as they are; the relay chooses the source's port anew at the far end."""
    seen = [where(n) for n in seen]
    expect([a for a, _ in seen[:2]], [mine[0]] * 2)
    expect(seen[2], where(theirs))
    if not (Here.relayed if relayed is None else relayed):
        expect(seen[0], where(mine))


@check
def names_on_both_ends():
    for number in (NAMES, DUAL_NAMES, INHERITED):
        with dial(number) as s:
            mine, theirs = s.getsockname(), s.getpeername()
            expect(mine[0], Here.own)
            expect(where(theirs), (Here.peer, number))
            same_names(mine, theirs, json.loads(read_all(s)))


@check
def names_stay_after_the_end():
    """What a program logs when a connection breaks."""
    with dial(ECHO) as s:
        before = s.getsockname(), s.getpeername()
        s.sendall(b"x")
        s.recv(1)
        expect((s.getsockname(), s.getpeername()), before)
        s.shutdown(socket.SHUT_WR)
        read_all(s)
        expect(s.getsockname(), before[0])
        try:
            expect(s.getpeername(), before[1])
        except OSError as e:
            expect(e.errno, errno.ENOTCONN)


@check_v4
def v4_mapped_socket():
    with socket.socket(socket.AF_INET6) as s:
        s.settimeout(5)
        s.connect(("::ffff:" + Here.peer, NAMES))
        expect(s.getpeername()[:2], ("::ffff:" + Here.peer, NAMES))
        expect(s.getsockname()[0], "::ffff:" + Here.own)
        expect(json.loads(read_all(s))[0][0], Here.own)


@check
def source_bound_to_own_vip():
    with tcp() as s:
        s.bind((Here.own, 0))
        s.connect((Here.peer, NAMES))
        mine = s.getsockname()
        expect(mine[0], Here.own)
        same_names(mine, (Here.peer, NAMES), json.loads(read_all(s)), relayed=True)


@check
def source_bound_to_a_port():
    """With and without the VIP, twice in a row, and one port to two servers at once."""
    for host in (Here.own, ""):
        for _ in range(2):
            with tcp() as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                s.bind((host, 12454))
                s.connect((Here.peer, NAMES))
                expect(where(s.getsockname()), (Here.own, 12454))
                same_names((Here.own, 12454), (Here.peer, NAMES), json.loads(read_all(s)), relayed=True)
                linger0(s)
            time.sleep(0.1)
    both = []
    for number in (ECHO, NAMES):
        s = tcp()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        s.bind((Here.own, 12455))
        s.connect((Here.peer, number))
        both.append(s)
    expect(json.loads(read_all(both[1]))[0][0], Here.own)
    echoes(both[0])
    for s in both:
        linger0(s)
        s.close()


@check_v4
def source_bound_late():
    """IP_BIND_ADDRESS_NO_PORT, as nginx and curl use it."""
    with tcp() as s:
        s.setsockopt(socket.IPPROTO_IP, 24, 1)
        s.bind((Here.own, 0))
        s.connect((Here.peer, NAMES))
        expect(s.getsockname()[0], Here.own)
        expect(json.loads(read_all(s))[0][0], Here.own)


@check_v4
def the_interface_rl0_carries_the_vip():
    expect("rl0" in [name for _, name in socket.if_nameindex()], True)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        got = fcntl.ioctl(s, 0x8915, struct.pack("256s", b"rl0"))  # SIOCGIFADDR
        expect(socket.inet_ntoa(got[20:24]), Here.own)
        flags = struct.unpack("16sh", fcntl.ioctl(s, 0x8913, struct.pack("18s", b"rl0"))[:18])[1]
        expect(flags & 0x41, 0x41)  # IFF_UP, IFF_RUNNING: what frameworks ask before they use one


@check
@needs_hooks("client")
def bound_to_the_interface_rl0():
    """SO_BINDTODEVICE, as NCCL and `curl --interface` do."""
    with tcp() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"rl0\0")
        s.connect((Here.peer, NAMES))
        expect(s.getsockname()[0], Here.own)
        expect(json.loads(read_all(s))[0][0], Here.own)


@check
def own_vip():
    number = port_of_ours()
    s = listen(number, say_names)
    with socket.create_connection((Here.own, number), 5) as c:
        expect(where(c.getpeername()), (Here.own, number))
        expect(json.loads(read_all(c))[0][0], Here.own)
    end(s)
    v = listen(port_of_ours(), say_names, Here.own)
    with socket.create_connection(where(v.getsockname()), 5) as c:
        expect(json.loads(read_all(c))[0][0], Here.own)
    gone = where(v.getsockname())
    end(v)
    for host, number in (gone, (Here.own, port_of_ours())):
        try:
            socket.create_connection((host, number), 5)
            raise AssertionError("own closed port connected")
        except ConnectionRefusedError:
            pass


@check
def own_vip_by_udp():
    with socket.socket(Here.family, socket.SOCK_DGRAM) as s, socket.socket(Here.family, socket.SOCK_DGRAM) as c:
        s.bind((Here.any, 0))
        s.settimeout(3)
        c.settimeout(3)
        c.sendto(b"x", (Here.own, s.getsockname()[1]))
        data, whom = s.recvfrom(10)
        expect((data, whom[0]), (b"x", Here.own))
        s.sendto(b"y", whom)
        data, whom = c.recvfrom(10)
        expect((data, where(whom)), (b"y", (Here.own, s.getsockname()[1])))


@check
def loopback_is_left_alone():
    number = port_of_ours()
    s = listen(number, say_names, "127.0.0.1", socket.AF_INET)
    with socket.create_connection(("127.0.0.1", number), 5) as c:
        expect(c.getpeername()[0], "127.0.0.1")
        expect(json.loads(read_all(c))[0][0], "127.0.0.1")
    end(s)


@check
def names_resolve():
    """Own and peer's, short and full, by the system's resolver; connecting by name works."""
    peer, own = (Here.peer_names, Here.peer, Here.peer_all), (Here.own_names, Here.own, Here.own_all)
    for names, address, all_addresses in (peer, own):
        expect(len(names), 2)
        for name in names:
            got = socket.getaddrinfo(name, ECHO, Here.family, socket.SOCK_STREAM)
            expect([where(a[4]) for a in got], [(address, ECHO)])
            every = {a[4][0] for a in socket.getaddrinfo(name, ECHO, type=socket.SOCK_STREAM)}
            expect(every, set(all_addresses))
        expect(socket.gethostbyaddr(address)[0] in names, True)
    for name in Here.peer_names:
        with socket.create_connection((name, ECHO), 5) as s:
            echoes(s)


@check
def host_names_are_those_that_peers_reach():
    """What programs tell others of themselves: `hostname -i`, `getLocalHost()`, `getfqdn()`."""
    own, peer = socket.gethostname(), Here.peer_names[0].split(".")[0]
    for name, addresses in ((own, Here.own_all), (peer, Here.peer_all)):
        expect({a[4][0] for a in socket.getaddrinfo(name, ECHO, type=socket.SOCK_STREAM)}, set(addresses))
    expect(socket.getfqdn() in Here.own_names, True)
    expect(own, Here.own_names[0].split(".")[0])


def port_of_ours():
    """One in the checking pod, which serves nothing at these."""
    port_of_ours.last += 1
    return port_of_ours.last


port_of_ours.last = 9700
