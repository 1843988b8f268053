"""A segment without a file, the writer of its slots, and of objects in them, for modules that have no other of their own.

A module that needs another size has a ``layout`` of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from lockstep_slots import AnonymousSegment

from arena.protocol.objects import ObjectWriter
from arena.protocol.slots import SlotWriter
from arena.shm.layout import PAGE, Layout


@pytest.fixture
def layout() -> Layout:
    """Two readers, four slots, eight pages."""
    return Layout(2, 4, PAGE, 8 * PAGE)


@pytest.fixture
def segment(layout: Layout) -> Iterator[AnonymousSegment]:
    with closing(AnonymousSegment(layout)) as made:
        yield made


@pytest.fixture
def writer(segment: Any) -> SlotWriter:
    return SlotWriter(segment)


@pytest.fixture
def slots(writer: SlotWriter) -> SlotWriter:
    """The same, beside ``objects``."""
    return writer


@pytest.fixture
def objects(segment: Any, slots: SlotWriter) -> ObjectWriter:
    return ObjectWriter(segment, slots)
