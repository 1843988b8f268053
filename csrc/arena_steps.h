/* SPDX-License-Identifier: Apache-2.0
 *
 * Every access to a shared word is a step: a place where a test can stop, kill or interrupt the
 * process.  Off, a step is one predicted branch on a word that never changes; `python -m fuzz.steps_cost` measures it.
 */
#ifndef ARENA_STEPS_H
#define ARENA_STEPS_H

extern int arena_steps_armed;
void arena_step_taken(void);

#ifdef ARENA_NO_STEPS
#define STEP(name) ((void)0)
#else
#define STEP(name) /* which access follows, for whoever reads */                                              \
    do {                                                                                                      \
        if (__builtin_expect(arena_steps_armed, 0)) arena_step_taken();                                       \
    } while (0)
#endif

#endif
