/* SPDX-License-Identifier: Apache-2.0
 *
 * Mappings that C owns: counted by the queue and by every lease, unmapped by the last of them.  A
 * mapping that Python owned would be torn down at interpreter exit under live tensors.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "arena_internal.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

#define POPULATE_BYTES (32u << 20) /* per call, so that a signal is not held up */

static _Atomic int64_t maps_live;
static volatile int *_Atomic guard;

/* One page that fork wipes: a finalizer reads it and is inert in a child.  getpid() would be a
 * system call, and would not notice a raw clone.  A child that maps anew gets a page of its own; no lock,
 * which a fork would leave locked in the child. */
static volatile int *alive_page(void) {
    volatile int *page = atomic_load(&guard);
    if (page && *page) return page;
    int *mine = mmap(NULL, ARENA_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mine == MAP_FAILED) return NULL;
    if (madvise(mine, ARENA_PAGE, MADV_WIPEONFORK) != 0) {
        int error = errno;
        munmap(mine, ARENA_PAGE);
        errno = error;
        return NULL;
    }
    *mine = 1;
    if (atomic_compare_exchange_strong(&guard, &page, mine)) return mine;
    munmap(mine, ARENA_PAGE);
    return page; /* another thread's, which was faster */
}

static char *map_part(int fd, uint64_t nbytes, uint64_t offset, int protection, int flags) {
    if (fd < 0) flags |= MAP_ANONYMOUS, offset = 0;
    char *part = mmap(NULL, nbytes, protection, flags, fd, (off_t)offset);
    if (part == MAP_FAILED) return NULL;
    if (fd >= 0 && madvise(part, nbytes, MADV_DONTFORK) != 0) { /* a child must not keep a dead reader's view */
        int error = errno;
        munmap(part, nbytes);
        errno = error;
        return NULL;
    }
    return part;
}

arena_mapping *arena_map(int fd, const arena_geometry *geometry, int access, int *error) {
    arena_mapping *m = calloc(1, sizeof *m);
    volatile int *alive = m ? alive_page() : NULL;
    if (!alive) goto fail;
    m->geometry = *geometry;
    m->alive = alive;
    m->references = 1;
    if (geometry->control_bytes) m->control = map_part(fd, geometry->control_bytes, 0, PROT_READ | PROT_WRITE, MAP_SHARED);
    if (geometry->control_bytes && !m->control) goto fail;
    int protection = access == ARENA_ACCESS_READONLY ? PROT_READ : PROT_READ | PROT_WRITE;
    int flags = access == ARENA_ACCESS_PRIVATE ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED;
    if (geometry->data_bytes) m->data = map_part(fd, geometry->data_bytes, geometry->control_bytes, protection, flags);
    if (geometry->data_bytes && !m->data) goto fail;
    atomic_fetch_add(&maps_live, 1);
    return m;
fail:
    *error = errno ? errno : ENOMEM;
    if (m && m->control) munmap(m->control, geometry->control_bytes);
    free(m);
    return NULL;
}

void arena_map_retain(arena_mapping *m) { atomic_fetch_add((_Atomic int64_t *)&m->references, 1); }

void arena_map_release(arena_mapping *m) {
    if (!*m->alive) return; /* a forked child: nothing is mapped here, the struct is left to its exit */
    if (atomic_fetch_sub((_Atomic int64_t *)&m->references, 1) != 1) return;
    if (m->control) munmap(m->control, m->geometry.control_bytes);
    if (m->data) munmap(m->data, m->geometry.data_bytes);
    atomic_fetch_sub(&maps_live, 1);
    free(m);
}

int arena_map_is_alive(arena_mapping *m) { return *m->alive; }

int64_t arena_maps_live(void) { return atomic_load(&maps_live); }

/* For a forked child: zeros of its own in the place of memory that it did not inherit.  Never over what it has. */
int arena_map_zeros(char *address, uint64_t nbytes) {
    uint64_t ahead = (uintptr_t)address % (uint64_t)sysconf(_SC_PAGESIZE);
    void *zeros = mmap(address - ahead, nbytes + ahead, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    return zeros == MAP_FAILED ? errno : 0;
}

/* Page by page, and never clobbering a byte that another process writes meanwhile. */
void arena_touch_pages(char *address, uint64_t nbytes, int write) {
    for (uint64_t i = 0; i < nbytes; i += ARENA_PAGE) {
        _Atomic char *byte = (_Atomic char *)(address + i);
        if (write)
            atomic_fetch_or(byte, 0);
        else
            (void)atomic_load(byte);
    }
}

/* One attempt at a range: 0 or an errno.  For callers that decide themselves what an errno means. */
int arena_populate_once(char *address, uint64_t nbytes, int write) {
    return madvise(address, nbytes, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0 ? 0 : errno;
}

/* Takes the pages of a range now; an errno where memory is short.  Kernels before 5.14 touch each
 * page instead (and would meet a shortage as SIGBUS: capacity is checked before). */
int arena_populate(char *address, uint64_t nbytes, int write) {
    for (uint64_t done = 0; done < nbytes;) {
        uint64_t n = nbytes - done < POPULATE_BYTES ? nbytes - done : POPULATE_BYTES;
        if (madvise(address + done, n, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0) {
            done += n;
        } else if (errno == EINVAL) {
            arena_touch_pages(address + done, nbytes - done, write);
            return 0;
        } else if (errno != EINTR && errno != EAGAIN) {
            return errno;
        }
    }
    return 0;
}

/* Drops this process's private copies of a range, so that reads see the writer's bytes again. */
int arena_discard(char *address, uint64_t nbytes) {
    return madvise(address, nbytes, MADV_DONTNEED) == 0 ? 0 : errno;
}

int arena_advise_huge(char *address, uint64_t nbytes) {
    return madvise(address, nbytes, MADV_HUGEPAGE) == 0 ? 0 : errno;
}

/* Where new pages of a range, or of this thread, are to lie (mbind(2), set_mempolicy(2); libnuma is not needed). */
int arena_bind_memory(char *address, uint64_t nbytes, int mode, const uint64_t *nodes, uint32_t n_words) {
    return syscall(SYS_mbind, address, nbytes, mode, nodes, n_words ? n_words * 64ul + 1 : 0ul, 0) == 0 ? 0 : errno;
}

int arena_bind_thread(int mode, const uint64_t *nodes, uint32_t n_words) {
    return syscall(SYS_set_mempolicy, mode, nodes, n_words ? n_words * 64ul + 1 : 0ul) == 0 ? 0 : errno;
}

uint64_t arena_layout_constant(int which) {
    switch (which) {
    case 0: return ARENA_MAGIC;
    case 1: return ARENA_VERSION;
    case 2: return sizeof(struct arena_header);
    case 3: return offsetof(struct arena_header, published);
    case 4: return offsetof(struct arena_header, writer_park);
    case 5: return offsetof(struct arena_header, writer_closed);
    case 6: return offsetof(struct arena_header, trace_stamp);
    case 7: return sizeof(struct arena_member);
    case 8: return offsetof(struct arena_member, consumed);
    case 9: return offsetof(struct arena_member, park);
    case 10: return sizeof(struct arena_slot);
    case 11: return offsetof(struct arena_header, secret);
    case 12: return offsetof(struct arena_member, pinned);
    case 13: return sizeof(struct arena_record);
    default: return 0;
    }
}
