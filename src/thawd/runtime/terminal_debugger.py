"""pdb in the server's terminal: with line editing, and without the frames of the runtime."""

import inspect
import os
import pdb
import sys
from types import FrameType
from typing import Any, List, Optional, Tuple

from thawd.runtime.terminal import Terminal

_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_IMPORTS = "<frozen importlib"
_SKIPPED = ("thawd", "thawd.*", "importlib._bootstrap*", "_frozen_importlib*")
# A frame of such code reports a return whenever it is suspended.
_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class TerminalDebugger(pdb.Pdb):
    """pdb in a terminal. It shows and steps through the user's frames only.

    Args:
        terminal: the terminal.
    """

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._said: Optional[str] = None
        with terminal.as_standard_streams():  # readline examines the terminal when it is imported
            super().__init__(stdin=terminal.reader, stdout=terminal.writer, nosigint=True, skip=_SKIPPED)
            try:
                import readline  # noqa: F401 - `input` uses it
            except ImportError:
                pass
            else:
                self.use_rawinput = True

    def stop(self, frame: FrameType, said: str) -> None:
        """Stop in a frame, also if this debugger still traces, because breakpoints are set.

        Args:
            frame: the frame.
            said: what the terminal shows before the prompt.
        """
        self._said = said
        # pydevd warns of other debuggers that trace. No editor is attached, and the warning would be on the terminal.
        holder = getattr(sys.modules.get("pydevd_tracing"), "TracingFunctionHolder", None)
        if holder is not None:
            holder._warn = False
        sys.settrace(None)  # otherwise it would trace, and stop in, its own `set_trace`
        self.set_trace(frame)

    def interaction(self, *args: Any, **kwargs: Any) -> None:
        """Read and run commands until one of them continues."""
        with self._terminal.for_prompt():
            said, self._said = self._said, None
            if said is not None:
                self._terminal.writer.write("\n%s\n" % said)
                self._terminal.writer.flush()
            super().interaction(*args, **kwargs)

    def get_stack(self, f: Any, t: Any) -> Tuple[List[Tuple[FrameType, int]], int]:
        """Return the frames that commands such as ``where`` show, and the index of the current one."""
        stack, index = super().get_stack(f, t)
        current = stack[index][0]
        first = _first_of_user([frame for frame, _ in stack])
        shown = [each for each in stack[first:] if each[0] is current or not _is_own(each[0])]
        return shown, next(at for at, (frame, _) in enumerate(shown) if frame is current)

    def dispatch_return(self, frame: FrameType, arg: Any) -> Any:
        """Do not step from the function's outermost frame into the runtime."""
        result = super().dispatch_return(frame, arg)
        if not frame.f_code.co_flags & _SUSPENDS and _is_outermost(frame):
            self.set_continue()
        return result


def _is_own(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith((_OWN_FOLDER, _IMPORTS))


def _first_of_user(frames: List[FrameType]) -> int:
    """Return the index of the first frame after those that start the process and call the handler; at most the last.

    In a thread that user code has started, there are no such frames.
    """
    index = next((at for at, frame in enumerate(frames) if _is_own(frame)), 0)
    while index < len(frames) - 1 and _is_own(frames[index]):
        index += 1
    return index


def _is_outermost(frame: FrameType) -> bool:
    """Return whether the runtime called this frame, and no frame of the user is further up."""
    frames: List[FrameType] = []
    each: Optional[FrameType] = frame
    while each is not None:
        frames.insert(0, each)
        each = each.f_back
    first = _first_of_user(frames)
    return first == len(frames) - 1 and first > 0 and _is_own(frames[first - 1])
