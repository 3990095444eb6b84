"""What a network promises to programs, checked between two pods.

`serve OWN-VIP` in one, `check PEER-VIP OWN-VIP [NAME…]` in the other; `list` shows the names. Every check
is one line: `ok NAME [figures]` or `FAIL NAME: why`. Standard library only.
"""

import signal
import socket
import sys
import threading
import time
import traceback

import base
import ends, refusal, names, listeners, told, connects, calls, datagrams, volleys, pings, programs, bulk  # the order of the checks
import strict

LIMIT = 90


def serve(vip):
    base.files()
    threading.stack_size(256 * 1024)
    base.meet("", vip)
    for number, handler, how in base.SERVICES:
        how = dict(how)
        host = {"vip": vip, "mapped-vip": vip if ":" in vip else "::ffff:" + vip}.get(how.get("host"), how.get("host"))
        how.pop("host", None)
        for _ in range(how.pop("times", 1)):
            base.listen(number, handler, host, **how)
    for start in base.BACKGROUND:
        start(vip)
    print("serving", flush=True)
    threading.Event().wait()


def late(*_):
    raise TimeoutError(f"still not done after {LIMIT} s")


def run(only):
    signal.signal(signal.SIGALRM, late)
    done = bad = 0
    for name, f in base.CHECKS:
        if name not in only if only else f.__module__ == "strict":
            continue
        if base.Here.family == socket.AF_INET6 and hasattr(f, "v4"):
            continue
        if set(getattr(f, "needs_hooks", ())) & set(base.Here.no_hooks):
            continue
        done += 1
        start = time.monotonic()
        try:
            signal.alarm(LIMIT)
            figures = f()
            took = time.monotonic() - start
            shown = ([figures] if figures else []) + ([f"{took:.1f} s"] if took > 1 else [])
            print("ok", name.replace("_", " "), *([f"[{', '.join(shown)}]"] if shown else []), flush=True)
        except Exception as e:
            bad += 1
            frame = traceback.extract_tb(e.__traceback__)[-1 if not isinstance(e, AssertionError) else 1]
            where = f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}"
            print(f"FAIL {name.replace('_', ' ')}: {type(e).__name__}: {e} ({where})", flush=True)
        finally:
            signal.alarm(0)
    print(f"{done} checks, {bad} failed", flush=True)
    sys.exit(1 if bad or not done else 0)


if sys.argv[1] == "list":
    for name, f in base.CHECKS:
        print(f.__module__, name)
elif sys.argv[1] == "serve":
    serve(sys.argv[2])
else:
    base.meet(*sys.argv[2:4])
    run(sys.argv[4:])
