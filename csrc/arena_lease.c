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
    arena_mapping *mapping;
    uint64_t generation;
    uint32_t row;
    uint32_t slot;
    int64_t dims[]; /* shape, then strides */
} lease;

#define DEVICE_CPU 1
#define ALIGNMENT 64

static _Atomic int64_t leases_live;

static void drop_lease(dl_managed *managed) {
    lease *l = (lease *)managed;
    if (*l->mapping->alive) { /* inert in a forked child */
        arena_slot_release(l->mapping, l->row, l->slot, l->generation);
        arena_map_release(l->mapping);
    }
    atomic_fetch_sub(&leases_live, 1);
    free(l);
}

static void drop_copy(dl_managed *managed) { free(managed); }

static lease *new_tensor(uint64_t payload_bytes, int code, int bits, int ndim, const int64_t *shape,
                         const int64_t *strides) {
    uint64_t node_bytes = sizeof(lease) + 2 * (uint64_t)ndim * sizeof(int64_t);
    node_bytes = (node_bytes + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1);
    lease *l = aligned_alloc(ALIGNMENT, (node_bytes + payload_bytes + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1));
    if (!l) return NULL;
    memset(l, 0, node_bytes);
    memcpy(l->dims, shape, (uint64_t)ndim * sizeof(int64_t));
    dl_tensor *tensor = &l->managed.tensor;
    tensor->data = (char *)l + node_bytes;
    tensor->device.type = DEVICE_CPU;
    tensor->ndim = ndim;
    tensor->dtype.code = (uint8_t)code;
    tensor->dtype.bits = (uint8_t)bits;
    tensor->dtype.lanes = 1;
    tensor->shape = l->dims;
    if (strides) {
        memcpy(l->dims + ndim, strides, (uint64_t)ndim * sizeof(int64_t));
        tensor->strides = l->dims + ndim;
    }
    return l;
}

/* A view of an extent; its deleter releases (row, slot, generation) and the mapping. */
void *arena_lease_tensor(arena_mapping *m, uint64_t offset, uint32_t row, uint32_t slot, uint64_t generation,
                         int code, int bits, int ndim, const int64_t *shape, const int64_t *strides) {
    lease *l = new_tensor(0, code, bits, ndim, shape, strides);
    if (!l) return NULL;
    l->managed.tensor.data = m->data + offset;
    l->managed.deleter = drop_lease;
    l->mapping = m;
    l->row = row;
    l->slot = slot;
    l->generation = generation;
    arena_map_retain(m);
    atomic_fetch_add(&leases_live, 1);
    return l;
}

/* A copy of an inline buffer, in the allocation of its own node. */
void *arena_copied_tensor(const char *from, uint64_t nbytes, int code, int bits, int ndim, const int64_t *shape,
                          const int64_t *strides) {
    lease *l = new_tensor(nbytes, code, bits, ndim, shape, strides);
    if (!l) return NULL;
    memcpy(l->managed.tensor.data, from, nbytes);
    l->managed.deleter = drop_copy;
    return l;
}

/* A capsule that nobody imported still owns its tensor; an imported one has been renamed. */
static void capsule_destructor(PyObject *capsule) {
    if (!PyCapsule_IsValid(capsule, "dltensor")) return;
    dl_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
    managed->deleter(managed);
}

uint64_t arena_capsule_destructor(void) { return (uint64_t)(uintptr_t)capsule_destructor; }

int64_t arena_leases_live(void) { return atomic_load(&leases_live); }
