"""An engine and two workers that live in event loops; run it with `python examples/asyncio_queue.py`."""

import asyncio
import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import torch

from arena import Handle, MessageQueue
from arena.errors import Cancelled


def worker(handle: Handle, rank: int) -> None:
    with MessageQueue.create_from_handle(handle, rank) as queue:
        asyncio.run(receive(queue, rank))


async def receive(queue: MessageQueue, rank: int) -> None:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as thread:
        try:
            while True:
                message = await loop.run_in_executor(thread, queue.dequeue)
                print(f"worker {rank}: request {message['request']}, mean {message['pixels'].mean():.1f}")
        except Cancelled:
            print(f"worker {rank}: the engine has shut down")
        finally:
            queue.shutdown()  # also if this task is cancelled: it ends the `dequeue` that waits in the thread


async def send(queue: MessageQueue) -> None:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as thread:
        await loop.run_in_executor(thread, queue.wait_until_ready, 60)
        for request in range(2):
            pixels = torch.full((3, 1344, 1344), float(request))
            await loop.run_in_executor(thread, queue.enqueue, {"request": request, "pixels": pixels})


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    with MessageQueue(n_reader=2) as queue:
        workers = [spawn.Process(target=worker, args=(queue.export_handle(), rank)) for rank in range(2)]
        for process in workers:
            process.start()
        asyncio.run(send(queue))
    for process in workers:
        process.join()
