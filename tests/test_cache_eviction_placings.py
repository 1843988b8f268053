"""A few choices of victims, one by one, that the searches of the other tests find at random."""

from __future__ import annotations

import pytest

from arena.protocol.eviction import Victim, choose


def test_free_room_alone_is_enough() -> None:
    assert choose([(0, 4)], [], 4) == []
    assert choose([(0, 3)], [], 4) is None


@pytest.mark.parametrize("youngest", range(6))
def test_no_younger_one_goes_than_must(youngest: int) -> None:
    """The older ones are too small, the younger ones would cost less: neither counts."""
    sizes = [2 if age < youngest else 6 if age == youngest else 4 for age in range(6)]
    victims = [Victim(10 * age, 10 * age + size, age) for age, size in enumerate(sizes)]
    assert choose([], victims, 4) == [victims[youngest]]


def test_what_costs_the_fewest_bytes_goes_the_oldest_too() -> None:
    """Two ranges of the same ages: the oldest one is no bargain."""
    oldest, middle, youngest = Victim(0, 8, 0), Victim(20, 22, 1), Victim(23, 24, 2)
    assert choose([(22, 23)], [oldest, middle, youngest], 9) is None
    large, small = Victim(0, 9, 0), Victim(20, 23, 0)
    assert choose([(23, 26)], [large, small], 6) == [small]


def test_what_a_window_costs_is_what_is_in_it() -> None:
    """Not what it has left behind, nor what lies before a younger one, nor what is free."""
    large, small = Victim(0, 4, 0), Victim(4, 7, 0)
    assert choose([(7, 8)], [large, small], 4) == [small]
    assert choose([(9, 10)], [large, Victim(4, 6, 1), Victim(6, 9, 0)], 4) == [Victim(6, 9, 0)]
    assert choose([(10, 11)], [large, Victim(11, 14, 0)], 4) == [Victim(11, 14, 0)]


def test_no_more_go_than_make_room_to_the_byte() -> None:
    victims = [Victim(0, 2, 0), Victim(2, 6, 1), Victim(6, 8, 2)]
    assert choose([], victims, 4) == [victims[1]]
    assert choose([], victims, 6) == victims[:2]
    assert choose([(8, 12)], victims, 4) == []
    assert choose([], [Victim(0, 4, 1), Victim(4, 6, 0)], 4) == [Victim(0, 4, 1)]
    assert choose([], victims, 8) == victims
    assert choose([], victims, 9) is None
