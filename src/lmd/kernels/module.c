/* The Python module: functions that Python calls, and constants that it reads. MODULE is the name
 * of the build. The caller has checked the arguments: addresses belong to arrays of the required
 * shapes. A call takes about a microsecond, several times less than a call through ctypes. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <time.h>

#include "shared.h"
#include "threads.h"

static PyObject *raised[3]; /* exception of a signal handler: type, value, traceback */

/* Runs the signal handlers of Python, at most every 50 ms. Returns whether one raised an exception,
 * such as KeyboardInterrupt; the solve then ends, and the call raises it. */
static int is_interrupted(void) {
    static _Thread_local struct timespec last;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double seconds =
        (double)(now.tv_sec - last.tv_sec) + 1e-9 * (double)(now.tv_nsec - last.tv_nsec);
    if (seconds < 0.05) return 0;
    last = now;
    const PyGILState_STATE state = PyGILState_Ensure();
    const int found = PyErr_CheckSignals();
    if (found) PyErr_Fetch(raised, raised + 1, raised + 2);
    PyGILState_Release(state);
    return found;
}

/* Raises the exception that ended a call. */
static void raise_again(void) {
    if (raised[0]) PyErr_Restore(raised[0], raised[1], raised[2]);
    else PyErr_SetNone(PyExc_KeyboardInterrupt);
    memset(raised, 0, sizeof(raised));
}

/* function(arrays, reals, sizes, threads, reports): tuples of addresses or None, of floats, and of
 * integers, and two integers. Returns a list of `reports` numbers. */
static PyObject *call(Function *function, PyObject *const *given, Py_ssize_t count) {
    if (count != 5) return PyErr_Format(PyExc_TypeError, "takes 5 arguments, not %zd", count);
    for (int n = 0; n < 3; n++)
        if (!PyTuple_Check(given[n])) return PyErr_Format(PyExc_TypeError, "expected tuples");
    const Py_ssize_t arrays = PyTuple_GET_SIZE(given[0]), reals = PyTuple_GET_SIZE(given[1]);
    const Py_ssize_t sizes = PyTuple_GET_SIZE(given[2]);
    const long threads = PyLong_AsLong(given[3]), reports = PyLong_AsLong(given[4]);
    if (PyErr_Occurred()) return NULL;
    double *report = PyMem_Calloc((size_t)(reports + reals + arrays + sizes), sizeof(double));
    if (!report) return PyErr_NoMemory();
    double *real = report + reports;
    void **array = (void **)(real + reals);
    long *size = (long *)(array + arrays);
    for (Py_ssize_t n = 0; n < arrays; n++) {
        PyObject *address = PyTuple_GET_ITEM(given[0], n);
        array[n] = address == Py_None ? NULL : PyLong_AsVoidPtr(address);
    }
    for (Py_ssize_t n = 0; n < reals; n++)
        real[n] = PyFloat_AsDouble(PyTuple_GET_ITEM(given[1], n));
    for (Py_ssize_t n = 0; n < sizes; n++) size[n] = PyLong_AsLong(PyTuple_GET_ITEM(given[2], n));
    PyObject *answer = NULL;
    if (!PyErr_Occurred()) {
        int failed;
        Py_BEGIN_ALLOW_THREADS;
        failed = function(array, real, size, (int)threads, report);
        Py_END_ALLOW_THREADS;
        if (failed & INTERRUPTED) raise_again();
        else if (failed)
            PyErr_SetString(PyExc_MemoryError, "no memory for compiled code to work in");
        else answer = PyList_New(reports);
    }
    for (long n = 0; n < reports && answer; n++)
        PyList_SET_ITEM(answer, n, PyFloat_FromDouble(report[n]));
    PyMem_Free(report);
    return answer;
}

#define CALL(name)                                                                                 \
    static PyObject *call_##name(PyObject *self, PyObject *const *given, Py_ssize_t count) {       \
        (void)self;                                                                                \
        return call(lmd_##name, given, count);                                                     \
    }
FUNCTIONS(CALL)

#define METHOD(name)                                                                               \
    {#name, (PyCFunction)(void (*)(void))call_##name, METH_FASTCALL, "lmd_" #name " of C."},
static PyMethodDef methods[] = {FUNCTIONS(METHOD){0}};

static const struct {
    const char *name;
    long value;
} constants[] = {
    {"FORMS", FORMS},
    {"LARGEST", LARGEST},
    {"MAX_COUPLED", MAX_COUPLED},
    {"MISFIT_SQUARES", MISFIT_SQUARES},
    {"MISFIT_COUNTS", MISFIT_COUNTS},
    {"MISFIT_DISTANCES", MISFIT_DISTANCES},
    {"MISFIT_LINEAR", MISFIT_LINEAR},
};

static int start(PyObject *module) {
    int failed = 0;
    lmd_interrupted = is_interrupted;
    for (size_t n = 0; n < sizeof(constants) / sizeof(constants[0]); n++)
        failed |= PyModule_AddIntConstant(module, constants[n].name, constants[n].value);
    return failed;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)start}, {0, NULL}};
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "lmd.kernels", NULL, 0, methods, slots, NULL, NULL, NULL};

#define JOINED(name) PyInit_##name
#define INIT(name) JOINED(name)
PyMODINIT_FUNC INIT(MODULE)(void);
PyMODINIT_FUNC INIT(MODULE)(void) { return PyModuleDef_Init(&module); }
