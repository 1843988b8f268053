/* SPDX-License-Identifier: Apache-2.0
 *
 * Records as they lie in the ring: their checksum, and the fast way for the most common kind, a
 * pickle and nothing else.  arena/message/codec.py has the whole format; what is said twice is
 * compared by tests/test_codec.py.
 */
#include <string.h>

#include "arena_internal.h"

/* ---- checksum: XXH64, from its specification (github.com/Cyan4973/xxHash, doc/xxhash_spec.md) -- */

static const uint64_t P1 = 0x9E3779B185EBCA87ull, P2 = 0xC2B2AE3D27D4EB4Full, P3 = 0x165667B19E3779F9ull,
                      P4 = 0x85EBCA77C2B2AE63ull, P5 = 0x27D4EB2F165667C5ull;

static inline uint64_t rotate(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

static inline uint64_t read64(const char *from) {
    uint64_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

static inline uint32_t read32(const char *from) {
    uint32_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

static inline uint64_t mix(uint64_t lane, uint64_t word) { return rotate(lane + word * P2, 31) * P1; }

static inline uint64_t merge(uint64_t sum, uint64_t lane) { return (sum ^ mix(0, lane)) * P1 + P4; }

#define STRIPE 32

typedef struct {
    uint64_t a, b, c, d;
    uint64_t nbytes;
    char held[STRIPE]; /* what does not fill a stripe yet */
} summing;

static inline void take_stripe(summing *s, const char *stripe) {
    s->a = mix(s->a, read64(stripe));
    s->b = mix(s->b, read64(stripe + 8));
    s->c = mix(s->c, read64(stripe + 16));
    s->d = mix(s->d, read64(stripe + 24));
}

static void take(summing *s, const char *bytes, uint64_t nbytes) {
    uint64_t n_held = s->nbytes % STRIPE;
    s->nbytes += nbytes;
    if (n_held && nbytes >= STRIPE - n_held) {
        memcpy(s->held + n_held, bytes, STRIPE - n_held);
        take_stripe(s, s->held);
        bytes += STRIPE - n_held;
        nbytes -= STRIPE - n_held;
        n_held = 0;
    }
    if (!n_held)
        for (; nbytes >= STRIPE; bytes += STRIPE, nbytes -= STRIPE) take_stripe(s, bytes);
    memcpy(s->held + n_held, bytes, nbytes);
}

static uint64_t sum_of(const summing *s) {
    uint64_t sum = P5;
    if (s->nbytes >= STRIPE) {
        sum = rotate(s->a, 1) + rotate(s->b, 7) + rotate(s->c, 12) + rotate(s->d, 18);
        sum = merge(merge(merge(merge(sum, s->a), s->b), s->c), s->d);
    }
    sum += s->nbytes;
    const char *at = s->held, *end = at + s->nbytes % STRIPE;
    for (; end - at >= 8; at += 8) sum = rotate(sum ^ mix(0, read64(at)), 27) * P1 + P4;
    if (end - at >= 4) {
        sum = rotate(sum ^ read32(at) * P1, 23) * P2 + P3;
        at += 4;
    }
    for (; at < end; at++) sum = rotate(sum ^ (unsigned char)*at * P5, 11) * P1;
    sum = (sum ^ sum >> 33) * P2;
    sum = (sum ^ sum >> 29) * P3;
    return sum ^ sum >> 32;
}

/* Of the parts as one piece. */
uint64_t arena_checksum(char **parts, const uint64_t *sizes, uint32_t n_parts) {
    summing s = {.a = P1 + P2, .b = P2, .c = 0, .d = -P1};
    for (uint32_t i = 0; i < n_parts; i++) take(&s, parts[i], sizes[i]);
    return sum_of(&s);
}

static uint64_t checksum(char *bytes, uint64_t nbytes) { return arena_checksum(&bytes, &nbytes, 1); }

/* ---- plain records -------------------------------------------------------------------------------- */

static uint64_t head_sum(struct arena_record *head) {
    return checksum((char *)head, offsetof(struct arena_record, head_sum));
}

/* A pickle as one record: ARENA_OK, or ARENA_NO_ROOM with nothing changed. */
int arena_send_plain(arena_ring_writer *w, uint64_t number, char *pickle, uint64_t nbytes) {
    struct arena_record head = {.number = number, .pickle_bytes = nbytes, .body_sum = checksum(pickle, nbytes)};
    head.head_sum = head_sum(&head);
    char *parts[] = {(char *)&head, pickle};
    uint64_t sizes[] = {sizeof head, nbytes};
    return arena_ring_send(w, sizeof head + nbytes, parts, sizes, 2);
}

/* The length of the pickle of a record that is nothing but an intact one; 0: codec.py looks, and says what is wrong. */
static uint64_t plain_bytes_of(char *record, uint64_t nbytes) {
    struct arena_record head;
    if (nbytes < sizeof head) return 0;
    memcpy(&head, record, sizeof head);
    if (head.flags || head.n_grants || head.n_buffers || head.n_inline) return 0;
    if (head.pickle_bytes != nbytes - sizeof head || head.head_sum != head_sum(&head)) return 0;
    return checksum(record + sizeof head, head.pickle_bytes) == head.body_sum ? head.pickle_bytes : 0;
}

/* arena_ring_wait, and a look at what came. */
int arena_wait_record(arena_ring_reader *r, uint64_t spin_us, uint64_t slice_us) {
    int rc = arena_ring_wait(r, spin_us, slice_us);
    if (rc == ARENA_OK) {
        r->plain = r->record + sizeof(struct arena_record);
        r->plain_bytes = plain_bytes_of(r->record, r->record_bytes);
    }
    return rc;
}
