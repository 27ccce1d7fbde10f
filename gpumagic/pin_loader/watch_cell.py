"""Watches a training cell: waits for data, and copies to a device, by line.

From all devices idle to all devices idle, in two calls round the user's code: a cell
may be awaited between them, or end in an error. Copies are added up by line, with what
to type to wait for none.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.devices.around_cell import AroundCell, Observer
from gpumagic.devices.copy_watch import copies_watched
from gpumagic.devices.cpu import CpuRuntime
from gpumagic.devices.simulated import simulated_box, word_of
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.devices.waiting import is_in_use
from gpumagic.errors import DeviceError, GpuMagicError, first_line
from gpumagic.pin_loader.answer_watch import WatchReport
from gpumagic.pin_loader.prefetcher import DevicePrefetcher
from gpumagic.pin_loader.report import CopyLine, Remark, Setting
from gpumagic.pin_loader.waits import (
    Feeder,
    Feeders,
    SeenWaits,
    is_round,
    loop_waits,
    name_of,
    wait_remarks,
    waits_watched,
)
from gpumagic.report.events import TracedCopies, traced_copies
from gpumagic.report.introspection import is_truly
from gpumagic.report.places import code_line
from gpumagic.report.units import bytes_text, seconds_text, share_text, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpumagic.devices.around_cell import Ended
    from gpumagic.devices.copy_watch import SeenCopy
    from gpumagic.devices.protocols import Runtime
    from gpumagic.devices.tracing import Tracing
    from gpumagic.pin_loader.waits import SeenLoader
    from gpumagic.report.events import SeenRace
    from gpumagic.report.places import Code, CodeLine, PlaceMark

_ANEW = "run the cell again: by then it is there"
_WITHOUT = "everything else in this report holds"
_LONG_S = 120.0  # a trace of what takes longer has millions of entries


class WatchRun:
    """Watches what runs between `begin` and `end`.

    What the wait at the end has raised, if the code itself has not, is `late_error`: an
    error of the device, or KeyboardInterrupt. The caller raises it.

    Args:
        open_runtime: The best runtime that there is at the moment.

        names: What the notebook calls its objects.

        only: The name of the one loader whose waits are wanted; None wants all.
    """

    def __init__(
        self,
        open_runtime: Callable[[], Runtime],
        names: Callable[[], Mapping[str, object]],
        *,
        only: str | None = None,
    ) -> None:
        self.late_error: BaseException | None = None
        self._names = names
        self._only = only
        self._tracer = CopyTracer()
        self._watchers = Watchers()
        self._around = AroundCell(
            open_runtime,
            [self._tracer, self._watchers],
            # The tensors of a machine that was switched off are gone.
            after_swap=lambda: open_runtime() if simulated_box() else CpuRuntime(),
            waits_after_error=False,
        )
        self._findings: Findings | None = None

    def begin(self) -> None:
        """Wait until all devices are idle, and look on from now on."""
        self._around.begin()

    def end(self, error: BaseException | None = None) -> None:
        """Wait until all devices are idle again, and look on no more."""
        ended = self._around.end(error=error)
        self.late_error = ended.late_error
        self._findings = Findings(
            self._tracer, self._watchers, self._names(), self._only, ended
        )

    def report(self, code: Code) -> WatchReport:
        """What was seen, once it has ended."""
        if self._findings is None:
            raise RuntimeError("this run has not ended")
        return self._findings.report(code)


class Missing(NamedTuple):
    """Why there is no trace, and what to do."""

    problem: str
    hint: str


class CopyTracer(Observer):
    """Traces copies to a device and the kernels beside them."""

    traces = True

    def __init__(self) -> None:
        self.untraced: Missing | None = None  # why there is no trace
        self._trace = ExitStack()
        self._tracing: Tracing | None = None

    def start(self, runtime: Runtime) -> None:
        """Trace from now on; it may leave work on the device that is to be waited for.

        torch's own tracer would start the device, where that has not been done yet.
        """
        if not (runtime.simulated or is_in_use(runtime)):
            return
        try:
            self._tracing = self._trace.enter_context(runtime.trace())
        except DeviceError as error:
            self.untraced = Missing(error.problem, _without_option(error.hint))

    def begin(self) -> None:
        """What is traced from here on belongs to the cell."""
        if self._tracing is not None:
            self._tracing.begin()

    def all_idle(self, unwaited: str | None) -> None:  # noqa: ARG002 -- as far as it got
        """The trace ends here."""
        if self._tracing is None:
            return
        try:
            with self._trace:
                self._tracing.end()
        except RuntimeError as error:  # a broken device: the rest is true without it
            self._tracing = None
            self.untraced = Missing(f"the trace is lost: {first_line(error)}", _WITHOUT)

    def look_after(self, runtime: Runtime, *, idle: bool) -> None:  # noqa: ARG002
        """Note a device that was there too late to be traced."""
        untold = self._tracing is None and self.untraced is None
        if untold and is_in_use(runtime):
            self.untraced = Missing(
                "this cell itself has started the device: there is no trace of it",
                _ANEW,
            )

    def close(self) -> None:
        """Trace no more."""
        self._trace.close()

    def traced(self) -> TracedCopies | None:
        """The sums of the trace; None where there is none."""
        if self._tracing is None:
            return None
        trace, self._tracing = self._tracing.trace(), None
        if trace.problem is not None:
            self.untraced = Missing(trace.problem, _without_option(trace.hint))
            return None
        return traced_copies(trace)


def _without_option(hint: str | None) -> str:
    """A hint that is not about an option of another magic."""
    return _WITHOUT if hint is None or "--profile" in hint else hint


class Watchers(Observer):
    """Looks at copies, waits for data, and races."""

    def __init__(self) -> None:
        self.copies: list[SeenCopy] | None = None  # None: nobody could look
        self.waits = SeenWaits()
        self.races: list[SeenRace] = []
        self.remarks: list[Remark] = []  # what could not be looked at
        self._watching = ExitStack()
        self._saw_torch = False

    def start(self, runtime: Runtime) -> None:
        """Look on from now on."""
        torch = loaded_torch()
        if torch is None:
            return
        self._saw_torch = True
        try:
            watched = waits_watched(torch, _pinning_ns)
            self.waits = self._watching.enter_context(watched)
        except GpuMagicError as error:
            self.remarks.append(Remark(error.problem, error.hint or ""))
        if runtime.kind != CpuRuntime.kind:
            self._watch_copies(torch, runtime)

    def all_idle(self, unwaited: str | None) -> None:  # noqa: ARG002 -- as far as it got
        """Look on no more: what follows is ours."""
        self._watching.close()

    def look_after(self, runtime: Runtime, *, idle: bool) -> None:  # noqa: ARG002
        """Note a torch that was there too late to be watched."""
        if not self._saw_torch and loaded_torch() is not None:
            self.remarks.append(
                Remark("this cell itself has imported torch: nobody looked on", _ANEW)
            )

    def close(self) -> None:
        """Look on no more."""
        self._watching.close()

    def _watch_copies(self, torch: object, runtime: Runtime) -> None:
        try:
            watched = copies_watched(torch, runtime.kind)
            self.copies = self._watching.enter_context(watched)
        except DeviceError as error:
            self.remarks.append(Remark(error.problem, error.hint or ""))
        if not runtime.simulated:
            return  # torch's own search for races makes each operation slow
        with suppress(DeviceError):  # the user has said that none are looked for
            self.races = self._watching.enter_context(runtime.watch_races())


def _pinning_ns() -> int:
    """How long the simulated machine has been pinning; 0 where there is none."""
    return getattr(simulated_box(), "pinning_ns", 0)


class Findings:
    """Everything that does not depend on what the code is called."""

    def __init__(
        self,
        tracer: CopyTracer,
        watchers: Watchers,
        names: Mapping[str, object],
        only: str | None,
        ended: Ended,
    ) -> None:
        self._ended = ended
        self._setting = _setting_of(ended.found)
        self._copies = watchers.copies or []
        self._traced = tracer.traced()
        self._untraced = tracer.untraced
        self._races = tuple(watchers.races)
        self._feeders = Feeders(watchers.waits.loaders, names)
        # Names are looked up now: what the cell has made may soon be gone.
        loaders = list(_wanted(watchers.waits.loaders, names, only))
        self._waits = loop_waits(loaders, names)
        self._remarks = (
            *self._about_copies(loaders, names),
            *wait_remarks(loaders, names, host_s=ended.host_s),
            *watchers.remarks,
            *_unseen(only, loaders, watchers.waits.elsewhere),
            *_too_long(ended.host_s, self._setting.kind),
        )

    def report(self, code: Code) -> WatchReport:
        """All of it."""
        traced, untraced = self._traced, self._untraced
        return WatchReport(
            code=code,
            setting=self._setting,
            elapsed_s=self._ended.elapsed_s,
            host_s=self._ended.host_s,
            copies=copy_lines(self._copies),
            waits=self._waits,
            copying_s=traced.copying_s if traced else None,
            hidden_s=traced.hidden_s if traced else None,
            kernel_s=traced.kernel_s if traced else None,
            races=self._races,
            failed=self._ended.failed,
            remarks=self._remarks,
            problem=untraced.problem if untraced else None,
            hint=untraced.hint if untraced else None,
        )

    def _about_copies(
        self, loaders: Sequence[SeenLoader], names: Mapping[str, object]
    ) -> Iterator[Remark]:
        yield from copy_remarks(self._copies, self._feeders.of)
        name = name_of(loaders[0], names) if loaders else None
        yield from sharing_remarks(
            self._copies,
            self._traced,
            elapsed_s=self._ended.elapsed_s,
            name=name,
            copied_ahead=is_truly(names.get(name or ""), DevicePrefetcher),
        )


def _wanted(
    seen: Sequence[SeenLoader], names: Mapping[str, object], only: str | None
) -> Iterator[SeenLoader]:
    first, *attributes = (only or "").split(".")
    wanted = names.get(first)
    for attribute in attributes:
        wanted = getattr(wanted, attribute, None)
    for each in seen:
        loader = each.loader()
        there = loader is not None and (loader is wanted or is_round(wanted, loader))
        if each.waits and (only is None or there):
            yield each


def _unseen(
    only: str | None, loaders: Sequence[SeenLoader], elsewhere: int
) -> Iterator[Remark]:
    if only is not None and not loaders:
        yield Remark(
            f"this cell took no batch out of {only}, or it is no DataLoader of torch, "
            "whose waits could be seen",
            "%%pin_loader --watch without a name shows all that were seen",
        )
    if elsewhere:
        yield Remark(
            f"other threads took {elsewhere} batches out of DataLoaders, which are not "
            "among the waits: they hold no loop"
        )


def _too_long(host_s: float, kind: str) -> Iterator[Remark]:
    if host_s > _LONG_S and kind != "cpu":
        yield Remark(
            "the trace of so long a cell takes much memory and time",
            "watch some hundred steps: itertools.islice(train_dl, 300)",
        )


def _setting_of(runtime: Runtime) -> Setting:
    device = name = None
    try:
        device = None if runtime.kind == "cpu" else runtime.current_device()
        name = runtime.device_name(device or 0)
    except RuntimeError:  # a device in error answers nothing any more
        pass
    version = getattr(loaded_torch(), "__version__", None)
    box = simulated_box() if runtime.simulated else None
    return Setting(
        kind=word_of(runtime.kind),
        label=str(getattr(box, "label", "")),
        device=device,
        device_name=name,
        torch_version=None if version is None else str(version),
    )


# ----------------------------------------------------------------- copies, by line

_MOST_REMARKS = 3
_LEAST_SHARE = 0.05  # of all bytes; what is less is not worth a change
_NOT_BLOCKING = "`.to(device, non_blocking=True)`"
_LONGEST = 80
_WAYS = ((False, False), (True, False), (False, True))  # pinned, non_blocking
_MUCH_COPYING = 0.05  # of the time
_WELL_HIDDEN = 0.5


def copy_lines(copies: Iterable[SeenCopy]) -> tuple[CopyLine, ...]:
    """The lines that copied, those with most bytes first."""
    found_by_line = by_line(copies)
    lines = (_added_up(line, found) for line, found in found_by_line.items())
    return tuple(sorted(lines, key=lambda line: line.nbytes, reverse=True))


def by_line(copies: Iterable[SeenCopy]) -> dict[CodeLine | None, list[SeenCopy]]:
    """Put together what one line has copied.

    Copies are many and places are few: each place is looked up once.
    """
    by_mark: dict[PlaceMark | None, list[SeenCopy]] = defaultdict(list)
    for each in copies:
        by_mark[each.mark].append(each)
    found_by_line: dict[CodeLine | None, list[SeenCopy]] = defaultdict(list)
    for mark, found in by_mark.items():
        found_by_line[code_line(mark)] += found
    return found_by_line


def all_bytes(found: Sequence[SeenCopy]) -> int:
    """What they come to."""
    return sum(each.nbytes for each in found)


def all_held_s(found: Sequence[SeenCopy]) -> float:
    """How long they held the host."""
    return sum(each.held_s for each in found)


def _added_up(line: CodeLine | None, found: Sequence[SeenCopy]) -> CopyLine:
    return CopyLine(
        line=line,
        times=len(found),
        nbytes=all_bytes(found),
        pageable_bytes=sum(each.nbytes for each in found if not each.pinned),
        blocking=sum(not each.non_blocking for each in found),
        held_s=all_held_s(found),
    )


def copy_remarks(
    copies: Iterable[SeenCopy], feeder_of: Callable[[int], Feeder | None]
) -> tuple[Remark, ...]:
    """What could be better about copies, and where; the most bytes first.

    `feeder_of` tells whose batch had come last at a moment; copies before the first
    batch are left alone.
    """
    in_loop = [each for each in copies if feeder_of(each.at_ns) is not None]
    worst = sorted(by_line(in_loop).values(), key=all_bytes, reverse=True)
    least = all_bytes(in_loop) * _LEAST_SHARE
    remarks = [
        _about(there, feeder_of(there[0].at_ns))
        for found in worst
        for there in _by_way(found)
        if all_bytes(there) >= least
    ]
    return tuple(remarks[:_MOST_REMARKS])


def _by_way(found: Iterable[SeenCopy]) -> Iterator[list[SeenCopy]]:
    """Those that could be better, by what is wrong with them."""
    for way in _WAYS:
        there = [each for each in found if (each.pinned, each.non_blocking) == way]
        if there:
            yield there


def _about(there: Sequence[SeenCopy], feeder: Feeder | None) -> Remark:
    held = f"which held the host for {seconds_text(all_held_s(there))}"
    what = f"{_said(there)} copies {bytes_text(all_bytes(there))} from"
    if there[0].pinned:
        text = f"{what} pinned memory and waits all the same, {held}"
        return Remark(text, f"write {_NOT_BLOCKING}")
    if there[0].non_blocking:
        text = f"{what} pageable memory, {held}: non_blocking=True gains nothing there"
        return Remark(text, _pinning(feeder))
    text = f"{what} pageable memory and waits for it, {held}"
    return Remark(text, f"{_pinning(feeder)}; then write {_NOT_BLOCKING}")


def _pinning(feeder: Feeder | None) -> str:
    if feeder is None or feeder == Feeder():
        return "pin it where it is made: pin_memory=True, or x.pin_memory() once"
    name = feeder.name or "NAME"
    if feeder.pins:
        return (
            f"%pin_loader {name} --diagnose says which tensors are not pinned, and why"
        )
    return f"let the loader pin: pin_memory=True, or %pin_loader {name}"


# ------------------------------------------------------------------------ words


def _said(found: Sequence[SeenCopy]) -> str:
    line = code_line(found[0].mark)
    if line is None:
        return "a thread without any code of yours"
    source = line.source
    if source is None:
        return line.where
    return f"{line.where}, `{shortened(source, _LONGEST)}`,"


def sharing_remarks(
    copies: Sequence[SeenCopy],
    traced: TracedCopies | None,
    *,
    elapsed_s: float,
    name: str | None = None,
    copied_ahead: bool = False,
) -> tuple[Remark, ...]:
    """What the trace has to say beyond the lines."""
    if traced is None or elapsed_s <= 0:
        return ()
    remarks = []
    if not copied_ahead:
        remarks += _queued(copies, traced, elapsed_s, name or "NAME")
    return tuple(remarks)


def _queued(
    copies: Sequence[SeenCopy], traced: TracedCopies, elapsed_s: float, name: str
) -> list[Remark]:
    """Copies that could run beside kernels, but wait in the same stream."""
    free = sum(each.nbytes for each in copies if each.pinned and each.non_blocking)
    if free * 2 <= sum(each.nbytes for each in copies):
        return []
    could_s = min(traced.copying_s, traced.kernel_s)  # no more can be hidden
    if could_s < elapsed_s * _MUCH_COPYING or traced.hidden_s >= could_s * _WELL_HIDDEN:
        return []
    return [
        Remark(
            f"copies do not hold the host, and yet only "
            f"{share_text(traced.hidden_s / traced.copying_s)} of their "
            f"{seconds_text(traced.copying_s)} were hidden behind kernels: in one "
            "stream a copy waits for the kernels before it, and those after it wait",
            f"%pin_loader {name} makes a loader that copies ahead, on its own stream",
        )
    ]
