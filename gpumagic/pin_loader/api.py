"""The script interface: diagnose a loader, improve it, pin it, or watch a loop."""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gpumagic.devices.opening import runtime_now
from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader.stages import PINNING, Options, investigate

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.pin_loader.answer_loader import LoaderReport
    from gpumagic.pin_loader.answer_watch import WatchReport
    from gpumagic.pin_loader.prefetcher import DevicePrefetcher
    from gpumagic.pin_loader.stages import Improved


class LoaderRefused(GpuMagicError):
    """The loader is better left as it is, or cannot be rebuilt the same."""


def diagnose(
    loader: Any,
    *,
    name: str = "the loader",
    device: Any = None,
    step: Callable[[Any], object] | None = None,
    budget_s: float = 5.0,
) -> LoaderReport:
    """Look at a loader: a batch leaf by leaf, how fast each part is, what can be won.

    The loader is left as it is, and so are random numbers, generators and samplers.
    No device is started: copies are measured on one that is in use.

    Everything is given as to `improve`.
    """
    options = Options(
        name=name, device=device, step=step, budget_s=budget_s, diagnose=True
    )
    return investigate(loader, options).report


def improve(  # noqa: PLR0913 -- one for each option
    loader: Any,
    *,
    name: str = "the loader",
    out: str = "",
    device: Any = None,
    workers: int | str | None = None,
    step: Callable[[Any], object] | None = None,
    budget_s: float = 10.0,
    force: bool = False,
) -> Improved:
    """Diagnose a loader; where it pays, rebuild it, prove it the same, and measure.

    Args:
        loader: A DataLoader, or what is like one; it is left as it is.

        name: What the report calls it.

        out: What the report calls the new one.

        device: Where batches go; by default to the current device of the best kind.

        workers: How many processes load; "auto" takes the fewest that are as good as
            the best. By default as many as before: others are tried, and told.

        step: What the loop calls with each batch; it is really called.

        budget_s: About how long all measurements together may take. Each is made once
            at least, so that large batches, and slow loading, take longer.

        force: Whether to go on where it is refused, or not worth it.
    """
    options = Options(
        name=name,
        out=out or f"{name.removeprefix('the ')}_pinned",
        device=device,
        workers=workers,
        step=step,
        budget_s=budget_s,
        force=force,
    )
    return investigate(loader, options)


def pin(
    loader: Any, *, device: Any = None, workers: int | None = None, force: bool = False
) -> DevicePrefetcher:
    """The loader rebuilt, pinned and copied ahead, compared in value but not timed.

    Everything is given as to `improve`.

    Raises:
        LoaderRefused: It would take too much memory, or not give the same.
    """
    options = Options(device=device, workers=workers, force=force, out="pinned")
    made = investigate(loader, options, stages=PINNING)
    if made.loader is None:
        raise LoaderRefused(made.report.headline, made.report.reason.hint)
    return made.loader


def watch(function: Callable[[], object]) -> WatchReport:
    """Run a function once, and say how long it waited for data, and what it copied.

    Its times are a little longer than they would be: a trace is taken meanwhile.

    Args:
        function: Called without arguments; a loop over some hundred batches, say.

    Raises:
        DeviceError: The devices cannot be waited for, since something has broken them.
        Exception: Whatever the function raises; by then nothing is watched any more.
    """
    from gpumagic.pin_loader.watch_cell import WatchRun

    names: dict[str, object] = {}
    with suppress(TypeError):  # it need not be a function of Python
        found = inspect.getclosurevars(inspect.unwrap(function))
        names = {**found.globals, **found.nonlocals}
    run = WatchRun(runtime_now, lambda: names)
    run.begin()
    try:
        function()
    except BaseException as error:
        run.end(error)
        raise
    run.end()
    if run.late_error is not None:
        raise run.late_error
    return run.report()
