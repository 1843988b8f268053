/* SPDX-License-Identifier: Apache-2.0 */
#include "arena_steps.h"
#include "arena_native.h"

#include <signal.h>
#include <stdatomic.h>

int arena_steps_armed;
static _Atomic int64_t taken;
static int64_t stop_at;
static int stop_signal;

/* From now on steps are counted from 0; before step `at` (never, if negative) the process sends
 * itself `signal_number`: SIGKILL and SIGSTOP act at once, a handled signal when the call returns. */
void arena_steps_arm(int64_t at, int signal_number) {
    stop_at = at;
    stop_signal = signal_number;
    atomic_store(&taken, 0);
    arena_steps_armed = 1;
}

void arena_step_taken(void) {
    int64_t index = atomic_fetch_add(&taken, 1);
    if (index == stop_at) raise(stop_signal);
}

int64_t arena_steps_taken(void) { return atomic_load(&taken); }
