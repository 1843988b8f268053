/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the module arena._capsules share: Python objects, which cffi cannot return.
 */
#ifndef ARENA_PYTHON_H
#define ARENA_PYTHON_H

#include <Python.h>

#include "arena_internal.h"

/* A hold on a slot: dropped by drop(), else when the object goes.  No signal handler's exception can lose it. */
typedef struct {
    PyObject_HEAD
    arena_grant *grant; /* NULL once dropped */
    char *data;
    uint64_t nbytes;
} lease_object;

bool arena_add_lease_type(PyObject *module);
bool arena_is_lease(PyObject *object);
PyObject *arena_lease_of_message(PyObject *self, PyObject *const *arguments, Py_ssize_t count);
PyObject *arena_lease_of_object(PyObject *self, PyObject *const *arguments, Py_ssize_t count);

#endif
