"""What is pinned: the arithmetic of the chunks, and when which of them are."""

from __future__ import annotations

import math

import pytest
from device_support import PAGE, Memory
from hypothesis import given
from hypothesis import strategies as st
from pinning_support import ROWS, Stalled, join_thread, make

from arena.config import Pin
from arena.device.pinning import LAZY_CHUNK_BYTES, REGISTER_BYTES_MAX, Chunk, Pinning, plan_chunks
from arena.device.simulated import SimulatedDevice

GIB = 1 << 30


# ---- the plan: 67, 69 ----------------------------------------------------------------------------

sizes = st.integers(0, 1 << 42)
pages = st.sampled_from([4096, 16384, 65536, 2 << 20])


@given(total=sizes, row=st.integers(1, 1 << 20), page=pages, room=st.integers(1, 1000))
def test_chunks_cover_all_bytes_exactly_once_and_cut_no_row_and_no_page(total: int, row: int, page: int, room: int) -> None:
    limit = max(math.lcm(row, page) * room, total // 1000)
    chunks = plan_chunks(total, row, limit, page)
    ends = [chunk.offset + chunk.nbytes for chunk in chunks]
    assert [chunk.offset for chunk in chunks] == [0, *ends[:-1]] if total else chunks == []
    assert (ends[-1] if ends else 0) == total
    assert all(0 < chunk.nbytes <= limit for chunk in chunks)
    assert all(end % row == 0 and end % page == 0 for end in ends[:-1])


@given(total=sizes, row=st.integers(1, 1 << 20), page=pages, room=st.integers(1, 1000))
def test_chunks_are_as_few_as_the_limit_allows(total: int, row: int, page: int, room: int) -> None:
    unit = math.lcm(row, page)
    limit = max(unit * room, total // 1000)
    least = 1 if total <= limit else -(-total // (limit // unit * unit))
    assert len(plan_chunks(total, row, limit, page)) == (least if total else 0)


@given(total=st.integers(0, 300), limit=st.integers(1, 64), row=st.integers(1, 8), page=st.integers(1, 8))
def test_the_plan_is_right_for_every_small_size(total: int, limit: int, row: int, page: int) -> None:
    if total > limit and math.lcm(row, page) > limit:
        with pytest.raises(ValueError, match="pad the rows"):
            plan_chunks(total, row, limit, page)
        return
    covered = [
        byte for chunk in plan_chunks(total, row, limit, page) for byte in range(chunk.offset, chunk.offset + chunk.nbytes)
    ]
    assert covered == list(range(total))


def test_a_region_of_512_gib_is_registered_in_parts_that_the_driver_takes() -> None:
    chunks = plan_chunks(512 * GIB + PAGE, row_bytes=3 * PAGE)
    assert len(chunks) == 9
    assert max(chunk.nbytes for chunk in chunks) <= 64 * GIB == REGISTER_BYTES_MAX
    assert all(chunk.offset % (3 * PAGE) == 0 for chunk in chunks)


def test_nothing_to_pin_is_no_chunk() -> None:
    assert plan_chunks(0) == []


@pytest.mark.parametrize("arguments", [(-1, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0)])
def test_a_senseless_size_is_refused(arguments: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        plan_chunks(*arguments)


def test_by_default_one_small_tensor_pins_little_and_eager_pins_in_few_calls(device: SimulatedDevice) -> None:
    assert len(Pinning(device, 0, 2 * GIB).chunks) == 2 * GIB // LAZY_CHUNK_BYTES
    assert len(Pinning(device, 0, 2 * GIB, pin="eager").chunks) == 1
    assert len(Pinning(device, 0, 512 * GIB, pin="eager").chunks) == 8


def test_a_row_larger_than_the_default_chunk_is_one_chunk(device: SimulatedDevice) -> None:
    assert {chunk.nbytes for chunk in Pinning(device, 0, 4 * GIB, row_bytes=GIB).chunks} == {GIB}


def test_an_address_within_a_page_is_refused(device: SimulatedDevice) -> None:
    with pytest.raises(ValueError, match="multiple of the page"):
        Pinning(device, 100, PAGE)


# ---- when and what -------------------------------------------------------------------------------


def test_only_the_chunks_that_are_used_are_pinned(device: SimulatedDevice, memory: Memory) -> None:
    pinning = make(device, memory)
    pinning.start()
    assert device.registered == {}
    assert pinning.ensure(3 * PAGE, 2 * PAGE)
    assert device.registered == {memory.address + 2 * PAGE: 2 * PAGE, memory.address + 4 * PAGE: 2 * PAGE}
    assert pinning.pinned_addresses == tuple(sorted(device.registered.items()))
    assert pinning.pinned_bytes == 4 * PAGE
    assert pinning.is_pinned(2 * PAGE, 4 * PAGE)
    assert not pinning.is_pinned(0, PAGE)
    assert not pinning.is_pinned(PAGE, 2 * PAGE)


def test_a_chunk_is_registered_once_however_often_it_is_used(device: SimulatedDevice, memory: Memory) -> None:
    pinning = make(device, memory)
    assert all(pinning.ensure(0, nbytes) for nbytes in (1, PAGE, 2 * PAGE, 1))
    assert device.calls == ["register"]


def test_nothing_used_is_nothing_pinned(device: SimulatedDevice, memory: Memory) -> None:
    pinning = make(device, memory)
    assert pinning.ensure(PAGE, 0)
    assert not pinning.needs_gate(PAGE, 0)
    assert pinning.split(PAGE, 0) == []
    assert device.calls == []


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, 1), (0, -1), (0, ROWS * PAGE + 1), (ROWS * PAGE, 1)])
def test_a_range_outside_the_mapping_is_refused(device: SimulatedDevice, memory: Memory, offset: int, nbytes: int) -> None:
    with pytest.raises(ValueError, match="not within"):
        make(device, memory).ensure(offset, nbytes)


def test_off_pins_nothing_and_says_so(device: SimulatedDevice, memory: Memory) -> None:
    pinning = make(device, memory, "off")
    pinning.start()
    assert not pinning.ensure(0, PAGE)
    assert pinning.reason_unpinned == 'pin="off"'
    assert pinning.unpin()
    assert device.calls == []


def test_eager_pins_everything_at_the_start(device: SimulatedDevice, memory: Memory) -> None:
    pinning = make(device, memory, "eager")
    pinning.start()
    assert pinning.is_pinned(0, memory.nbytes)
    assert pinning.reason_unpinned is None


def test_background_pins_everything_and_makes_nobody_wait(memory: Memory) -> None:
    device = Stalled()
    pinning = make(device, memory, "background")
    pinning.start()
    device.reached.wait()
    thread = pinning._thread
    assert not pinning.ensure(0, PAGE)  # returns although the driver is still at work
    assert pinning._thread is thread
    device.go_on.set()
    join_thread(pinning)
    assert pinning.is_pinned(0, memory.nbytes)
    assert pinning.ensure(0, PAGE)


@pytest.mark.parametrize("pin", ["auto", "eager", "background"])
def test_a_process_without_a_device_stays_unpinned_until_it_has_one(
    device: SimulatedDevice, memory: Memory, pin: Pin
) -> None:
    device.reason = "this process has not initialised CUDA"
    pinning = make(device, memory, pin)
    pinning.start()
    assert not pinning.ensure(0, PAGE)
    assert pinning.reason_unpinned == device.reason
    assert device.calls == []
    device.reason = None
    pinning.ensure(0, PAGE)
    if pin == "background":
        join_thread(pinning)
    assert pinning.is_pinned(0, PAGE)
    assert pinning.reason_unpinned is None


def test_a_read_only_mapping_is_registered_as_such(memory: Memory) -> None:
    class Recording(SimulatedDevice):
        def register(self, address: int, nbytes: int, *, read_only: bool = False) -> None:
            seen.append(read_only)

    seen: list[bool] = []
    assert make(Recording(), memory, read_only=True).ensure(0, PAGE)
    assert make(Recording(), memory).ensure(0, PAGE)
    assert seen == [True, False]


def test_pages_are_taken_before_they_are_registered(device: SimulatedDevice, memory: Memory) -> None:
    def populate(offset: int, nbytes: int) -> None:
        device.calls.append(f"populate {offset // PAGE} {nbytes // PAGE}")

    make(device, memory, populate=populate).ensure(PAGE, 2 * PAGE)
    assert device.calls == ["populate 0 2", "register", "populate 2 2", "register"]


def test_a_copy_is_cut_where_chunks_meet(device: SimulatedDevice, memory: Memory) -> None:
    pinning = make(device, memory)
    assert pinning.split(100, PAGE) == [Chunk(100, PAGE)]
    assert pinning.split(PAGE, 4 * PAGE) == [Chunk(PAGE, PAGE), Chunk(2 * PAGE, 2 * PAGE), Chunk(4 * PAGE, PAGE)]
