"""Holds faults of ours apart from the user's cells, wherever we are called unasked.

IPython and Python call some of our code by themselves: before and after a cell, while
a cell is read. A fault there would fail cells that have nothing to do with us, again
and again; so it takes out the part that it came from, and is told once.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Hook:
    """A callback that is taken out at its first fault."""

    def __init__(
        self,
        callback: Callable[..., Any],
        part: str,
        *,
        take_out: Callable[[], object] = lambda: None,
    ) -> None:
        self._callback = callback
        self._part = part
        self._take_out = take_out
        self._failed = False

    def __call__(self, *args: Any) -> Any:
        """Answer as the callback does, or None once it has failed."""
        try:
            return None if self._failed else self._callback(*args)
        except Exception as fault:  # noqa: BLE001 -- told, and the cell goes on
            self._failed = True
            tell_fault(self._part, fault, self._take_out)
        return None


class CellEvents:
    """What is called before and after each cell; both go out at the first fault."""

    def __init__(
        self,
        shell: Any,
        part: str,
        *,
        before: Callable[..., Any] | None = None,
        after: Callable[..., Any] | None = None,
        on_fault: Callable[[], object] | None = None,
    ) -> None:
        self._events = shell.events
        self._hooks = {
            event: Hook(callback, part, take_out=on_fault or self.take_out)
            for event, callback in (("pre_run_cell", before), ("post_run_cell", after))
            if callback is not None
        }

    def put_in(self) -> None:
        """Be called from the next cell, or the end of this one, on."""
        for event, hook in self._hooks.items():
            self._events.register(event, hook)

    def take_out(self) -> None:
        """Be called no more; a second time there is nothing to take out."""
        for event, hook in self._hooks.items():
            if hook in self._events.callbacks[event]:
                self._events.unregister(event, hook)


def tell_fault(
    part: str,
    fault: BaseException,
    take_out: Callable[[], object] = lambda: None,
    *,
    again: str = "%reload_ext gpumagic switches it on again",
) -> None:
    """Say that something of ours has failed and is off, with the traceback of it."""
    import traceback

    try:
        take_out()
    except Exception as second:  # noqa: BLE001 -- told with the first one
        fault.add_note(f"taking it out failed as well: {second!r}")
    told = "".join(traceback.format_exception(fault))
    sys.stderr.write(  # no report of ours can be trusted at this moment
        f"gpumagic: {part} has failed and is off now; your code was not touched.\n"
        f"  -> {again}; please report what follows\n{told}\n"
    )
