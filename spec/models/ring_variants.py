"""The table of the ring's faults: what each one changes, the property that breaks, and after how many steps.

A stress test on x86 shows hardly any of these: a missing fence did not lose one wake-up in millions of records.
"""

from __future__ import annotations

from dataclasses import replace

from spec.model import Action, Variant
from spec.models.ring_faults import (
    admit_as_it_is,
    advance_early,
    clear_reader_flag,
    end_slice_at_the_ring,
    find_no_room_unparked,
    join_with_own_cursor,
    look_at_pidfd_last,
    park_reader_late,
    park_writer_late,
    publish_first,
    publish_to_those_seen,
    read_late,
    recheck_record_unparked,
    recheck_room_unparked,
    see_nothing_unparked,
    see_reader_flag,
    see_record_and_advance,
    shutdown_if_parked,
    shutdown_wake_only,
    skip_cursor_fence,
    skip_parked_reader_fence,
    skip_parked_writer_fence,
    skip_published_fence,
    sleep_reader_blindly,
    sleep_reader_on_position,
    sleep_writer_blindly,
    wake_one_reader,
    wake_reader_then_clear,
    wake_those_seen,
    watcher_drops_dead,
    watcher_drops_dead_and_wakes,
    write_after_a_look,
    write_late,
)
from spec.models.ring_reader import (
    end_reader_slice,
    fence_cursor,
    fence_parked_reader,
    join,
    see_nothing,
    see_record,
    shutdown_unpark,
    sleep_reader,
)
from spec.models.ring_state import Config
from spec.models.ring_writer import (
    admit,
    drop_dead,
    fence_parked_writer,
    fence_published,
    find_no_room,
    publish,
    sleep_writer,
    take_reader_flag,
    wake_reader,
    write,
)

Changes = tuple[tuple[Action, Action | None], ...]
NO_SHUTDOWN = Config(shutdown=False)
TWO = Config(readers=2, deaths=False, shutdown=False, spurious=False)
TWO_THAT_DIE = Config(readers=2, rejoin=False, spurious=False)
FLAGS_STAY: Changes = ((take_reader_flag, see_reader_flag),)
SLEEP_ON_POSITION: Changes = (*FLAGS_STAY, (sleep_reader, sleep_reader_on_position))


def without_shutdown(*changed: tuple[Action, Action | None], added: tuple[Action, ...] = ()) -> Config:
    """One reader that is never shut down, with some actions changed."""
    return replace(NO_SHUTDOWN, changed=changed, added=added)


VARIANTS: dict[str, Variant] = {
    "no-fence-published": Variant(
        "no fence from published position to park words: the writer looks for sleepers too early",
        without_shutdown((fence_published, skip_published_fence)),
        "L",
        14,
    ),
    "no-fence-parked-reader": Variant(
        "no fence from park word to published position: the reader looks again too early",
        without_shutdown((fence_parked_reader, skip_parked_reader_fence)),
        "L",
        14,
    ),
    "no-fence-cursor": Variant(
        "no fence from cursor to the writer's park word: the reader looks for a sleeping writer too early",
        without_shutdown((fence_cursor, skip_cursor_fence)),
        "L",
        21,
    ),
    "no-fence-parked-writer": Variant(
        "no fence from the writer's park word to cursors: the writer looks again too early",
        without_shutdown((fence_parked_writer, skip_parked_writer_fence)),
        "L",
        21,
    ),
    "parked-late": Variant(
        "parked after the re-check: what happens in between wakes nobody",
        without_shutdown(
            (see_nothing, see_nothing_unparked),
            (find_no_room, find_no_room_unparked),
            added=(recheck_record_unparked, park_reader_late, recheck_room_unparked, park_writer_late),
        ),
        "L",
        13,
    ),
    "sleepers-noted-early": Variant(
        "sleepers noted before publishing: whoever parks in between is not woken",
        without_shutdown((write, write_after_a_look), (publish, publish_to_those_seen), added=(wake_those_seen,)),
        "L",
        13,
    ),
    "one-of-two-woken": Variant(
        "one of two woken: the other sleeps on", replace(TWO, changed=((wake_reader, wake_one_reader),)), "L", 19
    ),
    "sleep-blindly": Variant(
        "sleep without comparison: a wake between re-check and sleep is lost",
        without_shutdown((sleep_reader, sleep_reader_blindly), (sleep_writer, sleep_writer_blindly)),
        "L",
        15,
    ),
    "word-cleared-late": Variant(
        "word cleared after the wake: the clear hides the next park",
        without_shutdown(*FLAGS_STAY, (wake_reader, wake_reader_then_clear), added=(clear_reader_flag,)),
        "L",
        16,
    ),
    "word-never-cleared": Variant(
        "word never cleared by the waker: futex_wait finds the word still set", without_shutdown(*FLAGS_STAY), "L", 15
    ),
    "shutdown-leaves-word": Variant(
        "shutdown leaves the word: futex_wait comes after the wake",
        Config(changed=((shutdown_unpark, shutdown_wake_only),)),
        "L",
        9,
    ),
    "shutdown-if-parked": Variant(
        "shutdown wakes only if parked: another waker has taken the word and not woken yet",
        Config(changed=((shutdown_unpark, shutdown_if_parked),)),
        "L",
        16,
    ),
    "cursor-first": Variant(
        "cursor advanced before reading: the room is used again too early",
        without_shutdown((see_record, see_record_and_advance), added=(advance_early, read_late)),
        "O",
        14,
    ),
    "dead-kept": Variant("dead reader kept: the ring stays full for ever", without_shutdown((drop_dead, None)), "stuck", 9),
    "closed-stays": Variant("closed reader does not leave: the ring stays full for ever", Config(leave=False), "stuck", 9),
    "published-first": Variant(
        "published before written: a reader is faster", without_shutdown((write, publish_first), added=(write_late,)), "T", 6
    ),
    "pidfd-last": Variant(
        "pidfd after the ring: the last record is lost",
        without_shutdown((end_reader_slice, end_slice_at_the_ring), added=(look_at_pidfd_last,)),
        "M",
        14,
    ),
    "joiner-sets-cursor": Variant(
        "joiner sets its cursor: the writer has gone on by then",
        without_shutdown((join, join_with_own_cursor), (admit, admit_as_it_is)),
        "O",
        18,
    ),
    "watcher-wakes-nobody": Variant(
        "watcher drops without a wake: the writer sleeps, with room", without_shutdown(added=(watcher_drops_dead,)), "L", 16
    ),
    "watcher-wakes": Variant(
        "watcher drops, takes the park word and wakes: right", without_shutdown(added=(watcher_drops_dead_and_wakes,))
    ),
    "no-slices": Variant("no slices: a dead waker took the wake with it", TWO_THAT_DIE, "L", 23),
    "sleep-on-position": Variant(
        "sleep on the published position: right for publishing alone, while the capacity is less than 2^32",
        without_shutdown(*SLEEP_ON_POSITION),
    ),
    "sleep-on-position-shutdown": Variant(
        "sleep on the published position, shutdown: shutdown cannot change that word",
        Config(changed=(*SLEEP_ON_POSITION, (shutdown_unpark, shutdown_wake_only))),
        "L",
        9,
    ),
}
