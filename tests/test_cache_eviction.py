"""Which objects go for room, against a search through all sets of them."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from arena.protocol.eviction import Victim, choose


def makes_room(free: list[tuple[int, int]], nbytes: int) -> bool:
    """Whether ranges, joined where they meet, have one of that length."""
    longest = length = end = 0
    for start, stop in sorted(free):
        length = length + stop - start if start == end and length else stop - start
        longest, end = max(longest, length), stop
    return longest >= nbytes


@st.composite
def memories(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[Victim], int]:
    """Neighbouring ranges that are free, may be evicted, or may not."""
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
    return free, victims, draw(st.integers(1, 12))


@given(memories())
def test_against_a_search_through_all(memory: tuple[list[tuple[int, int]], list[Victim], int]) -> None:
    free, victims, nbytes = memory
    chosen = choose(free, victims, nbytes)
    enough = [
        chosen
        for count in range(len(victims) + 1)
        for chosen in combinations(victims, count)
        if makes_room(free + [(victim.start, victim.end) for victim in chosen], nbytes)
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
        assert not makes_room(rest, nbytes), "none goes for nothing"


@given(memories())
def test_nothing_goes_that_order_of_age_would_have_kept(memory: tuple[list[tuple[int, int]], list[Victim], int]) -> None:
    free, victims, nbytes = memory
    gone: list[Victim] = []
    for victim in sorted(victims, key=lambda victim: victim.age):
        if makes_room(free + [(each.start, each.end) for each in gone], nbytes):
            break
        gone.append(victim)
    assert set(choose(free, victims, nbytes) or []) <= set(gone)


def test_free_room_needs_no_victim() -> None:
    assert choose([(0, 4)], [Victim(4, 8, 0)], 4) == []
    assert choose([], [], 1) is None


def test_an_object_of_several_ranges_goes_once() -> None:
    """Both ranges have its age."""
    assert choose([], [Victim(0, 2, 0), Victim(2, 4, 1), Victim(8, 10, 0)], 4) == [Victim(0, 2, 0), Victim(2, 4, 1)]
