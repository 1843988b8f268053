"""Two workers and a scheduler share one region of KV blocks; run it with `python examples/offload_region.py`."""

import multiprocessing
from multiprocessing.synchronize import Barrier, Event

import torch

from arena import SharedOffloadRegion

ROW_BYTES, WORKER_BYTES, BLOCKS = 16 << 10, 8 << 10, 64


def worker(nonce: str, rank: int, everybody: Barrier, looked: Event) -> None:
    with SharedOffloadRegion("engine-0", BLOCKS, rank, ROW_BYTES, WORKER_BYTES, everybody.wait, nonce=nonce) as region:
        keys, values = (region.create_next_worker_view(WORKER_BYTES // 2) for _ in range(2))
        keys[7].fill_(rank + 1)  # block 7 of this worker, for one layer's keys
        values[7].copy_(torch.arange(WORKER_BYTES // 2, dtype=torch.int8))
        everybody.wait()
        looked.wait()


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    everybody, looked = spawn.Barrier(3), spawn.Event()
    workers = [spawn.Process(target=worker, args=("run-1", rank, everybody, looked)) for rank in range(2)]
    for process in workers:
        process.start()
    with SharedOffloadRegion("engine-0", BLOCKS, None, ROW_BYTES, 0, everybody.wait, nonce="run-1") as region:
        everybody.wait()  # the workers have written
        block = region.create_kv_memoryview()[7, 0], region.create_kv_memoryview()[7, WORKER_BYTES]
        print(f"block 7 of worker 0 begins with {block[0]}, of worker 1 with {block[1]}")
        looked.set()
        for process in workers:
            process.join()
