/* SPDX-License-Identifier: Apache-2.0
 *
 * Object slots: a reader's hold word is a hazard pointer (M. Michael, 2004), with a count beside it that
 * is private to the reader's process.  Function names are the actions of spec/models/object_slots.py.
 *
 * A generation is even while the slot is open and odd while it is closed, so a handle, which names an
 * even one, never matches a slot that is being filled or drained.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "arena_internal.h"
#include "arena_trace.h"

struct arena_holds {
    arena_mapping *mapping;
    uint32_t row;
    bool is_private;            /* the reader's pages are its own once it writes to them */
    _Atomic int64_t references; /* the reader, and each lease */
    pthread_mutex_t lock;       /* no Python runs under it: a finalizer cannot come in between */
    arena_hold held[];
};

arena_holds *arena_holds_open(arena_mapping *m, uint32_t row, bool is_private) {
    arena_holds *h = calloc(1, sizeof *h + m->geometry.n_slots * sizeof(arena_hold));
    if (!h) return NULL;
    h->mapping = m;
    h->row = row;
    h->is_private = is_private;
    h->references = 1;
    pthread_mutex_init(&h->lock, NULL);
    arena_map_retain(m);
    return h;
}

void arena_holds_retain(arena_holds *h) { atomic_fetch_add(&h->references, 1); }

void arena_holds_release(arena_holds *h) {
    if (!arena_map_is_alive(h->mapping)) return; /* a forked child: its parent has the holds */
    if (atomic_fetch_sub(&h->references, 1) != 1) return;
    pthread_mutex_destroy(&h->lock);
    arena_map_release(h->mapping);
    free(h);
}

arena_hold *arena_holds_private(arena_holds *h) { return h->held; }

arena_mapping *arena_holds_mapping(arena_holds *h) { return h->mapping; }

/* ---- a reader ------------------------------------------------------------------------------- */

/* First half of a get, under the lock.  ARENA_SHARED: the same generation is held already, one more counts;
 * a hit after its eviction is safe, its bytes are still there.  ARENA_STALE: another generation is
 * held; the word is left alone.  ARENA_EMPTY: announced, recheck must follow. */
int arena_object_announce(arena_holds *h, uint32_t slot, uint64_t generation) {
    arena_hold *held = &h->held[slot];
    if (held->count && held->generation != generation) return ARENA_STALE;
    if (held->count++) return ARENA_SHARED;
    held->generation = generation;
    STEP(hold_store);
    arena_hold_store_seq_cst(hold_of(h->mapping, h->row, slot), generation); /* [object.evict] */
    return ARENA_EMPTY;
}

/* One lease less, under the lock; the last one clears the word. */
static void count_down(arena_holds *h, uint32_t slot) {
    if (--h->held[slot].count) return;
    STEP(hold_store);
    arena_hold_store_release(hold_of(h->mapping, h->row, slot), 0); /* [object.release] */
}

/* Second half, under the lock: the slot still has the generation, or the word goes. */
int arena_object_recheck(arena_holds *h, uint32_t slot, uint64_t generation) {
    STEP(gen_load);
    uint64_t now = arena_gen_load_seq_cst(&slot_of(h->mapping, slot)->generation); /* [object.evict] [object.publish] */
    if (now == generation) return ARENA_OK;
    count_down(h, slot);
    return ARENA_STALE;
}

/* Under the lock, of a slot that is held: its extent, where the first of several leases forgets what was written to
 * private pages under an earlier generation. */
static int open_extent(arena_holds *h, uint32_t slot, uint64_t *extent, bool is_first) {
    int rc = arena_slot_extent(h->mapping, slot, &extent[0], &extent[1]);
    if (rc == ARENA_OK && is_first && h->is_private && arena_discard(h->mapping->data + extent[0], extent[1]))
        rc = ARENA_LOCKED;
    if (rc != ARENA_OK) count_down(h, slot);
    return rc;
}

/* A lease of (slot, generation) and its extent: ARENA_OK, ARENA_STALE, ARENA_CORRUPT where there cannot be such an
 * object, or its extent lies outside, or ARENA_LOCKED. */
int arena_object_get(arena_holds *h, uint32_t slot, uint64_t generation, uint64_t *extent) {
    if (slot >= h->mapping->geometry.n_slots || generation == 0 || generation & 1) return ARENA_CORRUPT;
    pthread_mutex_lock(&h->lock);
    int rc = arena_object_announce(h, slot, generation);
    bool is_first = rc == ARENA_EMPTY;
    if (is_first) rc = arena_object_recheck(h, slot, generation);
    if (rc >= 0) rc = open_extent(h, slot, extent, is_first);
    pthread_mutex_unlock(&h->lock);
    return rc;
}

/* Once per lease: unlike a done word this is not idempotent. */
void arena_object_release_hold(arena_holds *h, uint32_t slot) {
    arena_mapping *m = h->mapping;
    int64_t event = -1;
    if (__builtin_expect(arena_trace_on, 0)) /* what is held keeps its generation */
        event = arena_trace_begin(m, ARENA_TRACE_RELEASE_HOLD, h->row, slot, h->held[slot].generation);
    pthread_mutex_lock(&h->lock);
    count_down(h, slot);
    pthread_mutex_unlock(&h->lock);
    if (__builtin_expect(arena_trace_on, 0)) arena_trace_end(m, event, 0, 0);
}

/* ---- the writer ----------------------------------------------------------------------------- */

/* The payload and the extent are complete: the generation opens. */
void arena_object_publish(arena_mapping *m, uint32_t slot, uint64_t generation) {
    STEP(gen_store);
    arena_gen_store_release(&slot_of(m, slot)->generation, generation); /* [object.publish] */
}

/* The generation closes first; only then scan. */
void arena_object_evict(arena_mapping *m, uint32_t slot, uint64_t generation) {
    STEP(gen_store);
    arena_gen_store_seq_cst(&slot_of(m, slot)->generation, generation); /* [object.evict] */
}

/* Which of the rows do not hold `generation`, added to those that were seen so before: once seen clear
 * after the eviction, a row stays clear. */
uint64_t arena_object_scan(arena_mapping *m, uint32_t slot, uint64_t generation, uint64_t clear) {
    for (uint32_t row = 0; row <= m->geometry.n_readers; row++) {
        if (clear >> row & 1) continue;
        STEP(hold_load);
        uint64_t word = arena_hold_load_seq_cst(hold_of(m, row, slot)); /* [object.evict] [object.release] */
        if (word != generation) clear |= (uint64_t)1 << row;
    }
    return clear;
}

/* What a row holds: up to n_slots (slot, generation) pairs; returns how many. */
uint32_t arena_row_holds(arena_mapping *m, uint32_t row, uint32_t *slots, uint64_t *generations) {
    uint32_t count = 0;
    for (uint32_t slot = 0; slot < m->geometry.n_slots; slot++) {
        STEP(hold_load);
        uint64_t word = arena_hold_load_seq_cst(hold_of(m, row, slot)); /* [object.release] */
        if (!word) continue;
        slots[count] = slot;
        generations[count++] = word;
    }
    return count;
}
