/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors whose storage owns what it shows: a slot, which its last view releases, or a copy of an
 * inline buffer.  Both travel to torch in a DLPack capsule (github.com/dmlc/dlpack, the unversioned
 * DLManagedTensor), whose deleter is C: it runs in any thread, with or without the GIL.
 */
#include <Python.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "arena_internal.h"

typedef struct {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed {
    dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *);
} dl_managed;

typedef struct {
    dl_managed managed; /* first: torch hands this address back to the deleter */
    arena_grant *grant;     /* what it holds: a grant, */
    arena_mapping *mapping; /* or a mapping alone; neither: the payload follows in this allocation */
    int64_t dims[];         /* shape, then strides */
} tensor_node;

#define DEVICE_CPU 1
#define ALIGNMENT 64

static _Atomic int64_t grants_live;

static arena_grant *new_grant(arena_mapping *m, arena_holds *h, uint32_t row, uint32_t slot, uint64_t generation) {
    arena_grant *g = malloc(sizeof *g);
    if (!g) return NULL;
    *g = (arena_grant){.mapping = m, .holds = h, .generation = generation, .row = row, .slot = slot, .holders = 1};
    arena_map_retain(m);
    if (h) arena_holds_retain(h);
    atomic_fetch_add((_Atomic int64_t *)&m->grants, 1);
    atomic_fetch_add(&grants_live, 1);
    return g;
}

/* What a message grants. */
arena_grant *arena_grant_open(arena_mapping *m, uint32_t row, uint32_t slot, uint64_t generation) {
    return new_grant(m, NULL, row, slot, generation);
}

/* The same and the slot's extent (offset, length) in one call.  A stale or damaged slot is owed a release too (the
 * spec's discard): the grant is then dropped at once, and the outcome says why there is none.  The grant is in `made`, too:
 * a caller whose call a signal handler's exception cuts short finds it there. */
arena_grant *arena_grant_lease(arena_mapping *m, uint32_t row, uint32_t slot, uint64_t generation, uint64_t *extent,
                               int *outcome, arena_grant **made) {
    *made = NULL;
    *outcome = arena_slot_lease(m, slot, generation, &extent[0], &extent[1]);
    if (slot >= m->geometry.n_slots) return NULL;
    arena_grant *g = new_grant(m, NULL, row, slot, generation);
    if (g && *outcome != ARENA_OK) {
        arena_grant_drop(g);
        return NULL;
    }
    return *made = g;
}

/* What a get of an object gives; NULL where the outcome is negative, or memory is short. */
arena_grant *arena_grant_get(arena_holds *h, uint32_t slot, uint64_t generation, int *outcome, arena_grant **made) {
    *made = NULL;
    *outcome = arena_object_get(h, slot, generation);
    if (*outcome < 0) return NULL;
    arena_grant *g = new_grant(arena_holds_mapping(h), h, 0, slot, generation);
    if (!g) arena_object_release_hold(h, slot);
    return *made = g;
}

static void release(arena_grant *g) {
    if (!g->holds) {
        arena_slot_release(g->mapping, g->row, g->slot, g->generation);
        return;
    }
    arena_object_release_hold(g->holds, g->slot);
    arena_holds_release(g->holds);
}

/* Gives the slot back: nobody, and no device, reads it any more. */
void arena_grant_release(arena_grant *g) {
    release(g);
    arena_gates *gates = g->gates;
    atomic_fetch_sub((_Atomic int64_t *)&g->mapping->grants, 1);
    arena_map_release(g->mapping);
    atomic_fetch_sub(&grants_live, 1);
    free(g);
    if (gates) arena_gates_close(gates);
}

/* The last holder releases the slot, at once, in whatever thread; or hands a gated grant over. */
void arena_grant_drop(arena_grant *g) {
    if (!arena_map_is_alive(g->mapping)) return; /* a forked child: its parent holds the lease */
    if (atomic_fetch_sub(&g->holders, 1) != 1) return;
    if (g->gates && arena_gates_push(g->gates, g)) return;
    arena_grant_release(g);
}

int64_t arena_grants_live(void) { return atomic_load(&grants_live); }

static void drop_tensor(dl_managed *managed) {
    tensor_node *node = (tensor_node *)managed;
    if (node->grant) arena_grant_drop(node->grant);
    if (node->mapping) arena_map_release(node->mapping);
    free(node);
}

static uint64_t aligned(uint64_t nbytes) { return (nbytes + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1); }

/* A node with `payload_bytes` behind it, where its data pointer points. */
static tensor_node *new_tensor(uint64_t payload_bytes, int code, int bits, int ndim, const int64_t *shape,
                               const int64_t *strides) {
    uint64_t dims_bytes = (uint64_t)ndim * sizeof(int64_t);
    uint64_t node_bytes = aligned(sizeof(tensor_node) + 2 * dims_bytes);
    tensor_node *node = aligned_alloc(ALIGNMENT, node_bytes + aligned(payload_bytes));
    if (!node) return NULL;
    memset(node, 0, node_bytes);
    memcpy(node->dims, shape, dims_bytes);
    dl_tensor *tensor = &node->managed.tensor;
    tensor->data = (char *)node + node_bytes;
    tensor->device.type = DEVICE_CPU;
    tensor->ndim = ndim;
    tensor->dtype.code = (uint8_t)code;
    tensor->dtype.bits = (uint8_t)bits;
    tensor->dtype.lanes = 1;
    tensor->shape = node->dims;
    if (strides) {
        memcpy(node->dims + ndim, strides, dims_bytes);
        tensor->strides = node->dims + ndim;
    }
    node->managed.deleter = drop_tensor;
    return node;
}

/* Whether a tensor takes exactly its bytes and no element lies outside: shapes and strides come out of a message. */
static bool fits(uint64_t nbytes, int bits, int ndim, const int64_t *shape, const int64_t *strides) {
    uint64_t elements = 1, last = 0, step, total_bits;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] <= 0 || __builtin_mul_overflow(elements, (uint64_t)shape[i], &elements)) return false;
        if (!strides) continue;
        if (strides[i] < 0 || __builtin_mul_overflow((uint64_t)strides[i], (uint64_t)shape[i] - 1, &step)) return false;
        if (__builtin_add_overflow(last, step, &last)) return false;
    }
    return !__builtin_mul_overflow(elements, (uint64_t)bits, &total_bits) && total_bits == nbytes * 8 && last < elements;
}

/* Instead of a tensor; where memory is short, errno says so as well. */
static uint64_t unfit(void) {
    errno = EINVAL;
    return 0;
}

static uint64_t address(tensor_node *node) { return (uint64_t)(uintptr_t)node; }

/* A view of `nbytes` of an extent, which holds the grant. */
uint64_t arena_grant_tensor(arena_grant *g, char *data, uint64_t nbytes, int code, int bits, int ndim,
                            const int64_t *shape, const int64_t *strides) {
    if (!fits(nbytes, bits, ndim, shape, strides)) return unfit();
    tensor_node *node = new_tensor(0, code, bits, ndim, shape, strides);
    if (!node) return 0;
    node->managed.tensor.data = data;
    node->grant = g;
    atomic_fetch_add(&g->holders, 1);
    return address(node);
}

/* A view of the data area that owns no slot: it only keeps the mapping. */
uint64_t arena_map_tensor(arena_mapping *m, uint64_t offset, int code, int bits, int ndim, const int64_t *shape,
                          const int64_t *strides) {
    tensor_node *node = new_tensor(0, code, bits, ndim, shape, strides);
    if (!node) return 0;
    node->managed.tensor.data = m->data + offset;
    node->mapping = m;
    arena_map_retain(m);
    return address(node);
}

/* A copy of an inline buffer, in the allocation of its own node. */
uint64_t arena_copied_tensor(const char *from, uint64_t nbytes, int code, int bits, int ndim, const int64_t *shape,
                             const int64_t *strides) {
    if (!fits(nbytes, bits, ndim, shape, strides)) return unfit();
    tensor_node *node = new_tensor(nbytes, code, bits, ndim, shape, strides);
    if (!node) return 0;
    memcpy(node->managed.tensor.data, from, nbytes);
    return address(node);
}

/* A capsule that nobody imported still owns its tensor; an imported one has been renamed. */
static void capsule_destructor(PyObject *capsule) {
    if (!PyCapsule_IsValid(capsule, "dltensor")) return;
    dl_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
    managed->deleter(managed);
}

uint64_t arena_capsule_destructor(void) { return (uint64_t)(uintptr_t)capsule_destructor; }
