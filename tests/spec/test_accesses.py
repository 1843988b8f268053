"""The C code makes the accesses of the memory-order programs, in their order.

`python -m spec orders` judges programs of named accesses and the header that declares them. That the code *calls* them where
the programs do is not in the header: a fence left out of a function would be noticed by no run on x86. So the order of the
accesses of each function is pinned here; a change of it is a change of a program of `spec/orders_programs.py` or
`orders_parking.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

CSRC = Path(__file__).parent.parent.parent / "csrc"
FUNCTION = re.compile(r"^(?:static )?(?:inline )?[\w ]+?\*?(\w+)\([^;{]*\) \{(.*?)(?:^\}|\}$)", re.M | re.S)
ACCESS = re.compile(
    r"arena_((?:published|consumed|done|gen|hold|park|member|closed)_(?:store|load|exchange|cas)|fence)_(\w+)\("
    r"|(wake_if_parked|futex_wake_one|futex_wait_parked)\("
)

EXPECTED = {
    "arena_ring_publish": "published_store_release",
    "arena_ring_wake_readers": "fence_publish_to_parked_seq_cst wake_if_parked",
    "wake_if_parked": "park_load_relaxed park_exchange_relaxed futex_wake_one",
    "arena_ring_writer_park": "park_store_relaxed fence_parked_to_consumed_seq_cst",
    "arena_ring_writer_unpark": "park_store_relaxed",
    "arena_ring_reader_park": "park_store_relaxed fence_parked_to_published_seq_cst",
    "arena_ring_reader_unpark": "park_store_relaxed",
    "arena_ring_advance": "consumed_store_release",
    "arena_ring_wake_writer": "fence_consumed_to_parked_seq_cst wake_if_parked",
    "arena_wake_writer": "fence_consumed_to_parked_seq_cst wake_if_parked",
    "arena_ring_admit": "consumed_store_release fence_publish_to_parked_seq_cst wake_if_parked",
    "close_and_wake": "closed_store_seq_cst fence_closed_to_parked_seq_cst park_store_relaxed futex_wake_one",
    "arena_ring_writer_close": "closed_store_seq_cst fence_closed_to_parked_seq_cst park_exchange_relaxed futex_wake_one",
    "arena_slot_release": "done_store_release",
    "arena_rows_clear": "done_store_release hold_store_release",
    "arena_member_write": "member_store_release",
    "arena_member_claim": "member_cas_acq_rel",
}


def accesses() -> dict[str, str]:
    """For each function of the C code, its accesses in the order of the text."""
    found = {}
    for name in ("arena_internal.h", "arena_ring.c", "arena_slots.c"):
        for match in FUNCTION.finditer((CSRC / name).read_text()):
            calls = [whole or f"{access}_{rest}" for access, rest, whole in ACCESS.findall(match.group(2))]
            if calls:
                found[match.group(1)] = " ".join(calls)
    return found


def test_each_function_makes_its_accesses_in_order() -> None:
    found = accesses()
    assert {name: found.get(name) for name in EXPECTED} == EXPECTED


def test_no_fence_is_called_elsewhere() -> None:
    assert {name for name, calls in accesses().items() if "fence" in calls} <= set(EXPECTED)
