"""A segment without a file, the writer of its slots, and of objects in them, for modules that have no other of their own."""

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
def segment() -> Iterator[AnonymousSegment]:
    """Two readers, four slots, eight pages."""
    with closing(AnonymousSegment(Layout(2, 4, PAGE, 8 * PAGE))) as made:
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
