/* SPDX-License-Identifier: Apache-2.0
 *
 * Every access to a shared word is a step: a place where a test can stop, kill or interrupt the
 * process.  Off, a step is one predicted branch on a word that never changes; `python -m fuzz.steps_cost` measures it.
 */
#ifndef ARENA_STEPS_H
#define ARENA_STEPS_H

#include <stdint.h>

#define ARENA_STEPS(X)                                                                                        \
    X(member_load) X(member_cas) X(member_store) X(published_store) X(published_load) X(consumed_store)       \
    X(consumed_load) X(park_store) X(park_load) X(park_exchange) X(futex_wait) X(futex_wake) X(fence)         \
    X(record_write) X(record_read) X(closed_store) X(closed_load) X(gen_store) X(gen_load) X(extent_store)    \
    X(extent_load) X(done_store) X(done_load) X(hold_store) X(hold_load) X(payload_copy)

#define ARENA_STEP_ENUM(name) ARENA_STEP_##name,
enum arena_step { ARENA_STEPS(ARENA_STEP_ENUM) ARENA_STEP_COUNT };
#undef ARENA_STEP_ENUM

extern int arena_steps_armed;
void arena_step_taken(enum arena_step step);

#ifdef ARENA_NO_STEPS
#define STEP(name) ((void)0)
#else
#define STEP(name)                                                                                            \
    do {                                                                                                      \
        if (__builtin_expect(arena_steps_armed, 0)) arena_step_taken(ARENA_STEP_##name);                      \
    } while (0)
#endif

#endif
