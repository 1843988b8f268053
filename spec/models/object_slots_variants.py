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
    "no-recheck": Variant("no re-check: every get is a hit", changed((right.recheck, wrong.recheck_nothing)), "S1", 7),
    "hold-delayed": Variant(
        "hold word delayed: acquire and release instead of seq_cst in the reader",
        changed((right.announce, wrong.announce_later)),
        "S1",
        7,
    ),
    "generation-delayed": Variant(
        "generation delayed: acquire and release instead of seq_cst in the writer",
        changed(
            (right.evict, wrong.evict_later),
            (right.recheck, wrong.recheck_memory),
            added=(wrong.flush_generation,),
        ),
        "S1",
        7,
    ),
    "scan-first": Variant(
        "scan before the eviction: a get in between is overlooked",
        changed((right.evict, wrong.scan_before_eviction), added=(wrong.evict_scanned,)),
        "S1",
        7,
    ),
    "no-drain": Variant("reuse without drain: nobody is waited for", changed((right.evict, wrong.evict_and_reuse)), "S1", 6),
    "release-before-dma": Variant(
        "released before the DMA: the device still reads",
        changed((right.drop, wrong.drop_and_release), (right.dma_complete, wrong.early_dma_complete)),
        "S1",
        9,
    ),
    "death-by-lock": Variant(
        "reclaimed before the DMA: a death signal that fires too early",
        changed((right.reclaim, wrong.reclaim_early)),
        "S1",
        10,
    ),
    "reclaim-on-timeout": Variant(  # and S1 after 8 steps, see the tests
        "reclaimed on timeout: the reader was only slow: it announces after its row was cleared", changed(*TIMEOUT), "S4", 7
    ),
    "row-kept": Variant(
        "row kept at reclaim: nobody clears the dead reader's words",
        changed((right.reclaim, wrong.reclaim_entry_only)),
        "S4",
        7,
    ),
    "row-kept-members-scanned": Variant(
        "row kept, members scanned: the successor inherits the words",
        Config(changed=((right.reclaim, wrong.reclaim_entry_only),), scans_row=wrong.only_members),
        "S4",
        8,
    ),
    "word-overwritten": Variant(
        "word of a live lease overwritten: a stale get stores over it", changed(*STORE_OVER), "S1", 13
    ),
    "no-lock": Variant("no lock between two threads: a get shares what was not re-checked", changed(*NO_LOCK), "S1", 7),
    "count-not-atomic": Variant(
        "count and word not atomic: a get between the two loses its word",
        changed((right.release_hold, wrong.count_down_first), (right.miss_live, None), added=(wrong.clear_word_second,)),
        "S1",
        13,
    ),
    "refilled-word-overwritten": Variant(
        "refilled while draining, word overwritten: the old lease loses its word",
        changed(*REFILL, *STORE_OVER, (right.miss_live, None), added=(wrong.refill,)),
        "S1",
        11,
    ),
    "refilled-word-kept": Variant(
        "refilled while draining, word kept: the new object cannot be held", changed(*REFILL, added=(wrong.refill,)), "H", 10
    ),
    "early-start-members-scanned": Variant(
        "members scanned, early start: the row of a process that is not admitted yet is overlooked",
        Config(changed=EARLY_START, added=(wrong.admit_working,), scans_row=wrong.only_members),
        "S1",
        10,
    ),
    "early-start-members-reclaimed": Variant(
        "all rows scanned, only members reclaimed: a process that dies before its admission leaves its words",
        changed(*EARLY_START, added=(wrong.admit_working,)),
        "S4",
        9,
    ),
    "early-start-all-reclaimed": Variant(
        "all rows scanned, every entry reclaimed: right: a process may work from its claim on",
        changed(*ENTRY_CLAIMED, added=(wrong.admit_working,)),
    ),
    "members-scanned": Variant(
        "members scanned, row cleared: right if a join is the admission by the writer", Config(scans_row=wrong.only_members)
    ),
    "any-word-holds": Variant(
        "any word counts as a hold: right, but a stopped stale get blocks the slot", Config(is_held=wrong.any_word_holds)
    ),
    "packed-word": Variant(
        "packed word, compare-and-swap: right, without a lock; a live get may have to retry",
        changed((right.announce, wrong.announce_packed), (right.share, None), (right.miss_live, None)),
    ),
    "no-quarantine": Variant(
        "no quarantine: the DMA outlives the death signal",
        Config(changed=((right.reclaim, wrong.reclaim_unfenced),), quarantine=True),
        "S1",
        10,
    ),
    "quarantine-forgets": Variant(
        "quarantine forgets: a successor's stale word replaces what an earlier death has left",
        Config(changed=((right.reclaim, wrong.reclaim_with_last_word),), quarantine=True),
        "S1",
        19,
    ),
}
