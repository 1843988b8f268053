/* SPDX-License-Identifier: Apache-2.0
 *
 * A stress test for ThreadSanitizer: one writer thread and N reader threads in one process run the
 * ring and the slots as processes would.  The first half of the messages are records only, so that nothing
 * but the ring's own edges orders them; each of the others grants a slot, whose every byte is its generation's
 * low byte.  A reader that sees another byte, or a race report, is a failure.
 *
 *   cc -std=gnu11 -fsanitize=thread -Icsrc csrc/stress.c csrc/arena_{steps,trace,map,ring,slots,copy}.c -pthread
 *   ./a.out READERS MESSAGES SEED
 *
 * What it shows: that the release/acquire edges order payload, records and slot words.  What it does
 * not: the fences of the parking (ThreadSanitizer does not model them; `python -m spec orders` does).
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena_internal.h"

#define SLOTS 4
#define EXTENT ARENA_PAGE
#define RING_BYTES (4 * ARENA_PAGE)
#define SLICE_US 20000
#define NO_SLOT UINT32_MAX

struct message {
    uint32_t slot;
    uint32_t filler_bytes;
    uint64_t generation;
};

static arena_mapping *segment;
static uint32_t n_readers;
static uint64_t n_messages;
static uint64_t failures;

static void fail(const char *what) {
    __atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);
    fprintf(stderr, "FAILED: %s\n", what);
}

static uint32_t next_random(uint32_t *state) { return *state = *state * 1664525u + 1013904223u; }

static void check(const char *what, const char *bytes, uint64_t nbytes, char expected) {
    for (uint64_t i = 0; i < nbytes; i++)
        if (bytes[i] != expected) {
            fail(what);
            return;
        }
}

static void *read_messages(void *argument) {
    arena_ring_reader reader = {.m = segment, .rank = (uint32_t)(uintptr_t)argument};
    for (uint64_t taken = 0; taken < n_messages;) {
        int rc = arena_ring_wait(&reader, 0, SLICE_US);
        if (rc == ARENA_EMPTY) continue;
        if (rc != ARENA_OK) {
            fail("ring");
            return NULL;
        }
        struct message message;
        memcpy(&message, reader.record, sizeof message);
        check("record", reader.record + sizeof message, message.filler_bytes, (char)message.generation);
        uint64_t offset = 0, nbytes = 0;
        if (message.slot != NO_SLOT &&
            arena_slot_lease(segment, message.slot, message.generation, &offset, &nbytes) != ARENA_OK)
            fail("lease");
        arena_ring_finish(&reader); /* the lease outlives the record */
        check("payload", segment->data + offset, nbytes, (char)message.generation);
        if (message.slot != NO_SLOT) arena_slot_release(segment, reader.rank, message.slot, message.generation);
        taken++;
    }
    return NULL;
}

static uint32_t free_slot(const uint64_t *generations, const uint64_t *required) {
    static const uint32_t all[SLOTS] = {0, 1, 2, 3};
    uint8_t is_free[SLOTS];
    uint64_t impossible = 0;
    while (!arena_slots_free(segment, all, SLOTS, generations, required, is_free, &impossible)) sched_yield();
    if (impossible) fail("a done word from the future");
    for (uint32_t slot = 0;; slot++)
        if (is_free[slot]) return slot;
}

static void fill_slot(uint32_t slot, uint64_t generation) {
    arena_slot_claim(segment, slot, generation, slot * EXTENT, EXTENT, 1);
    memset(segment->data + slot * EXTENT, (char)generation, EXTENT);
}

static void write_messages(uint32_t seed) {
    static char filler[1024];
    uint64_t generations[SLOTS] = {0}, required[SLOTS] = {0};
    arena_ring_writer writer = {.m = segment, .members = ((uint64_t)1 << n_readers) - 1};
    for (uint64_t sent = 0; sent < n_messages; sent++) {
        struct message message = {NO_SLOT, (next_random(&seed) >> 8) % sizeof filler, sent};
        if (sent >= n_messages / 2) {
            message.slot = free_slot(generations, required);
            message.generation = ++generations[message.slot];
            required[message.slot] = writer.members;
            fill_slot(message.slot, message.generation);
        }
        memset(filler, (char)message.generation, message.filler_bytes);
        char *parts[] = {(char *)&message, filler};
        uint64_t sizes[] = {sizeof message, message.filler_bytes};
        uint64_t nbytes = sizes[0] + sizes[1];
        while (arena_ring_send(&writer, nbytes, parts, sizes, 2) == ARENA_NO_ROOM)
            arena_ring_wait_room(&writer, nbytes, SLICE_US);
    }
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: %s READERS MESSAGES SEED\n", argv[0]);
        return 2;
    }
    n_readers = (uint32_t)atoi(argv[1]);
    n_messages = (uint64_t)atoll(argv[2]);
    uint64_t row_bytes = ARENA_LINE, slots_offset = 2 * ARENA_PAGE, done_offset = 3 * ARENA_PAGE;
    arena_geometry geometry = {
        .n_readers = n_readers, .n_slots = SLOTS, .slots_offset = slots_offset, .done_offset = done_offset,
        .hold_offset = done_offset + (n_readers + 1) * row_bytes, .row_bytes = row_bytes,
        .ring_offset = 16 * ARENA_PAGE, .ring_bytes = RING_BYTES,
        .control_bytes = 16 * ARENA_PAGE + RING_BYTES, .data_bytes = SLOTS * EXTENT,
    };
    int error = 0;
    segment = arena_map(-1, &geometry, ARENA_ACCESS_SHARED, &error);
    if (!segment) {
        fprintf(stderr, "no memory: %s\n", strerror(error));
        return 2;
    }
    pthread_t readers[64];
    for (uint32_t i = 0; i < n_readers; i++)
        pthread_create(&readers[i], NULL, read_messages, (void *)(uintptr_t)i);
    write_messages((uint32_t)atoi(argv[3]));
    for (uint32_t i = 0; i < n_readers; i++) pthread_join(readers[i], NULL);
    arena_map_release(segment);
    printf("%u readers, %llu messages, seed %s: %llu failures\n", n_readers, (unsigned long long)n_messages, argv[3],
           (unsigned long long)failures);
    return failures != 0;
}
