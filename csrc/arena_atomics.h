/* SPDX-License-Identifier: Apache-2.0
 *
 * Every atomic access of the arena protocol, and nothing else.
 *
 * Standalone C11: the Python extension, the ThreadSanitizer stress test and the spec's memory-order
 * check (`python -m spec orders`, which reads this file as text) all use this one header.  No other
 * file of the project names a memory order.
 *
 * Each function is named  arena_<word>_<operation>_<order>.  Each *edge*, a pair of accesses that order
 * one another, has a label in square brackets that stands at both ends here, at both ends in the
 * spec's programs, and in the comment of the code that calls it: one search finds the halves.
 *
 * "x86" tells what the access costs on x86-64 beyond a plain move; on AArch64 acquire and release
 * are LDAR and STLR, a seq_cst fence is DMB ISH.
 */
#ifndef ARENA_ATOMICS_H
#define ARENA_ATOMICS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

_Static_assert(sizeof(_Atomic uint64_t) == 8, "a 64-bit shared word is 8 bytes");
_Static_assert(sizeof(_Atomic uint32_t) == 4, "a futex word is 4 bytes");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2,
               "shared words must be lock-free: a lock table is private to a process");

typedef _Atomic uint64_t arena_word;
typedef _Atomic uint32_t arena_word32;

/* ---- ring positions ------------------------------------------------------------------------- */

/* [ring.publish] writer: record bytes, slot table, then published.
 * Pairs with arena_published_load_acquire.  Relaxed on either side: a reader sees the position
 * before the bytes and reads a torn record or another generation's payload.  x86: free. */
static inline void arena_published_store_release(arena_word *w, uint64_t v) {
    atomic_store_explicit(w, v, memory_order_release);
}
/* [ring.publish] reader: published, then record bytes.  x86: free. */
static inline uint64_t arena_published_load_acquire(arena_word *w) {
    return atomic_load_explicit(w, memory_order_acquire);
}

/* [ring.consume] reader: last read of the record, then consumed.
 * Pairs with arena_consumed_load_acquire.  Relaxed on either side: the writer overwrites a record
 * that is still being read.  x86: free. */
static inline void arena_consumed_store_release(arena_word *w, uint64_t v) {
    atomic_store_explicit(w, v, memory_order_release);
}
/* [ring.consume] writer: consumed, then the bytes of the next record.  x86: free. */
static inline uint64_t arena_consumed_load_acquire(arena_word *w) {
    return atomic_load_explicit(w, memory_order_acquire);
}

/* ---- message slots -------------------------------------------------------------------------- */

/* [slot.done] reader: last read of the payload, then done <- generation.
 * Pairs with arena_done_load_acquire.  Relaxed on either side: the writer fills an extent that is
 * still being read.  x86: free. */
static inline void arena_done_store_release(arena_word *w, uint64_t v) {
    atomic_store_explicit(w, v, memory_order_release);
}
/* [slot.done] writer: done, then the bytes of the next generation.  x86: free. */
static inline uint64_t arena_done_load_acquire(arena_word *w) {
    return atomic_load_explicit(w, memory_order_acquire);
}

/* [slot.gen] The generation of a message slot.  Relaxed: the reader learns of a slot from the ring,
 * so [ring.publish] already orders this word and the payload.  x86: free. */
static inline void arena_gen_store_relaxed(arena_word *w, uint64_t v) {
    atomic_store_explicit(w, v, memory_order_relaxed);
}
/* [slot.gen] */
static inline uint64_t arena_gen_load_relaxed(arena_word *w) {
    return atomic_load_explicit(w, memory_order_relaxed);
}

/* ---- object slots --------------------------------------------------------------------------- */

/* [object.publish] writer: payload, then gen <- even (open).
 * Pairs with arena_gen_load_seq_cst.  Relaxed: a handle that travelled by any other road opens a
 * slot whose bytes are not there yet.  x86: free. */
static inline void arena_gen_store_release(arena_word *w, uint64_t v) {
    atomic_store_explicit(w, v, memory_order_release);
}

/* [object.evict] writer: gen <- odd (closed), then scan the hold words; reader: hold <- gen, then
 * re-check gen.  Store-then-load on both sides: all four accesses are seq_cst.  Acquire/release on
 * any of them: both sides may read the old value, and the writer reuses bytes under a live view.
 * x86: the stores are XCHG (about 20 cycles), the loads are free. */
static inline void arena_gen_store_seq_cst(arena_word *w, uint64_t v) {
    atomic_store_explicit(w, v, memory_order_seq_cst);
}
/* [object.evict] reader's re-check; also the acquire half of [object.publish]. */
static inline uint64_t arena_gen_load_seq_cst(arena_word *w) {
    return atomic_load_explicit(w, memory_order_seq_cst);
}
/* [object.evict] reader announces its hold. */
static inline void arena_hold_store_seq_cst(arena_word *w, uint64_t v) {
    atomic_store_explicit(w, v, memory_order_seq_cst);
}
/* [object.evict] writer's scan; also the acquire half of [object.release]. */
static inline uint64_t arena_hold_load_seq_cst(arena_word *w) {
    return atomic_load_explicit(w, memory_order_seq_cst);
}
/* [object.release] reader: last read of the payload, then hold <- 0.
 * Pairs with arena_hold_load_seq_cst.  Relaxed: the next object is written under the last read of
 * this one.  x86: free. */
static inline void arena_hold_store_release(arena_word *w, uint64_t v) {
    atomic_store_explicit(w, v, memory_order_release);
}

/* ---- parking -------------------------------------------------------------------------------- */

/* A park word is the futex word of one process: 1 = parked, set by its owner; 0 = not, stored by
 * the owner or exchanged in by a waker.  All its accesses are relaxed: the fences below order them
 * against the positions, and the kernel re-reads the word under its own lock in futex_wait. */

/* [park.published] [park.consumed] [closed] owner: 1 before its re-check, 0 after its sleep;
 * shutdown: 0.  x86: free. */
static inline void arena_park_store_relaxed(arena_word32 *w, uint32_t v) {
    atomic_store_explicit(w, v, memory_order_relaxed);
}
/* [park.published] [park.consumed] waker: does the owner sleep?  x86: free. */
static inline uint32_t arena_park_load_relaxed(arena_word32 *w) {
    return atomic_load_explicit(w, memory_order_relaxed);
}
/* [park.published] [park.consumed] [closed] A waker takes the flag *before* it wakes; only the one
 * that gets 1 wakes.  Store 0 after the wake instead: the owner parks again in between and its new
 * flag is erased.  x86: XCHG. */
static inline uint32_t arena_park_exchange_relaxed(arena_word32 *w, uint32_t v) {
    return atomic_exchange_explicit(w, v, memory_order_relaxed);
}

/* Store mine, fence, load yours: each fence needs its partner, and without either one both sides
 * may miss the other's store: the sleeper sleeps with work there, the waker does not wake.
 * x86: MFENCE or a locked instruction, some 20 cycles each. */

/* [park.published] writer: published stored; fence; park words of the readers loaded. */
static inline void arena_fence_publish_to_parked_seq_cst(void) {
    atomic_thread_fence(memory_order_seq_cst);
}
/* [park.published] reader: own park word stored; fence; published loaded. */
static inline void arena_fence_parked_to_published_seq_cst(void) {
    atomic_thread_fence(memory_order_seq_cst);
}
/* [park.consumed] reader: consumed (or its member word) stored; fence; the writer's park word loaded. */
static inline void arena_fence_consumed_to_parked_seq_cst(void) {
    atomic_thread_fence(memory_order_seq_cst);
}
/* [park.consumed] writer: own park word stored; fence; the cursors and member words loaded. */
static inline void arena_fence_parked_to_consumed_seq_cst(void) {
    atomic_thread_fence(memory_order_seq_cst);
}

/* ---- membership and lifecycle --------------------------------------------------------------- */

/* [member.claim] A reader takes its rank's entry with one compare-and-swap of the whole word (state,
 * pid and start time together, so that no death can leave half an entry).  Acquire: the joiner's own
 * stores into its rows come after the zeroes of [member.reclaim], or the writer wipes out a hold.
 * [member.admit] The writer makes JOINED of JOINING in the same way, after the joiner's ring cursor: a joiner
 * that has given up meanwhile stores LEFT, and a plain store over it would leave a member that never reads.
 * Release: or the joiner starts from a dead reader's cursor.  Not its park word: a joiner parks while it is
 * JOINING, and with a 0 stored over its 1 it sleeps through the admission.
 * A swap that fails orders nothing.  x86: LOCK CMPXCHG. */
static inline bool arena_member_cas_acq_rel(arena_word *w, uint64_t expected, uint64_t desired) {
    return atomic_compare_exchange_strong_explicit(w, &expected, desired, memory_order_acq_rel,
                                                   memory_order_relaxed);
}
/* [member.leave] reader: its last consumed, then LEFT.  [member.reclaim] writer: done and hold rows
 * zeroed, then EMPTY.  Relaxed: a left reader's last cursor is missed, and slots that it has read are
 * taken for unread; a successor's first words are zeroed.  x86: free. */
static inline void arena_member_store_release(arena_word *w, uint64_t v) {
    atomic_store_explicit(w, v, memory_order_release);
}
/* [member.claim] [member.admit] [member.leave] [member.reclaim] x86: free. */
static inline uint64_t arena_member_load_acquire(arena_word *w) {
    return atomic_load_explicit(w, memory_order_acquire);
}

/* [closed] shutdown(): closed <- 1, fence, park word <- 0, then wake, unconditionally.  Release: who
 * sees closed sees the last published position.  Stronger than needed: release is enough beside the
 * fence, and a shutdown is too rare to tell.  x86: XCHG. */
static inline void arena_closed_store_seq_cst(arena_word32 *w, uint32_t v) {
    atomic_store_explicit(w, v, memory_order_seq_cst);
}
/* [closed] between closed <- 1 and park word <- 0.  Without it the 0 may arrive before closed does,
 * however strong that store is (AArch64: a plain store passes an STLR): an owner that parks in
 * between keeps its 1, still reads closed = 0, and sleeps through the shutdown.  x86: MFENCE or a
 * locked instruction. */
static inline void arena_fence_closed_to_parked_seq_cst(void) {
    atomic_thread_fence(memory_order_seq_cst);
}
/* [closed] owner: its re-check, after park <- 1 and that fence.  x86: free. */
static inline uint32_t arena_closed_load_acquire(arena_word32 *w) {
    return atomic_load_explicit(w, memory_order_acquire);
}

/* [trace.stamp] One shared counter stamps the events of all processes: a read-modify-write, so that
 * two stamps are never equal; acq_rel, so that an event's stamps enclose its access.  x86: LOCK XADD. */
static inline uint64_t arena_stamp_add_acq_rel(arena_word *w) {
    return atomic_fetch_add_explicit(w, 1, memory_order_acq_rel);
}

#endif
