"""One rank of a Gloo group: all-reduces of a known tensor, checked element by element, one after the other and one
more after a silence. Says one RESULT line."""

import datetime
import json
import sys
import time

import torch
import torch.distributed as dist

mib, idle = int(sys.argv[1]), float(sys.argv[2])

# MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE are in the environment, as torchrun would set them.
begin = time.monotonic()
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
rank, world = dist.get_rank(), dist.get_world_size()
joined = time.monotonic() - begin
# Numbers below 2**24 are exact in float32, in whatever order they are added up.
base = torch.arange(mib * 1024 * 1024 // 4, dtype=torch.int32) % 100_003


def all_reduce(turn):
    mine = (base * (rank + 1) + turn).to(torch.float32)
    dist.barrier()
    begin = time.monotonic()
    dist.all_reduce(mine)
    took = time.monotonic() - begin
    expected = (base * sum(range(1, world + 1)) + turn * world).to(torch.float32)
    if not torch.equal(mine, expected):
        wrong = int((mine != expected).sum())
        sys.exit(f"all-reduce {turn}: {wrong} of {mine.numel()} elements are wrong")
    return took


first = all_reduce(1)
print("FIRST", flush=True)
time.sleep(idle)
second = all_reduce(2)
print("RESULT", json.dumps({"torch": torch.__version__, "rank": rank, "joined": joined, "first": first, "second": second}), flush=True)
dist.destroy_process_group()
