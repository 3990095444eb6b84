"""ICMP echo: answered by the peer, and by nobody else."""

import os
import socket
import struct
import time

from base import Here, check, expect, expect_one, kind


@check
def echo_requests():
    """ping: from the peer, with the same bytes; nobody answers for an address that no pod has."""
    first = ping(Here.peer, 2)
    expect(first is not None, True)
    best = min(ping(Here.peer, 2) for _ in range(5))
    expect(ping(Here.own, 2) is not None, True)
    expect(ping(Here.nobody, 0.5), None)
    return f"{best * 1e6:.0f} us"


def ping(host, timeout):
    """The round trip in seconds, `None` without an answer."""
    six = Here.family == socket.AF_INET6
    with socket.socket(Here.family, socket.SOCK_RAW, socket.IPPROTO_ICMPV6 if six else socket.IPPROTO_ICMP) as s:
        ident, data = os.urandom(4), os.urandom(56)
        packet = ident + data
        total = 0x0800 + sum(struct.unpack(f"!{len(packet) // 2}H", packet))
        total = (total >> 16) + (total & 0xFFFF)
        # The kernel sums up an ICMPv6 packet by itself.
        packet = struct.pack("!BBH", 128 if six else 8, 0, ~(total + (total >> 16)) & 0xFFFF) + packet
        start = time.monotonic()
        try:
            s.sendto(packet, (host, 0))
        except OSError as e:
            expect_one(kind(e), ("EHOSTUNREACH", "ENETUNREACH", "EACCES", "EPERM"))
            return None
        while (left := start + timeout - time.monotonic()) > 0:
            s.settimeout(left)
            try:
                got, whom = s.recvfrom(200)
            except TimeoutError:
                return None
            got = got if six else got[20:]
            if whom[0] == host and got[0] == (129 if six else 0) and got[4:8] == ident:
                expect(got[8:], data)
                return time.monotonic() - start
        return None
