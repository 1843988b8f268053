/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors whose storage owns what it shows: a slot, which its last view releases, a mapping, or a copy of an inline
 * buffer.  They travel to torch in a DLPack capsule (github.com/dmlc/dlpack, the unversioned DLManagedTensor), whose deleter
 * is C: it runs in any thread, with or without the GIL.
 *
 * A Python module of its own in the same library, as cffi cannot return an object: a capsule in one call is three times
 * faster than an address and ctypes, and no signal handler's exception can lose what was made.
 */
#include "arena_python.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

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
#define CAPSULE_NAME "dltensor"
#define DIMS_MAX 64
#define RELEASE_GIL_BYTES (256 << 10) /* below, copying is quicker than waiting for the GIL again */

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

/* ---- capsules ------------------------------------------------------------------------------------- */

/* A capsule that nobody imported still owns its tensor; an imported one has been renamed. */
static void drop_capsule(PyObject *capsule) {
    if (!PyCapsule_IsValid(capsule, CAPSULE_NAME)) return;
    dl_managed *managed = PyCapsule_GetPointer(capsule, CAPSULE_NAME);
    managed->deleter(managed);
}

static PyObject *capsule_of(tensor_node *node) {
    PyObject *capsule = PyCapsule_New(node, CAPSULE_NAME, drop_capsule);
    if (!capsule) drop_tensor(&node->managed);
    return capsule;
}

/* The arguments of each function: an owner, a place, a length, then (code, bits), shape, strides or None. */
typedef struct {
    uint64_t place, nbytes;
    int64_t code, bits;
    int ndim;
    bool strided;
    int64_t shape[DIMS_MAX], strides[DIMS_MAX];
} request;

static bool read_integers(PyObject *tuple, int64_t *to, Py_ssize_t count) {
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != count) {
        PyErr_Format(PyExc_TypeError, "%R is not a tuple of %zd integers", tuple, count);
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        to[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        if (to[i] == -1 && PyErr_Occurred()) return false;
    }
    return true;
}

static bool read_request(PyObject *const *arguments, Py_ssize_t count, request *r) {
    if (count != 6) {
        PyErr_Format(PyExc_TypeError, "%zd arguments, not 6", count);
        return false;
    }
    r->place = PyLong_AsUnsignedLongLong(arguments[1]);
    r->nbytes = PyLong_AsUnsignedLongLong(arguments[2]);
    if (PyErr_Occurred()) return false;
    int64_t dtype[2];
    if (!read_integers(arguments[3], dtype, 2)) return false;
    r->code = dtype[0];
    r->bits = dtype[1];
    Py_ssize_t ndim = PyTuple_Check(arguments[4]) ? PyTuple_Size(arguments[4]) : DIMS_MAX + 1;
    if (ndim > DIMS_MAX) {
        PyErr_Format(PyExc_TypeError, "%R is not a shape of at most %d dimensions", arguments[4], DIMS_MAX);
        return false;
    }
    r->ndim = (int)ndim;
    r->strided = arguments[5] != Py_None;
    return read_integers(arguments[4], r->shape, ndim) && (!r->strided || read_integers(arguments[5], r->strides, ndim));
}

/* BufferError where the shape does not fit the bytes: both come out of a message. */
static tensor_node *node_of(const request *r, uint64_t payload_bytes) {
    const int64_t *strides = r->strided ? r->strides : NULL;
    if (r->bits <= 0 || r->bits > 128 || r->code < 0 || r->code > UINT8_MAX ||
        !fits(r->nbytes, (int)r->bits, r->ndim, r->shape, strides)) {
        PyErr_SetString(PyExc_BufferError, "a tensor's shape and strides do not fit its bytes");
        return NULL;
    }
    tensor_node *node = new_tensor(payload_bytes, (int)r->code, (int)r->bits, r->ndim, r->shape, strides);
    if (!node) PyErr_NoMemory();
    return node;
}

/* A view of a lease's bytes, which holds the grant. */
static PyObject *of_lease(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    request r;
    if (!read_request(arguments, count, &r)) return NULL;
    lease_object *lease = (lease_object *)arguments[0];
    if (!arena_is_lease(arguments[0]) || !lease->grant) {
        PyErr_Format(PyExc_TypeError, "%R is not a lease that holds its slot", arguments[0]);
        return NULL;
    }
    if (r.place > lease->nbytes || r.nbytes > lease->nbytes - r.place) {
        PyErr_Format(PyExc_BufferError, "%llu bytes at %llu are outside the extent of %llu", (unsigned long long)r.nbytes,
                     (unsigned long long)r.place, (unsigned long long)lease->nbytes);
        return NULL;
    }
    tensor_node *node = node_of(&r, 0);
    if (!node) return NULL;
    node->managed.tensor.data = lease->data + r.place;
    node->grant = lease->grant;
    atomic_fetch_add(&node->grant->holders, 1);
    return capsule_of(node);
}

/* A view of the data area that owns no slot: it only keeps the mapping. */
static PyObject *of_mapping(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    request r;
    if (!read_request(arguments, count, &r)) return NULL;
    arena_mapping *mapping = (arena_mapping *)(uintptr_t)PyLong_AsUnsignedLongLong(arguments[0]);
    if (PyErr_Occurred()) return NULL;
    tensor_node *node = node_of(&r, 0);
    if (!node) return NULL;
    node->mapping = mapping;
    node->managed.tensor.data = node->mapping->data + r.place;
    arena_map_retain(node->mapping);
    return capsule_of(node);
}

/* A copy of an inline buffer, in the allocation of its own node; it has no owner: None. */
static PyObject *of_copy(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    request r;
    if (!read_request(arguments, count, &r)) return NULL;
    tensor_node *node = node_of(&r, r.nbytes);
    if (!node) return NULL;
    PyThreadState *state = r.nbytes >= RELEASE_GIL_BYTES ? PyEval_SaveThread() : NULL;
    memcpy(node->managed.tensor.data, (const void *)(uintptr_t)r.place, r.nbytes);
    if (state) PyEval_RestoreThread(state);
    return capsule_of(node);
}

static PyMethodDef functions[] = {
    {"lease_of_message", (PyCFunction)(void (*)(void))arena_lease_of_message, METH_FASTCALL, NULL},
    {"lease_of_object", (PyCFunction)(void (*)(void))arena_lease_of_object, METH_FASTCALL, NULL},
    {"of_lease", (PyCFunction)(void (*)(void))of_lease, METH_FASTCALL, NULL},
    {"of_mapping", (PyCFunction)(void (*)(void))of_mapping, METH_FASTCALL, NULL},
    {"of_copy", (PyCFunction)(void (*)(void))of_copy, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "arena._capsules", .m_size = -1, .m_methods = functions,
};

PyMODINIT_FUNC PyInit__capsules(void) {
    PyObject *made = PyModule_Create(&module);
    if (made && arena_add_lease_type(made)) return made;
    Py_XDECREF(made);
    return NULL;
}
