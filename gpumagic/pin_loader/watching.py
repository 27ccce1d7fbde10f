"""Watching a training loop as a plain function, for scripts."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from gpumagic.devices.opening import runtime_now
from gpumagic.pin_loader.watched.watch_run import WatchRun
from gpumagic.report.events import Code

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.pin_loader.report import WatchReport


def watch(function: Callable[[], object], *, name: str | None = None) -> WatchReport:
    """Run a function once, and say how long it waited for data, and what it copied.

    Its times are a little longer than they would be: a trace is taken meanwhile.

    Args:
        function: Called without arguments; a loop over some hundred batches, say.

        name: What the report calls it; by default its own name.

    Raises:
        DeviceError: The devices cannot be waited for, since something has broken them.
        Exception: Whatever the function raises; by then nothing is watched any more.
    """
    title = name or getattr(function, "__name__", None) or type(function).__name__
    run = WatchRun(runtime_now, lambda: _names_in(function))
    run.begin()
    try:
        function()
    except BaseException as error:
        run.end(error)
        raise
    run.end()
    if run.late_error is not None:
        raise run.late_error
    return run.report(Code(title, name=title))


def _names_in(function: Any) -> dict[str, object]:
    """What the function calls things: its globals, and variables round it."""
    inner = inspect.unwrap(function)
    inner = getattr(inner, "__func__", inner)  # of a method
    names = dict(getattr(inner, "__globals__", {}))
    code, cells = getattr(inner, "__code__", None), getattr(inner, "__closure__", None)
    for name, cell in zip(getattr(code, "co_freevars", ()), cells or (), strict=False):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return names
