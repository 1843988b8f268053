/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of a log: a header, then events.  spec/trace.py and arena/tools/trace.py read them.
 */
#ifndef ARENA_TRACE_H
#define ARENA_TRACE_H

#include <stdint.h>

struct arena_trace_event {
    _Atomic uint64_t before; /* 0: never begun */
    _Atomic uint64_t after;  /* 0: not ended: under way, or its process died in it */
    uint32_t action;         /* an index of arena/shm/trace.py's ACTIONS */
    uint32_t thread;
    uint64_t args[5];
};

struct arena_trace_header {
    uint64_t capacity;
    _Atomic uint64_t count; /* of events begun; beyond the capacity they are lost */
    uint8_t about[112];     /* written by arena/shm/trace.py */
    struct arena_trace_event events[];
};

_Static_assert(sizeof(struct arena_trace_event) == 64, "arena/shm/trace.py: EVENT");
_Static_assert(sizeof(struct arena_trace_header) == 128, "arena/shm/trace.py: HEADER_BYTES");

#define ARENA_TRACE_RELEASE 0
#define ARENA_TRACE_RELEASE_HOLD 1

/* Off, an event that is logged in C costs two loads and predicted branches; `python -m fuzz.steps_cost trace` measures it. */
#ifdef ARENA_NO_TRACE
#define arena_trace_on 0
#else
extern int arena_trace_on;
#endif

#endif
