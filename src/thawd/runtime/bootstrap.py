"""Program: ``python bootstrap.py MODE CONTROL SERVICES LIFELINE``. The last three arguments are open descriptors.

CONTROL is a socket for invocations, SERVICES a socket for calls to tables and buckets, and LIFELINE a pipe that closes
when the platform ends. MODE is one of these:

- ``environment``: run init, then serve invocations.
- ``template``: run init, then fork environments on request.
- ``snapshot``: run init, then be frozen.
- ``base``: be frozen before init. To publish a version, a thawed copy continues in mode ``snapshot``.
- ``bare``: report the state of the interpreter before init, then end. The platform compares this state with that of a
  copy of a base.
- ``lint``: run init, then report what a snapshot would break.

``python bootstrap.py api`` has no descriptors, and gets its invocations from the Runtime API. Lambda's own environment
variables (``_HANDLER``, ``LAMBDA_TASK_ROOT``, …) describe the function.
"""

import gc
import os
import sys


def load_own_package() -> None:
    """Import the package ``thawd`` to which this file belongs, without adding the folder around it to ``sys.path``.

    That folder is usually the platform's ``site-packages``. The function must not import packages from it, because they
    may be for another Python version.
    """
    import importlib.util
    from importlib.machinery import PathFinder

    runtime_folder = os.path.dirname(os.path.abspath(__file__))
    package_folder = os.path.dirname(runtime_folder)
    # Python puts a script's folder first on the path. A function's `import handler` must not find `handler.py` there.
    if sys.path and os.path.abspath(sys.path[0]) == runtime_folder:
        del sys.path[0]
    spec = PathFinder.find_spec("thawd", [os.path.dirname(package_folder)])
    if spec is None or spec.loader is None:
        raise SystemExit("thawd: the Python package thawd was not found in %s; reinstall thawd" % package_folder)
    package = importlib.util.module_from_spec(spec)
    sys.modules["thawd"] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    gc.disable()  # hardly any object that these imports make is garbage
    load_own_package()
    from thawd.runtime.modes import main

    gc.enable()
    # In mode `api`, as a client of the Runtime API, the process gets no descriptors.
    main(sys.argv[1], *map(int, sys.argv[2:5] or (-1, -1, -1)))
