"""What TCP promises, checked between two pods: `serve` in one, `check PEER-VIP OWN-VIP` in the other.

Every check is one line: `ok NAME [figures]` or `FAIL NAME: why`. Standard library only.
"""

import errno
import hashlib
import json
import os
import resource
import select
import socket
import struct
import sys
import threading
import time

ECHO, FIRST, RESET, WATCH, ASK, NAMES, BOTH, ON_VIP, LOOPBACK, LATE = range(9001, 9011)
HALF, SHARED, DUAL, URGENT, HOLD, CLOSED = range(9011, 9017)
VERDICTS = {}
LATER = threading.Event()


def linger0(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def read_all(s):
    out = bytearray()
    while True:
        part = s.recv(1 << 16)
        if not part:
            return bytes(out)
        out += part


def echo(c, _):
    while True:
        part = c.recv(1 << 16)
        if not part:
            break
        c.sendall(part)
    c.shutdown(socket.SHUT_WR)


def first(c, _):
    c.sendall(b"x" * 100_000)
    c.shutdown(socket.SHUT_WR)
    read_all(c)


def reset(c, _):
    c.recv(1)
    linger0(c)


def watch(c, _):
    """Says how the client's end came about: asked for at ASK by the client's token."""
    token = c.recv(8)
    try:
        read_all(c)
        VERDICTS[token] = "eof"
    except OSError as e:
        VERDICTS[token] = errno.errorcode[e.errno]


def ask(c, _):
    token = c.recv(8)
    end = time.time() + 5
    while token not in VERDICTS and time.time() < end:
        time.sleep(0.01)
    c.sendall(VERDICTS.get(token, "nothing").encode())


def names(c, peer):
    c.sendall(json.dumps([peer[:2], c.getpeername()[:2], c.getsockname()[:2]]).encode())


def both(c, _):
    size = int(c.recv(16).decode())
    t = threading.Thread(target=blast, args=(c, size, b"server"))
    t.start()
    c.settimeout(60)
    digest = drain(c, size)
    t.join()
    c.sendall(digest)


def block(i, salt):
    return hashlib.sha256(salt + str(i).encode()).digest() * 2048


def blast(c, size, salt):
    for i in range(size // 65536):
        c.sendall(block(i, salt))


def drain(c, size):
    h = hashlib.sha256()
    while size:
        part = c.recv(min(size, 1 << 18))
        if not part:
            raise EOFError(f"{size} bytes are missing")
        h.update(part)
        size -= len(part)
    return h.digest()


def half(c, _):
    c.sendall(b"bye")
    c.shutdown(socket.SHUT_WR)
    VERDICTS[b"halfhalf"] = str(len(read_all(c)))


def urgent(c, _):
    c.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    c.sendall(read_all(c))


def hold(c, _):
    c.sendall(b"!")
    read_all(c)


def listen(port, handler, host="0.0.0.0", family=socket.AF_INET, backlog=4096, share=False):
    s = socket.socket(family)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if share:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == socket.AF_INET6:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    s.bind((host, port))
    s.listen(backlog)

    def one(c, peer):
        with c:
            try:
                handler(c, peer)
            except OSError:
                pass

    def loop():
        while True:
            c, peer = s.accept()
            threading.Thread(target=one, args=(c, peer), daemon=True).start()

    threading.Thread(target=loop, daemon=True).start()
    return s


def late(c, _):
    c.recv(1)
    s = listen(LATE, echo)
    c.sendall(b"!")
    c.recv(1)
    s.close()


def serve(vip):
    files()
    threading.stack_size(256 * 1024)
    for port, handler in [(ECHO, echo), (FIRST, first), (RESET, reset), (WATCH, watch), (ASK, ask),
                          (NAMES, names), (BOTH, both), (HALF, half), (URGENT, urgent), (HOLD, hold)]:
        listen(port, handler)
    listen(ON_VIP, echo, vip)
    listen(LOOPBACK, echo, "127.0.0.1")
    listen(SHARED, echo, share=True)
    listen(SHARED, echo, share=True)
    listen(DUAL, names, "::", socket.AF_INET6)
    listen(9100, late)
    print("serving", flush=True)
    threading.Event().wait()


def files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))


def dial(port, timeout=5.0):
    return socket.create_connection((PEER, port), timeout)


def expect(got, want):
    if got != want:
        raise AssertionError(f"{got!r}, expected {want!r}")


def refused(port, host=None):
    """ECONNREFUSED, or for the first try a reset within moments of the connect."""
    kinds = []
    for _ in range(2):
        start = time.time()
        try:
            with socket.create_connection((host or PEER, port), 5) as s:
                try:
                    got = s.recv(1)
                    kinds.append("eof" if not got else "data")
                except ConnectionResetError:
                    kinds.append("reset")
        except OSError as e:
            kinds.append(errno.errorcode.get(e.errno, str(e)))
        took = time.time() - start
        if took > 1:
            raise AssertionError(f"{kinds} after {took:.1f} s")
    if kinds[1] != "ECONNREFUSED" or kinds[0] not in ("reset", "ECONNREFUSED"):
        raise AssertionError(str(kinds))
    return kinds[0]


def c_echo_and_eof():
    with dial(ECHO) as s:
        s.sendall(b"hello" * 1000)
        s.shutdown(socket.SHUT_WR)
        expect(len(read_all(s)), 5000)


def c_eof_from_the_server_first():
    with dial(FIRST) as s:
        expect(len(read_all(s)), 100_000)


def c_close_from_the_client_first():
    token = os.urandom(8)
    with dial(WATCH) as s:
        s.sendall(token + b"x" * 1000)
    with dial(ASK) as s:
        s.sendall(token)
        expect(read_all(s).decode(), "eof")


def c_half_close_by_the_server():
    with dial(HALF) as s:
        expect(read_all(s), b"bye")
        time.sleep(0.2)
        s.sendall(b"y" * 300_000)
    with dial(ASK) as s:
        s.sendall(b"halfhalf")
        expect(read_all(s).decode(), "300000")


def c_reset_from_the_server():
    with dial(RESET) as s:
        s.sendall(b"x")
        try:
            got = s.recv(1)
            raise AssertionError(f"no reset but {got!r}")
        except ConnectionResetError:
            pass


def c_reset_from_the_client():
    token = os.urandom(8)
    with dial(WATCH) as s:
        s.sendall(token)
        time.sleep(0.1)
        linger0(s)
    with dial(ASK) as s:
        s.sendall(token)
        expect(read_all(s).decode(), "ECONNRESET")


def c_refused():
    return refused(CLOSED)


def c_a_listener_on_loopback_only_is_refused():
    return refused(LOOPBACK)


def c_unknown_address():
    base = PEER.rsplit(".", 1)[0]
    for last in (199, 255, 0):
        start = time.time()
        try:
            socket.create_connection((f"{base}.{last}", ECHO), 5).close()
            raise AssertionError(f".{last} connected")
        except OSError as e:
            kind = errno.errorcode.get(e.errno, str(e))
            if kind != "EHOSTUNREACH" and not (last == 255 and kind == "EACCES"):
                raise AssertionError(f".{last}: {kind}")
        if time.time() - start > 0.5:
            raise AssertionError("slow")


def same_names(mine, theirs, seen, relayed=None):
    """Addresses as they are; the relay chooses the source's port anew at the far end."""
    seen = [[a.removeprefix("::ffff:"), p] for a, p in seen]
    expect([a for a, _ in seen[:2]], [mine[0]] * 2)
    expect(seen[2], list(theirs))
    if not (RELAYED if relayed is None else relayed):
        expect(seen[0], list(mine))


def c_names_on_both_ends():
    for port in (NAMES, DUAL):
        with dial(port) as s:
            mine, theirs = s.getsockname(), s.getpeername()
            expect(mine[0], OWN)
            expect(theirs, (PEER, port))
            same_names(mine, theirs, json.loads(read_all(s)))


def c_v4_mapped_socket():
    with socket.socket(socket.AF_INET6) as s:
        s.settimeout(5)
        s.connect(("::ffff:" + PEER, NAMES))
        expect(s.getpeername()[:2], ("::ffff:" + PEER, NAMES))
        expect(s.getsockname()[0], "::ffff:" + OWN)
        expect(json.loads(read_all(s))[0][0], OWN)


def c_source_bound_to_own_vip():
    with socket.socket() as s:
        s.settimeout(5)
        s.bind((OWN, 0))
        s.connect((PEER, NAMES))
        mine = s.getsockname()
        expect(mine[0], OWN)
        same_names(mine, (PEER, NAMES), json.loads(read_all(s)), relayed=True)


def c_source_bound_to_own_vip_and_port():
    for _ in range(2):
        with socket.socket() as s:
            s.settimeout(5)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind((OWN, 45454))
            s.connect((PEER, NAMES))
            same_names((OWN, 45454), (PEER, NAMES), json.loads(read_all(s)), relayed=True)
            linger0(s)
        time.sleep(0.1)


def c_listener_on_the_vip():
    with dial(ON_VIP) as s:
        s.sendall(b"x")
        s.shutdown(socket.SHUT_WR)
        expect(read_all(s), b"x")


def c_reuseport_listeners():
    for _ in range(20):
        with dial(SHARED) as s:
            s.sendall(b"x")
            s.shutdown(socket.SHUT_WR)
            expect(read_all(s), b"x")


def c_own_vip():
    s = listen(9201, names)
    with socket.create_connection((OWN, 9201), 5) as c:
        expect(c.getpeername(), (OWN, 9201))
        seen = json.loads(read_all(c))
        expect(seen[0][0], OWN)
    s.close()
    v = listen(9202, echo, OWN)
    with socket.create_connection((OWN, 9202), 5) as c:
        c.sendall(b"x")
        c.shutdown(socket.SHUT_WR)
        expect(read_all(c), b"x")
    v.close()
    try:
        socket.create_connection((OWN, 9203), 5)
        raise AssertionError("own closed port connected")
    except ConnectionRefusedError:
        pass


def c_loopback_is_left_alone():
    s = listen(9204, names, "127.0.0.1")
    with socket.create_connection(("127.0.0.1", 9204), 5) as c:
        expect(c.getpeername()[0], "127.0.0.1")
        expect(json.loads(read_all(c))[0][0], "127.0.0.1")
    s.close()


def c_non_blocking_connect():
    s = socket.socket()
    s.setblocking(False)
    rc = s.connect_ex((PEER, ECHO))
    if rc not in (0, errno.EINPROGRESS):
        raise AssertionError(errno.errorcode[rc])
    select.select([], [s], [], 5)
    expect(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), 0)
    s.setblocking(True)
    s.settimeout(5)
    s.sendall(b"x")
    s.shutdown(socket.SHUT_WR)
    expect(read_all(s), b"x")
    s.close()


def c_a_server_that_listens_late():
    try:
        with dial(LATE) as s:
            s.recv(1)
    except OSError:
        pass
    with dial(9100) as control:
        control.sendall(b"l")
        control.recv(1)
        start = time.time()
        while True:
            try:
                with dial(LATE) as s:
                    s.sendall(b"x")
                    s.shutdown(socket.SHUT_WR)
                    expect(read_all(s), b"x")
                    break
            except (ConnectionResetError, ConnectionRefusedError) as e:
                if time.time() - start > 2:
                    raise AssertionError(f"{e!r} for 2 s after listen()")
                time.sleep(0.05)
        took = time.time() - start
        control.sendall(b"c")
    return f"{took:.2f} s"


def c_urgent_data_is_not_lost():
    with dial(URGENT) as s:
        s.sendall(b"abc")
        s.send(b"U", socket.MSG_OOB)
        s.sendall(b"def")
        s.shutdown(socket.SHUT_WR)
        got = read_all(s)
    if got not in (b"abcUdef", b"abcdef"):
        raise AssertionError(repr(got))
    return got.decode()


def c_both_ways_at_once():
    size = MIB << 20
    with dial(BOTH) as s:
        s.settimeout(60)
        s.sendall(str(size).encode().ljust(16))
        t = threading.Thread(target=blast, args=(s, size, b"client"))
        start = time.time()
        t.start()
        got = drain(s, size)
        t.join()
        theirs = s.recv(32, socket.MSG_WAITALL)
        took = time.time() - start
    for salt, digest in ((b"server", got), (b"client", theirs)):
        h = hashlib.sha256()
        for i in range(size // 65536):
            h.update(block(i, salt))
        expect(h.digest(), digest)
    return f"{2 * size / took / 1e6:.0f} MB/s"


def c_a_thousand_at_once():
    files()
    held, start = [], time.time()
    for _ in range(1000):
        held.append(dial(HOLD))
    for s in held:
        expect(s.recv(1), b"!")
    took = time.time() - start
    for s in held:
        s.close()
    return f"{took:.1f} s"


def c_ten_thousand_short_ones():
    start, n, lock, bad = time.time(), [0], threading.Lock(), []

    def some():
        while True:
            with lock:
                if n[0] == SHORT or bad:
                    return
                n[0] += 1
            try:
                with dial(ECHO, 10) as s:
                    s.sendall(b"x")
                    s.shutdown(socket.SHUT_WR)
                    expect(read_all(s), b"x")
            except Exception as e:
                bad.append(f"{n[0]}: {e!r}")

    threads = [threading.Thread(target=some) for _ in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if bad:
        raise AssertionError(bad[0])
    return f"{SHORT / (time.time() - start):.0f}/s"


def c_udp_fails_honestly():
    """Delivered, or an error at once or after the first datagram; or silence as from a dead host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(0.5)
        try:
            s.sendto(b"x", (PEER, 9301))
            s.recv(10)
            raise AssertionError("somebody answered")
        except OSError as e:
            return errno.errorcode.get(e.errno, "silence")


def check(only):
    bad = 0
    for name, f in list(globals().items()):
        if not name.startswith("c_") or (only and name[2:] not in only):
            continue
        title = name[2:].replace("_", " ")
        try:
            figures = f()
            print(f"ok {title}" + (f" [{figures}]" if figures else ""), flush=True)
        except Exception as e:
            bad += 1
            print(f"FAIL {title}: {type(e).__name__}: {e}", flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    MIB = int(os.environ.get("MIB", "64"))
    RELAYED = os.environ.get("RELAYED") == "1"
    SHORT = int(os.environ.get("SHORT", "10000"))
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    PEER, OWN = sys.argv[2:4]
    check(sys.argv[4:])
