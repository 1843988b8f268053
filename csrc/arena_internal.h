/* SPDX-License-Identifier: Apache-2.0
 *
 * Addresses of shared words, futex calls, and calls between the .c files: what they share and Python does not see.
 */
#ifndef ARENA_INTERNAL_H
#define ARENA_INTERNAL_H

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "arena_layout.h"
#include "arena_native.h"
#include "arena_steps.h"

struct arena_grant {
    arena_mapping *mapping;
    arena_holds *holds; /* of an object: its hold is counted down; NULL: a message's done word is stored */
    uint64_t generation;
    uint32_t row;
    uint32_t slot;
    _Atomic int64_t holders; /* the message while it is unpickled, and each tensor */
    arena_gates *gates;      /* where it waits for a device; NULL: nowhere */
    struct arena_grant *next;
    uint64_t offset, nbytes; /* of a gated one */
};

int arena_map_is_alive(arena_mapping *m);
int arena_ring_wait(arena_ring_reader *r, uint64_t spin_us, uint64_t slice_us);
int arena_slot_lease(arena_mapping *m, uint32_t slot, uint64_t generation, uint64_t *offset, uint64_t *nbytes);
void arena_holds_retain(arena_holds *h);
arena_mapping *arena_holds_mapping(arena_holds *h);
int arena_object_get(arena_holds *h, uint32_t slot, uint64_t generation, uint64_t *extent);
arena_grant *arena_grant_lease(arena_mapping *m, uint32_t row, uint32_t slot, uint64_t generation, uint64_t *extent,
                               int *outcome);
arena_grant *arena_grant_get(arena_holds *h, uint32_t slot, uint64_t generation, uint64_t *extent, int *outcome);
bool arena_gates_push(arena_gates *gates, arena_grant *g);

static inline struct arena_header *header_of(arena_mapping *m) { return (struct arena_header *)m->control; }

static inline struct arena_member *member_of(arena_mapping *m, uint32_t rank) {
    return (struct arena_member *)(m->control + ARENA_PAGE) + rank;
}

static inline struct arena_slot *slot_of(arena_mapping *m, uint32_t slot) {
    return (struct arena_slot *)(m->control + m->geometry.slots_offset) + slot;
}

static inline arena_word *done_of(arena_mapping *m, uint32_t row, uint32_t slot) {
    return (arena_word *)(m->control + m->geometry.done_offset + row * m->geometry.row_bytes) + slot;
}

static inline arena_word *hold_of(arena_mapping *m, uint32_t row, uint32_t slot) {
    return (arena_word *)(m->control + m->geometry.hold_offset + row * m->geometry.row_bytes) + slot;
}

static inline arena_word32 *closed_of(uint32_t *closed) { return (arena_word32 *)closed; }

/* Sleeps only while the word is 1: the kernel compares under the lock that futex_wake takes. */
/* Returns 0 when woken, else an errno: ETIMEDOUT at the end of the slice. */
static inline int futex_wait_parked(arena_word32 *word, uint64_t slice_us) {
    struct timespec slice = {(time_t)(slice_us / 1000000), (long)(slice_us % 1000000) * 1000};
    STEP(futex_wait);
    return syscall(SYS_futex, word, FUTEX_WAIT, 1, &slice, NULL, 0) == 0 ? 0 : errno;
}

static inline void futex_wake_one(arena_word32 *word) {
    STEP(futex_wake);
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Take the flag first, then wake: see arena_park_exchange_relaxed. */
static inline void wake_if_parked(arena_word32 *word) {
    STEP(park_load);
    if (!arena_park_load_relaxed(word)) return;
    STEP(park_exchange);
    if (arena_park_exchange_relaxed(word, 0)) futex_wake_one(word);
}

#endif
