"""Flows of each kind; see the table of `__main__`."""

import errno
import os
import socket
import struct
import threading
import time

from pattern import PAUSE, PIECE, piece

NOTICEABLE = 0.3
STOPPED = threading.Event()
LINES = threading.Lock()


class Flow:
    host, port = "", 0

    def __init__(self, kind, n):
        self.kind, self.n, self.bytes, self.last, self.told = kind, n, 0, time.time(), time.time()

    def say(self, what):
        with LINES:
            print(f"{time.time():.3f} {self.kind} {self.n} {what}", flush=True)

    def moved(self, size):
        now = time.time()
        if now - self.last > NOTICEABLE:
            self.say(f"GAP {now - self.last:.3f}")
        self.bytes, self.last = self.bytes + size, now
        if now - self.told > 1:
            self.told = now
            self.say(f"AT {self.bytes}")

    def wrong(self, what):
        self.say(f"WRONG {what}")
        raise ValueError(what)

    def run(self):
        try:
            KINDS[self.kind](self)
            self.say("END")
        except (OSError, EOFError, ValueError) as e:
            self.say(f"BROKEN {name(e)}")


def name(e):
    return errno.errorcode.get(getattr(e, "errno", None), repr(e))


def dial(how):
    s = socket.create_connection((Flow.host, Flow.port), 35)
    s.settimeout(None)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s.sendall(how)
    return s


def exactly(s, size):
    got = b""
    while len(got) < size:
        part = s.recv(size - len(got))
        if not part:
            raise EOFError("end")
        got += part
    return got


def to_and_fro(flow, s, i):
    sent = struct.pack("QQ", i, i * 7)
    s.sendall(sent)
    if (got := exactly(s, 16)) != sent:
        flow.wrong(f"{got} instead of {sent}")
    flow.moved(16)


def finish(flow, s):
    s.shutdown(socket.SHUT_WR)
    if rest := s.recv(1):
        flow.wrong(f"{rest} after all was said")
    s.close()


def ping(flow):
    s = dial(b"e")
    i = 0
    while not STOPPED.wait(0.02):
        to_and_fro(flow, s, i)
        i += 1
    finish(flow, s)


def idle(flow):
    s = dial(b"e")
    to_and_fro(flow, s, 1)
    STOPPED.wait()
    flow.last = time.time()
    to_and_fro(flow, s, 2)
    finish(flow, s)


def writing(flow, s):
    """Another thread's work: the reader must not wait for it. Afterwards `written` says how it went."""
    flow.failed = None

    def write():
        sent = 0
        try:
            while not STOPPED.wait(PAUSE):
                s.sendall(piece(sent, PIECE))
                sent += PIECE
            s.shutdown(socket.SHUT_WR)
        except OSError as e:
            flow.failed = e
        flow.sent = sent

    flow.writer = threading.Thread(target=write)
    flow.writer.start()


def written(flow):
    """A reset is told once: who wrote may have heard of it, and the reader of an end only."""
    flow.writer.join()
    if flow.failed:
        raise flow.failed
    if flow.sent != flow.bytes:
        flow.wrong(f"{flow.bytes} of {flow.sent}")


def stream(flow):
    s = dial(b"e")
    writing(flow, s)
    while part := s.recv(PIECE):
        if part != piece(flow.bytes, len(part)):
            flow.wrong(f"echo at {flow.bytes}")
        flow.moved(len(part))
    written(flow)


def up(flow):
    s = dial(b"u")
    writing(flow, s)
    while head := s.recv(8, socket.MSG_WAITALL):
        total = struct.unpack("Q", head.ljust(8, b"\xff"))[0]
        if total <= flow.bytes:
            flow.wrong(f"the server got something else after {flow.bytes}")
        flow.moved(total - flow.bytes)
    written(flow)


def slow(flow):
    down(flow, b"g", 1 << 14, 0.05)


def down(flow, how=b"d", size=PIECE, pause=0.0):
    s = dial(how)
    held = b""
    asked = False
    while part := s.recv(size):
        held += part
        if not asked:
            time.sleep(pause)
        ready = len(held) - 8  # the last eight may be the total
        if ready > 0:
            if held[:ready] != piece(flow.bytes, ready):
                flow.wrong(f"from the server at {flow.bytes}")
            flow.moved(ready)
            held = held[ready:]
        if STOPPED.is_set() and not asked:
            asked = True
            s.shutdown(socket.SHUT_WR)
    if not asked:
        raise EOFError("end")
    if len(held) != 8 or struct.unpack("Q", held)[0] != flow.bytes:
        flow.wrong(f"{flow.bytes} came, {held} was the total")


def rush(flow):
    connect(flow, 0)


def connect(flow, pause=0.05):
    i = 0
    while not STOPPED.wait(pause):
        start = time.time()
        try:
            with socket.create_connection((Flow.host, Flow.port), 60) as s:
                s.sendall(b"e")
                flow.last = time.time()
                to_and_fro(flow, s, i)
            what = "ok"
        except (OSError, EOFError) as e:
            what = name(e)
        if what != "ok" or time.time() - start > NOTICEABLE:
            flow.say(f"TRIED {what} {time.time() - start:.3f}")
        i += 1


def denied(flow):
    refusing(flow, socket.gethostbyname(Flow.host).rpartition(".")[0] + ".254", errno.EHOSTUNREACH)


def refused(flow):
    refusing(flow, Flow.host, errno.ECONNREFUSED)


def refusing(flow, host, why):
    address = (socket.gethostbyname(host), 9)
    while not STOPPED.wait(0.001):
        with socket.socket() as s:
            s.settimeout(5)
            if (got := s.connect_ex(address)) != why:
                flow.wrong(f"{errno.errorcode.get(got, got)} instead of {errno.errorcode[why]}")
        flow.moved(1)


def udp(flow):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect((Flow.host, Flow.port))
    asking(flow, s, lambda i: struct.pack("Q", i), lambda got: got)


def icmp(flow):
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    s.connect((socket.gethostbyname(Flow.host), 0))
    ident = os.getpid() & 0xFFFF

    def request(i):
        body = struct.pack("!HHQ", ident, i & 0xFFFF, i)
        total = 0x0800 + sum(struct.unpack("!6H", body))
        total = (total >> 16) + (total & 0xFFFF)
        return struct.pack("!BBH", 8, 0, ~(total + (total >> 16)) & 0xFFFF) + body

    asking(flow, s, request, lambda got: b"\x08\0" + request_sum(got[20:]) if got[20] == 0 else b"")


def request_sum(reply):
    """The reply as the request that it answers: only type and sum differ."""
    total = struct.unpack("!H", reply[2:4])[0]
    total = (~total & 0xFFFF) + 0x0800
    total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!H", ~total & 0xFFFF) + reply[4:]


def asking(flow, s, request, answered):
    s.settimeout(0.25)
    i = 0
    while not STOPPED.wait(0.05):
        i += 1
        try:
            s.send(request(i))
            while answered(s.recv(2048)) != request(i):
                pass  # a late one
            flow.moved(1)
        except OSError:
            pass


KINDS = {f.__name__: f for f in (ping, idle, stream, up, down, slow, connect, rush, denied, refused, udp, icmp)}
