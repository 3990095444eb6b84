"""Load that knows what it should get: `serve PORT` in one pod, `run HOST PORT STOP KIND:N…` in another.

Says, with the time in front: `KIND N AT bytes` each second, `KIND N GAP seconds` when something came
after a pause, `KIND N BROKEN why` at a flow's end, `KIND N WRONG …` when bytes are not the ones that were
sent. When the file STOP appears, flows finish what they have begun and all is said with `END`.

| kind | what it does |
|---|---|
| ping | one message to and fro every 20 ms on one connection |
| stream | 2 MB/s to the server and back, pipelined |
| up, down | 2 MB/s one way |
| idle | nothing, then one message at the end |
| connect | a new connection at a time, each with one message to and fro; a pause |
| rush | the same without the pause |
| udp, icmp | a datagram to and fro every 50 ms |
"""

import errno
import os
import socket
import struct
import sys
import threading
import time

SIZE = 65_521  # a prime: no loss or doubling of whole blocks goes unseen
PATTERN = b"".join(struct.pack("I", (i * 2654435761) & 0xFFFFFFFF) for i in range(SIZE // 4 + 1))[:SIZE]
TWICE = PATTERN * 2
PIECE = 64_000
PAUSE = 0.032
NOTICEABLE = 0.3

stopped = threading.Event()
lines = threading.Lock()


def piece(offset, size):
    start = offset % SIZE
    return TWICE[start:start + min(size, SIZE)]


def serve(number):
    u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    u.bind(("0.0.0.0", number))

    def datagrams():
        while True:
            data, whom = u.recvfrom(2048)
            u.sendto(data, whom)

    threading.Thread(target=datagrams, daemon=True).start()
    s = socket.create_server(("0.0.0.0", number), backlog=4096)
    print("serving", flush=True)
    while True:
        threading.Thread(target=answer, args=(s.accept()[0],), daemon=True).start()


def answer(c):
    with c:
        try:
            {b"e": echo, b"u": take, b"d": give}[c.recv(1)](c)
        except (OSError, KeyError) as e:
            print(f"{time.time():.3f} server {e!r}", flush=True)


def echo(c):
    while part := c.recv(1 << 16):
        c.sendall(part)


def take(c):
    """Checks what comes and says after each part how much that was; 0 for a wrong byte."""
    got = 0
    while part := c.recv(PIECE):
        right = part == piece(got, len(part))
        got += len(part)
        c.sendall(struct.pack("Q", got if right else 0))


def give(c):
    sent = 0
    c.settimeout(PAUSE)
    while True:
        try:
            if c.recv(1) == b"":
                c.settimeout(None)
                return c.sendall(struct.pack("Q", sent))  # the total, where the pattern stops
        except TimeoutError:
            c.settimeout(None)
            c.sendall(piece(sent, PIECE))
            sent += PIECE
            c.settimeout(PAUSE)


class Flow:
    def __init__(self, kind, n):
        self.kind, self.n, self.bytes, self.last, self.told = kind, n, 0, time.time(), time.time()

    def say(self, what):
        with lines:
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
            globals()[self.kind](self)
            self.say("END")
        except (OSError, EOFError, ValueError) as e:
            self.say(f"BROKEN {name(e)}")


def name(e):
    return errno.errorcode.get(getattr(e, "errno", None), repr(e))


def dial(how):
    s = socket.create_connection((HOST, PORT), 35)
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
    while not stopped.wait(0.02):
        to_and_fro(flow, s, i)
        i += 1
    finish(flow, s)


def idle(flow):
    s = dial(b"e")
    to_and_fro(flow, s, 1)
    stopped.wait()
    flow.last = time.time()
    to_and_fro(flow, s, 2)
    finish(flow, s)


def writing(flow, s):
    """Another thread's work: the reader must not wait for it. Afterwards `written` says how it went."""
    flow.failed = None

    def write():
        sent = 0
        try:
            while not stopped.wait(PAUSE):
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


def down(flow):
    s = dial(b"d")
    held = b""
    asked = False
    while part := s.recv(PIECE):
        held += part
        ready = len(held) - 8  # the last eight may be the total
        if ready > 0:
            if held[:ready] != piece(flow.bytes, ready):
                flow.wrong(f"from the server at {flow.bytes}")
            flow.moved(ready)
            held = held[ready:]
        if stopped.is_set() and not asked:
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
    while not stopped.wait(pause):
        start = time.time()
        try:
            with socket.create_connection((HOST, PORT), 60) as s:
                s.sendall(b"e")
                flow.last = time.time()
                to_and_fro(flow, s, i)
            what = "ok"
        except (OSError, EOFError) as e:
            what = name(e)
        if what != "ok" or time.time() - start > NOTICEABLE:
            flow.say(f"TRIED {what} {time.time() - start:.3f}")
        i += 1


def udp(flow):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect((HOST, PORT))
    asking(flow, s, lambda i: struct.pack("Q", i), lambda got: got)


def icmp(flow):
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    s.connect((socket.gethostbyname(HOST), 0))
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
    while not stopped.wait(0.05):
        i += 1
        try:
            s.send(request(i))
            while answered(s.recv(2048)) != request(i):
                pass  # a late one
            flow.moved(1)
        except OSError:
            pass


def run(stop, kinds):
    all_of_them = []
    for kind, _, n in (k.partition(":") for k in kinds):
        for i in range(int(n or 1)):
            flow = Flow(kind, i)
            all_of_them.append(threading.Thread(target=flow.run))
    for t in all_of_them:
        t.start()
    print("running", flush=True)
    while not os.path.exists(stop):
        time.sleep(0.1)
    stopped.set()
    for t in all_of_them:
        t.join(20)
    print("finished" if not any(t.is_alive() for t in all_of_them) else "STUCK", flush=True)
    os._exit(0)


if sys.argv[1] == "serve":
    serve(int(sys.argv[2]))
HOST, PORT = sys.argv[2], int(sys.argv[3])
run(sys.argv[4], sys.argv[5:])
