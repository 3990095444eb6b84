"""Load that knows what it should get: `serve PORT` in one pod, `run HOST PORT STOP KIND:N…` in another.

Says, with the time in front: `KIND N AT bytes` each second, `KIND N GAP seconds` when something came
after a pause, `KIND N BROKEN why` at a flow's end, `KIND N WRONG …` when bytes are not the ones that were
sent. When the file STOP appears, flows finish what they have begun and all is said with `END`.

| kind | what it does |
|---|---|
| ping | one message to and fro every 20 ms on one connection |
| stream | 2 MB/s to the server and back, pipelined |
| up, down | 2 MB/s one way |
| slow | the server sends as fast as it can, the client reads 0.3 MB/s: the flow is always full |
| idle | nothing, then one message at the end |
| connect | a new connection at a time, each with one message to and fro; a pause |
| rush | the same without the pause |
| denied, refused | up to a thousand times a second, to an address of nobody's, to a closed port |
| udp, icmp | a datagram to and fro every 50 ms |
"""

import os
import sys
import threading
import time

from flows import STOPPED, Flow
from server import serve


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
    STOPPED.set()
    for t in all_of_them:
        t.join(20)
    print("finished" if not any(t.is_alive() for t in all_of_them) else "STUCK", flush=True)
    os._exit(0)


if sys.argv[1] == "serve":
    serve(int(sys.argv[2]))
else:
    Flow.host, Flow.port = sys.argv[2], int(sys.argv[3])
    run(sys.argv[4], sys.argv[5:])
