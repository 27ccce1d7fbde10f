"""Diagnose a loader, or mend it: the stages in their order, and how they end."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.driver import open_driver
from gpumagic.devices.opening import open_runtime, runtime_now
from gpumagic.devices.simulated import simulated_box, word_of
from gpumagic.errors import DeviceError, GpuMagicError, UsageProblem
from gpumagic.pin_loader import stages
from gpumagic.pin_loader.inspect_loader import facts_of
from gpumagic.pin_loader.investigation import Case, Ending, Wish
from gpumagic.pin_loader.prefetcher import DevicePrefetcher
from gpumagic.pin_loader.random_state import kept
from gpumagic.pin_loader.rates import CountedStep
from gpumagic.pin_loader.report import LoaderReport, Remark, Setting, State
from gpumagic.pin_loader.watch_run import WatchRun
from gpumagic.report.events import Code
from gpumagic.report.introspection import is_truly

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.devices.protocols import Driver, Runtime
    from gpumagic.pin_loader.report import WatchReport

    Stage = Callable[[Case], Ending | None]
    Step = tuple[Stage, float, str]
    Progress = Callable[[float, str], object]


class LoaderRefused(GpuMagicError):
    """The loader is better left as it is, or cannot be rebuilt the same."""


class Improved(NamedTuple):
    """What to iterate from now on, None where nothing was made; and all about it."""

    loader: DevicePrefetcher | None
    report: LoaderReport


# Each with the share of the time that it takes, and what is said meanwhile.
_MEETING: tuple[Step, ...] = (
    (stages.look_at_the_kind, 0.0, "looking at the loader"),
    (stages.look_at_its_workers, 0.0, "looking at the loader"),
    (stages.look_at_a_batch, 0.05, "taking a batch"),
    (stages.look_at_the_room, 0.0, "looking at the machine"),
)
_MEASURING: tuple[Step, ...] = (
    (stages.measure_loading, 0.15, "loading"),
    (stages.measure_the_way, 0.2, "copying and computing"),
)
_WORKERS: tuple[Step, ...] = (
    (stages.look_at_other_workers, 0.2, "loading with other workers"),
)
_PREDICTING: tuple[Step, ...] = (
    (stages.predict_the_bound, 0.0, "working out the bound"),
)
_MAKING: tuple[Step, ...] = (
    (stages.make_the_loader, 0.0, "rebuilding"),
    (stages.prove_the_same, 0.05, "comparing batches"),
)
_PROVING: tuple[Step, ...] = (
    (stages.watch_its_buffers, 0.05, "watching buffers"),
    (stages.run_both_loops, 0.3, "running both loops in turn"),
    (stages.say_how_it_ended, 0.0, ""),
)


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
    wish = Wish(
        name=name,
        step=CountedStep.of(step),
        batches=batches,
        budget_s=budget_s,
        only_looking=True,
    )
    steps = (*_MEETING, *_MEASURING, *_PREDICTING)
    return _run(_open(loader, device, wish), steps, progress).report


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
    if is_truly(loader, DevicePrefetcher) and workers is not None:
        loader = loader.loader  # it is made anew, with other workers
    wish = Wish(
        name=name,
        out=out or f"{name or 'loader'}_pinned",
        workers=workers,
        prefetch=prefetch,
        depth=depth,
        step=CountedStep.of(step),
        batches=batches,
        budget_s=budget_s,
        verify=verify,
        profile=profile,
        force=force,
    )
    steps = (
        *_MEETING,
        *_MEASURING,
        *_WORKERS,
        *_PREDICTING,
        *_MAKING,
        *_PROVING,
    )
    return _run(_open(loader, device, wish), steps, progress)


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
    wish = Wish(
        workers=workers, prefetch=prefetch, depth=depth, force=force, out="pinned"
    )
    made = _run(_open(loader, device, wish), (*_MEETING, *_MAKING), None)
    if made.loader is None:
        reason = made.report.reason or Remark("nothing was made")
        raise LoaderRefused(reason.text, reason.hint)
    return made.loader


def _open(loader: Any, device: Any, wish: Wish) -> Case:
    facts = facts_of(loader, wish.name)
    kind, number = _kind_and_number(device)
    runtime, driver = open_runtime(kind), open_driver()
    if number is None and runtime.kind != "cpu":
        number = runtime.current_device() or 0
    _require_device(runtime, number)
    if wish.prefetch and not facts.workers and not wish.workers:
        raise UsageProblem(
            "prefetch is what each worker prepares ahead, and this loader has none",
            "ask for workers as well: --workers auto, or leave --prefetch away",
        )
    return Case(
        loader=loader,
        wish=wish,
        runtime=runtime,
        driver=driver,
        device=number,
        setting=_setting(runtime, driver, number),
        facts=facts,
    )


def _run(case: Case, steps: tuple[Step, ...], progress: Progress | None) -> Improved:
    """Go from stage to stage until one of them ends it."""
    with kept(case.loader), case.undo:
        ending = _ending(case, steps, progress)
    case.batch = None
    case.remarks += case.overtime()
    if isinstance(case.wish.step, CountedStep) and case.wish.step.calls:
        case.remarks += case.wish.step.remarks(simulated=case.runtime.simulated)
    case.setting = _setting(case.runtime, case.driver, case.device)
    return Improved(case.feeding, case.report(ending))


def _ending(case: Case, steps: tuple[Step, ...], progress: Progress | None) -> Ending:
    done = 0.0
    whole = sum(share for _, share, _ in steps) or 1.0
    for stage, share, note in steps:
        if progress is not None:
            case.tell = _telling(progress, done / whole, share / whole, note)
            case.tell(0.0)
        ending = stage(case)
        done += share
        if ending is not None:
            return ending
    return Ending(State.FIXED)


def _telling(
    progress: Progress, begin: float, share: float, note: str
) -> Callable[[float], object]:
    return lambda part: progress(begin + share * min(part, 1.0), note)


def _require_device(runtime: Runtime, number: int | None) -> None:
    count = runtime.device_count()
    if number is None or count is None or number < count:
        return
    kind = word_of(runtime.kind)
    there = f"{kind}:0" if count == 1 else f"{kind}:0 to {kind}:{count - 1}"
    raise DeviceError(
        f"there is no {kind}:{number}: there is {there}", f"say --device {kind}:0"
    )


def _kind_and_number(device: Any) -> tuple[str | None, int | None]:
    if device is None:
        return None, None
    if isinstance(device, int):
        return None, device
    kind, _, number = str(device).partition(":")
    return kind, int(number) if number.isdecimal() else None


def _setting(runtime: Runtime, driver: Driver, device: int | None) -> Setting:
    import torch

    box = simulated_box() if runtime.simulated else None
    known = device is not None and (runtime.started() or runtime.kind == "cpu")
    of_a_driver = runtime.kind in ("cuda", "sim")
    return Setting(
        kind=word_of(runtime.kind),
        label=str(getattr(box, "label", "")),
        device=None if runtime.kind == "cpu" else device,
        device_name=runtime.device_name(device or 0) if known else None,
        torch_version=str(torch.__version__),
        driver_version=driver.inventory().driver_version if of_a_driver else None,
    )


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
