"""Many datagrams: in one call, in a burst, as large as may be, beside a stream that fills the path."""

import errno
import os
import socket
import struct
import threading
import time

import many
from base import Here, check, check_v4, dial, errno_of, expect, expect_one, service
from connects import dissolve
from datagrams import ECHO, asked, udp

SOL_UDP, UDP_SEGMENT = 17, 103
IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2


@service()
def SINK(c, _):
    while c.recv(1 << 18):
        pass


@check_v4
def many_in_one_call():
    with udp() as s:
        for name in (None, (Here.peer, ECHO)):
            if name is None:
                s.connect((Here.peer, ECHO))
            else:
                dissolve(s)
            expect(many.send(s, [b"%d" % i for i in range(20)], name), 20)
            got = []
            while len(got) < 20:
                got += many.receive(s, 20 - len(got))
            expect(sorted(d for d, _ in got), sorted(b"%d" % i for i in range(20)))
            expect({whom for _, whom in got}, {(Here.peer, ECHO)})


@check
def segments_in_one_call():
    """UDP_SEGMENT, as QUIC libraries send: one call, many datagrams."""
    with udp() as s:
        s.connect((Here.peer, ECHO))
        data = os.urandom(10 * 1200)
        s.sendmsg([data], [(SOL_UDP, UDP_SEGMENT, struct.pack("H", 1200))])
        got = b"".join(s.recv(2000) for _ in range(10))
        expect(got == data, True)


@check
def a_burst_arrives_in_order():
    with udp() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        s.connect((Here.peer, ECHO))
        for i in range(100):
            s.send(struct.pack("I", i) + bytes(200))
        s.settimeout(0.5)
        seen = []
        try:
            while len(seen) < 100:
                seen.append(struct.unpack_from("I", s.recv(300))[0])
        except TimeoutError:
            pass
        expect(seen, sorted(set(seen)))
        if len(seen) < 90:
            raise AssertionError(f"only {len(seen)} of 100 came back")
        return f"{len(seen)} of 100"


@check_v4
def datagrams_that_must_not_be_fragmented():
    """What path MTU discovery lives on: delivered whole, or EMSGSIZE for the sender; never silence."""
    with udp() as s:
        s.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        s.connect((Here.peer, ECHO))
        told = []
        for size in (1200, 1472, 1473, 9000, 60_000):
            data = os.urandom(size)
            failed = errno_of(lambda: s.send(data))
            expect_one(failed, (0, errno.EMSGSIZE))
            if failed:
                expect(size > 1472, True)
                told.append(size)
            else:
                expect(s.recv(70_000) == data, True)
    return f"EMSGSIZE for {told}"


@check
def datagrams_beside_a_full_stream():
    """Bulk of the same two pods must not hold them up."""
    end = threading.Event()

    def fill():
        with dial(SINK) as c:
            while not end.is_set():
                c.sendall(bytes(1 << 18))

    t = threading.Thread(target=fill)
    t.start()
    took, lost = [], 0
    try:
        time.sleep(0.3)
        with udp(0.5) as s:
            for i in range(100):
                start = time.monotonic()
                try:
                    asked(s, ECHO, struct.pack("I", i))
                    took.append(time.monotonic() - start)
                except TimeoutError:
                    lost += 1
                time.sleep(0.01)
    finally:
        end.set()
        t.join()
    if lost > 2:
        raise AssertionError(f"{lost} of 100 lost")
    took.sort()
    half, longest = took[len(took) // 2] * 1e3, took[-1] * 1e3
    if half > 50:
        raise AssertionError(f"half took {half:.0f} ms or more")
    return f"{lost} lost, p50 {half:.1f} ms, longest {longest:.0f} ms"
