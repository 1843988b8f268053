/* SPDX-License-Identifier: Apache-2.0
 *
 * The ring: variable-length records, one writer, each reader its own cursor, parking on futexes.
 * Function names are the actions of spec/models/ring.py.
 *
 * A record is a u64 length, then that many bytes, rounded up to 8.  A length of all ones pads to
 * the end of the ring.  Positions only grow; a byte's place is its position modulo the capacity.
 */
#include <poll.h>
#include <string.h>

#include "arena_internal.h"

#define PAD UINT64_MAX
#define LENGTH_BYTES 8
#define MEMBER_LEFT 3 /* the state bits of a member word: State of arena/shm/layout.py */

/* An empty ring goes back to its start beyond this many bytes: the first pages stay warm, and a
 * queue of small messages does not walk through (and keep resident) the whole ring. */
#define REWIND_BYTES (256u << 10)

/* How often a busy writer looks at its readers' pidfds (a microsecond); a blocked one does so at every slice. */
#define LOOK_US 50000

/* A sleeping writer looks at its readers' pidfds after this long, then after eight times as long, and so on: most deaths
 * come soon after it has parked, if they are why it had to, and a long wait must cost next to nothing. */
#define WATCH_US 20000

uint64_t arena_record_footprint(uint64_t nbytes) { return (LENGTH_BYTES + nbytes + 7) & ~(uint64_t)7; }

static char *at(arena_mapping *m, uint64_t position) {
    return m->control + m->geometry.ring_offset + position % m->geometry.ring_bytes;
}

static uint64_t left_to_end(arena_mapping *m, uint64_t position) {
    return m->geometry.ring_bytes - position % m->geometry.ring_bytes;
}

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

/* ---- writer --------------------------------------------------------------------------------- */

/* Between two messages: whether somebody joins or leaves, or it is time to look at the readers' pidfds. */
int arena_ring_look_due(arena_ring_writer *w) {
    uint64_t now = now_us();
    if (now < w->look_us && !arena_members_changed(w->m, w->words)) return 0;
    w->look_us = now + LOOK_US;
    return 1;
}

/* Takes note of where a message starts; then the same. */
int arena_ring_begin(arena_ring_writer *w) {
    w->begun = w->position;
    return arena_ring_look_due(w);
}

/* The least cursor of the members.  One that cannot be, ahead of the writer or overrun, counts as it was last
 * seen: the ring fills up, and nothing unread is overwritten. */
static void look_at_cursors(arena_ring_writer *w) {
    uint64_t least = w->position;
    for (uint32_t rank = 0; rank < w->m->geometry.n_readers; rank++) {
        if (!(w->members >> rank & 1)) continue;
        STEP(consumed_load);
        uint64_t consumed = arena_consumed_load_acquire(&member_of(w->m, rank)->consumed); /* [ring.consume] */
        if (w->position - consumed > w->position - w->min_consumed) {
            w->impossible |= (uint64_t)1 << rank;
            consumed = w->min_consumed;
        }
        if (w->position - consumed > w->position - least) least = consumed;
    }
    w->min_consumed = least;
}

static bool fits(arena_ring_writer *w, uint64_t footprint) {
    return w->position + w->padding + footprint - w->min_consumed <= w->m->geometry.ring_bytes;
}

/* Room for one record: its place in the ring, or ARENA_NO_ROOM. */
int64_t arena_ring_reserve(arena_ring_writer *w, uint64_t nbytes) {
    uint64_t footprint = arena_record_footprint(nbytes);
    uint64_t to_end = left_to_end(w->m, w->position);
    uint64_t offset = w->m->geometry.ring_bytes - to_end;
    w->padding = footprint > to_end ? to_end : 0;
    bool rewind = offset >= REWIND_BYTES && footprint <= offset;
    if (rewind || !fits(w, footprint)) {
        look_at_cursors(w);
        if (rewind && w->min_consumed == w->position) w->padding = to_end;
        if (!fits(w, footprint)) return ARENA_NO_ROOM;
    }
    return (int64_t)((w->position + w->padding) % w->m->geometry.ring_bytes);
}

void arena_ring_write(arena_ring_writer *w, uint64_t nbytes, char **parts, const uint64_t *sizes,
                      uint32_t n_parts) {
    STEP(record_write);
    if (w->padding) *(uint64_t *)at(w->m, w->position) = PAD;
    char *to = at(w->m, w->position + w->padding);
    *(uint64_t *)to = nbytes;
    to += LENGTH_BYTES;
    for (uint32_t i = 0; i < n_parts; i++) {
        memcpy(to, parts[i], sizes[i]);
        to += sizes[i];
    }
}

void arena_ring_publish(arena_ring_writer *w, uint64_t nbytes) {
    w->position += w->padding + arena_record_footprint(nbytes);
    w->padding = 0;
    STEP(published_store);
    arena_published_store_release(&header_of(w->m)->published, w->position); /* [ring.publish] */
}

void arena_ring_wake_readers(arena_ring_writer *w) {
    STEP(fence);
    arena_fence_publish_to_parked_seq_cst(); /* [park.published] */
    for (uint32_t rank = 0; rank < w->m->geometry.n_readers; rank++)
        if (w->members >> rank & 1) wake_if_parked(&member_of(w->m, rank)->park);
}

/* reserve, write, publish, wake_readers in one call. */
int arena_ring_send(arena_ring_writer *w, uint64_t nbytes, char **parts, const uint64_t *sizes, uint32_t n_parts) {
    int64_t place = arena_ring_reserve(w, nbytes);
    if (place < 0) return (int)place;
    arena_ring_write(w, nbytes, parts, sizes, n_parts);
    arena_ring_publish(w, nbytes);
    arena_ring_wake_readers(w);
    return ARENA_OK;
}

void arena_ring_writer_park(arena_ring_writer *w) {
    STEP(park_store);
    arena_park_store_relaxed(&header_of(w->m)->writer_park, 1);
    STEP(fence);
    arena_fence_parked_to_consumed_seq_cst(); /* [park.consumed] */
}

/* A member has stored LEFT before it could see that the writer is parked. */
static bool somebody_left(arena_ring_writer *w) {
    for (uint32_t rank = 0; rank < w->m->geometry.n_readers; rank++)
        if (w->members >> rank & 1 && (arena_member_read(w->m, rank) & 3) == MEMBER_LEFT) return true; /* [member.leave] */
    return false;
}

int arena_ring_writer_recheck(arena_ring_writer *w, uint64_t nbytes) {
    STEP(closed_load);
    if (arena_closed_load_acquire(closed_of(&w->closed))) return ARENA_CLOSED; /* [closed] */
    int64_t place = arena_ring_reserve(w, nbytes);
    if (place == ARENA_NO_ROOM && somebody_left(w)) return ARENA_EMPTY; /* its cursor no longer counts: look around */
    return place < 0 ? (int)place : ARENA_OK;
}

static bool a_reader_has_died(arena_ring_writer *w) {
    struct pollfd fds[64];
    for (uint32_t i = 0; i < w->n_pidfds; i++) fds[i] = (struct pollfd){.fd = w->pidfds[i], .events = POLLIN};
    if (poll(fds, w->n_pidfds, 0) <= 0) return false;
    for (uint32_t i = 0; i < w->n_pidfds; i++)
        if (fds[i].revents & POLLIN) return true; /* not POLLNVAL: somebody closed it */
    return false;
}

/* Until woken, or the slice is over, or a reader has died: a dead one wakes nobody. */
void arena_ring_writer_sleep(arena_ring_writer *w, uint64_t slice_us) {
    for (uint64_t part_us = WATCH_US; slice_us > 0; slice_us -= part_us, part_us *= 8) {
        if (part_us > slice_us) part_us = slice_us;
        if (futex_wait_parked(&header_of(w->m)->writer_park, part_us) != ETIMEDOUT || a_reader_has_died(w)) return;
    }
}

void arena_ring_writer_unpark(arena_ring_writer *w) {
    STEP(park_store);
    arena_park_store_relaxed(&header_of(w->m)->writer_park, 0);
}

/* Parks until there is room or one slice has passed; the caller looks at deaths and deadlines. */
int arena_ring_wait_room(arena_ring_writer *w, uint64_t nbytes, uint64_t slice_us) {
    arena_ring_writer_park(w);
    int rc = arena_ring_writer_recheck(w, nbytes);
    if (rc == ARENA_NO_ROOM) arena_ring_writer_sleep(w, slice_us);
    arena_ring_writer_unpark(w);
    return rc;
}

/* Parks until a member word differs from the words last seen or one slice has passed. */
int arena_ring_wait_members(arena_ring_writer *w, uint64_t slice_us) {
    arena_ring_writer_park(w);
    int rc = ARENA_EMPTY;
    STEP(closed_load);
    if (arena_closed_load_acquire(closed_of(&w->closed))) rc = ARENA_CLOSED; /* [closed] */
    if (rc == ARENA_EMPTY && arena_members_changed(w->m, w->words)) rc = ARENA_OK;
    if (rc == ARENA_EMPTY) arena_ring_writer_sleep(w, slice_us);
    arena_ring_writer_unpark(w);
    return rc;
}

/* Only between two messages: the joiner starts with the next one.  0 if it has left meanwhile. */
int arena_ring_admit(arena_ring_writer *w, uint32_t rank, uint64_t joining_word, uint64_t joined_word) {
    struct arena_member *member = member_of(w->m, rank);
    STEP(consumed_store);
    arena_consumed_store_release(&member->consumed, w->position);
    if (!arena_member_claim(w->m, rank, joining_word, joined_word)) return 0; /* [member.admit] */
    w->members |= (uint64_t)1 << rank;
    STEP(fence);
    arena_fence_publish_to_parked_seq_cst(); /* [park.published]: the joiner may sleep while JOINING */
    wake_if_parked(&member->park);
    return 1;
}

/* Any thread.  The word first, then a wake that asks no questions: a waker that finds 0 would rely
 * on another waker's wake, which may never come. */
static void close_and_wake(uint32_t *closed, arena_word32 *park) {
    STEP(closed_store);
    arena_closed_store_seq_cst(closed_of(closed), 1); /* [closed] */
    STEP(fence);
    arena_fence_closed_to_parked_seq_cst(); /* [closed] */
    STEP(park_store);
    arena_park_store_relaxed(park, 0);
    futex_wake_one(park);
}

void arena_ring_writer_shutdown(arena_ring_writer *w) { close_and_wake(&w->closed, &header_of(w->m)->writer_park); }

/* Tells every reader that nothing more will come. */
void arena_ring_writer_close(arena_ring_writer *w) {
    STEP(closed_store);
    arena_closed_store_seq_cst(&header_of(w->m)->writer_closed, 1); /* [closed] */
    STEP(fence);
    arena_fence_closed_to_parked_seq_cst(); /* [closed] */
    for (uint32_t rank = 0; rank < w->m->geometry.n_readers; rank++) {
        struct arena_member *member = member_of(w->m, rank);
        STEP(park_exchange);
        arena_park_exchange_relaxed(&member->park, 0);
        futex_wake_one(&member->park);
    }
}

int arena_writer_is_closed(arena_mapping *m) {
    STEP(closed_load);
    return (int)arena_closed_load_acquire(&header_of(m)->writer_closed); /* [closed] */
}

uint64_t arena_ring_published(arena_mapping *m) {
    STEP(published_load);
    return arena_published_load_acquire(&header_of(m)->published); /* [ring.publish] */
}

uint64_t arena_ring_consumed(arena_mapping *m, uint32_t rank) {
    STEP(consumed_load);
    return arena_consumed_load_acquire(&member_of(m, rank)->consumed); /* [ring.consume] */
}

/* ---- reader --------------------------------------------------------------------------------- */

/* Finds the next record, without taking it: ARENA_OK, ARENA_EMPTY or ARENA_CORRUPT. */
int arena_ring_read(arena_ring_reader *r) {
    uint64_t available = arena_ring_published(r->m) - r->position;
    r->plain_bytes = 0;
    if (available == 0) return ARENA_EMPTY;
    if (available > r->m->geometry.ring_bytes || r->position % LENGTH_BYTES) return ARENA_CORRUPT;
    STEP(record_read);
    uint64_t to_end = left_to_end(r->m, r->position);
    uint64_t start = r->position;
    uint64_t length = *(volatile uint64_t *)at(r->m, start);
    if (length == PAD) {
        if (to_end >= available) return ARENA_CORRUPT;
        start += to_end;
        available -= to_end;
        to_end = r->m->geometry.ring_bytes;
        length = *(volatile uint64_t *)at(r->m, start);
    }
    if (length > to_end - LENGTH_BYTES || arena_record_footprint(length) > available) return ARENA_CORRUPT;
    r->record = at(r->m, start) + LENGTH_BYTES;
    r->record_bytes = length;
    r->end = start + arena_record_footprint(length);
    return ARENA_OK;
}

void arena_ring_advance(arena_ring_reader *r) {
    r->position = r->end;
    STEP(consumed_store);
    arena_consumed_store_release(&member_of(r->m, r->rank)->consumed, r->position); /* [ring.consume] */
}

void arena_ring_wake_writer(arena_ring_reader *r) {
    STEP(fence);
    arena_fence_consumed_to_parked_seq_cst(); /* [park.consumed] */
    wake_if_parked(&header_of(r->m)->writer_park);
}

/* advance, wake_writer in one call.  Nothing in a child that was forked while it unpickled the record. */
void arena_ring_finish(arena_ring_reader *r) {
    if (!arena_map_is_alive(r->m)) return;
    arena_ring_advance(r);
    arena_ring_wake_writer(r);
}

void arena_ring_reader_park(arena_ring_reader *r) {
    STEP(park_store);
    arena_park_store_relaxed(&member_of(r->m, r->rank)->park, 1);
    STEP(fence);
    arena_fence_parked_to_published_seq_cst(); /* [park.published] */
}

int arena_ring_reader_recheck(arena_ring_reader *r) {
    STEP(closed_load);
    if (arena_closed_load_acquire(closed_of(&r->closed))) return ARENA_CLOSED; /* [closed] */
    if (arena_ring_published(r->m) != r->position) return ARENA_OK;
    return arena_writer_is_closed(r->m) ? ARENA_OK : ARENA_EMPTY;
}

void arena_ring_reader_sleep(arena_ring_reader *r, uint64_t slice_us) {
    futex_wait_parked(&member_of(r->m, r->rank)->park, slice_us);
}

void arena_ring_reader_unpark(arena_ring_reader *r) {
    STEP(park_store);
    arena_park_store_relaxed(&member_of(r->m, r->rank)->park, 0);
}

static int spin(arena_ring_reader *r, uint64_t spin_us) {
    int rc = ARENA_EMPTY;
    for (uint64_t end = now_us() + spin_us; rc == ARENA_EMPTY && now_us() < end;) rc = arena_ring_read(r);
    return rc;
}

/* A record, or one slice of waiting for it; the caller looks at the writer's life and at deadlines. */
int arena_ring_wait(arena_ring_reader *r, uint64_t spin_us, uint64_t slice_us) {
    if (arena_closed_load_acquire(closed_of(&r->closed))) return ARENA_CLOSED; /* [closed] */
    int rc = arena_ring_read(r);
    if (rc == ARENA_EMPTY && spin_us) rc = spin(r, spin_us);
    if (rc != ARENA_EMPTY || slice_us == 0) return rc;
    arena_ring_reader_park(r);
    rc = arena_ring_reader_recheck(r);
    if (rc == ARENA_EMPTY) arena_ring_reader_sleep(r, slice_us);
    arena_ring_reader_unpark(r);
    return rc == ARENA_CLOSED ? rc : arena_ring_read(r);
}

/* Waits one slice for the writer to admit this reader; ARENA_OK sets its first position. */
int arena_ring_wait_admission(arena_ring_reader *r, uint64_t joining_word, uint64_t slice_us) {
    arena_ring_reader_park(r);
    int rc = ARENA_EMPTY;
    if (arena_closed_load_acquire(closed_of(&r->closed)) || arena_writer_is_closed(r->m)) rc = ARENA_CLOSED; /* [closed] */
    if (rc == ARENA_EMPTY && arena_member_read(r->m, r->rank) == joining_word && slice_us)
        arena_ring_reader_sleep(r, slice_us);
    arena_ring_reader_unpark(r);
    uint64_t joined_word = joining_word + 1; /* JOINED is the state after JOINING: see layout.py */
    if (arena_member_read(r->m, r->rank) != joined_word) return rc; /* [member.admit] */
    r->position = arena_ring_consumed(r->m, r->rank);
    return ARENA_OK;
}

void arena_ring_leave(arena_ring_reader *r, uint64_t left_word) {
    arena_member_write(r->m, r->rank, left_word); /* [member.leave] */
    arena_ring_wake_writer(r);
}

void arena_ring_reader_shutdown(arena_ring_reader *r) {
    close_and_wake(&r->closed, &member_of(r->m, r->rank)->park);
}
