/* SPDX-License-Identifier: Apache-2.0
 *
 * Member words, and the shared half of the message slots.
 * Function names are the actions of spec/models/message_slots.py.
 */
#include "arena_internal.h"
#include "arena_trace.h"

/* ---- members -------------------------------------------------------------------------------- */

uint64_t arena_member_read(arena_mapping *m, uint32_t rank) {
    STEP(member_load);
    return arena_member_load_acquire(&member_of(m, rank)->word);
}

int arena_member_claim(arena_mapping *m, uint32_t rank, uint64_t expected, uint64_t desired) {
    STEP(member_cas);
    return arena_member_cas_acq_rel(&member_of(m, rank)->word, expected, desired); /* [member.claim] [member.admit] */
}

void arena_member_write(arena_mapping *m, uint32_t rank, uint64_t word) {
    STEP(member_store);
    arena_member_store_release(&member_of(m, rank)->word, word);
}

/* Does any entry differ from what the writer saw last? */
int arena_members_changed(arena_mapping *m, const uint64_t *words) {
    for (uint32_t rank = 0; rank < m->geometry.n_readers; rank++)
        if (arena_member_read(m, rank) != words[rank]) return 1;
    return 0;
}

/* A member, before it registers memory with a device for the first time.  The writer asks once the member is dead: its
 * pidfd orders the two. */
void arena_member_pin(arena_mapping *m, uint32_t rank) {
    STEP(member_store);
    arena_member_store_release(&member_of(m, rank)->pinned, 1);
}

int arena_member_is_pinned(arena_mapping *m, uint32_t rank) {
    STEP(member_load);
    return arena_member_load_acquire(&member_of(m, rank)->pinned) != 0;
}

/* For a joiner: the writer may be parked in wait_until_ready. */
void arena_wake_writer(arena_mapping *m) {
    STEP(fence);
    arena_fence_consumed_to_parked_seq_cst(); /* [park.consumed] */
    wake_if_parked(&header_of(m)->writer_park);
}

/* ---- message slots -------------------------------------------------------------------------- */

#define KIND_BITS 3u

/* An entry's last word: its kind, and above that a sum over the extent.  A damaged offset mostly leads to another slot's
 * bytes, which a look at the limits does not show. */
static uint64_t sealed_kind(uint32_t slot, uint64_t offset, uint64_t nbytes, uint64_t kind) {
    uint64_t sum = (offset ^ 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
    sum = (sum ^ sum >> 31 ^ nbytes) * 0x94D049BB133111EBu;
    sum = (sum ^ sum >> 29 ^ slot) * 0x9E3779B97F4A7C15u;
    return (sum ^ sum >> 32) << KIND_BITS | kind;
}

void arena_slot_claim(arena_mapping *m, uint32_t slot, uint64_t generation, uint64_t offset, uint64_t nbytes,
                      uint64_t kind) {
    struct arena_slot *entry = slot_of(m, slot);
    STEP(gen_store);
    arena_gen_store_relaxed(&entry->generation, generation); /* [slot.gen] */
    STEP(extent_store);
    entry->offset = offset;
    entry->nbytes = nbytes;
    entry->kind = sealed_kind(slot, offset, nbytes, kind);
}

/* The extent of a slot that is held.  Every word is read once and judged as read: shared memory may
 * change between two looks. */
int arena_slot_extent(arena_mapping *m, uint32_t slot, uint64_t *offset, uint64_t *nbytes) {
    struct arena_slot *entry = slot_of(m, slot);
    STEP(extent_load);
    *offset = *(volatile uint64_t *)&entry->offset;
    *nbytes = *(volatile uint64_t *)&entry->nbytes;
    uint64_t kind = *(volatile uint64_t *)&entry->kind;
    if (kind != sealed_kind(slot, *offset, *nbytes, kind & ((1u << KIND_BITS) - 1))) return ARENA_CORRUPT;
    uint64_t limit = m->geometry.data_bytes;
    bool inside = *offset <= limit && *nbytes <= limit - *offset;
    return inside && *offset % ARENA_PAGE == 0 ? ARENA_OK : ARENA_CORRUPT;
}

/* Checks a (slot, generation) that came out of a message and gives its extent. */
int arena_slot_lease(arena_mapping *m, uint32_t slot, uint64_t generation, uint64_t *offset, uint64_t *nbytes) {
    if (slot >= m->geometry.n_slots) return ARENA_CORRUPT;
    STEP(gen_load);
    if (arena_gen_load_relaxed(&slot_of(m, slot)->generation) != generation) return ARENA_STALE; /* [slot.gen] */
    return arena_slot_extent(m, slot, offset, nbytes);
}

/* From any thread, once per grant.  It frees no other generation; but a second store, after the slot has moved on,
 * would erase the newer one (the spec's release_again), which is why a grant counts its holders. */
void arena_slot_release(arena_mapping *m, uint32_t row, uint32_t slot, uint64_t generation) {
    int64_t event = -1;
    if (__builtin_expect(arena_trace_on, 0)) event = arena_trace_begin(m, ARENA_TRACE_RELEASE, row, slot, generation);
    STEP(done_store);
    arena_done_store_release(done_of(m, row, slot), generation); /* [slot.done] */
    if (__builtin_expect(arena_trace_on, 0)) arena_trace_end(m, event, 0, 0);
}

/* Which of `slots` every required row has released; returns how many.  `impossible` collects the
 * rows that claim to have released a generation that was never published. */
uint32_t arena_slots_free(arena_mapping *m, const uint32_t *slots, uint32_t n, const uint64_t *generation_of,
                          const uint64_t *required_of, uint8_t *is_free, uint64_t *impossible) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t generation = generation_of[slots[i]];
        is_free[i] = 1;
        for (uint64_t rows = required_of[slots[i]]; rows && is_free[i]; rows &= rows - 1) {
            uint32_t row = (uint32_t)__builtin_ctzll(rows);
            STEP(done_load);
            uint64_t done = arena_done_load_acquire(done_of(m, row, slots[i])); /* [slot.done] */
            if (done > generation) *impossible |= (uint64_t)1 << row;
            is_free[i] = done == generation;
        }
        count += is_free[i];
    }
    return count;
}

/* A dead reader's rows, before its entry becomes EMPTY. */
void arena_rows_clear(arena_mapping *m, uint32_t row) {
    for (uint32_t slot = 0; slot < m->geometry.n_slots; slot++) {
        STEP(done_store);
        arena_done_store_release(done_of(m, row, slot), 0);
        STEP(hold_store);
        arena_hold_store_release(hold_of(m, row, slot), 0);
    }
    STEP(member_store);
    arena_member_store_release(&member_of(m, row)->pinned, 0);
}
