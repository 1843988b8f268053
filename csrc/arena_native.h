/* SPDX-License-Identifier: Apache-2.0
 *
 * The native calls.  The part between the two marks is plain enough for cffi and is read by
 * build_native.py: what stands there is the whole surface that arena/shm/native.py can see.
 * No call needs the GIL, and cffi drops it around each.
 */
#ifndef ARENA_NATIVE_H
#define ARENA_NATIVE_H

#include <stdbool.h>
#include <stdint.h>

/* cdef begin */

/* ---- results ---- */
#define ARENA_OK 0
#define ARENA_SHARED 1     /* a get of what this process holds already */
#define ARENA_NO_ROOM -1   /* the ring cannot take the record now */
#define ARENA_EMPTY -2     /* nothing published beyond this reader's position */
#define ARENA_CLOSED -3    /* shutdown() in this process */
#define ARENA_CORRUPT -4   /* a shared word that the protocol cannot have written */
#define ARENA_STALE -5     /* the slot carries another generation */
#define ARENA_LOCKED -6    /* private pages that cannot be forgotten, as the process has locked them */

/* ---- sizes that layout.py checks ---- */
uint64_t arena_layout_constant(int which);

/* ---- steps: every shared access can stop here ---- */
void arena_steps_arm(int64_t at, int signal_number);
int64_t arena_steps_taken(void);

/* ---- mapping ---- */
typedef struct arena_geometry { /* from the validated header: never re-read from shared memory */
    uint32_t n_readers;
    uint32_t n_slots;
    uint64_t slots_offset;
    uint64_t done_offset;
    uint64_t hold_offset;
    uint64_t row_bytes;
    uint64_t ring_offset;
    uint64_t ring_bytes;
    uint64_t control_bytes;
    uint64_t data_bytes;
} arena_geometry;

typedef struct arena_mapping {
    char *control;
    char *data;
    arena_geometry geometry;
    int64_t references;
    int64_t grants; /* of these, leases */
    volatile int *alive; /* a page that fork wipes: 0 in a child */
} arena_mapping;

#define ARENA_ACCESS_SHARED 0
#define ARENA_ACCESS_READONLY 1
#define ARENA_ACCESS_PRIVATE 2

/* fd < 0: anonymous memory, for tests that step and snapshot the protocol in one process;
 * control_bytes 0: only data, from the start of the file */
arena_mapping *arena_map(int fd, const arena_geometry *geometry, int access, int *error);
void arena_map_retain(arena_mapping *m);
void arena_map_release(arena_mapping *m);
int64_t arena_maps_live(void);
int arena_map_zeros(char *address, uint64_t nbytes);
int arena_populate(char *address, uint64_t nbytes, int write);
int arena_populate_once(char *address, uint64_t nbytes, int write);
void arena_touch_pages(char *address, uint64_t nbytes, int write);
int arena_bind_memory(char *address, uint64_t nbytes, int mode, const uint64_t *nodes, uint32_t n_words);
int arena_bind_thread(int mode, const uint64_t *nodes, uint32_t n_words);
int arena_discard(char *address, uint64_t nbytes);
int arena_advise_huge(char *address, uint64_t nbytes);

/* ---- what can be had now ---- */
int arena_try_threads(uint32_t n, uint64_t headroom_bytes);
uint32_t arena_try_descriptors(uint32_t n);

/* ---- traces ---- */
int arena_trace_open(arena_mapping *m, int fd, uint64_t capacity);
int64_t arena_trace_begin(arena_mapping *m, uint32_t action, uint64_t a, uint64_t b, uint64_t c);
void arena_trace_end(arena_mapping *m, int64_t number, uint64_t d, uint64_t e);

/* ---- copies ---- */
void arena_copy(char *to, const char *from, uint64_t nbytes, int threads);
int arena_copy_cold(int fd, uint64_t file_offset, char *to, const char *from, uint64_t nbytes);

/* ---- members ---- */
uint64_t arena_member_read(arena_mapping *m, uint32_t rank);
int arena_member_claim(arena_mapping *m, uint32_t rank, uint64_t expected, uint64_t desired);
void arena_member_write(arena_mapping *m, uint32_t rank, uint64_t word);
int arena_members_changed(arena_mapping *m, const uint64_t *words);
int arena_writer_is_closed(arena_mapping *m);
void arena_wake_writer(arena_mapping *m);

/* ---- ring, writer ---- */
typedef struct arena_ring_writer {
    arena_mapping *m;
    uint64_t position;     /* next byte to publish */
    uint64_t padding;      /* bytes skipped before the reserved record */
    uint64_t min_consumed; /* of the members, as last seen */
    uint64_t members;      /* mask of the ranks whose cursors count */
    uint64_t impossible;   /* mask of the ranks whose cursors cannot be */
    uint64_t begun;        /* where the present message starts */
    uint64_t look_us;      /* when to look at the readers' lives again */
    const uint64_t *words; /* the member table as last seen */
    const int *pidfds;     /* of the readers: a sleeping writer looks at them now and then */
    uint32_t n_pidfds;
    uint32_t closed;
} arena_ring_writer;

uint64_t arena_record_footprint(uint64_t nbytes);
int arena_ring_begin(arena_ring_writer *w);
int arena_ring_look_due(arena_ring_writer *w);
int64_t arena_ring_reserve(arena_ring_writer *w, uint64_t nbytes);
void arena_ring_write(arena_ring_writer *w, uint64_t nbytes, char **parts, const uint64_t *sizes, uint32_t n_parts);
void arena_ring_publish(arena_ring_writer *w, uint64_t nbytes);
void arena_ring_wake_readers(arena_ring_writer *w);
int arena_ring_send(arena_ring_writer *w, uint64_t nbytes, char **parts, const uint64_t *sizes, uint32_t n_parts);
void arena_ring_writer_park(arena_ring_writer *w);
int arena_ring_writer_recheck(arena_ring_writer *w, uint64_t nbytes);
void arena_ring_writer_sleep(arena_ring_writer *w, uint64_t slice_us);
void arena_ring_writer_unpark(arena_ring_writer *w);
int arena_ring_wait_room(arena_ring_writer *w, uint64_t nbytes, uint64_t slice_us);
int arena_ring_wait_members(arena_ring_writer *w, uint64_t slice_us);
int arena_ring_admit(arena_ring_writer *w, uint32_t rank, uint64_t joining_word, uint64_t joined_word);
void arena_ring_writer_shutdown(arena_ring_writer *w);
void arena_ring_writer_close(arena_ring_writer *w);
uint64_t arena_ring_published(arena_mapping *m);
uint64_t arena_ring_consumed(arena_mapping *m, uint32_t rank);

/* ---- ring, reader ---- */
typedef struct arena_ring_reader {
    arena_mapping *m;
    uint64_t position; /* start of the record that read found, or of the next one */
    uint64_t end;      /* position after that record */
    char *record;
    uint64_t record_bytes;
    char *plain; /* the pickle of a record that has nothing else and is intact */
    uint64_t plain_bytes; /* 0: it is not such a record */
    uint32_t rank;
    uint32_t closed;
} arena_ring_reader;

int arena_ring_read(arena_ring_reader *r);
void arena_ring_advance(arena_ring_reader *r);
void arena_ring_wake_writer(arena_ring_reader *r);
void arena_ring_reader_park(arena_ring_reader *r);
int arena_ring_reader_recheck(arena_ring_reader *r);
void arena_ring_reader_sleep(arena_ring_reader *r, uint64_t slice_us);
void arena_ring_reader_unpark(arena_ring_reader *r);
int arena_ring_wait_admission(arena_ring_reader *r, uint64_t joining_word, uint64_t slice_us);
void arena_ring_finish(arena_ring_reader *r);
void arena_ring_leave(arena_ring_reader *r, uint64_t left_word);
void arena_ring_reader_shutdown(arena_ring_reader *r);

/* ---- records: what travels in the ring ---- */
uint64_t arena_checksum(char **parts, const uint64_t *sizes, uint32_t n_parts);
int arena_send_plain(arena_ring_writer *w, uint64_t number, char *pickle, uint64_t nbytes);
int arena_wait_record(arena_ring_reader *r, uint64_t spin_us, uint64_t slice_us);

/* ---- slots ---- */
void arena_slot_claim(arena_mapping *m, uint32_t slot, uint64_t generation, uint64_t offset, uint64_t nbytes,
                      uint64_t kind);
void arena_slot_release(arena_mapping *m, uint32_t row, uint32_t slot, uint64_t generation);
uint32_t arena_slots_free(arena_mapping *m, const uint32_t *slots, uint32_t n, const uint64_t *generation_of,
                          const uint64_t *required_of, uint8_t *is_free, uint64_t *impossible);
void arena_rows_clear(arena_mapping *m, uint32_t row);
int arena_slot_extent(arena_mapping *m, uint32_t slot, uint64_t *offset, uint64_t *nbytes);

/* ---- object slots ---- */
typedef struct arena_hold { /* private to a reader's process, per slot */
    uint64_t count;
    uint64_t generation;
} arena_hold;
typedef struct arena_holds arena_holds; /* of one reader */
arena_holds *arena_holds_open(arena_mapping *m, uint32_t row, bool is_private);
void arena_holds_release(arena_holds *h);
arena_hold *arena_holds_private(arena_holds *h);
int arena_object_announce(arena_holds *h, uint32_t slot, uint64_t generation);
int arena_object_recheck(arena_holds *h, uint32_t slot, uint64_t generation);
void arena_object_release_hold(arena_holds *h, uint32_t slot);
void arena_object_publish(arena_mapping *m, uint32_t slot, uint64_t generation);
void arena_object_evict(arena_mapping *m, uint32_t slot, uint64_t generation);
uint64_t arena_object_scan(arena_mapping *m, uint32_t slot, uint64_t generation, uint64_t clear);
uint32_t arena_row_holds(arena_mapping *m, uint32_t row, uint32_t *slots, uint64_t *generations);

/* ---- leases: a grant is what one message, or one get, gave this process of one slot; tensors share it ---- */
typedef struct arena_grant arena_grant;
arena_grant *arena_grant_open(arena_mapping *m, uint32_t row, uint32_t slot, uint64_t generation);
void arena_grant_drop(arena_grant *g);
void arena_grant_release(arena_grant *g);
int64_t arena_grants_live(void);

/* ---- gates: grants whose memory a device may still read ---- */
typedef struct arena_gates arena_gates; /* of one reader */
arena_gates *arena_gates_open(void);
void arena_gates_close(arena_gates *gates);
void arena_gates_shut(arena_gates *gates);
int64_t arena_gates_leases(arena_gates *gates);
arena_grant *arena_gates_pop(arena_gates *gates);
void arena_gates_wait(arena_gates *gates, uint64_t slice_us);
void arena_grant_gate(arena_grant *g, arena_gates *gates, uint64_t offset, uint64_t nbytes);
arena_grant *arena_grant_next(arena_grant *g);
void arena_grant_extent(arena_grant *g, uint64_t *extent);
void arena_member_pin(arena_mapping *m, uint32_t rank);
int arena_member_is_pinned(arena_mapping *m, uint32_t rank);

/* cdef end */

#endif
