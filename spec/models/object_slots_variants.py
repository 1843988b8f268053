"""The table of object-slot faults: what each one changes, the property that breaks, and after how many steps."""

from __future__ import annotations

from spec.model import Action, Variant
from spec.models import object_slots_actions as right
from spec.models import object_slots_faults as wrong
from spec.models.object_slots_state import Config

Change = tuple[Action, Action | None]


def changed(*changes: Change, added: tuple[Action, ...] = ()) -> Config:
    """One slot, one reader, two leases, with some actions changed."""
    return Config(changed=changes, added=added)


TIMEOUT = (
    (right.reclaim, wrong.reclaim_on_timeout),
    (right.flush_hold, wrong.flush_member_hold),
    (right.reader_death, wrong.outsider_death),
)
STORE_OVER: tuple[Change, ...] = ((right.announce, wrong.announce_over), (right.recheck, wrong.recheck_and_clear))
NO_LOCK: tuple[Change, ...] = (
    (right.announce, wrong.announce_unlocked),
    (right.share, wrong.share_unlocked),
    (right.recheck, wrong.recheck_and_clear),
)
REFILL: tuple[Change, ...] = (
    (right.abort, wrong.abort_unless_refilled),
    (right.evict, wrong.evict_unless_refilled),
    (right.scan, wrong.scan_refilled),
)
EARLY_START: tuple[Change, ...] = ((right.admit, wrong.start_before_admission),)
ENTRY_CLAIMED: tuple[Change, ...] = ((right.admit, wrong.claim_entry),)

VARIANTS: dict[str, Variant] = {
    "no re-check": Variant("every get is a hit", changed((right.recheck, wrong.recheck_nothing)), "S1", 7),
    "hold word delayed": Variant(
        "acquire and release instead of seq_cst in the reader", changed((right.announce, wrong.announce_later)), "S1", 7
    ),
    "generation delayed": Variant(
        "acquire and release instead of seq_cst in the writer",
        changed(
            (right.evict, wrong.evict_later),
            (right.recheck, wrong.recheck_memory),
            added=(wrong.flush_generation,),
        ),
        "S1",
        7,
    ),
    "scan before the eviction": Variant(
        "a get in between is overlooked",
        changed((right.evict, wrong.scan_before_eviction), added=(wrong.evict_scanned,)),
        "S1",
        7,
    ),
    "reuse without drain": Variant("nobody is waited for", changed((right.evict, wrong.evict_and_reuse)), "S1", 6),
    "released before the DMA": Variant(
        "the device still reads",
        changed((right.drop, wrong.drop_and_release), (right.dma_complete, wrong.early_dma_complete)),
        "S1",
        9,
    ),
    "reclaimed before the DMA": Variant(
        "a death signal that fires too early", changed((right.reclaim, wrong.reclaim_early)), "S1", 10
    ),
    "reclaimed on timeout": Variant(  # and S1 after 8 steps, see the tests
        "the reader was only slow: it announces after its row was cleared", changed(*TIMEOUT), "S4", 7
    ),
    "row kept at reclaim": Variant(
        "nobody clears the dead reader's words", changed((right.reclaim, wrong.reclaim_entry_only)), "S4", 7
    ),
    "row kept, members scanned": Variant(
        "the successor inherits the words",
        Config(changed=((right.reclaim, wrong.reclaim_entry_only),), scans_row=wrong.only_members),
        "S4",
        8,
    ),
    "word of a live lease overwritten": Variant("a stale get stores over it", changed(*STORE_OVER), "S1", 13),
    "no lock between two threads": Variant("a get shares what was not re-checked", changed(*NO_LOCK), "S1", 7),
    "count and word not atomic": Variant(
        "a get between the two loses its word",
        changed((right.release_hold, wrong.count_down_first), (right.miss_live, None), added=(wrong.clear_word_second,)),
        "S1",
        13,
    ),
    "refilled while draining, word overwritten": Variant(
        "the old lease loses its word",
        changed(*REFILL, *STORE_OVER, (right.miss_live, None), added=(wrong.refill,)),
        "S1",
        11,
    ),
    "refilled while draining, word kept": Variant(
        "the new object cannot be held", changed(*REFILL, added=(wrong.refill,)), "H", 10
    ),
    "members scanned, early start": Variant(
        "the row of a process that is not admitted yet is overlooked",
        Config(changed=EARLY_START, added=(wrong.admit_working,), scans_row=wrong.only_members),
        "S1",
        10,
    ),
    "all rows scanned, only members reclaimed": Variant(
        "a process that dies before its admission leaves its words",
        changed(*EARLY_START, added=(wrong.admit_working,)),
        "S4",
        9,
    ),
    "all rows scanned, every entry reclaimed": Variant(
        "right: a process may work from its claim on", changed(*ENTRY_CLAIMED, added=(wrong.admit_working,))
    ),
    "members scanned, row cleared": Variant(
        "right if a join is the admission by the writer", Config(scans_row=wrong.only_members)
    ),
    "any word counts as a hold": Variant(
        "right, but a stopped stale get blocks the slot", Config(is_held=wrong.any_word_holds)
    ),
    "packed word, compare-and-swap": Variant(
        "right, without a lock; a live get may have to retry",
        changed((right.announce, wrong.announce_packed), (right.share, None), (right.miss_live, None)),
    ),
    "no quarantine": Variant(
        "the DMA outlives the death signal",
        Config(changed=((right.reclaim, wrong.reclaim_unfenced),), quarantine=True),
        "S1",
        10,
    ),
    "quarantine forgets": Variant(
        "a successor's stale word replaces what an earlier death has left",
        Config(changed=((right.reclaim, wrong.reclaim_with_last_word),), quarantine=True),
        "S1",
        19,
    ),
}
