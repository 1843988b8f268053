/* SPDX-License-Identifier: Apache-2.0
 *
 * What can be had now: so many are taken and given back in one call, which no exception of a signal handler cuts short.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "arena_internal.h"

#define PART_BYTES (64u << 10)

/* Takes this thread's part of the heap, which the next threads are given again. */
static void *take_part(void *gate) {
    void *volatile part = malloc(PART_BYTES);
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    free(part);
    return part ? NULL : gate;
}

/* Whether n threads can run at once, with so many bytes beside them: 0 or an errno. */
int arena_try_threads(uint32_t n, uint64_t headroom_bytes) {
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_t *threads = calloc(n, sizeof *threads);
    void *headroom = mmap(NULL, headroom_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int error = threads && headroom != MAP_FAILED ? 0 : ENOMEM;
    uint32_t started = 0;
    pthread_mutex_lock(&gate);
    while (!error && started < n) {
        error = pthread_create(&threads[started], NULL, take_part, &gate);
        if (!error) started++;
    }
    pthread_mutex_unlock(&gate);
    while (started) {
        void *refused;
        pthread_join(threads[--started], &refused);
        if (refused) error = ENOMEM;
    }
    if (headroom != MAP_FAILED) munmap(headroom, headroom_bytes);
    free(threads);
    return error;
}

/* How many descriptors can be opened now, n at most. */
uint32_t arena_try_descriptors(uint32_t n) {
    int *opened = calloc(n, sizeof *opened);
    uint32_t found = 0;
    while (opened && found < n && (opened[found] = open("/", O_PATH | O_CLOEXEC)) >= 0) found++;
    for (uint32_t i = 0; i < found; i++) close(opened[i]);
    free(opened);
    return found;
}
