"""Object slots done wrong: actions that a fault puts in the place of the right ones.

The table is in `object_slots_variants`.
"""

from __future__ import annotations

from spec.model import action
from spec.models.object_slots_actions import (
    PAIR,
    PAIR_LABEL,
    READER,
    SLOT,
    abort,
    announce,
    counted_down,
    evict,
    evicted,
    get_in_flight,
    joined,
    may_get,
    reader_death,
    rechecked,
    release_hold,
    scan,
    seen_clear,
)
from spec.models.object_slots_state import (
    AFTER_EVICTION,
    CHECKING,
    CLEARING,
    CURRENT,
    DMA,
    DRAINING,
    DROPPED,
    EARLY,
    EMPTY,
    EVICTED,
    FILLING,
    FREE,
    HELD,
    JOINED,
    JOINING,
    LIVE,
    NOTHING,
    PRESCANNED,
    UNUSED,
    Config,
    Hold,
    Reader,
    State,
    adding,
    moving,
    relabelled,
    with_hold,
    with_reader,
    with_slot,
)

# ---- the two store-then-load pairs


@action("reader {reader}", over=PAIR_LABEL)
def recheck_nothing(config: Config, state: State, reader: int, slot: int, label: str) -> State | None:
    """get without a second look: always a hit."""
    return rechecked(state, reader, slot, label, hit=True)


@action("reader {reader}", over=PAIR_LABEL, part_of="announce", progress=False)
def announce_later(config: Config, state: State, reader: int, slot: int, label: str) -> State | None:
    """The store of the word is not ordered before the load of the generation: it becomes visible later."""
    after = announce(config, state, reader, slot, label)
    if after is None:
        return None
    visible = state.readers[reader].holds[slot].visible
    return with_hold(after, reader, slot, after.readers[reader].holds[slot]._replace(visible=visible))


@action("writer", over=SLOT, part_of="evict", progress=False)
def evict_later(config: Config, state: State, slot: int) -> State | None:
    """The store of the generation is not ordered before the scan: it becomes visible later."""
    after = evict(config, state, slot)
    return None if after is None else with_slot(after, slot, after.slots[slot]._replace(delayed=True))


@action("writer", over=SLOT, environment=True)
def flush_generation(config: Config, state: State, slot: int) -> State | None:
    """The new generation becomes visible."""
    record = state.slots[slot]
    if not state.writer_alive or not record.delayed:
        return None
    return with_slot(state, slot, record._replace(delayed=False))


@action("reader {reader}", over=PAIR_LABEL)
def recheck_memory(config: Config, state: State, reader: int, slot: int, label: str) -> State | None:
    """get, second half, where the new generation may not be visible yet."""
    visible = EVICTED if state.slots[slot].delayed else CURRENT
    return rechecked(state, reader, slot, label, hit=label == visible)


@action("writer", over=SLOT, part_of="evict", progress=False)
def scan_before_eviction(config: Config, state: State, slot: int) -> State | None:
    """Nobody holds the object: evict it. Whoever gets it in between is overlooked."""
    record = state.slots[slot]
    if not state.writer_alive or record.owner != LIVE:
        return None
    if any(reader.holds[slot].visible == CURRENT for reader in state.readers):
        return None
    return with_slot(state, slot, record._replace(owner=PRESCANNED))


@action("writer", over=SLOT, part_of="evict", progress=False)
def evict_scanned(config: Config, state: State, slot: int) -> State | None:
    """Move the generation on, and reuse the slot at once."""
    record = state.slots[slot]
    if not state.writer_alive or record.owner != PRESCANNED:
        return None
    return with_slot(relabelled(state, slot, AFTER_EVICTION), slot, evicted(config, record, FREE))


@action("writer", over=SLOT, part_of="evict", progress=False)
def evict_and_reuse(config: Config, state: State, slot: int) -> State | None:
    """Move the generation on, and do not wait for anybody."""
    after = evict(config, state, slot)
    return None if after is None else with_slot(after, slot, after.slots[slot]._replace(owner=FREE))


# ---- release, and the count


@action("reader {reader}", over=PAIR_LABEL, part_of="drop")
def drop_and_release(config: Config, state: State, reader: int, slot: int, label: str) -> State | None:
    """The last view goes away and the lease is released at once, while the device still reads."""
    record = state.readers[reader]
    hold = record.holds[slot]
    references = moving(hold, HELD, label, into=EARLY)
    if references is None or not record.alive:
        return None
    return with_hold(state, reader, slot, counted_down(hold)._replace(references=references))


@action("device", over=PAIR_LABEL, environment=True)
def early_dma_complete(config: Config, state: State, reader: int, slot: int, label: str) -> State | None:
    """The device has read the memory of a lease that was released before."""
    hold = state.readers[reader].holds[slot]
    references = moving(hold, EARLY, label, into=None)
    return None if references is None else with_hold(state, reader, slot, hold._replace(references=references))


@action("reader {reader}", over=PAIR_LABEL, part_of="release_hold")
def count_down_first(config: Config, state: State, reader: int, slot: int, label: str) -> State | None:
    """The count goes to 0 in one step ..."""
    record = state.readers[reader]
    hold = record.holds[slot]
    if hold.counted != 1:
        return release_hold(config, state, reader, slot, label)
    references = moving(hold, DROPPED, label, into=CLEARING)
    if references is None or not record.alive:
        return None
    return with_hold(state, reader, slot, hold._replace(counted=0, references=references))


@action("reader {reader}", over=PAIR_LABEL, part_of="release_hold")
def clear_word_second(config: Config, state: State, reader: int, slot: int, label: str) -> State | None:
    """... and the word is cleared in another: a get in between loses its word."""
    record = state.readers[reader]
    hold = record.holds[slot]
    references = moving(hold, CLEARING, label, into=None)
    if references is None or not record.alive:
        return None
    return with_hold(state, reader, slot, hold._replace(word=NOTHING, references=references))


# ---- get, and the word of a live lease


def announced_over(config: Config, state: State, reader: int, slot: int, label: str) -> State | None:
    """get stores the word whatever it holds, and counts one more."""
    hold = state.readers[reader].holds[slot]
    if (hold.counted and hold.word == label) or not may_get(config, state, reader, slot, label):
        return None
    references = adding(hold, CHECKING, label)
    return with_hold(state, reader, slot, Hold(label, hold.counted + 1, label, references))


@action("reader {reader}", over=PAIR_LABEL, part_of="announce", progress=False)
def announce_over(config: Config, state: State, reader: int, slot: int, label: str) -> State | None:
    """get of another generation stores over the word of a live lease."""
    if get_in_flight(state.readers[reader].holds[slot]):
        return None
    return announced_over(config, state, reader, slot, label)


@action("reader {reader}", over=PAIR_LABEL, part_of="announce", progress=False)
def announce_unlocked(config: Config, state: State, reader: int, slot: int, label: str) -> State | None:
    """get in one thread stores over the word of a get in another."""
    return announced_over(config, state, reader, slot, label)


@action("reader {reader}", over=PAIR_LABEL, part_of="announce", progress=False)
def share_unlocked(config: Config, state: State, reader: int, slot: int, label: str) -> State | None:
    """get of the generation in the word: count one more, even if that word has not been re-checked."""
    hold = state.readers[reader].holds[slot]
    if not hold.counted or hold.word != label or not may_get(config, state, reader, slot, label):
        return None
    return with_hold(state, reader, slot, hold._replace(counted=hold.counted + 1, references=adding(hold, HELD, label)))


@action("reader {reader}", over=PAIR_LABEL)
def recheck_and_clear(config: Config, state: State, reader: int, slot: int, label: str) -> State | None:
    """get, second half: on a miss clear the word, whoever has set it."""
    after = rechecked(state, reader, slot, label, hit=label == CURRENT)
    if after is None or label == CURRENT:
        return after
    count = max(state.readers[reader].holds[slot].counted - 1, 0)
    return with_hold(after, reader, slot, after.readers[reader].holds[slot]._replace(word=NOTHING, counted=count))


@action("reader {reader}", over=PAIR_LABEL, part_of="announce", progress=False)
def announce_packed(config: Config, state: State, reader: int, slot: int, label: str) -> State | None:
    """Generation and count in one word, changed by compare-and-swap: set the word or count up, and always re-check."""
    hold = state.readers[reader].holds[slot]
    if (hold.counted and hold.word != label) or not may_get(config, state, reader, slot, label):
        return None
    references = adding(hold, CHECKING, label)
    if hold.counted:
        return with_hold(state, reader, slot, hold._replace(counted=hold.counted + 1, references=references))
    return with_hold(state, reader, slot, Hold(label, 1, label, references))


# ---- a draining slot filled again


@action("writer", over=SLOT, part_of="claim", progress=False)
def refill(config: Config, state: State, slot: int) -> State | None:
    """Put a new object into a slot that still drains."""
    record = state.slots[slot]
    if not state.writer_alive or record.owner != DRAINING or record.refilled:
        return None
    return with_slot(state, slot, record._replace(owner=FILLING, complete=False, refilled=True))


@action("writer", over=SLOT, part_of="abort", progress=False)
def abort_unless_refilled(config: Config, state: State, slot: int) -> State | None:
    """Give the object up, in a slot that does not drain."""
    return None if state.slots[slot].refilled else abort(config, state, slot)


@action("writer", over=SLOT, part_of="evict", progress=False)
def evict_unless_refilled(config: Config, state: State, slot: int) -> State | None:
    """Evict an object whose slot does not drain any more."""
    return None if state.slots[slot].refilled else evict(config, state, slot)


@action("writer", over=PAIR, part_of="scan")
def scan_refilled(config: Config, state: State, reader: int, slot: int) -> State | None:
    """Look at one row, also where the slot has been filled again."""
    record = state.slots[slot]
    if not record.refilled:
        return scan(config, state, reader, slot)
    clear = seen_clear(config, state, reader, slot)
    if not state.writer_alive or clear is None:
        return None
    if all(clear):
        return with_slot(state, slot, record._replace(clear=(False,) * config.readers, refilled=False))
    return with_slot(state, slot, record._replace(clear=clear))


# ---- deaths and joins


@action("writer", over=READER, part_of="reclaim")
def reclaim_early(config: Config, state: State, reader: int) -> State | None:
    """Take a signal for death that may fire while the dead process's DMA still runs."""
    record = state.readers[reader]
    if not state.writer_alive or record.member == EMPTY or record.alive:
        return None
    holds = tuple(Hold(references=hold.references) for hold in record.holds)
    return with_reader(state, reader, Reader(False, EMPTY, holds))


@action("writer", over=READER, part_of="reclaim")
def reclaim_on_timeout(config: Config, state: State, reader: int) -> State | None:
    """Take a reader that does not answer for dead."""
    record = state.readers[reader]
    if not state.writer_alive or record.member == EMPTY:
        return None
    holds = tuple(
        hold._replace(visible=NOTHING) if record.alive else Hold(references=hold.references) for hold in record.holds
    )
    return with_reader(state, reader, Reader(record.alive, EMPTY, holds))


@action("reader {reader}", over=PAIR, environment=True)
def flush_member_hold(config: Config, state: State, reader: int, slot: int) -> State | None:
    """A member's store to its hold word becomes visible."""
    record = state.readers[reader]
    hold = record.holds[slot]
    if hold.visible == hold.word or record.member == EMPTY:
        return None
    return with_hold(state, reader, slot, hold._replace(visible=hold.word))


@action("reader {reader}", over=READER, environment=True, progress=False)
def outsider_death(config: Config, state: State, reader: int) -> State | None:
    """A process dies that the writer has put out: what it has stored stays invisible."""
    after = reader_death(config, state, reader)
    if after is None or state.readers[reader].member != EMPTY:
        return after
    before, (_, member, holds) = state.readers[reader].holds, after.readers[reader]
    kept = tuple(hold._replace(visible=old.visible) for hold, old in zip(holds, before, strict=True))
    return with_reader(after, reader, Reader(False, member, kept))


@action("writer", over=READER, part_of="reclaim")
def reclaim_entry_only(config: Config, state: State, reader: int) -> State | None:
    """Free the dead reader's entry and leave its row as it is."""
    record = state.readers[reader]
    busy = any(reference.phase == DMA for hold in record.holds for reference in hold.references)
    if not state.writer_alive or record.member == EMPTY or record.alive or busy:
        return None
    return with_reader(state, reader, record._replace(member=EMPTY))


@action("reader {reader}", over=READER, environment=True, progress=False)
def start_before_admission(config: Config, state: State, reader: int) -> State | None:
    """A new process works on the rank before the writer knows of it."""
    return joined(state, reader, EMPTY) if state.writer_alive else None


@action("reader {reader}", over=READER, environment=True, progress=False)
def claim_entry(config: Config, state: State, reader: int) -> State | None:
    """A new process claims the entry, and works before it is admitted."""
    return joined(state, reader, JOINING) if state.writer_alive else None


@action("writer", over=READER, part_of="admit", progress=False)
def admit_working(config: Config, state: State, reader: int) -> State | None:
    """Admit a process that works already."""
    record = state.readers[reader]
    if not state.writer_alive or not record.alive or record.member == JOINED:
        return None
    return with_reader(state, reader, record._replace(member=JOINED))


@action("writer", over=READER, part_of="reclaim")
def reclaim_with_last_word(config: Config, state: State, reader: int) -> State | None:
    """Quarantine whatever the dead row names, in the place of what an earlier death has left there."""
    record = state.readers[reader]
    if not state.writer_alive or record.member == EMPTY or record.alive:
        return None
    holds = tuple(
        Hold(fenced=hold.fenced if hold.visible == NOTHING else hold.visible, orphan=hold.orphan) for hold in record.holds
    )
    return with_reader(state, reader, Reader(False, EMPTY, holds))


@action("writer", over=READER, part_of="reclaim")
def reclaim_unfenced(config: Config, state: State, reader: int) -> State | None:
    """Reclaim without quarantine, though the death signal may come before the DMA is over."""
    record = state.readers[reader]
    if not state.writer_alive or record.member == EMPTY or record.alive:
        return None
    return with_reader(state, reader, Reader(False, EMPTY, tuple(UNUSED._replace(orphan=h.orphan) for h in record.holds)))


# ---- what a scan looks at


def only_members(state: State, reader: int) -> bool:
    """Scan the rows of members only."""
    return state.readers[reader].member == JOINED


def any_word_holds(hold: Hold) -> bool:
    """Take every word that is not 0 for a hold."""
    return hold.visible != NOTHING
