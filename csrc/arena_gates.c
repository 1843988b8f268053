/* SPDX-License-Identifier: Apache-2.0
 *
 * Gated grants: their memory may still be read by a device when the last view is gone.  So the last
 * drop, in whatever thread and with or without the GIL, only puts the grant on a list (R. K. Treiber's
 * stack, 1986; taken as a whole, so no ABA), and arena/message/gates.py releases it once the
 * device is done.  Until something is pinned no grant waits: a device reads other memory through a copy.
 *
 * The list is private to a process; its atomics are sequentially consistent and no part of the protocol.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "arena_internal.h"

struct arena_gates {
    _Atomic(arena_grant *) dropped;
    _Atomic int is_shut;             /* something is, or is about to be, pinned */
    _Atomic int64_t references;      /* the reader, and each gated grant */
    _Atomic int is_waited_for;
    arena_word32 signal;             /* futex: 1 while the waiter sleeps */
};

arena_gates *arena_gates_open(void) {
    arena_gates *gates = calloc(1, sizeof *gates);
    if (gates) gates->references = 1;
    return gates;
}

void arena_gates_close(arena_gates *gates) {
    if (atomic_fetch_sub(&gates->references, 1) == 1) free(gates);
}

/* From now on drops wait: before the first registration. */
void arena_gates_shut(arena_gates *gates) { atomic_store(&gates->is_shut, 1); }

/* Gated grants that are not released, dropped or not. */
int64_t arena_gates_leases(arena_gates *gates) { return atomic_load(&gates->references) - 1; }

/* Before any view of it exists.  `offset` and `nbytes` are what a device may read. */
void arena_grant_gate(arena_grant *g, arena_gates *gates, uint64_t offset, uint64_t nbytes) {
    atomic_fetch_add(&gates->references, 1);
    g->gates = gates;
    g->offset = offset;
    g->nbytes = nbytes;
}

/* Takes a grant whose last holder is gone; false: nothing is pinned, it is to be released at once. */
bool arena_gates_push(arena_gates *gates, arena_grant *g) {
    if (!atomic_load(&gates->is_shut)) return false;
    atomic_fetch_add(&gates->references, 1); /* once on the list, g and with it the gates may be gone at any time */
    arena_grant *head = atomic_load(&gates->dropped);
    do {
        g->next = head;
    } while (!atomic_compare_exchange_weak(&gates->dropped, &head, g));
    if (atomic_load(&gates->is_waited_for)) wake_if_parked(&gates->signal);
    arena_gates_close(gates);
    return true;
}

/* All grants that were dropped since the last call, the latest first: follow arena_grant_next. */
arena_grant *arena_gates_pop(arena_gates *gates) {
    return atomic_load(&gates->dropped) ? atomic_exchange(&gates->dropped, NULL) : NULL;
}

arena_grant *arena_grant_next(arena_grant *g) { return g->next; }

void arena_grant_extent(arena_grant *g, uint64_t *extent) {
    extent[0] = g->offset;
    extent[1] = g->nbytes;
}

/* Sleeps until something is dropped, one slice at most; one thread at a time. */
void arena_gates_wait(arena_gates *gates, uint64_t slice_us) {
    atomic_store(&gates->signal, 1);
    atomic_store(&gates->is_waited_for, 1);
    if (!atomic_load(&gates->dropped)) futex_wait_parked(&gates->signal, slice_us);
    atomic_store(&gates->is_waited_for, 0);
}
