"""Thousands of connections that stay open.

`serve MOST [PORT]` echoes on so many, of the listener that is its stdin or of one that it makes. `hold HOST PORT N` opens
so many, every one proved by an echo, and then obeys lines: `echo EVERY`, `open N`, `close N`, `refused N`. Both say what
they have done.
"""

import select
import socket
import struct
import sys

# So many are opened before they are proved: the accept loop at the other end must keep up.
BATCH = 128


def say(*words):
    print(*words, flush=True)


def serve(most, port=None):
    if port is None:
        listener = socket.socket(fileno=0)
    else:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("0.0.0.0", int(port)))
        listener.listen(4096)
    listener.setblocking(False)
    poll, held = select.epoll(), {}
    poll.register(listener, select.EPOLLIN)
    say("serving")
    accepted = 0
    while True:
        for fd, _ in poll.poll():
            if fd == listener.fileno():
                accepted += accept(listener, poll, held, most - accepted)
                if accepted == most:
                    poll.unregister(listener)
            else:
                echo(fd, poll, held)


def accept(listener, poll, held, most):
    for n in range(min(most, BATCH)):
        try:
            s, _ = listener.accept()
        except BlockingIOError:
            return n
        s.setblocking(True)
        held[s.fileno()] = s
        poll.register(s, select.EPOLLIN)
    return min(most, BATCH)


def echo(fd, poll, held):
    try:
        data = held[fd].recv(64)
    except ConnectionError:
        data = b""
    if data:
        held[fd].sendall(data)
    else:
        poll.unregister(fd)
        held.pop(fd).close()


class Holder:
    def __init__(self, host, port):
        self.to, self.held, self.sent = (host, int(port)), [], 0

    def ask(self, s):
        self.sent += 1
        s.sendall(struct.pack("!Q", self.sent))
        return s, self.sent

    def prove(self, asked):
        for s, number in asked:
            got = struct.unpack("!Q", s.recv(8, socket.MSG_WAITALL))
            assert got == (number,), (got, number)

    def open(self, count):
        for _ in range(0, count, BATCH):
            batch = []
            for _ in range(min(BATCH, count)):
                s = socket.create_connection(self.to, 30)
                self.held.append(s)
                batch.append(self.ask(s))
            count -= len(batch)
            self.prove(batch)

    def echo(self, every):
        sample = self.held[::every]
        for start in range(0, len(sample), BATCH):
            self.prove([self.ask(s) for s in sample[start : start + BATCH]])

    def close(self, count):
        for s in self.held[:count]:
            s.close()
        del self.held[:count]

    def refused(self, count):
        for _ in range(count):
            # The reset may come before connect() itself has returned, which then says it.
            try:
                with socket.create_connection(self.to, 30) as s:
                    self.prove([self.ask(s)])
            except ConnectionError:
                continue
            except struct.error:
                pass
            raise SystemExit("one more than allowed was not reset")


def hold(host, port, count):
    holder = Holder(host, port)
    holder.open(int(count))
    say("held", len(holder.held))
    for line in sys.stdin:
        word, number = line.split()
        getattr(holder, word)(int(number))
        say("done", word, number, len(holder.held))


if sys.argv[1] == "serve":
    serve(int(sys.argv[2]), *sys.argv[3:])
else:
    hold(*sys.argv[2:])
