"""The serving half."""

import select
import socket
import struct
import threading
import time

from pattern import PAUSE, PIECE, piece


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
            {b"e": echo, b"u": take, b"d": give, b"g": gush}[c.recv(1)](c)
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


def gush(c):
    sent = 0
    while not select.select([c], [], [], 0)[0]:
        c.sendall(piece(sent, PIECE))
        sent += PIECE
    if c.recv(1) == b"":
        c.sendall(struct.pack("Q", sent))
