/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies into the arena.  Which loop when is measured (docs/performance.md): from 2 MB on a loop of streaming
 * stores, up to 1.6 times faster than glibc, which streams from about 24 MB on; below that a streamed copy
 * costs its first reader what it saves the writer.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "arena_internal.h"

#define STREAM_FROM (2u << 20)
#define CHUNK_BYTES (512u << 10)
#define PREFETCH_AHEAD 512
#define THREADS_MAX 64

#ifdef __SSE2__
/* A whole cache line: part of a line per turn falls to a sixth of the speed. */
static inline void stream_line(char *to, const char *from) {
    __m128i a = _mm_loadu_si128((const __m128i *)from);
    __m128i b = _mm_loadu_si128((const __m128i *)(from + 16));
    __m128i c = _mm_loadu_si128((const __m128i *)(from + 32));
    __m128i d = _mm_loadu_si128((const __m128i *)(from + 48));
    _mm_stream_si128((__m128i *)to, a);
    _mm_stream_si128((__m128i *)(to + 16), b);
    _mm_stream_si128((__m128i *)(to + 32), c);
    _mm_stream_si128((__m128i *)(to + 48), d);
}

/* What is fetched ahead goes around the L2 and L3 caches (NTA), as the stores do.  How far ahead matters: two
 * threads took 0.62 of one memcpy's time at 384 to 768 bytes, 0.67 at 128 and 0.69 at 1024. */
static void copy_streaming(char *to, const char *from, uint64_t nbytes) {
    uint64_t head = -(uintptr_t)to & 63;
    if (head > nbytes) head = nbytes;
    memcpy(to, from, head);
    to += head, from += head, nbytes -= head;
    for (; nbytes >= 64; to += 64, from += 64, nbytes -= 64) {
        _mm_prefetch(from + PREFETCH_AHEAD, _MM_HINT_NTA); /* past the end of the source it does nothing */
        stream_line(to, from);
    }
    _mm_sfence(); /* streaming stores are not ordered by the release store that follows */
    memcpy(to, from, nbytes);
}
#else
static void copy_streaming(char *to, const char *from, uint64_t nbytes) { memcpy(to, from, nbytes); }
#endif

typedef struct {
    char *to;
    const char *from;
    uint64_t nbytes;
    _Atomic uint64_t next; /* the first byte that nobody has taken */
} shared_copy;

static void *take_chunks(void *argument) {
    shared_copy *copy = argument;
    for (;;) {
        uint64_t start = atomic_fetch_add(&copy->next, CHUNK_BYTES);
        if (start >= copy->nbytes) return NULL;
        uint64_t rest = copy->nbytes - start;
        copy_streaming(copy->to + start, copy->from + start, rest < CHUNK_BYTES ? rest : CHUNK_BYTES);
    }
}

/* Threads are made for the copy and joined after it: 30 us beside milliseconds, and no pool that a
 * fork would lose.  The caller takes chunks too, so a helper that could not start costs nothing. */
static void copy_shared(char *to, const char *from, uint64_t nbytes, int threads) {
    shared_copy copy = {to, from, nbytes, 0};
    pthread_t helpers[THREADS_MAX];
    int started = 0;
    while (started < threads - 1 && started < THREADS_MAX &&
           pthread_create(&helpers[started], NULL, take_chunks, &copy) == 0)
        started++;
    take_chunks(&copy);
    while (started > 0) pthread_join(helpers[--started], NULL);
}

void arena_copy(char *to, const char *from, uint64_t nbytes, int threads) {
    STEP(payload_copy);
    if (threads > 1 && nbytes >= 2 * STREAM_FROM)
        copy_shared(to, from, nbytes, threads);
    else if (nbytes >= STREAM_FROM)
        copy_streaming(to, from, nbytes);
    else
        memcpy(to, from, nbytes);
}

/* Into pages that nobody has touched: write(2) fills whole new pages without a fault each, then one
 * call maps them.  A shortage is an errno here, where a store would be a SIGBUS. */
int arena_copy_cold(int fd, uint64_t file_offset, char *to, const char *from, uint64_t nbytes) {
    STEP(payload_copy);
    for (uint64_t written = 0; written < nbytes;) {
        ssize_t n = pwrite(fd, from + written, nbytes - written, (off_t)(file_offset + written));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) return ENOSPC;
        written += (uint64_t)n;
    }
    uint64_t ahead = (uintptr_t)to % (uint64_t)sysconf(_SC_PAGESIZE);
    return arena_populate(to - ahead, nbytes + ahead, 0);
}
