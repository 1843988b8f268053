/* SPDX-License-Identifier: Apache-2.0
 *
 * Logs of what a process does, for `python -m spec trace` and `arena trace`.
 *
 * One log per mapping: a file that is mapped, so that a SIGKILL loses at most what the event under way would have
 * become.  An event is stamped before and after its access, from one counter in the segment.  Python's events come
 * through the calls below; a release is logged here, because no Python runs when a tensor's storage dies.
 */
#undef ARENA_NO_TRACE /* leaves out the callers' branches, not the log */

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "arena_internal.h"
#include "arena_trace.h"

#define LOGS_MAX 256

int arena_trace_on;

struct log {
    arena_mapping *mapping;
    struct arena_trace_header *header;
};

static struct log logs[LOGS_MAX];
static _Atomic int n_logs;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct arena_trace_header *log_of(arena_mapping *m) {
    for (int i = atomic_load(&n_logs); i-- > 0;) /* the newest first: an address may be used again */
        if (logs[i].mapping == m) return logs[i].header;
    return NULL;
}

static uint64_t stamp(arena_mapping *m) { return arena_stamp_add_acq_rel(&header_of(m)->trace_stamp) + 1; /* [trace.stamp] */ }

/* From now on the events of a mapping go to the file, which has room for `capacity` of them; 0 or an errno.  A log stays
 * mapped until the process ends: leases outlive their queue. */
int arena_trace_open(arena_mapping *m, int fd, uint64_t capacity) {
    uint64_t nbytes = sizeof(struct arena_trace_header) + capacity * sizeof(struct arena_trace_event);
    struct arena_trace_header *header = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (header == MAP_FAILED) return errno;
    header->capacity = capacity;
    pthread_mutex_lock(&lock);
    int i = atomic_load(&n_logs);
    int error = i == LOGS_MAX ? ENOSPC : 0;
    if (!error) {
        logs[i] = (struct log){m, header};
        atomic_store(&n_logs, i + 1);
        arena_trace_on = 1;
    }
    pthread_mutex_unlock(&lock);
    if (error) munmap(header, nbytes);
    return error;
}

/* The number of a new event, or -1: there is no log, it is full, or this is a forked child. */
int64_t arena_trace_begin(arena_mapping *m, uint32_t action, uint64_t a, uint64_t b, uint64_t c) {
    struct arena_trace_header *header = arena_map_is_alive(m) ? log_of(m) : NULL;
    if (!header) return -1;
    uint64_t i = atomic_fetch_add(&header->count, 1);
    if (i >= header->capacity) return -1;
    struct arena_trace_event *event = header->events + i;
    *event = (struct arena_trace_event){.action = action, .thread = (uint32_t)syscall(SYS_gettid), .args = {a, b, c}};
    event->before = stamp(m);
    return (int64_t)i;
}

/* What came of it. */
void arena_trace_end(arena_mapping *m, int64_t number, uint64_t d, uint64_t e) {
    if (number < 0) return;
    struct arena_trace_event *event = log_of(m)->events + number;
    event->args[3] = d;
    event->args[4] = e;
    event->after = stamp(m);
}
