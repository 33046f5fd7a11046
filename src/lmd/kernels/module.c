/* What Python calls directly, as ctypes takes as long for a call as the solve of a small image: lmd_fgp of loop.c, and constants. MODULE is
   the name of the build. Whoever calls it has checked what is given: addresses are addresses, and shapes are theirs. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <time.h>

#include "shared.h"
#include "threads.h"

enum { GIVEN = 21 };

/* An address; None is NULL. */
static void *address(PyObject *given) { return given == Py_None ? NULL : PyLong_AsVoidPtr(given); }

/* A number for each instance, or one for all. */
static int fill(PyObject *given, long batch, double *out)
{
    if (PyFloat_Check(given)) {
        for (long n = 0; n < batch; n++) out[n] = PyFloat_AS_DOUBLE(given);
        return 1;
    }
    PyObject *each = PySequence_Fast(given, "a number, or one for each instance");
    if (!each) return 0;
    const int fits = PySequence_Fast_GET_SIZE(each) == batch;
    for (long n = 0; n < batch && fits; n++) out[n] = PyFloat_AsDouble(PySequence_Fast_GET_ITEM(each, n));
    Py_DECREF(each);
    if (!fits) PyErr_SetString(PyExc_ValueError, "not one number for each instance");
    return fits && !PyErr_Occurred();
}

/* A list of (iterations, status, F(x), its gap) for each instance. */
static PyObject *rows_of(const double *report, long batch)
{
    PyObject *all = PyList_New(batch);
    for (long n = 0; n < batch && all; n++, report += REPORT) {
        PyObject *row = Py_BuildValue("lldd", (long)report[0], (long)report[1], report[2], report[3]);
        if (row) PyList_SET_ITEM(all, n, row);
        else Py_CLEAR(all);
    }
    return all;
}

static PyObject *raised[3]; /* what a signal handler raised while a solve went on: type, value, traceback */

/* Runs signal handlers of Python's, a few times in a second at most. Returns whether one raised something, as that of Ctrl-C
   does; solves end then, and it is raised where they were called. */
static int is_interrupted(void)
{
    static _Thread_local struct timespec last;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if ((double)(now.tv_sec - last.tv_sec) + 1e-9 * (double)(now.tv_nsec - last.tv_nsec) < 0.05) return 0;
    last = now;
    const PyGILState_STATE state = PyGILState_Ensure();
    const int found = PyErr_CheckSignals();
    if (found) PyErr_Fetch(raised, raised + 1, raised + 2);
    PyGILState_Release(state);
    return found;
}

/* Raises what ended a solve that was called by ctypes. */
static PyObject *raise_again(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    PyErr_Restore(raised[0], raised[1], raised[2]);
    return NULL;
}

static PyObject *fgp(PyObject *self, PyObject *const *given, Py_ssize_t count)
{
    void *at[5];
    double reals[5], few[2 + REPORT], *room = few;
    long whole[9];
    (void)self;
    if (count != GIVEN) return PyErr_Format(PyExc_TypeError, "fgp takes %d arguments, not %zd", GIVEN, count);
    const int pointers[5] = {0, 1, 4, 19, 20};
    for (int n = 0; n < 5; n++) at[n] = address(given[pointers[n]]);
    for (int n = 0; n < 5; n++) reals[n] = PyFloat_AsDouble(given[5 + n]);
    for (int n = 0; n < 9; n++) whole[n] = PyLong_AsLong(given[10 + n]);
    if (PyErr_Occurred()) return NULL;
    const long batch = whole[0];
    if (batch != 1) room = PyMem_Malloc((size_t)(batch * (2 + REPORT)) * sizeof(double));
    if (!room) return PyErr_NoMemory();
    double *gaps = room + batch, *report = gaps + batch;
    PyObject *answer = NULL;
    if (fill(given[2], batch, gaps) && fill(given[3], batch, room)) {
        int failed;
        Py_BEGIN_ALLOW_THREADS;
        failed = lmd_fgp(at[0], at[1], gaps, room, at[2], reals[0], reals[1], reals[2], reals[3], reals[4], batch, whole[1],
                         whole[2], whole[3], whole[4], whole[5], whole[6], whole[7], (int)whole[8], at[3], at[4], report);
        Py_END_ALLOW_THREADS;
        if (failed & INTERRUPTED)
            PyErr_Restore(raised[0], raised[1], raised[2]);
        else if (failed)
            PyErr_SetString(PyExc_MemoryError, "no memory for the working rows of a compiled solve");
        else
            answer = rows_of(report, batch);
    }
    if (room != few) PyMem_Free(room);
    return answer;
}

/* What Python has to know of the constants of C. */
static const struct {
    const char *name;
    long value;
} constants[] = {
    {"FORMS", FORMS},
    {"INTERRUPTED", INTERRUPTED},
    {"LARGEST", LARGEST},
    {"MAX_COUPLED", MAX_COUPLED},
    {"MISFIT_SQUARES", MISFIT_SQUARES},
    {"MISFIT_COUNTS", MISFIT_COUNTS},
    {"MISFIT_DISTANCES", MISFIT_DISTANCES},
    {"MISFIT_LINEAR", MISFIT_LINEAR},
};

static int start(PyObject *module)
{
    int failed = 0;
    lmd_interrupted = is_interrupted;
    for (size_t n = 0; n < sizeof(constants) / sizeof(constants[0]); n++)
        failed |= PyModule_AddIntConstant(module, constants[n].name, constants[n].value);
    return failed;
}

static PyMethodDef methods[] = {
    {"fgp", (PyCFunction)(void (*)(void))fgp, METH_FASTCALL, "Whole solves of denoising: lmd.tv.denoising."},
    {"raise_again", raise_again, METH_NOARGS, "Raise what a signal handler raised during a solve."},
    {0},
};
static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)start}, {0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "lmd.kernels", NULL, 0, methods, slots, NULL, NULL, NULL};

#define JOINED(name) PyInit_##name
#define INIT(name) JOINED(name)
PyMODINIT_FUNC INIT(MODULE)(void);
PyMODINIT_FUNC INIT(MODULE)(void) { return PyModuleDef_Init(&module); }
