/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of a segment.  arena/shm/layout.py holds the same arithmetic and is compared with
 * these structs when the package is imported.
 *
 *   page 0      header: identity, then the shared words of ring and writer, a cache line each
 *   4096        member table: one entry per reader (so on every kernel, whatever its page)
 *   ...         slot table: one entry per slot, written by the writer only
 *   ...         done rows: one row per reader and one for the writer's loans, a u64 per slot
 *   ...         hold rows: the same shape, for object slots
 *   page        ring (the kernel's page: 4, 16 or 64 KiB)
 *   page        data area (a mapping of its own, so that readers may map it read-only or private)
 */
#ifndef ARENA_LAYOUT_H
#define ARENA_LAYOUT_H

#include <stddef.h>
#include "arena_atomics.h"

#define ARENA_MAGIC 0x31414e4552415f5full /* "__ARENA1" */
#define ARENA_VERSION 1
#define ARENA_PAGE 4096 /* the least that a kernel's page is */
#define ARENA_LINE 64

struct arena_header {
    uint64_t magic;
    uint32_t version;
    uint32_t n_readers;
    uint8_t segment_id[16];
    uint64_t creator; /* member word of the creating process: pid and start time */
    uint32_t n_slots;
    uint32_t reserved;
    uint64_t ring_bytes;
    uint64_t data_bytes;
    uint64_t control_bytes; /* everything before the data area */
    uint8_t secret[32];     /* authenticates cache handles; who can map the segment can read it */
    _Alignas(ARENA_LINE) arena_word published;
    _Alignas(ARENA_LINE) arena_word32 writer_park;
    _Alignas(ARENA_LINE) arena_word32 writer_closed;
    _Alignas(ARENA_LINE) arena_word trace_stamp;
};

struct arena_member {
    _Alignas(ARENA_LINE) arena_word word; /* state, pid, start time: see arena/shm/layout.py */
    arena_word pinned; /* 1: devices may read for this member, and for a while after its death */
    _Alignas(ARENA_LINE) arena_word consumed;
    _Alignas(ARENA_LINE) arena_word32 park;
};

struct arena_slot {
    arena_word generation;
    uint64_t offset; /* of the extent, from the start of the data area */
    uint64_t nbytes;
    uint64_t kind;
};

/* The head of a record; grants, buffer table and pickle follow: see arena/message/codec.py. */
struct arena_record {
    uint32_t flags;
    uint32_t n_grants;
    uint32_t n_buffers;
    uint32_t n_inline;
    uint64_t number;
    uint64_t pickle_bytes;
    uint64_t body_sum; /* of the buffer table and the pickle */
    uint64_t head_sum; /* of the fields above and the grants */
};

_Static_assert(sizeof(struct arena_record) == 48, "layout.py: RECORD_BYTES");
_Static_assert(offsetof(struct arena_record, head_sum) == 40, "layout.py: RECORD_BYTES - 8");
_Static_assert(offsetof(struct arena_header, secret) == 72, "layout.py: HEADER_SECRET");
_Static_assert(offsetof(struct arena_header, published) == 128, "layout.py: HEADER_PUBLISHED");
_Static_assert(offsetof(struct arena_header, writer_park) == 192, "layout.py: HEADER_WRITER_PARK");
_Static_assert(offsetof(struct arena_header, writer_closed) == 256, "layout.py: HEADER_WRITER_CLOSED");
_Static_assert(offsetof(struct arena_header, trace_stamp) == 320, "layout.py: HEADER_TRACE_STAMP");
_Static_assert(sizeof(struct arena_header) <= ARENA_PAGE, "the header is one page");
_Static_assert(sizeof(struct arena_member) == 192, "layout.py: MEMBER_BYTES");
_Static_assert(offsetof(struct arena_member, pinned) == 8, "layout.py: MEMBER_PINNED");
_Static_assert(offsetof(struct arena_member, consumed) == 64, "layout.py: MEMBER_CONSUMED");
_Static_assert(offsetof(struct arena_member, park) == 128, "layout.py: MEMBER_PARK");
_Static_assert(sizeof(struct arena_slot) == 32, "layout.py: SLOT_BYTES");

#endif
