/* SPDX-License-Identifier: Apache-2.0
 *
 * A random walk through the protocol's calls, in one thread: prints what each call answers, and a sum over the whole segment
 * after it.  Two machines that print the same have decided alike and have laid out the same bytes; tests/test_aarch64.py
 * compares an emulated one with this one.
 *
 *   cc -std=gnu11 -Icsrc csrc/walk.c csrc/arena_{steps,trace,map,copy,ring,record,slots,objects,lease,gates}.c -pthread
 *   ./a.out CALLS SEED
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "arena_internal.h"

#define READERS 3
#define SLOTS 6 /* the first half is for messages, the others are for objects */
#define MESSAGE_SLOTS 3
#define EXTENT ARENA_PAGE
#define RECORD_MAX 3000
#define SLICE_US 20
#define GRANTS_MAX 16
#define ALL_ROWS (((uint64_t)1 << (READERS + 1)) - 1)
#define JOINING 1
#define LEFT 3
#define REFUSED (-100) /* by the walk, not by the call */

static const arena_geometry geometry = {
    .n_readers = READERS, .n_slots = SLOTS, .slots_offset = 2 * ARENA_PAGE, .done_offset = 3 * ARENA_PAGE,
    .hold_offset = 3 * ARENA_PAGE + (READERS + 1) * ARENA_LINE, .row_bytes = ARENA_LINE,
    .ring_offset = 4 * ARENA_PAGE, .ring_bytes = 2 * ARENA_PAGE,
    .control_bytes = 6 * ARENA_PAGE, .data_bytes = SLOTS * EXTENT,
};

static uint32_t state;
static arena_mapping *segment;
static arena_ring_writer writer;
static arena_ring_reader readers[READERS];
static arena_holds *holds[READERS];
static arena_gates *gates;
static uint64_t generations[SLOTS], required[SLOTS], leased[READERS][SLOTS], words[READERS], sent;
static struct {
    arena_grant *grant;
    uint32_t rank;
} grants[GRANTS_MAX];
static uint32_t n_grants;

static uint32_t pick(uint32_t n) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

static uint64_t sum_of(const void *bytes, uint64_t nbytes) {
    char *part = (char *)bytes;
    return arena_checksum(&part, &nbytes, 1);
}

static void keep(arena_grant *grant, uint32_t rank, const uint64_t *extent) {
    if (pick(4) == 0) arena_grant_gate(grant, gates, extent[0], extent[1]);
    grants[n_grants].grant = grant;
    grants[n_grants++].rank = rank;
}

/* ---- the calls: each answers with what is printed ---- */

static int64_t send_record(void) {
    char bytes[RECORD_MAX];
    uint32_t nbytes = pick(RECORD_MAX), head = pick(nbytes + 1);
    for (uint32_t i = 0; i < nbytes; i++) bytes[i] = (char)pick(256);
    if (pick(2)) return arena_send_plain(&writer, sent++, bytes, nbytes);
    return arena_ring_send(&writer, nbytes, (char *[]){bytes, bytes + head}, (uint64_t[]){head, nbytes - head}, 2);
}

static int64_t receive_record(void) {
    arena_ring_reader *reader = &readers[pick(READERS)];
    int rc = arena_wait_record(reader, 0, pick(2) * SLICE_US);
    if (rc != ARENA_OK) return rc;
    int64_t sum = (int64_t)(sum_of(reader->record, reader->record_bytes) + reader->plain_bytes);
    arena_ring_finish(reader);
    return sum;
}

static int64_t wait_room(void) { return arena_ring_wait_room(&writer, pick(RECORD_MAX), SLICE_US); }

static int64_t fill_slot(void) {
    static const uint32_t all[MESSAGE_SLOTS] = {0, 1, 2};
    uint8_t is_free[MESSAGE_SLOTS];
    uint64_t impossible = 0;
    uint32_t slot = pick(MESSAGE_SLOTS);
    uint32_t count = arena_slots_free(segment, all, MESSAGE_SLOTS, generations, required, is_free, &impossible);
    if (impossible || !is_free[slot]) return REFUSED - (int64_t)count;
    required[slot] = writer.members;
    arena_slot_claim(segment, slot, ++generations[slot], slot * EXTENT, 1 + pick(EXTENT), 1);
    memset(segment->data + slot * EXTENT, (char)pick(256), EXTENT);
    return slot;
}

static int64_t lease_slot(void) {
    uint32_t rank = pick(READERS), slot = pick(MESSAGE_SLOTS);
    uint64_t extent[2] = {0}, generation = generations[slot];
    if (pick(8) == 0) return arena_slot_lease(segment, slot, generation + 1, &extent[0], &extent[1]);
    if (leased[rank][slot] == generation || !(required[slot] >> rank & 1) || n_grants == GRANTS_MAX) return REFUSED;
    int outcome;
    keep(arena_grant_lease(segment, rank, slot, generation, extent, &outcome), rank, extent);
    leased[rank][slot] = generation;
    return outcome ? outcome : (int64_t)sum_of(segment->data + extent[0], extent[1]);
}

static int64_t drop_grant(void) {
    if (!n_grants) return REFUSED;
    uint32_t i = pick(n_grants);
    arena_grant_drop(grants[i].grant);
    grants[i] = grants[--n_grants];
    return arena_grants_live();
}

static int64_t release_gated(void) {
    int64_t sum = 0;
    for (arena_grant *next, *grant = arena_gates_pop(gates); grant; grant = next) {
        uint64_t extent[2];
        next = arena_grant_next(grant);
        arena_grant_extent(grant, extent);
        sum = sum * 31 + (int64_t)(extent[0] + extent[1]);
        arena_grant_release(grant);
    }
    return sum;
}

static int64_t turn_object(void) {
    uint32_t slot = MESSAGE_SLOTS + pick(SLOTS - MESSAGE_SLOTS);
    if (generations[slot] % 2 == 0) {
        arena_object_evict(segment, slot, ++generations[slot]);
        return slot;
    }
    uint64_t clear = arena_object_scan(segment, slot, generations[slot] - 1, 0);
    if (clear != ALL_ROWS) return REFUSED - (int64_t)clear;
    arena_slot_claim(segment, slot, generations[slot], slot * EXTENT, 1 + pick(EXTENT), 2);
    memset(segment->data + slot * EXTENT, (char)pick(256), EXTENT);
    arena_object_publish(segment, slot, ++generations[slot]);
    return slot;
}

static int64_t get_object(void) {
    uint32_t rank = pick(READERS), slot = MESSAGE_SLOTS + pick(SLOTS - MESSAGE_SLOTS);
    uint64_t extent[2];
    int outcome;
    if (n_grants == GRANTS_MAX) return REFUSED;
    arena_grant *grant = arena_grant_get(holds[rank], slot, generations[slot] & ~(uint64_t)1, extent, &outcome);
    if (!grant) return outcome;
    keep(grant, rank, extent);
    return outcome + (int64_t)sum_of(segment->data + extent[0], extent[1]);
}

static int64_t list_holds(void) {
    uint32_t slots[SLOTS] = {0};
    uint64_t held[SLOTS] = {0};
    uint32_t count = arena_row_holds(segment, pick(READERS), slots, held);
    return count + (int64_t)(sum_of(slots, sizeof slots) ^ sum_of(held, sizeof held));
}

static int64_t join(uint32_t rank) {
    uint64_t joining = words[rank] = (words[rank] & ~(uint64_t)3) + 4 + JOINING;
    arena_ring_reader *reader = &readers[rank];
    *reader = (arena_ring_reader){.m = segment, .rank = rank};
    if (!arena_member_claim(segment, rank, 0, joining)) return REFUSED;
    int before = arena_ring_wait_admission(reader, joining, SLICE_US);
    int admitted = arena_ring_admit(&writer, rank, joining, joining + 1);
    return before * 100 + admitted * 10 + arena_ring_wait_admission(reader, joining, SLICE_US);
}

/* A reader leaves, its rows are cleared, and another one takes its rank. */
static int64_t replace_reader(void) {
    uint32_t rank = pick(READERS);
    for (uint32_t i = 0; i < n_grants; i++)
        if (grants[i].rank == rank) return REFUSED;
    release_gated();
    arena_ring_leave(&readers[rank], words[rank] - JOINING + LEFT);
    writer.members &= ~((uint64_t)1 << rank);
    for (uint32_t slot = 0; slot < SLOTS; slot++) required[slot] &= writer.members;
    arena_rows_clear(segment, rank);
    arena_member_write(segment, rank, 0);
    return join(rank);
}

#define CALLS(X)                                                                                              \
    X(send_record) X(receive_record) X(wait_room) X(fill_slot) X(lease_slot) X(drop_grant) X(release_gated)    \
    X(turn_object) X(get_object) X(list_holds) X(replace_reader)
#define CALL_ENTRY(name) {#name, name},
static const struct {
    const char *name;
    int64_t (*make)(void);
} calls[] = {CALLS(CALL_ENTRY)};

static void copy_in_threads(int threads) {
    static char from[(4 << 20) + 12345], to[sizeof from];
    for (size_t i = 0; i < sizeof from; i++) from[i] = (char)(i * 2654435761u >> 13);
    memset(to, 0, sizeof to);
    arena_copy(to, from, sizeof from, threads);
    printf("copy %d %016llx\n", threads, (unsigned long long)sum_of(to, sizeof to));
}

static void set_out(void) {
    int error = 0;
    segment = arena_map(-1, &geometry, ARENA_ACCESS_SHARED, &error);
    gates = arena_gates_open();
    int log = memfd_create("log", MFD_CLOEXEC);
    if (!segment || !gates || log < 0 || ftruncate(log, 1 << 20) != 0 || arena_trace_open(segment, log, 1000) != 0) {
        perror("no memory");
        exit(2);
    }
    arena_gates_shut(gates);
    writer = (arena_ring_writer){.m = segment};
    for (uint32_t slot = MESSAGE_SLOTS; slot < SLOTS; slot++) generations[slot] = 3; /* closed, and held by nobody */
    for (uint32_t rank = 0; rank < READERS; rank++) {
        holds[rank] = arena_holds_open(segment, rank, false);
        printf("join %lld\n", (long long)join(rank));
    }
}

static void end_up(void) {
    while (n_grants) drop_grant();
    release_gated();
    arena_gates_close(gates);
    for (uint32_t rank = 0; rank < READERS; rank++) arena_holds_release(holds[rank]);
    arena_map_release(segment);
    printf("left %lld grants, %lld mappings\n", (long long)arena_grants_live(), (long long)arena_maps_live());
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: %s CALLS SEED\n", argv[0]);
        return 2;
    }
    state = (uint32_t)strtoul(argv[2], NULL, 10);
    for (int i = 0; i < 14; i++) printf("layout %d %llx\n", i, (unsigned long long)arena_layout_constant(i));
    for (int threads = 1; threads <= 3; threads += 2) copy_in_threads(threads);
    set_out();
    for (long i = 0, n = strtol(argv[1], NULL, 10); i < n; i++) {
        uint32_t which = pick(sizeof calls / sizeof calls[0]);
        int64_t answer = calls[which].make();
        printf("%s %lld %016llx %016llx\n", calls[which].name, (long long)answer,
               (unsigned long long)sum_of(segment->control, geometry.control_bytes),
               (unsigned long long)sum_of(segment->data, geometry.data_bytes));
    }
    end_up();
    return 0;
}
