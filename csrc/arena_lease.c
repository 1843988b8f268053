/* SPDX-License-Identifier: Apache-2.0
 *
 * Grants: what one message, or one get, gave this process of one slot.  The tensors over it share it, and the last
 * holder releases the slot, in any thread, with or without the GIL.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "arena_internal.h"

static _Atomic int64_t grants_live;

static arena_grant *new_grant(arena_mapping *m, arena_holds *h, uint32_t row, uint32_t slot, uint64_t generation) {
    arena_grant *g = malloc(sizeof *g);
    if (!g) return NULL;
    *g = (arena_grant){.mapping = m, .holds = h, .generation = generation, .row = row, .slot = slot, .holders = 1};
    arena_map_retain(m);
    if (h) arena_holds_retain(h);
    atomic_fetch_add((_Atomic int64_t *)&m->grants, 1);
    atomic_fetch_add(&grants_live, 1);
    return g;
}

/* What a message grants. */
arena_grant *arena_grant_open(arena_mapping *m, uint32_t row, uint32_t slot, uint64_t generation) {
    return new_grant(m, NULL, row, slot, generation);
}

/* The same and the slot's extent (offset, length) in one call.  A stale or damaged slot is owed a release too (the
 * spec's discard): the grant is then dropped at once, and the outcome says why there is none. */
arena_grant *arena_grant_lease(arena_mapping *m, uint32_t row, uint32_t slot, uint64_t generation, uint64_t *extent,
                               int *outcome) {
    *outcome = arena_slot_lease(m, slot, generation, &extent[0], &extent[1]);
    if (slot >= m->geometry.n_slots) return NULL;
    arena_grant *g = new_grant(m, NULL, row, slot, generation);
    if (g && *outcome != ARENA_OK) {
        arena_grant_drop(g);
        return NULL;
    }
    return g;
}

/* What a get of an object gives, and its extent; NULL where the outcome is negative, or memory is short. */
arena_grant *arena_grant_get(arena_holds *h, uint32_t slot, uint64_t generation, uint64_t *extent, int *outcome) {
    *outcome = arena_object_get(h, slot, generation, extent);
    if (*outcome < 0) return NULL;
    arena_grant *g = new_grant(arena_holds_mapping(h), h, 0, slot, generation);
    if (!g) arena_object_release_hold(h, slot);
    return g;
}

static void release(arena_grant *g) {
    if (!g->holds) {
        arena_slot_release(g->mapping, g->row, g->slot, g->generation);
        return;
    }
    arena_object_release_hold(g->holds, g->slot);
    arena_holds_release(g->holds);
}

/* Gives the slot back: nobody, and no device, reads it any more. */
void arena_grant_release(arena_grant *g) {
    release(g);
    arena_gates *gates = g->gates;
    atomic_fetch_sub((_Atomic int64_t *)&g->mapping->grants, 1);
    arena_map_release(g->mapping);
    atomic_fetch_sub(&grants_live, 1);
    free(g);
    if (gates) arena_gates_close(gates);
}

/* The last holder releases the slot, at once, in whatever thread; or hands a gated grant over. */
void arena_grant_drop(arena_grant *g) {
    if (!g) return; /* an exception came before it was made */
    if (!arena_map_is_alive(g->mapping)) return; /* a forked child: its parent holds the lease */
    if (atomic_fetch_sub(&g->holders, 1) != 1) return;
    if (g->gates && arena_gates_push(g->gates, g)) return;
    arena_grant_release(g);
}

int64_t arena_grants_live(void) { return atomic_load(&grants_live); }
