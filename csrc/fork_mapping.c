/* SPDX-License-Identifier: Apache-2.0
 *
 * Forks while another thread maps for the first time: once inside each system call of that mapping.  The child maps too,
 * and one that cannot is a failure.
 *
 *   cc -std=gnu11 -Icsrc csrc/fork_mapping.c csrc/arena_map.c csrc/arena_steps.c -pthread && ./a.out
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "arena_internal.h"

#define LIMIT_S 10 /* who has not mapped by then never will */

static _Thread_local int calls_left = -1; /* of the mapping thread, until the fork; -1: this is not that thread, or no more */
static sem_t inside, forked;

static void fork_here(void) {
    if (calls_left < 0 || calls_left-- > 0) return;
    sem_post(&inside);
    sem_wait(&forked);
}

/* In place of the C library's. */
void *mmap(void *at, size_t nbytes, int protection, int flags, int fd, off_t offset) {
    fork_here();
    return (void *)syscall(SYS_mmap, at, nbytes, protection, flags, fd, offset);
}

int madvise(void *at, size_t nbytes, int advice) {
    fork_here();
    return (int)syscall(SYS_madvise, at, nbytes, advice);
}

static int maps(void) {
    arena_geometry geometry = {.n_readers = 1, .control_bytes = ARENA_PAGE};
    int error = 0;
    arena_mapping *m = arena_map(-1, &geometry, ARENA_ACCESS_SHARED, &error);
    if (!m || !arena_map_is_alive(m)) return 0;
    arena_map_release(m);
    return arena_maps_live() == 0;
}

static void *map_first(void *calls) {
    calls_left = *(int *)calls;
    int good = maps();
    int fewer = calls_left >= 0; /* it never came so far */
    if (fewer) sem_post(&inside);
    return (void *)(intptr_t)(good ? fewer : -1);
}

static int ended_badly(pid_t pid) {
    int status = 0;
    return pid < 0 || waitpid(pid, &status, 0) != pid || status != 0;
}

/* In a process that has mapped nothing yet.  0: well; 1: badly; 2: well, and there are no more calls. */
static int fork_inside(int call) {
    pthread_t thread;
    void *outcome;
    sem_init(&inside, 0, 0);
    sem_init(&forked, 0, 0);
    if (pthread_create(&thread, NULL, map_first, &call) != 0) return 1;
    sem_wait(&inside);
    pid_t child = fork();
    if (child == 0) {
        alarm(LIMIT_S);
        _exit(!maps());
    }
    sem_post(&forked);
    pthread_join(thread, &outcome);
    if (ended_badly(child) || (intptr_t)outcome < 0) return 1;
    return outcome ? 2 : 0;
}

int main(void) {
    int calls = 0, status = 0;
    for (;; calls++) {
        pid_t pid = fork();
        if (pid == 0) _exit(fork_inside(calls));
        waitpid(pid, &status, 0);
        if (status != 0) break;
    }
    int failed = !WIFEXITED(status) || WEXITSTATUS(status) != 2;
    printf("forked inside %d calls: %s\n", calls, failed ? "then one could not map" : "all could map");
    return failed;
}
