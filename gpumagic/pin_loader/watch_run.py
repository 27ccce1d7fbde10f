"""Watches a training cell, from all devices idle to all devices idle.

It is two calls round the user's code and not a function that is given the code, because
a cell may be awaited between them, or end in an error.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.devices.around_cell import AroundCell, Observer
from gpumagic.devices.copy_watch import copies_watched
from gpumagic.devices.cpu import CpuRuntime
from gpumagic.devices.simulated import simulated_box, word_of
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.devices.waiting import is_in_use
from gpumagic.errors import DeviceError, GpuMagicError, first_line
from gpumagic.pin_loader.prefetcher import DevicePrefetcher
from gpumagic.pin_loader.report import Remark, Setting, WatchReport
from gpumagic.pin_loader.watch_copies import copy_lines, copy_remarks, sharing_remarks
from gpumagic.pin_loader.watch_waits import (
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gpumagic.devices.around_cell import Ended
    from gpumagic.devices.copy_watch import SeenCopy
    from gpumagic.devices.protocols import Runtime
    from gpumagic.devices.tracing import Tracing
    from gpumagic.pin_loader.watch_waits import SeenLoader
    from gpumagic.report.events import SeenRace
    from gpumagic.report.places import Code

_ANEW = "run the cell again: by then it is there"
_WITHOUT = "everything else in this report holds"
_LONG_S = 120.0  # a trace of what takes longer has millions of entries


class WatchRun:
    """Watches what runs between `begin` and `end`.

    Attributes:
        late_error: What the wait at the end has raised, if the code itself has not:
            an error of the device, or KeyboardInterrupt. The caller raises it.

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
        """Wait until all devices are idle, and look on from now on.

        Raises:
            DeviceError: The devices cannot be waited for, since an earlier cell has
                broken them. Everything is as before.
        """
        self._around.begin()

    def end(self, error: BaseException | None = None) -> None:
        """Wait until all devices are idle again, and look on no more.

        An error of the code is not raised here; see `late_error` for those that come
        to light only now.

        Args:
            error: What the code has raised.
        """
        ended = self._around.end(error=error)
        self.late_error = ended.late_error
        self._findings = Findings(
            self._tracer, self._watchers, self._names(), self._only, ended
        )

    def report(self, code: Code) -> WatchReport:
        """What was seen, once it has ended.

        Args:
            code: What was watched.
        """
        if self._findings is None:
            raise RuntimeError("this run has not ended")
        return self._findings.report(code)


class Missing(NamedTuple):
    """Why there is no trace, and what to do."""

    problem: str
    hint: str


class CopyTracer(Observer):
    """Traces copies to a device and the kernels beside them.

    Attributes:
        untraced: Why there is no trace; None where there is one, or nothing to trace.
    """

    traces = True

    def __init__(self) -> None:
        self.untraced: Missing | None = None
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
    """Looks at copies, waits for data, and races.

    Attributes:
        copies: What was copied to a device; None where nobody could look.

        waits: What was waited for.

        races: What the simulator has found.

        remarks: What could not be looked at.
    """

    def __init__(self) -> None:
        self.copies: list[SeenCopy] | None = None
        self.waits = SeenWaits()
        self.races: list[SeenRace] = []
        self.remarks: list[Remark] = []
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
    """Everything that does not depend on what the code is called.

    Args:
        tracer: What has traced it; no more of it is needed afterwards.

        watchers: What has looked on; nor of that.

        names: What the notebook calls its objects.

        only: The name of the one loader whose waits are wanted; None wants all.

        ended: How the cell has ended.
    """

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
        """All of it.

        Args:
            code: What was watched.
        """
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
        waited_s: float | None = sum(wait.total_s for wait in self._waits)
        if waited_s and self._setting.label:
            waited_s = None  # a simulated device has another clock than its loader
        name = name_of(loaders[0], names) if loaders else None
        yield from sharing_remarks(
            self._copies,
            self._traced,
            elapsed_s=self._ended.elapsed_s,
            waited_s=waited_s,
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
