/* SPDX-License-Identifier: Apache-2.0
 *
 * `Lease`, the Python object that holds a slot, and the two calls that make one.
 */
#include "arena_python.h"

#include <stddef.h>
#include <structmember.h>

static PyTypeObject *lease_type;

static PyObject *lease_drop(PyObject *self, PyObject *none) {
    lease_object *lease = (lease_object *)self;
    arena_grant *grant = lease->grant;
    lease->grant = NULL;
    arena_grant_drop(grant);
    Py_RETURN_NONE;
}

static void lease_dealloc(PyObject *self) {
    arena_grant_drop(((lease_object *)self)->grant);
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {{"drop", lease_drop, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};

static PyMemberDef members[] = {
    {"grant", T_ULONGLONG, offsetof(lease_object, grant), READONLY, NULL},
    {"data", T_ULONGLONG, offsetof(lease_object, data), READONLY, NULL},
    {"nbytes", T_ULONGLONG, offsetof(lease_object, nbytes), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, lease_dealloc}, {Py_tp_methods, methods}, {Py_tp_members, members}, {0, NULL},
};

static PyType_Spec spec = {
    .name = "arena._capsules.Lease",
    .basicsize = sizeof(lease_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};

bool arena_add_lease_type(PyObject *module) {
    lease_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return lease_type && PyModule_AddObjectRef(module, "LeaseType", (PyObject *)lease_type) == 0;
}

bool arena_is_lease(PyObject *object) { return Py_TYPE(object) == lease_type; }

/* All but the last, which is the function that refuses. */
static bool read_numbers(PyObject *const *arguments, Py_ssize_t count, uint64_t *to, Py_ssize_t wanted) {
    if (count != wanted + 1) {
        PyErr_Format(PyExc_TypeError, "%zd arguments, not %zd", count, wanted + 1);
        return false;
    }
    for (Py_ssize_t i = 0; i < wanted; i++) to[i] = PyLong_AsUnsignedLongLong(arguments[i]);
    return !PyErr_Occurred();
}

/* The object exists before the grant does: from then on no failure can lose the slot. */
static lease_object *new_lease(void) { return (lease_object *)PyType_GenericAlloc(lease_type, 0); }

/* A lease over an extent.  Where there is none, `refuse` raises: it gets the outcome, which is ARENA_OK where only memory is
 * short, the slot and the generation. */
static PyObject *filled(lease_object *lease, arena_mapping *m, const uint64_t *extent, PyObject *refuse, int outcome,
                        PyObject *slot, PyObject *generation) {
    if (lease->grant) {
        lease->data = m->data + extent[0];
        lease->nbytes = extent[1];
        return (PyObject *)lease;
    }
    Py_DECREF(lease);
    PyObject *none = PyObject_CallFunction(refuse, "iOO", outcome, slot, generation);
    if (none) PyErr_SetString(PyExc_TypeError, "a refusal that raises nothing");
    Py_XDECREF(none);
    return NULL;
}

/* (mapping, row, slot, generation, refuse): of what a message grants.  The result must not stand in a local while Python can
 * raise: a kept traceback would keep the frame, and the late drop would store over a newer generation's. */
PyObject *arena_lease_of_message(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    uint64_t numbers[4], extent[2];
    if (!read_numbers(arguments, count, numbers, 4)) return NULL;
    arena_mapping *m = (arena_mapping *)(uintptr_t)numbers[0];
    uint32_t slot = numbers[2] > UINT32_MAX ? UINT32_MAX : (uint32_t)numbers[2];
    lease_object *lease = new_lease();
    if (!lease) return NULL;
    int outcome;
    lease->grant = arena_grant_lease(m, (uint32_t)numbers[1], slot, numbers[3], extent, &outcome);
    return filled(lease, m, extent, arguments[4], outcome, arguments[2], arguments[3]);
}

/* (holds, slot, generation, refuse): of an object.  Without the GIL: private pages may have to be forgotten. */
PyObject *arena_lease_of_object(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    uint64_t numbers[3], extent[2];
    if (!read_numbers(arguments, count, numbers, 3)) return NULL;
    arena_holds *holds = (arena_holds *)(uintptr_t)numbers[0];
    uint32_t slot = numbers[1] > UINT32_MAX ? UINT32_MAX : (uint32_t)numbers[1];
    lease_object *lease = new_lease();
    if (!lease) return NULL;
    int outcome;
    Py_BEGIN_ALLOW_THREADS
    lease->grant = arena_grant_get(holds, slot, numbers[2], extent, &outcome);
    Py_END_ALLOW_THREADS
    return filled(lease, arena_holds_mapping(holds), extent, arguments[3], outcome, arguments[1], arguments[2]);
}
