"""A steady ping-pong on one connection, one line a second or at each event; never gives up by itself.

`serve PORT` echoes. `ping HOST PORT` connects, sends 8 bytes every 20 ms and wants them back within
2 s; after a failure it says so and connects anew.
"""

import socket
import sys
import threading
import time


def serve(port):
    s = socket.create_server(("0.0.0.0", port), backlog=128)

    def one(c):
        try:
            while part := c.recv(65536):
                c.sendall(part)
        except OSError:
            pass
        c.close()

    print("serving", flush=True)
    while True:
        threading.Thread(target=one, args=(s.accept()[0],), daemon=True).start()


def say(what):
    print(f"{time.time():.3f} {what}", flush=True)


def ping(host, port, patience):
    n = 0
    while True:
        try:
            with socket.create_connection((host, port), patience) as s:
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                say(f"CONNECTED {s.getsockname()[0]} {s.getpeername()[0]}")
                while True:
                    sent = n.to_bytes(8, "big")
                    s.sendall(sent)
                    got = b""
                    while len(got) < 8:
                        part = s.recv(8 - len(got))
                        if not part:
                            raise EOFError("end")
                        got += part
                    if got != sent:
                        say("WRONG")
                        sys.exit(1)
                    n += 1
                    if n % 25 == 0:
                        say(f"PONG {n}")
                    time.sleep(0.02)
        except (OSError, EOFError) as e:
            say(f"BROKEN {type(e).__name__} {e}")
            time.sleep(0.05)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    ping(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]) if len(sys.argv) > 4 else 2.0)
