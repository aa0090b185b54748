"""Program: ``python bootstrap.py MODE CONTROL SERVICES LIFELINE``, the last three being open descriptors.

MODE is ``environment`` (init, then serve invocations), ``template`` (init, then fork environments on request),
``snapshot`` (init, then be frozen) or ``lint``. ``python bootstrap.py api`` asks the Runtime API for invocations. The
function is described by Lambda's own environment variables (``_HANDLER``, ``LAMBDA_TASK_ROOT``, …).
"""

import os
import sys


def load_own_package() -> None:
    """Make ``thawd`` importable from this file's place without putting that place on ``sys.path``.

    The platform's site-packages, of another Python version perhaps, must stay invisible to the function.
    """
    import importlib.util
    from importlib.machinery import PathFinder

    runtime_folder = os.path.dirname(os.path.abspath(__file__))
    package_folder = os.path.dirname(runtime_folder)
    # A script's folder is put first on the path; a function's `import handler` must not find ours.
    if sys.path and os.path.abspath(sys.path[0]) == runtime_folder:
        del sys.path[0]
    spec = PathFinder.find_spec("thawd", [os.path.dirname(package_folder)])
    if spec is None or spec.loader is None:
        raise SystemExit("thawd: the package is not at %s; reinstall thawd" % package_folder)
    package = importlib.util.module_from_spec(spec)
    sys.modules["thawd"] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    load_own_package()
    from thawd.runtime.modes import main

    # As a client of the Runtime API, mode `api`, it has no descriptors.
    main(sys.argv[1], *map(int, sys.argv[2:5] or (-1, -1, -1)))
