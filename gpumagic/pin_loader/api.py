"""The script interface: diagnose a loader, mend it, pin it, or watch a loop."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from gpumagic.devices.opening import runtime_now
from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader import stages
from gpumagic.pin_loader.investigation import Improved, Options, Stage, investigate
from gpumagic.pin_loader.prefetcher import DevicePrefetcher
from gpumagic.pin_loader.report import Remark
from gpumagic.report.introspection import is_truly
from gpumagic.report.places import Code

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.pin_loader.investigation import Progress
    from gpumagic.pin_loader.report import LoaderReport, WatchReport

_MEETING = (
    Stage(stages.look_at_the_kind, 0.0, "looking at the loader"),
    Stage(stages.look_at_its_workers, 0.0, "looking at the loader"),
    Stage(stages.look_at_a_batch, 0.05, "taking a batch", 1),
    Stage(stages.look_at_the_room, 0.0, "looking at the machine"),
)
_MEASURING = (
    Stage(stages.measure_loading, 0.15, "loading", 1),
    Stage(stages.measure_the_way, 0.2, "copying and computing"),
)
_OTHER_WORKERS = Stage(
    stages.look_at_other_workers,
    0.2,
    "loading with other workers",
    least=2,
    only_for_workers=True,
)
_PREDICTING = Stage(stages.predict_the_bound, 0.0, "working out the bound")
_MAKING = (
    Stage(stages.make_the_loader, 0.0, "rebuilding"),
    Stage(stages.prove_the_same, 0.05, "comparing batches", 4),
)
_PROVING = (
    Stage(stages.watch_its_buffers, 0.05, "watching buffers", 2),
    Stage(stages.run_both_loops, 0.3, "running both loops in turn"),
    Stage(stages.say_how_it_ended, 0.0, ""),
)


class LoaderRefused(GpuMagicError):
    """The loader is better left as it is, or cannot be rebuilt the same."""


def diagnose(  # noqa: PLR0913 -- one for each option
    loader: Any,
    *,
    name: str | None = None,
    device: Any = None,
    step: Callable[[Any], object] | None = None,
    batches: int | None = None,
    budget_s: float = 5.0,
    progress: Progress | None = None,
) -> LoaderReport:
    """Look at a loader: a batch leaf by leaf, how fast each part is, what can be won.

    The loader is left as it is, and so are random numbers, generators and samplers.
    No device is started: copies are measured on one that is in use.

    Args:
        loader: A DataLoader, or what is like one.

        name: What the report calls it.

        device: Where batches go; by default to the current device of the best kind.

        step: What the loop calls with each batch; it is really called.

        batches: How many are timed.

        budget_s: About how long all of it may take; each part is done once at least.

        progress: Called with the share that is done, and with what is being done.
    """
    options = Options(
        name=name,
        device=device,
        step=step,
        batches=batches,
        budget_s=budget_s,
        diagnose=True,
    )
    return look_or_mend(loader, options, progress).report


def improve(  # noqa: PLR0913 -- one for each option
    loader: Any,
    *,
    name: str | None = None,
    out: str | None = None,
    device: Any = None,
    workers: int | str | None = None,
    prefetch: int | None = None,
    depth: int = 1,
    step: Callable[[Any], object] | None = None,
    batches: int | None = None,
    budget_s: float = 10.0,
    verify: bool = False,
    profile: bool = True,
    force: bool = False,
    progress: Progress | None = None,
) -> Improved:
    """Diagnose a loader; where it pays, rebuild it, prove it the same, and measure.

    Args:
        loader: A DataLoader, or what is like one; it is left as it is.

        name: What the report calls it.

        out: What the report calls the new one.

        device: Where batches go; by default to the current device of the best kind.

        workers: How many processes load; "auto" finds out how many pay.

        prefetch: How many batches each of them prepares ahead.

        depth: How many batches are copied ahead.

        step: What the loop calls with each batch; it is really called.

        batches: How many are timed, and compared.

        budget_s: About how long all measurements together may take. Each is made once
            at least, so that large batches, and slow loading, take longer.

        verify: Whether to compare a whole epoch.

        profile: Whether to trace how copies and kernels overlap.

        force: Whether to go on where it is refused, or not worth it.

        progress: Called with the share that is done, and with what is being done.
    """
    options = Options(
        name=name,
        out=out or f"{name or 'loader'}_pinned",
        device=device,
        workers=workers,
        prefetch=prefetch,
        depth=depth,
        step=step,
        batches=batches,
        budget_s=budget_s,
        verify=verify,
        profile=profile,
        force=force,
    )
    return look_or_mend(loader, options, progress)


def pin(  # noqa: PLR0913 -- one for each option
    loader: Any,
    *,
    device: Any = None,
    workers: int | None = None,
    prefetch: int | None = None,
    depth: int = 1,
    force: bool = False,
) -> DevicePrefetcher:
    """The loader rebuilt, pinned, and copied ahead to the device; nothing is timed.

    Some batches of both are compared, and what pinning takes is held against the
    machine.

    Args:
        loader: A DataLoader, or what is like one; it is left as it is.

        device: Where batches go; by default to the current device of the best kind.

        workers: How many processes load; by default as many as now.

        prefetch: How many batches each of them prepares ahead.

        depth: How many batches are copied ahead.

        force: Whether to go on where it is refused.

    Raises:
        LoaderRefused: It would take too much memory, or not give the same.
    """
    options = Options(
        device=device,
        workers=workers,
        prefetch=prefetch,
        depth=depth,
        force=force,
        out="pinned",
    )
    made = investigate(loader, options, (*_MEETING, *_MAKING))
    if made.loader is None:
        reason = made.report.reason or Remark("nothing was made")
        raise LoaderRefused(reason.text, reason.hint)
    return made.loader


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
    from gpumagic.pin_loader.watch_run import WatchRun

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


def look_or_mend(
    loader: Any, options: Options, progress: Progress | None = None
) -> Improved:
    """Go through the stages that these options ask for, as the magic does."""
    if options.diagnose:
        stages_of_a_look = (*_MEETING, *_MEASURING, _PREDICTING)
        return investigate(loader, options.of_a_look(), stages_of_a_look, progress)
    if is_truly(loader, DevicePrefetcher) and options.workers is not None:
        loader = loader.loader  # it is made anew, with other workers
    every = (*_MEETING, *_MEASURING, _OTHER_WORKERS, _PREDICTING, *_MAKING, *_PROVING)
    return investigate(loader, options, every, progress)


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
