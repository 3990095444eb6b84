"""What services and checks share: two registers, where the pods are, and small helpers.

The serving and the checking process import the same modules in the same order, so that they agree on
the ports without a word.
"""

import errno
import os
import resource
import socket
import struct
import threading
import time

SERVICES = []  # (port, handler, how it listens)
BACKGROUND = []
CHECKS = []
VERDICTS = {}


class Here:
    """Filled in by the command line and the environment."""

    peer = own = ""
    family = socket.AF_INET
    any = "0.0.0.0"
    nobody = ""  # of the Domain, but no pod's
    relayed = os.environ.get("RELAYED") == "1"
    # On whose machines there are no cgroup hooks: "client", "server".
    no_hooks = os.environ.get("NO_HOOKS", "").split()
    mib = int(os.environ.get("MIB", "64"))
    short = int(os.environ.get("SHORT", "10000"))
    peer_names = os.environ.get("PEER_NAMES", "").split()
    peer_all = os.environ.get("PEER_ADDRESSES", "").split()
    own_all = os.environ.get("OWN_ADDRESSES", "").split()
    own_names = os.environ.get("OWN_NAMES", "").split()
    go = os.environ["GO_PROGRAM"]  # of ../go, built


_last = 9000


def meet(peer, own):
    """Says between whom: the family of all sockets follows."""
    Here.peer, Here.own = peer, own
    if ":" in own:
        Here.family, Here.any = socket.AF_INET6, "::"
        Here.nobody = own.rsplit(":", 1)[0] + ":f199"
    else:
        Here.nobody = own.rsplit(".", 1)[0] + ".199"


def port():
    """One that is no other's."""
    global _last
    _last += 1
    return _last


def service(**how):
    """Registers `handler(connection, peer)`; the name then stands for its port."""

    def register(handler):
        number = port()
        SERVICES.append((number, handler, how))
        return number

    return register


def background(f):
    """Runs `f(own VIP)` on a thread of the serving process; `f` says it is ready by returning or `yield`."""
    BACKGROUND.append(f)
    return f


def check(f):
    CHECKS.append((f.__name__, f))
    return f


def check_v4(f):
    """Of something that IPv6 does not have, or has another way."""
    f.v4 = True
    return check(f)


def needs_hooks(*whose):
    """Of something that a machine without hooks cannot do."""

    def mark(f):
        f.needs_hooks = whose
        return f

    return mark


def unreachable():
    """What connect() to nobody's address is: where no hook says it, a reset does."""
    return errno.ECONNREFUSED if "client" in Here.no_hooks else errno.EHOSTUNREACH


def listen(number, handler, host=None, family=None, backlog=4096, share=False, only6=False,
           protocol=0, before=None):
    family = family or Here.family
    s = socket.socket(family, socket.SOCK_STREAM, protocol)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if share:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == socket.AF_INET6:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(only6))
    if before:
        before(s)
    s.bind((host or Here.any, number))
    s.listen(backlog)
    threading.Thread(target=accept, args=(s, handler), daemon=True).start()
    return s


def end(listener):
    """Closing alone would leave the thread that waits in accept() with it."""
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def accept(s, handler):
    while True:
        try:
            c, peer = s.accept()
        except OSError:
            return
        threading.Thread(target=serve_one, args=(handler, c, peer), daemon=True).start()


def serve_one(handler, c, peer):
    with c:
        try:
            handler(c, peer)
        except OSError:
            pass


def tcp(timeout=5.0, protocol=0):
    s = socket.socket(Here.family, socket.SOCK_STREAM, protocol)
    s.settimeout(timeout)
    return s


def where(name):
    """Address and port, whatever the family says besides."""
    return name[0].removeprefix("::ffff:"), name[1]


def linger0(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def files():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))


def read_all(s):
    out = bytearray()
    while part := s.recv(1 << 16):
        out += part
    return bytes(out)


def read(s, size):
    out = bytearray()
    while len(out) < size:
        part = s.recv(size - len(out))
        if not part:
            raise EOFError(f"the end after {len(out)} of {size} bytes")
        out += part
    return bytes(out)


def dial(number, timeout=5.0):
    return socket.create_connection((Here.peer, number), timeout)


def echoes(s, data=b"x"):
    """Whether the connection answers; closes it by both ends' FIN."""
    s.sendall(data)
    s.shutdown(socket.SHUT_WR)
    expect(read_all(s), data)


def expect(got, want):
    if got != want:
        raise AssertionError(f"{got!r}, expected {want!r}")


def expect_one(got, of):
    if got not in of:
        raise AssertionError(f"{got!r}, expected one of {of}")


def errno_of(f):
    try:
        f()
        return 0
    except OSError as e:
        return e.errno


def kind(e):
    return errno.errorcode.get(e.errno, str(e) or type(e).__name__)


def within(seconds, what, probe):
    """Waits for a true answer of `probe`."""
    end = time.monotonic() + seconds
    while True:
        if got := probe():
            return got
        if time.monotonic() > end:
            raise AssertionError(f"no {what} within {seconds} s")
        time.sleep(0.01)


@service()
def ECHO(c, _):
    while part := c.recv(1 << 16):
        c.sendall(part)
    c.shutdown(socket.SHUT_WR)


@service()
def ASK(c, _):
    """What another service found out about the connection that sent this token."""
    token = c.recv(8)
    end = time.monotonic() + 5
    while token not in VERDICTS and time.monotonic() < end:
        time.sleep(0.01)
    c.sendall(VERDICTS.get(token, "nothing").encode())


def told(token):
    with dial(ASK, 8) as s:
        s.sendall(token)
        return read_all(s).decode()


def token():
    return os.urandom(8)
