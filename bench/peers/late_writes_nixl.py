"""The late-write scenario against NIXL over UCX's tcp: the owner takes its memory back in the middle of a transfer.

Two processes. The target registers a buffer and hands out its descriptors; the initiator posts one WRITE of blocks that
cover it. In the middle the target takes the memory back with `deregister_memory`, which returns at once and without an error, fills it
with a pattern and watches. Every byte that changes afterwards was written into memory that its owner had taken back.

kvxfer's own version of this scenario is `test/integration/test_late_writes.py`: there no byte may change.

Needs `nixl` and numpy (`make late-writes-nixl` installs them below build/). Exits 0 when the scenario could be run, whatever it showed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import random
import time
from multiprocessing.connection import Connection

os.environ.setdefault("UCX_TLS", "tcp,self")
os.environ.setdefault("UCX_MODULES", "^ib")
os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")

PATTERN = 0xA5
SOURCE = 0x11


def agent(name: str):  # type: ignore[no-untyped-def]
    import nixl._api as nixl

    return nixl.nixl_agent(name, nixl.nixl_agent_config(enable_prog_thread=True, backends=["UCX"]))


def target(pipe: Connection, blocks: int, block: int, wait: float) -> None:
    import numpy as np

    me = agent("target")
    buffer = np.zeros(blocks * block, np.uint8)
    registered = me.register_memory([(buffer.ctypes.data, buffer.nbytes, 0, "")], "DRAM")
    peer = pipe.recv()
    pipe.send(me.get_agent_metadata())
    me.add_remote_agent(peer)
    pipe.send(buffer.ctypes.data)
    pipe.recv()  # "posted"
    time.sleep(wait)
    landed = int((buffer == SOURCE).sum())
    me.deregister_memory(registered)  # the owner takes its memory back
    buffer[:] = PATTERN
    pipe.send("taken back")
    result = pipe.recv()
    time.sleep(0.3)
    changed = int((buffer != PATTERN).sum())
    pipe.send({"landed_before": landed, "changed_after": changed, "bytes": buffer.nbytes, "transfer": result})
    os._exit(0)  # the agent's end has nothing to say about the scenario


def initiator(pipe: Connection, blocks: int, block: int, limit: float) -> None:
    import numpy as np

    me = agent("initiator")
    buffer = np.full(blocks * block, SOURCE, np.uint8)
    me.register_memory([(buffer.ctypes.data, buffer.nbytes, 0, "")], "DRAM")
    pipe.send(me.get_agent_metadata())
    me.add_remote_agent(pipe.recv())
    there = pipe.recv()
    here = buffer.ctypes.data
    local = me.get_xfer_descs([(here + i * block, block, 0) for i in range(blocks)], "DRAM")
    remote = me.get_xfer_descs([(there + i * block, block, 0) for i in range(blocks)], "DRAM")
    handle = me.initialize_xfer("WRITE", local, remote, "target")
    pipe.send("ready")
    pipe.recv()  # "go"
    state = me.transfer(handle)
    pipe.send("posted")
    end = time.monotonic() + limit
    while state == "PROC" and time.monotonic() < end:
        state = me.check_xfer_state(handle)
    pipe.send(state)
    os._exit(0)


def round_of(blocks: int, block: int, wait: float, limit: float) -> dict[str, object]:
    context = mp.get_context("spawn")
    a, a_far = context.Pipe()
    b, b_far = context.Pipe()
    processes = [
        context.Process(target=target, args=(a_far, blocks, block, wait)),
        context.Process(target=initiator, args=(b_far, blocks, block, limit)),
    ]
    for p in processes:
        p.start()
    a_far.close()
    b_far.close()
    try:
        a.send(b.recv())  # the initiator's metadata
        b.send(a.recv())  # the target's
        b.send(a.recv())  # the buffer's address
        b.recv()  # ready
        b.send("go")
        a.send(b.recv())  # posted
        a.recv()  # taken back
        a.send(b.recv())  # the transfer's state
        out: dict[str, object] = a.recv()
        return out
    except EOFError:
        return {"transfer": "a process died", "changed_after": None}
    finally:
        for p in processes:
            p.join(5)
            if p.is_alive():
                p.kill()
                p.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=256, help="default 256")
    parser.add_argument("--block-bytes", type=int, default=1 << 20, help="default 1 MiB")
    parser.add_argument(
        "--limit", type=float, default=10, help="seconds that a transfer may take; default 10"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    rounds = []
    for number in range(options.rounds):
        wait = rng.uniform(0.002, 0.02)
        rounds.append(round_of(options.blocks, options.block_bytes, wait, options.limit))
        if not options.json:
            print(f"round {number}: {rounds[-1]}", flush=True)
    bad = sum(1 for r in rounds if r["changed_after"])
    if options.json:
        print(json.dumps({"seed": options.seed, "rounds": rounds, "rounds_with_late_writes": bad}))
    else:
        print(
            f"seed {options.seed}: {bad} of {len(rounds)} rounds wrote into memory that its owner had taken back"
        )


if __name__ == "__main__":
    main()
