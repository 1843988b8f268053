"""Every kind of object gives what a plain pickle gives, by each of the ways a message can take."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from typing import Any

import kinds
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kinds_compared import difference
from support import dequeue, dequeue_bytes, queue_of, readers_of, settle
from torch._subclasses import FakeTensorMode

from arena import ArenaConfig, MessageQueue

ARENA = ArenaConfig(capacity_bytes=32 << 20, slots=16, divert_bytes=1024)
WAYS: dict[str, dict[str, Any]] = {
    "arena": {"arena": ARENA},
    "arena_and_out_of_band": {"arena": ArenaConfig(32 << 20, slots=16, divert_bytes=16 << 10), "max_chunk_bytes": 1024},
    "ring": {"arena": None},
    "out_of_band": {"arena": None, "max_chunk_bytes": 1024},
    "full_arena": {"arena": ArenaConfig(capacity_bytes=8192, slots=1, divert_bytes=1024)},
}

Ends = tuple[MessageQueue, MessageQueue]


@pytest.fixture(scope="module", autouse=True)
def _rare_imports() -> None:
    """Torch imports a great deal for its rarest kind: before the tests, and then out of the collector's way."""
    kinds.plain_pickle(kinds.make("nested_jagged"))
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", params=WAYS)
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    with queue_of(1, **WAYS[request.param]) as (writer, (reader,)):
        sent((writer, reader), bytes(100_000))  # the first message out of band opens a socket for the queue's life
        settle()
        yield writer, reader


@pytest.fixture(autouse=True)
def _all_slots_come_back(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "ends" in request.fixturenames:
        statistics = request.getfixturevalue("ends")[0].statistics()
        assert statistics.slots_free == statistics.slots_total


def sent(ends: Ends, value: Any) -> Any:
    writer, reader = ends
    writer.enqueue(value, timeout=10)
    return reader.dequeue(timeout=10)


MORE_THAN_PICKLE = (
    "dtype_float8", "dtype_float4", "dtype_complex32", "dtype_uint16", "dtype_uint32", "dtype_uint64", "permuted_float8",
    "sliced_with_gaps_float8", "parameter_of_bytes",
)  # fmt: skip
"""Kinds that a plain pickle may not know (AttributeError) and the arena carries: the original is then what is expected."""


@pytest.mark.parametrize("name", kinds.KINDS)
def test_same_as_plain_pickle(ends: Ends, name: str) -> None:
    """The same value, dtype, shape, strides, flags, type and attributes, or the same exception."""
    value = kinds.make(name)
    try:
        expected = kinds.plain_pickle(value)
    except Exception as error:
        if not name.startswith(MORE_THAN_PICKLE):
            with pytest.raises(type(error)):
                sent(ends, value)
            return
        expected = value
    received = sent(ends, value)
    assert difference(expected, received) is None
    check_writable(received)


def check_writable(received: Any) -> None:
    """A write in place works: no fault, no refusal, no warning."""
    if isinstance(received, np.ndarray) and received.flags.writeable and received.dtype.kind in "iuf" and received.size:
        received.reshape(-1)[:1] = received.reshape(-1)[-1:]
    if type(received) not in (torch.Tensor, torch.nn.Parameter) or received.is_nested or received.is_quantized:
        return
    if received.device.type == "cpu" and received.layout is torch.strided and received.is_contiguous():
        elements = received.detach().view(-1)
        elements[:1].copy_(elements[-1:])


@pytest.mark.parametrize("way", ["ring", "out_of_band", "full_arena"])
def test_what_did_not_come_through_the_arena_is_each_readers_own(way: str) -> None:
    """One reader writes in place, and the other one's bytes stay as they were sent."""
    sent = [torch.ones(3000), torch.ones(3000, requires_grad=True), np.ones(3000), bytearray(b"\1" * 3000)]
    with queue_of(2, **WAYS[way]) as (writer, readers):
        writer.enqueue(sent)
        first, second = ([elements(part) for part in reader.dequeue(10)] for reader in readers)  # type: ignore[attr-defined]
        for part in first:
            part[:] = 0
        assert all((part == 1).all() for part in second)


def elements(part: Any) -> np.ndarray:
    """What shows, and may change, the elements of a received tensor, array or bytearray."""
    if isinstance(part, torch.Tensor):
        return part.detach().numpy()
    return np.frombuffer(part, np.uint8) if isinstance(part, bytearray) else part


# ---- identity -------------------------------------------------------------------------------------------------------


def test_one_object_stays_one(ends: Ends) -> None:
    """A tensor or array that is seen twice travels once and is one object again."""
    tensor, array = torch.rand(5000), np.arange(5000)
    diverted = ends[0].statistics().diverted_total
    first = sent(ends, [tensor, {"again": tensor}, array, (array, tensor)])
    assert first[0] is first[1]["again"] is first[3][1]
    assert first[2] is first[3][0]
    assert ends[0].statistics().diverted_total - diverted <= 2


def test_cycles(ends: Ends) -> None:
    tensor = torch.rand(5000)
    ring: dict[str, Any] = {"tensor": tensor, "items": []}
    ring["items"].append(ring)
    received = sent(ends, ring)
    assert received["items"][0] is received
    assert torch.equal(received["tensor"], tensor)
    ring["items"].clear()
    received["items"].clear()


def test_a_parameter_and_its_data_are_two(ends: Ends) -> None:
    parameter = torch.nn.Parameter(torch.rand(5000), requires_grad=False)
    received = sent(ends, [parameter, parameter.data, parameter])
    assert received[0] is received[2]
    assert type(received[1]) is torch.Tensor
    assert torch.equal(received[0], received[1])


def test_a_small_view_does_not_send_its_storage() -> None:
    with queue_of(1, arena=ARENA) as (writer, (reader,)):
        writer.enqueue(torch.rand(1 << 20)[1000:2000])
        assert reader.dequeue(10).untyped_storage().nbytes() == 4000  # type: ignore[attr-defined]
        assert writer.statistics().bytes_copied == 4000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e5m2], ids=str)
def test_what_torch_would_not_do_is_done(ends: Ends, dtype: torch.dtype) -> None:
    """Inside a mode that stands in for torch's operations, a gathering copies nothing, and a view shows nothing."""
    value = torch.randint(256, (4000, 8), dtype=torch.uint8).view(dtype)[:, 0]
    with FakeTensorMode(allow_non_fake_inputs=True):
        received, array = sent(ends, [value, np.arange(5000)])
    assert np.array_equal(array, np.arange(5000))
    assert torch.equal(received.contiguous().view(torch.uint8), value.contiguous().view(torch.uint8))


def test_many_buffers_in_one_message(ends: Ends) -> None:
    """More than slots, and a table larger than a chunk."""
    values = [torch.full((300,), i, dtype=torch.int32) for i in range(1000)]
    received = sent(ends, values)
    assert all(difference(a, b) is None for a, b in zip(values, received))


def no_storage() -> torch.Tensor:
    t = torch.rand(5000)
    t.untyped_storage().resize_(0)
    return t


def half_a_storage() -> torch.Tensor:
    t = torch.rand(5000)
    t.untyped_storage().resize_(10_000)
    return t


def half_a_storage_and_gaps() -> torch.Tensor:
    t = torch.rand(10_000)[::2]
    t.untyped_storage().resize_(39_992)
    return t


@pytest.mark.parametrize("make", [no_storage, half_a_storage, half_a_storage_and_gaps])
def test_a_tensor_larger_than_its_storage_is_left_to_torch(make: Any) -> None:
    """Nothing is read beyond the memory that was freed; what torch makes of it has undefined values."""
    with queue_of(1, arena=ARENA) as (writer, (reader,)):
        writer.enqueue(make())
        assert reader.dequeue(10).shape == (5000,)  # type: ignore[attr-defined]
        assert writer.statistics().fallback_total == {"unsupported:storage": 1}


# ---- real processes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_across_processes(way: str) -> None:
    """The bytes really cross: two readers in processes of their own send back what they got."""
    names = [
        "dtype_bfloat16", "dtype_uint8", "dtype_float8_e4m3fn", "channels_last", "sliced_with_gaps", "quantized_per_tensor",
        "parameter_without_grad", "subclass", "with_attribute", "array_fortran", "array_masked", "large_bytes", "mixed",
    ]  # fmt: skip
    values = [kinds.make(name) for name in names]
    with MessageQueue(2, 2, **WAYS[way]) as writer, readers_of(writer, 2) as readers:
        for name, value in zip(names, values):
            writer.enqueue(value)
            expected = kinds.plain_pickle(value) if name != "dtype_float8_e4m3fn" else None
            for reader in readers:
                received = reader.run(dequeue) if expected is not None else reader.run(dequeue_bytes).view(value.dtype)
                assert difference(value if expected is None else expected, received) is None, name


# ---- object graphs against plain pickle -----------------------------------------------------------------------------

LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=20),
    st.binary(max_size=3000),
    st.integers(0, 3000).map(lambda n: torch.arange(n, dtype=torch.int32)),
    st.integers(1, 60).map(lambda n: torch.rand(n, 50).t()),
    st.integers(1, 60).map(lambda n: torch.rand(n, 50)[:, ::3]),
    st.integers(0, 3000).map(lambda n: np.arange(n, dtype=np.float32)),
    st.integers(0, 3000).map(lambda n: bytearray(n)),
)  # fmt: skip
GRAPHS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(st.text(max_size=5), inner, max_size=5),
        st.tuples(inner, inner),
        inner.map(lambda x: [x, x]),  # the same object twice
    ),
    max_leaves=12,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graph=GRAPHS)
def test_object_graphs(ends: Ends, graph: Any) -> None:
    received = sent(ends, graph)
    expected = kinds.plain_pickle(graph)
    assert difference(expected, received) is None
    assert shape_of_sharing(expected) == shape_of_sharing(received)


def shape_of_sharing(value: Any) -> list[int]:
    """For each mutable object in order of first sight: where it was seen before."""
    seen: dict[int, int] = {}
    order: list[int] = []

    def visit(x: Any) -> None:
        if not isinstance(x, (list, dict, torch.Tensor, np.ndarray, bytearray)):
            if isinstance(x, tuple):
                for y in x:
                    visit(y)
            return
        order.append(seen.setdefault(id(x), len(seen)))
        if order[-1] != len(seen) - 1 or isinstance(x, (torch.Tensor, np.ndarray, bytearray)):
            return
        for y in x.values() if isinstance(x, dict) else x:
            visit(y)

    visit(value)
    return order


# ---- value at the time of enqueue, and the caller's freedom afterwards ----------------------------------------------


def test_a_reduction_that_changes_the_registry_is_seen(ends: Ends) -> None:
    """A type that registers with copyreg after the queue was made is reduced as plain pickle would."""
    import copyreg

    class Late:
        def __reduce_ex__(self, protocol: int) -> Any:
            raise pickle.PicklingError("not this way")

    copyreg.pickle(Late, lambda late: (str, ("late",)))
    try:
        assert sent(ends, Late()) == "late"
    finally:
        del copyreg.dispatch_table[Late]
