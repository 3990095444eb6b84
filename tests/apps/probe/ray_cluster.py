"""The driver of a Ray cluster of two nodes, which have the resources `cloud` and `edge`: tasks, an actor, objects, and
calls that go on until /tmp/stop exists. An error ends it; else it says one RESULT line."""

import hashlib
import json
import os
import sys
import time

import ray

MIB = 200
SITES = ["cloud", "edge"]

ray.init(address=sys.argv[1], log_to_driver=False)
begin = time.monotonic()
while len([n for n in ray.nodes() if n["Alive"]]) < 2:
    if time.monotonic() - begin > 60:
        sys.exit(f"the nodes: {ray.nodes()}")
    time.sleep(0.1)


def at(site):
    return {"resources": {site: 0.01}, "num_cpus": 0.1}


@ray.remote
def where():
    return ray.get_runtime_context().get_node_id()


@ray.remote
def produce(seed):
    data = hashlib.shake_256(seed).digest(MIB * 1024 * 1024)
    return hashlib.sha256(data).hexdigest(), ray.put(data)


@ray.remote
def digest(data):
    return hashlib.sha256(data).hexdigest()


@ray.remote
class Counter:
    def __init__(self):
        self.n = 0

    def add(self):
        self.n += 1
        return self.n


def tasks():
    """Each ran on the node that was asked for."""
    ids = {n["NodeID"]: n["Resources"] for n in ray.nodes() if n["Alive"]}
    begin = time.monotonic()
    asked = [(site, where.options(**at(site)).remote()) for site in SITES for _ in range(25)]
    for site, answer in asked:
        if site not in ids[ray.get(answer)]:
            sys.exit(f"a task for {site} ran elsewhere")
    return time.monotonic() - begin


def transfer(turn):
    """An object made at one site, hashed at the other, in both directions."""
    took = []
    for source, target in [SITES, SITES[::-1]]:
        expected, ref = ray.get(produce.options(**at(source)).remote(f"{turn} {source}".encode()))
        begin = time.monotonic()
        if ray.get(digest.options(**at(target)).remote(ref)) != expected:
            sys.exit(f"the object from {source} came to {target} changed")
        took.append(time.monotonic() - begin)
    return took


def standing(counter):
    calls, gap, last = 0, 0.0, time.monotonic()
    first = ray.get(counter.add.remote())
    while not os.path.exists("/tmp/stop"):
        calls += 1
        if ray.get(counter.add.remote()) != first + calls:
            sys.exit("the actor forgot or doubled a call")
        now = time.monotonic()
        gap, last = max(gap, now - last), now
        if calls == 100:
            print("STANDING", flush=True)
    return calls, gap


took = tasks()
counter = Counter.options(**at("edge")).remote()
begin = time.monotonic()
if ray.get([counter.add.remote() for _ in range(1000)]) != list(range(1, 1001)):
    sys.exit("the actor's calls are out of order")
actor = time.monotonic() - begin
objects = transfer(1)
before = sorted(n["NodeID"] for n in ray.nodes() if n["Alive"])
calls, gap = standing(counter)
after = sorted(n["NodeID"] for n in ray.nodes() if n["Alive"])
if before != after:
    sys.exit(f"other nodes than before the outage: {ray.nodes()}")
tasks()
again = transfer(2)
result = {"tasks": took, "actor": actor, "objects": objects, "again": again, "calls": calls, "gap": gap}
print("RESULT", json.dumps(result), flush=True)
ray.shutdown()
