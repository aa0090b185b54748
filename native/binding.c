// Runs in the platform process. The Python face of the native code: argument checks and errors, no logic.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef __linux__
#include <sys/prctl.h>
#endif

PyDoc_STRVAR(set_child_subreaper_doc,
             "set_child_subreaper()\n--\n\n"
             "Make this process the parent of every orphaned descendant, so that it can reap or kill it.\n\n"
             "Raises:\n    OSError: the kernel refused, or the system has no such call (ENOSYS).\n\n"
             "Source: prctl(2), PR_SET_CHILD_SUBREAPER, Linux 3.4.");

static PyObject *set_child_subreaper(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
#ifdef __linux__
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
#else
    errno = ENOSYS;
    return PyErr_SetFromErrno(PyExc_OSError);
#endif
}

static PyMethodDef methods[] = {
    {"set_child_subreaper", set_child_subreaper, METH_NOARGS, set_child_subreaper_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "thawd._native",
    .m_doc = "What only C can ask of the kernel.",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__native(void) {
    return PyModuleDef_Init(&module);
}
