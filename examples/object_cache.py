"""An engine sends a repeated image as a handle of 93 bytes; run it with `python examples/object_cache.py`."""

import multiprocessing

import torch

from arena import ArenaConfig, CacheHandle, Handle, MessageQueue, object_key


def worker(handle: Handle, rank: int) -> None:
    with MessageQueue.create_from_handle(handle, rank) as queue:
        images = queue.cache_reader()
        while (message := queue.dequeue(timeout=60)) is not None:
            image = message["image"]
            pixels = images.get(image) if isinstance(image, CacheHandle) else image  # a view: nothing is copied
            print(f"worker {rank}: request {message['request']}, mean {pixels.mean():.2f}")


def processed(photograph: bytes) -> torch.Tensor:
    """What takes an engine long: decoding, scaling, normalising."""
    return torch.full((3, 1344, 1344), photograph[0] / 100)


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    with MessageQueue(n_reader=2, n_local_reader=2, arena=ArenaConfig(capacity_bytes=256 << 20)) as queue:
        cache = queue.object_cache()
        workers = [spawn.Process(target=worker, args=(queue.export_handle(), rank)) for rank in range(2)]
        for process in workers:
            process.start()
        for request, photograph in enumerate([b"2", b"A", b"2"]):
            key = object_key(photograph, {"size": 1344})
            image = cache.get_handle(key)
            if image is None:
                pixels = processed(photograph)
                image = cache.put(key, pixels) or pixels  # not cached: the image itself travels
            queue.enqueue({"request": request, "image": image})
        queue.enqueue(None)
        for process in workers:
            process.join()
        print(f"{cache.statistics().puts_total} images for 3 requests")
