"""Readers whose tensors are the source of copies to a GPU: bytes, gates, side streams, death."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection

import pytest
import torch
from gpu_support import GPU, MIB, WAIT_S, Reader, answer, hold_up, needs_gpu, readers, wait_until
from stability import change_after_death

from arena import ArenaConfig, MessageQueue
from arena.config import Pin

pytestmark = needs_gpu
SIZE = 16 * MIB
LATER = 2


def pattern(seed: int, nbytes: int = SIZE) -> torch.Tensor:
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def all_free(queue: MessageQueue) -> bool:
    statistics = queue.statistics()
    return bool(statistics.slots_free == statistics.slots_total)


# ---- programs of the readers ----------------------------------------------------------------------


def compare_on_gpu(queue: MessageQueue, pipe: Connection) -> None:
    for seed in range(10):
        tensor = queue.dequeue(WAIT_S)
        on_gpu = queue.to_device(tensor, GPU)
        del tensor
        pipe.send(bool(torch.equal(on_gpu, pattern(seed).to(GPU))))
    torch.cuda.synchronize()
    queue.flush_releases()
    pipe.recv()


def copy_behind_a_long_kernel(queue: MessageQueue, pipe: Connection) -> None:
    """`to_device` on a side stream that is busy; the view is gone long before the copy has begun."""
    stream = torch.cuda.Stream(GPU)
    on_gpu = copied_late(queue, pipe, stream, lambda tensor: queue.to_device(tensor, GPU, stream=stream))
    pipe.send(bool(torch.equal(on_gpu, pattern(0).to(GPU))))
    drop_the_rest(queue, pipe)


def copy_without_help(queue: MessageQueue, pipe: Connection) -> None:
    """A copy that the caller issues on the current stream."""
    stream = torch.cuda.Stream(GPU)
    with torch.cuda.stream(stream):
        on_gpu = copied_late(queue, pipe, stream, lambda tensor: tensor.to(GPU, non_blocking=True))
    pipe.send(bool(torch.equal(on_gpu, pattern(0).to(GPU))))
    drop_the_rest(queue, pipe)


def copied_late(
    queue: MessageQueue, pipe: Connection, stream: torch.cuda.Stream, copy: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """The next tensor's copy, which is done: it was issued while the stream was busy, and the tensor dropped at once."""
    tensor = queue.dequeue(WAIT_S)
    pipe.send(tensor.is_pinned())
    hold_up(stream, seconds=5)
    on_gpu = copy(tensor)
    del tensor
    queue.flush_releases()
    pipe.send(stream.query())
    pipe.recv()
    stream.synchronize()
    queue.flush_releases()
    return on_gpu


def drop_the_rest(queue: MessageQueue, pipe: Connection) -> None:
    for _ in range(LATER):
        queue.dequeue(WAIT_S)
    torch.cuda.synchronize()
    queue.flush_releases()
    pipe.recv()


# ---- tests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pin", ["auto", "eager", "background", "off"])
def test_four_readers_on_one_gpu_get_every_byte(pin: Pin) -> None:
    with readers([compare_on_gpu] * 4, ArenaConfig(capacity_bytes=8 * SIZE, pin=pin)) as (queue, children):
        for seed in range(10):
            queue.enqueue(pattern(seed), WAIT_S)
        for _, pipe in children:
            assert [answer(pipe) for _ in range(10)] == [True] * 10
        wait_until(lambda: all_free(queue), "all slots free")
        for _, pipe in children:
            pipe.send("end")


@pytest.mark.parametrize("program", [copy_behind_a_long_kernel, copy_without_help])
def test_a_slot_is_free_when_the_copy_is_done_and_not_before(program: Reader) -> None:
    with readers([program], ArenaConfig(capacity_bytes=2 * SIZE)) as (queue, [(_, pipe)]):
        queue.enqueue(pattern(0), WAIT_S)
        assert answer(pipe) is True, "the tensor is not pinned"
        assert answer(pipe) is False, "the kernel was over before anything could be seen"
        statistics = queue.statistics()
        assert statistics.slots_free == statistics.slots_total - 1
        for seed in range(1, 1 + LATER):  # one of these finds room only where the copy is still to read
            queue.enqueue(pattern(seed), WAIT_S)
        pipe.send("go on")
        assert answer(pipe) is True, "the copy read other bytes"
        wait_until(lambda: all_free(queue), "all slots free")
        pipe.send("end")


def test_what_a_dead_reader_s_device_was_writing_is_still_after_its_death() -> None:
    """Once the pidfd of a killed reader is readable, the copies that its GPU had still to do must not go on: the
    quarantine of a dead reader's slots is there to outlast them."""
    assert change_after_death()["changes"] == 0
