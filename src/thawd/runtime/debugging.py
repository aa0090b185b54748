"""Under ``thawd up --debug``: lets an editor attach to this process, and gives ``breakpoint()`` the server's terminal.

``pdb.set_trace()`` does what ``breakpoint()`` does.

The editor's side speaks the Debug Adapter Protocol with debugpy, which comes from the function's own packages, or from
the environment that runs thawd. Without an attached editor, ``breakpoint()`` opens pdb in the server's terminal.
"""

import json
import os
import sys
import time
from contextlib import nullcontext
from typing import Any, Dict, Optional

from thawd.runtime import faults
from thawd.runtime.faults import Fault

VARIABLE = "THAWD_DEBUG"
# How long the port may still be held by the adapter of the environment before this one.
_PORT_S = 10.0
_AGAIN_S = 0.2


def start() -> None:
    """Begin to listen for an editor, and replace what ``breakpoint()`` and ``pdb.set_trace()`` do.

    With ``waits``, wait for an editor.

    Raises:
        Fault: the port cannot be used.
    """
    arguments = json.loads(os.environ.pop(VARIABLE))
    debugpy = None
    if arguments["port"] is not None:
        # debugpy's warning about frozen modules concerns only breakpoints inside the standard library.
        os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
        debugpy = _debugpy(arguments["debugpy"])
        _listen(debugpy, arguments)
        del os.environ["PYDEVD_DISABLE_FILE_VALIDATION"]
    faults.debugged = True
    hook = _Breakpoint(debugpy, arguments)
    if not os.environ.get("PYTHONBREAKPOINT"):
        sys.breakpointhook = hook
    hook.replace_set_trace()
    if debugpy is not None and arguments["waits"]:
        faults.write_log("thawd: init waits for an editor at %(host)s:%(port)d\n" % arguments)
        debugpy.wait_for_client()


def _debugpy(folder: Optional[str]) -> Any:
    """Import debugpy: the interpreter's own; if it has none, the one in `folder`, without searching that folder later.

    The folder is the platform's ``site-packages``, whose other packages may be for another version of Python.
    """
    if folder is not None:
        sys.path.append(folder)
    try:
        import debugpy
    finally:
        if folder is not None:
            sys.path.remove(folder)
    return debugpy


def _listen(debugpy: Any, arguments: Dict[str, Any]) -> None:
    until_s = time.monotonic() + _PORT_S
    while True:
        try:
            debugpy.listen((arguments["host"], arguments["port"]))
        except RuntimeError as error:
            if time.monotonic() > until_s:
                message = "no debugger can listen at %s:%d: %s; choose another port with --debug-port" % (
                    arguments["host"],
                    arguments["port"],
                    error,
                )
                raise Fault("Runtime.DebuggerError", message) from error
        else:
            return
        time.sleep(_AGAIN_S)


class _Breakpoint:
    """What ``breakpoint()`` does: it stops in the attached editor, else in pdb in the server's terminal."""

    def __init__(self, debugpy: Any, arguments: Dict[str, Any]) -> None:
        self._debugpy = debugpy
        self._path: Optional[str] = arguments["terminal"]
        self._kind: Optional[str] = arguments["terminal_kind"]
        self._function: str = arguments["function"]
        self._opened: Any = None
        self._pdb: Any = None

    def replace_set_trace(self) -> None:
        """Let ``pdb.set_trace()`` do what ``breakpoint()`` does."""
        try:
            # pdb may import readline, which examines the terminal when it is imported.
            with self._terminal.as_standard_streams() if self._path is not None else nullcontext():
                import pdb
        except OSError:  # the terminal cannot be opened; each breakpoint says so
            import pdb
        pdb.set_trace = self

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        frame = sys._getframe(1)
        if self._debugpy is not None and self._debugpy.is_client_connected():
            import pydevd

            pydevd.settrace(
                suspend=True,
                trace_only_current_thread=True,
                patch_multiprocessing=False,
                notify_stdin=False,
                stop_at_frame=frame,
            )
            return
        place = "%s:%d" % (frame.f_code.co_filename, frame.f_lineno)
        if self._path is None:
            why = "no editor is attached, and the server has no terminal"
        else:
            try:
                debugger = self._in_terminal()
            except OSError as error:
                why = "no editor is attached, and the terminal %s cannot be opened: %s" % (self._path, error)
            else:
                header = kwargs.get("header")
                said = "" if header is None else "%s\n" % header
                said += "thawd: %s stops at %s; c continues, h helps" % (self._function, place)
                debugger.stop(frame, said)
                return
        faults.write_log("thawd: a breakpoint at %s did not stop: %s\n" % (place, why))

    @property
    def _terminal(self) -> Any:
        """The server's terminal.

        Raises:
            OSError: it cannot be opened.
        """
        if self._opened is None:
            from thawd.runtime.terminal import Terminal

            assert self._path is not None
            self._opened = Terminal(self._path, self._kind)
        return self._opened

    def _in_terminal(self) -> Any:
        if self._pdb is None:
            from thawd.runtime.terminal_debugger import TerminalDebugger

            self._pdb = TerminalDebugger(self._terminal)
        return self._pdb
