"""Object slots, step by step: the writer's put, evict and scan; a reader's get and release; deaths and joins.

The word `hold` of a reader is a hazard pointer. The reader announces the generation that it wants and then re-checks
the slot; the writer moves the generation on and then scans the words. Both store first and load afterwards, in one
total order, so at least one of the two sees the other.
"""

from __future__ import annotations

from spec.model import action, put
from spec.models.object_slots_state import (
    AFTER_CLAIM,
    AFTER_EVICTION,
    CHECKING,
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
    LIVE,
    MISSED,
    NOTHING,
    OLDER,
    Config,
    Hold,
    Reader,
    Slot,
    State,
    adding,
    may_be_tried,
    moving,
    relabelled,
    with_hold,
    with_reader,
    with_slot,
)

SLOT, READER, PAIR = ("slot",), ("reader",), ("reader", "slot")
PAIR_LABEL = ("reader", "slot", "label")

# ---------------------------------------------------------------------------------------------------------- the writer


@action("writer", over=SLOT, progress=False)
def claim(config: Config, state: State, slot: int) -> State | None:
    """Take a free slot, never a draining one, for a new object."""
    record = state.slots[slot]
    if not state.writer_alive or record.owner != FREE:
        return None
    oldest = NOTHING if record.oldest_handle == NOTHING else OLDER
    filling = Slot(FILLING, False, (False,) * config.readers, oldest)
    return with_slot(relabelled(state, slot, AFTER_CLAIM), slot, filling)


@action("writer", over=SLOT, progress=False)
def copy(config: Config, state: State, slot: int) -> State | None:
    """Copy the object into the slot's extent."""
    record = state.slots[slot]
    if not state.writer_alive or record.owner != FILLING or record.complete:
        return None
    return with_slot(state, slot, record._replace(complete=True))


@action("writer", over=SLOT, edge="[object.publish]", progress=False)
def publish_object(config: Config, state: State, slot: int) -> State | None:
    """The object is complete: open the generation and give out handles."""
    record = state.slots[slot]
    if not state.writer_alive or record.owner != FILLING or not record.complete:
        return None
    return with_slot(state, slot, record._replace(owner=LIVE))


@action("writer", over=SLOT, progress=False)
def abort(config: Config, state: State, slot: int) -> State | None:
    """Give the object up before it is published."""
    record = state.slots[slot]
    if not state.writer_alive or record.owner != FILLING:
        return None
    return with_slot(state, slot, record._replace(owner=FREE, complete=False))


@action("writer", over=SLOT, edge="[object.evict]", progress=False)
def evict(config: Config, state: State, slot: int) -> State | None:
    """Move the generation on *first*: from now on every re-check fails. Only then look who holds it."""
    record = state.slots[slot]
    if not state.writer_alive or record.owner != LIVE:
        return None
    return with_slot(relabelled(state, slot, AFTER_EVICTION), slot, evicted(config, record, DRAINING))


def evicted(config: Config, record: Slot, owner: str) -> Slot:
    """The slot after its generation has moved on."""
    oldest = EVICTED if record.oldest_handle == NOTHING else record.oldest_handle
    return Slot(owner, True, (False,) * config.readers, oldest)


@action("writer", over=PAIR, edge=("[object.evict]", "[object.release]"))
def scan(config: Config, state: State, reader: int, slot: int) -> State | None:
    """Look at one reader's row. Once seen clear it stays clear; when all rows are clear the slot is free."""
    record = state.slots[slot]
    if not state.writer_alive or record.owner != DRAINING:
        return None
    clear = seen_clear(config, state, reader, slot)
    if clear is None:
        return None
    if all(clear):
        return with_slot(state, slot, record._replace(owner=FREE, clear=(False,) * config.readers))
    return with_slot(state, slot, record._replace(clear=clear))


def seen_clear(config: Config, state: State, reader: int, slot: int) -> tuple[bool, ...] | None:
    """The rows seen clear after a look at this one; None if it was seen clear before or is not."""
    clear = state.slots[slot].clear
    if clear[reader] or (config.scans_row(state, reader) and config.is_held(state.readers[reader].holds[slot])):
        return None
    return put(clear, reader, True)


@action("writer", over=READER, edge="[member.reclaim]")
def reclaim(config: Config, state: State, reader: int) -> State | None:
    """A pidfd has proved the death: clear the reader's whole row, and only then the entry.

    Without the quarantine option the signal comes only when the dead process's DMA is over. With it the signal may
    come earlier, and what the row held is fenced off.
    """
    record = state.readers[reader]
    if not state.writer_alive or record.member == EMPTY or record.alive or dma_runs(record):
        return None
    return with_reader(state, reader, Reader(False, EMPTY, tuple(cleared(config, hold) for hold in record.holds)))


def dma_runs(reader: Reader) -> bool:
    """The device still reads what the reader had leased."""
    return any(reference.phase in (DMA, EARLY) for hold in reader.holds for reference in hold.references)


def cleared(config: Config, hold: Hold) -> Hold:
    """A row's entry after the reclaim: the word is 0, and with quarantine what it named is fenced off.

    A word that names a generation whose bytes are long gone says nothing, and must not replace an earlier fence.
    """
    fenced = hold.fenced
    if config.quarantine and hold.visible in (CURRENT, EVICTED):
        fenced = hold.visible
    return Hold(references=hold.references, fenced=fenced, orphan=hold.orphan)


@action("writer", over=PAIR)
def expire(config: Config, state: State, reader: int, slot: int) -> State | None:
    """The quarantine of a dead reader's slot ends. The assumption: its DMA has stopped by then."""
    hold = state.readers[reader].holds[slot]
    if not state.writer_alive or hold.fenced == NOTHING or hold.orphan != NOTHING:
        return None
    return with_hold(state, reader, slot, hold._replace(fenced=NOTHING))


@action("writer", over=READER, edge="[member.admit]", progress=False)
def admit(config: Config, state: State, reader: int) -> State | None:
    """A new process joins on the rank of a dead one."""
    return joined(state, reader, JOINED) if state.writer_alive else None


def joined(state: State, reader: int, member: str) -> State | None:
    """The state after a new process has come; its counts are its own. None where the rank is taken."""
    record = state.readers[reader]
    if record.alive or record.member != EMPTY or any(hold.references for hold in record.holds):
        return None
    return with_reader(state, reader, Reader(True, member, tuple(hold._replace(counted=0) for hold in record.holds)))


@action("writer", environment=True, progress=False)
def writer_death(config: Config, state: State) -> State | None:
    """The writer dies. Holds and views stay valid."""
    return State(False, state.slots, state.readers) if state.writer_alive else None


# --------------------------------------------------------------------------------------------------------- the readers


def get_in_flight(hold: Hold) -> bool:
    """A get has announced and not re-checked: it has the process's lock."""
    return any(reference.phase == CHECKING for reference in hold.references)


def may_get(config: Config, state: State, reader: int, slot: int, label: str) -> bool:
    """The reader may try a handle of that generation now."""
    record = state.readers[reader]
    return record.alive and len(record.holds[slot].references) < config.leases and may_be_tried(state.slots[slot], label)


@action("reader {reader}", over=PAIR_LABEL, edge="[object.evict]", progress=False)
def announce(config: Config, state: State, reader: int, slot: int, label: str) -> State | None:
    """get, nothing held yet: store the handle's generation into the hold word, seq_cst."""
    hold = state.readers[reader].holds[slot]
    if hold.counted or get_in_flight(hold) or not may_get(config, state, reader, slot, label):
        return None
    return with_hold(state, reader, slot, Hold(label, 1, label, adding(hold, CHECKING, label), hold.fenced, hold.orphan))


@action("reader {reader}", over=PAIR_LABEL, part_of="announce", progress=False)
def share(config: Config, state: State, reader: int, slot: int, label: str) -> State | None:
    """get, the same generation is held already: count one more. A hit after the eviction is safe, too."""
    hold = state.readers[reader].holds[slot]
    if not hold.counted or hold.word != label or get_in_flight(hold):
        return None
    if not may_get(config, state, reader, slot, label):
        return None
    return with_hold(state, reader, slot, hold._replace(counted=hold.counted + 1, references=adding(hold, HELD, label)))


@action("reader {reader}", over=PAIR, part_of="announce", defensive=True)
def miss_live(config: Config, state: State, reader: int, slot: int) -> State | None:
    """get of a live handle while another generation of the slot is held: a miss. The protocol never gets here."""
    hold = state.readers[reader].holds[slot]
    if not hold.counted or hold.word == CURRENT or get_in_flight(hold):
        return None
    if not may_get(config, state, reader, slot, CURRENT):
        return None
    return with_hold(state, reader, slot, hold._replace(references=adding(hold, MISSED, CURRENT)))


@action("reader {reader}", over=PAIR_LABEL, edge=("[object.evict]", "[object.publish]"))
def recheck(config: Config, state: State, reader: int, slot: int, label: str) -> State | None:
    """get, second half: load the slot's generation. It is the handle's: a hit. Otherwise clear the word: a miss."""
    return rechecked(state, reader, slot, label, hit=label == CURRENT)


def rechecked(state: State, reader: int, slot: int, label: str, hit: bool) -> State | None:
    """The state after the get of that generation has hit or missed."""
    record = state.readers[reader]
    hold = record.holds[slot]
    references = moving(hold, CHECKING, label, into=HELD if hit else None)
    if references is None or not record.alive:
        return None
    return with_hold(state, reader, slot, (hold if hit else counted_down(hold))._replace(references=references))


def counted_down(hold: Hold) -> Hold:
    """One lease less; the last one clears the word. That store may lag: `flush_hold` makes it visible."""
    if hold.counted > 1:
        return hold._replace(counted=hold.counted - 1)
    return hold._replace(word=NOTHING, counted=0)


@action("reader {reader}", over=(*PAIR_LABEL, "gated"))
def drop(config: Config, state: State, reader: int, slot: int, label: str, gated: bool) -> State | None:
    """The last view of a lease goes away; `gated` if the device still has to read the memory."""
    record = state.readers[reader]
    hold = record.holds[slot]
    references = moving(hold, HELD, label, into=DMA if gated else DROPPED)
    if references is None or not record.alive:
        return None
    return with_hold(state, reader, slot, hold._replace(references=references))


@action("device", over=PAIR_LABEL, environment=True)
def dma_complete(config: Config, state: State, reader: int, slot: int, label: str) -> State | None:
    """The device has read the memory, and the gate opens. It also does so for a reader that has died."""
    record = state.readers[reader]
    references = moving(record.holds[slot], DMA, label, into=DROPPED if record.alive else None)
    if references is None:
        return None
    return with_hold(state, reader, slot, record.holds[slot]._replace(references=references))


@action("device", over=PAIR, environment=True)
def orphan_dma_complete(config: Config, state: State, reader: int, slot: int) -> State | None:
    """The device has finished, or the driver has stopped, the DMA of a process that died."""
    hold = state.readers[reader].holds[slot]
    return None if hold.orphan == NOTHING else with_hold(state, reader, slot, hold._replace(orphan=NOTHING))


@action("reader {reader}", over=PAIR_LABEL, edge="[object.release]")
def release_hold(config: Config, state: State, reader: int, slot: int, label: str) -> State | None:
    """Once per lease, after its gate, under the lock: count down, and at 0 clear the word."""
    record = state.readers[reader]
    hold = record.holds[slot]
    references = moving(hold, DROPPED, label, into=None)
    if references is None or not record.alive:
        return None
    return with_hold(state, reader, slot, counted_down(hold)._replace(references=references))


@action("reader {reader}", over=PAIR, environment=True)
def flush_hold(config: Config, state: State, reader: int, slot: int) -> State | None:
    """The reader's store to its hold word becomes visible."""
    hold = state.readers[reader].holds[slot]
    return None if hold.visible == hold.word else with_hold(state, reader, slot, hold._replace(visible=hold.word))


@action("reader {reader}", over=READER, environment=True, progress=False)
def reader_death(config: Config, state: State, reader: int) -> State | None:
    """The process dies: its views go, its word stays, a DMA that it has started goes on."""
    record = state.readers[reader]
    if not record.alive:
        return None
    holds = tuple(after_death(config, hold) for hold in record.holds)
    return with_reader(state, reader, Reader(False, record.member, holds))


def after_death(config: Config, hold: Hold) -> Hold:
    """What is left of a dead process at one slot."""
    running = tuple(each for each in hold.references if each.phase in (DMA, EARLY))
    if not config.quarantine:
        return hold._replace(visible=hold.word, references=running)
    orphan = running[0].label if running else hold.orphan
    return hold._replace(visible=hold.word, references=(), orphan=orphan)


ACTIONS = (
    claim, copy, publish_object, abort, evict, scan, reclaim, admit, writer_death, announce, share, miss_live, recheck,
    drop, dma_complete, release_hold, flush_hold, reader_death,
)  # fmt: skip
QUARANTINE_ACTIONS = (expire, orphan_dma_complete)
