/* SPDX-License-Identifier: Apache-2.0
 *
 * What the steps cost when they are off: one thread takes messages of one slot each through slots and ring, and the
 * processor time per message is printed in nanoseconds, with the number of its steps.  Built with ARENA_NO_STEPS no step is
 * in the code; the difference between the two builds is the cost.  `python -m fuzz.steps_cost` builds and compares both.
 */
#include <stdio.h>
#include <stdlib.h>

#include "arena_internal.h"

#define EXTENT ARENA_PAGE
#define RING_BYTES (4 * ARENA_PAGE)

static arena_mapping *map(void) {
    uint64_t slots_offset = 2 * ARENA_PAGE, done_offset = 3 * ARENA_PAGE;
    arena_geometry geometry = {
        .n_readers = 1, .n_slots = 1, .slots_offset = slots_offset, .done_offset = done_offset,
        .hold_offset = done_offset + 2 * ARENA_LINE, .row_bytes = ARENA_LINE,
        .ring_offset = 16 * ARENA_PAGE, .ring_bytes = RING_BYTES,
        .control_bytes = 16 * ARENA_PAGE + RING_BYTES, .data_bytes = EXTENT,
    };
    int error = 0;
    return arena_map(-1, &geometry, ARENA_ACCESS_SHARED, &error);
}

/* A message's whole life; 0 if it did not go as it must. */
static int take_through(arena_mapping *m, arena_ring_writer *w, arena_ring_reader *r, uint64_t generation) {
    const uint32_t slot = 0;
    const uint64_t required = 1;
    uint64_t offset, nbytes, impossible = 0;
    uint8_t is_free;
    char record[64] = {0}, *parts[] = {record};
    const uint64_t sizes[] = {sizeof record};
    arena_slot_claim(m, slot, generation, 0, EXTENT, 1);
    if (arena_ring_send(w, sizeof record, parts, sizes, 1) != ARENA_OK) return 0;
    if (arena_ring_read(r) != ARENA_OK) return 0;
    if (arena_slot_lease(m, slot, generation, &offset, &nbytes) != ARENA_OK) return 0;
    arena_ring_finish(r);
    arena_slot_release(m, r->rank, slot, generation);
    return arena_slots_free(m, &slot, 1, &generation, &required, &is_free, &impossible) == 1;
}

static uint64_t processor_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int main(int argc, char **argv) {
    uint64_t n_messages = argc > 1 ? (uint64_t)atoll(argv[1]) : 1000000;
    arena_mapping *m = map();
    if (!m) return 2;
    arena_ring_writer writer = {.m = m, .members = 1};
    arena_ring_reader reader = {.m = m};
    uint64_t started = processor_ns();
    for (uint64_t generation = 1; generation <= n_messages; generation++)
        if (!take_through(m, &writer, &reader, generation)) return 1;
    double message_ns = (double)(processor_ns() - started) / (double)n_messages;
    arena_steps_arm(-1, 0);
    if (!take_through(m, &writer, &reader, n_messages + 1)) return 1;
    printf("%.2f %lld\n", message_ns, (long long)arena_steps_taken());
    arena_map_release(m);
    return 0;
}
