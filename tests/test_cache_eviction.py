"""Which objects go for room, against a search through all sets of them."""

from __future__ import annotations

from itertools import combinations
from typing import ClassVar

from hypothesis import given
from hypothesis import strategies as st

from arena.protocol.eviction import Victim, choose

Memory = tuple[list[tuple[int, int]], list[Victim], int, int | None]


def makes_room(free: list[tuple[int, int]], nbytes: int, chunk_bytes: int | None) -> bool:
    """Whether so many neighbouring bytes are free, in one chunk if they fit into one."""
    is_free = {at for start, end in free for at in range(start, end)}

    def is_room(start: int) -> bool:
        if chunk_bytes and nbytes <= chunk_bytes and start // chunk_bytes != (start + nbytes - 1) // chunk_bytes:
            return False
        return all(at in is_free for at in range(start, start + nbytes))

    return any(map(is_room, is_free))


@st.composite
def memories(draw: st.DrawFn) -> Memory:
    """Neighbouring ranges that are free, may be evicted, or may not; with or without chunks."""
    kinds = draw(st.lists(st.sampled_from("fvx"), max_size=9))
    lengths = draw(st.lists(st.integers(1, 4), min_size=len(kinds), max_size=len(kinds)))
    ages = iter(draw(st.permutations(range(kinds.count("v")))))
    free, victims, start = [], [], 0
    for kind, length in zip(kinds, lengths, strict=True):
        if kind == "f":
            free.append((start, start + length))
        elif kind == "v":
            victims.append(Victim(start, start + length, next(ages)))
        start += length
    return free, victims, draw(st.integers(1, 12)), draw(st.none() | st.integers(2, 8))


@given(memories())
def test_against_a_search_through_all(memory: Memory) -> None:
    free, victims, nbytes, chunk = memory
    chosen = choose(free, victims, nbytes, chunk)
    enough = [
        chosen
        for count in range(len(victims) + 1)
        for chosen in combinations(victims, count)
        if makes_room(free + [(victim.start, victim.end) for victim in chosen], nbytes, chunk)
    ]
    if chosen is None:
        assert not enough
        return
    assert tuple(sorted(chosen)) in [tuple(sorted(each)) for each in enough]

    def youngest(chosen: tuple[Victim, ...]) -> int:
        return max((victim.age for victim in chosen), default=-1)

    assert youngest(tuple(chosen)) == min(map(youngest, enough)), "the youngest that goes is as old as it can be"
    for spared in chosen:
        rest = free + [(victim.start, victim.end) for victim in chosen if victim != spared]
        assert not makes_room(rest, nbytes, chunk), "none goes for nothing"


@given(memories())
def test_nothing_goes_that_order_of_age_would_have_kept(memory: Memory) -> None:
    free, victims, nbytes, chunk = memory
    gone: list[Victim] = []
    for victim in sorted(victims, key=lambda victim: victim.age):
        if makes_room(free + [(each.start, each.end) for each in gone], nbytes, chunk):
            break
        gone.append(victim)
    assert set(choose(free, victims, nbytes, chunk) or []) <= set(gone)


def test_free_room_needs_no_victim() -> None:
    assert choose([(0, 4)], [Victim(4, 8, 0)], 4) == []
    assert choose([], [], 1) is None


def test_an_object_of_several_ranges_goes_once() -> None:
    """Both ranges have its age."""
    assert choose([], [Victim(0, 2, 0), Victim(2, 4, 1), Victim(8, 10, 0)], 4) == [Victim(0, 2, 0), Victim(2, 4, 1)]


def test_no_range_crosses_a_chunk_that_it_need_not_cross() -> None:
    victims = [Victim(0, 6, 0), Victim(6, 10, 1), Victim(10, 16, 2)]
    assert choose([], victims, 4, 8) == [victims[0]]
    assert choose([], victims[1:], 4, 8) == [victims[2]]
    assert choose([], victims[1:], 7, 8) == victims[1:]
    assert choose([], [Victim(6, 10, 1), Victim(10, 15, 2)], 8, 8) is None
    assert choose([], victims[1:], 9, 8) == victims[1:]  # longer than a chunk: it may cross
    assert choose([(6, 10)], [victims[0], victims[2]], 8, 8) == [victims[0]]


class Counted(Victim):
    """A victim that counts how often its age is asked for."""

    looks: ClassVar[list[int]] = [0]

    @property
    def age(self) -> int:  # type: ignore[override]
        self.looks[0] += 1
        return self[2]


def test_a_choice_among_thousands_looks_at_each_a_few_times() -> None:
    """The slots' lock is held meanwhile: a sum over the window at each place took seconds."""
    victims = [Counted(at, at + 1, (at * 7919) % 4096) for at in range(4096)]
    Counted.looks[0] = 0
    assert len(choose([], victims, 2000) or []) == 2000
    assert 4096 <= Counted.looks[0] <= 40 * 4096
