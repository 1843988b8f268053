"""An engine process broadcasts an image to two workers; run it with `python examples/engine_and_workers.py`."""

import multiprocessing

import torch

from arena import Handle, MessageQueue


def worker(handle: Handle, rank: int) -> None:
    with MessageQueue.create_from_handle(handle, rank) as queue:
        message = queue.dequeue(timeout=30)
        pixels = message["pixel_values"]  # a view of the arena: no copy, no socket
        print(f"worker {rank}: request {message['request']}, {tuple(pixels.shape)}, mean {pixels.mean():.3f}")


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    with MessageQueue(n_reader=2, n_local_reader=2) as queue:
        workers = [spawn.Process(target=worker, args=(queue.export_handle(), rank)) for rank in range(2)]
        for process in workers:
            process.start()
        queue.wait_until_ready(timeout=60)
        queue.enqueue({"request": 7, "pixel_values": torch.full((3, 1344, 1344), 0.5)})
        for process in workers:
            process.join()
        print(f"{queue.statistics().diverted_total} buffer went through the arena")
