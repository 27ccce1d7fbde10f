"""What looks on while a run is timed: tracer, watchers of waits and of calls.

All of a profile is summed from the intervals themselves. Tables that add up durations
count twice what ran at the same time.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import sys
import threading
import time
from collections import defaultdict
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.cuda_sync_time.records import (
    LIBRARY,
    NOTHING_SEEN,
    Activity,
    Flag,
    FlagKind,
    Profile,
    StreamShare,
    SyncPoint,
    TopKernel,
)
from gpumagic.devices.around_cell import Observer
from gpumagic.devices.simulated import SIMULATED, simulated_box, watch_work
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.devices.waiting import Alarm
from gpumagic.errors import DeviceError, GpuMagicError, first_line
from gpumagic.report.events import (
    DEVICE_KINDS,
    SpanKind,
    SyncCall,
    Trace,
    TraceSpan,
    Window,
    seconds_busy,
)
from gpumagic.report.places import Places, code_line
from gpumagic.report.units import known_sum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpumagic.cuda_sync_time.records import Options
    from gpumagic.devices.protocols import Runtime
    from gpumagic.devices.tracing import Tracing

MOST_KERNELS, MOST_OPERATORS = 200, 40
# A model's clock stands still while somebody looks, and the CPU has nobody to watch.
_UNTOUCHED = ("cpu", SIMULATED)
_LOADER = "DataLoader"
# What hands a value of a tensor to Python, and so waits for it.
_READS = (
    *("item", "tolist", "cpu", "numpy"),
    *("__bool__", "__float__", "__int__", "__index__"),
)


class SyncWatcher(Observer):
    """Notes what makes the host wait, if asked; where that cannot be, it is flagged."""

    def __init__(self, *, asked: bool) -> None:
        self._asked = asked
        self._watch = ExitStack()
        self._calls: list[SyncCall] | None = None
        self._kind = ""
        self._unwatched = ""

    def start(self, runtime: Runtime) -> None:
        """Note waits from now on."""
        self._kind = runtime.kind
        if not self._asked:
            return
        try:
            self._calls = self._watch.enter_context(runtime.watch_syncs())
        except DeviceError as error:
            self._unwatched = error.problem

    def code_ended(self) -> None:
        """Note no more on a model's clock; on a real one that itself takes time."""
        if self._kind in _UNTOUCHED:
            self._watch.close()

    def all_idle(self, _unwaited: str | None) -> None:
        """Note no more."""
        self._watch.close()

    def close(self) -> None:
        """Note no more, however the cell has ended."""
        self._watch.close()

    def calls(self, kind: str) -> list[SyncCall] | None:
        """What made the host wait on this kind of device; None if nobody looked."""
        if kind in ("cpu", self._kind):
            return self._calls
        self._unwatched = "this cell itself has imported torch, or started the device"
        return None

    def flags(self, kind: str) -> tuple[Flag, ...]:
        """How looking on has to be taken into account."""
        if not self._asked:
            return ()
        if self.calls(kind) is None:
            reason = f"what made the host wait could not be noted: {self._unwatched}"
            return (Flag(FlagKind.UNWATCHED, names=(reason,)),)
        return looked_on("--syncs", kind)


class CallWatcher(Observer):
    """Notes how long the code waits for batches and, on CUDA, for values, by line.

    It is put round a few functions of torch for the length of a cell, and takes no
    more than a microsecond each time. The simulated GPU tells its waits by itself, and
    whoever lists all waits needs no others.
    """

    def __init__(self, *, for_values: bool = True) -> None:
        self._for_values = for_values
        self._undo = ExitStack()
        self._calls: defaultdict[str, list[tuple[Any, Any, int, int]]]
        self._calls = defaultdict(list)
        self._places = Places()
        self._thread, self._is_within = 0, False
        self._now_ns: Callable[[], int] = time.perf_counter_ns

    def start(self, runtime: Runtime) -> None:
        """Note them from now on."""
        torch: Any = loaded_torch()
        loaders = sys.modules.get("torch.utils.data.dataloader")
        self._places = Places(tuple(map(str, getattr(torch, "__path__", ()))))
        self._thread, self._now_ns = threading.get_ident(), runtime.now_ns
        # The base of the iterators has no public name, and nothing else sees each.
        iterators = getattr(loaders, "_BaseDataLoaderIter", None)
        fetch = getattr(iterators, "__next__", None)
        if fetch:
            self._put_round(iterators, "__next__", fetch, _LOADER)
        version = getattr(torch, "version", None)
        has_cuda = getattr(version, "cuda", None) or getattr(version, "hip", None)
        if not (has_cuda and self._for_values) or simulated_box():
            return
        # Looked up all at once: since 3.13 Python caches no methods of a class that has
        # been looked through between a thousand changes.
        reads = [(name, getattr(torch.Tensor, name)) for name in _READS]
        for name, read in reads:
            bare = name.strip("_")
            what = f".{name}()" if name == bare else f"{bare}()"
            self._put_round(torch.Tensor, name, read, what)

    def _put_round(
        self, owner: Any, name: str, original: Callable[..., Any], what: str
    ) -> None:
        inherited = name not in vars(owner)
        of_values, calls = what != _LOADER, self._calls[what]

        @functools.wraps(original)
        def noting(it: Any, *args: Any, **options: Any) -> Any:
            elsewhere = self._is_within or threading.get_ident() != self._thread
            if elsewhere or (of_values and not it.is_cuda):
                return original(it, *args, **options)
            self._is_within, began_ns = True, self._now_ns()
            try:
                return original(it, *args, **options)
            finally:
                self._is_within, ended_ns = False, self._now_ns()
                places = self._places
                calls.append((places.here(2), places.caller(), began_ns, ended_ns))

        def put_back() -> None:
            if vars(owner).get(name) is noting:
                if inherited:
                    type.__delattr__(owner, name)
                else:
                    type.__setattr__(owner, name, original)

        type.__setattr__(owner, name, noting)
        self._undo.callback(put_back)

    def all_idle(self, _unwaited: str | None) -> None:
        """Note no more; not before the last wait, of whose time it would be a part."""
        self._undo.close()

    def close(self) -> None:
        """Note no more, however the cell has ended."""
        self._undo.close()

    def loading(self) -> SyncPoint | None:
        """The line that waited longest for batches, if one did."""
        return next(iter(points_of(self._told(_LOADER))), None)

    def reads(self) -> list[SyncCall]:
        """The waits for values, as they came."""
        told = (
            each for what in self._calls if what != _LOADER for each in self._told(what)
        )
        return sorted(told, key=lambda each: each.ended_ns or 0)

    def _told(self, what: str) -> list[SyncCall]:
        line = functools.cache(code_line)
        return [
            SyncCall(what, line(here), (ended - began) / 1e9, ended, line(caller))
            for here, caller, began, ended in self._calls.get(what, ())
        ]


class Tracer(Observer):
    """Traces what runs when, if asked; for lines alone nothing without a device.

    Whoever is not asked draws from what is known anyway: on a simulated machine all of
    it, and looking on takes none of its time.
    """

    def __init__(self, options: Options, *, draws: bool = True) -> None:
        self.traces = options.traces or options.lines
        # When the trace began, once there is a profile; None on a model's clock.
        self.began_unix_ns: int | None = None
        self.draws = draws and not self.traces
        self._file, self._devices_only = options.trace_file, not options.traces
        self._alarm = Alarm(options.trace_s, self._cut)
        self._watch = ExitStack()
        self._tracing: Tracing | None = None
        self._lost, self._untraced = "", ""
        self._kind = ""
        self._code_ended_ns: int | None = None

    def start(self, runtime: Runtime) -> None:
        """Look on from now on."""
        self._kind = runtime.kind
        if self.draws and runtime.simulated:
            # During a capture nothing runs that could be seen.
            with suppress(DeviceError):
                self._tracing = self._watch.enter_context(watch_work())
        if not self.traces or (self._devices_only and self._kind == "cpu"):
            return
        # What the CPU is traced with is torch's, too, and is not imported for it.
        if self._kind == "cpu" and not loaded_torch():
            raise GpuMagicError(
                "there is nothing to profile yet: torch has not been imported",
                "import torch in a cell before this one",
            )
        # A missing folder is found before the code has run, not when all is over.
        if self._file and not Path(self._file).absolute().parent.is_dir():
            raise GpuMagicError(
                f"the trace cannot be saved as {self._file}: there is no such folder",
                "make the folder first, or name another file",
            )
        try:
            self._tracing = self._watch.enter_context(runtime.trace())
        except DeviceError as error:
            if not self._devices_only:
                raise
            self._untraced = error.problem

    def begin(self) -> None:
        """What is seen from here on belongs to the run."""
        if self._tracing:
            self._tracing.begin()
        if self._tracing and self.traces:
            self._alarm.set()

    def _cut(self) -> bool:
        return not self._tracing or self._tracing.cut()

    def code_ended(self) -> None:
        """The waits that follow are ours."""
        self._code_ended_ns = self._code_ended_ns or time.time_ns()

    def all_idle(self, unwaited: str | None) -> None:
        """It ends here; where nobody may wait for the devices, it is lost."""
        self._alarm.off()
        self._lost = unwaited or ""
        try:
            with self._watch:
                if self._tracing and not unwaited:
                    self._tracing.end()
        except RuntimeError as error:  # a broken device: the time is true without it
            self._lost = first_line(error)

    def close(self) -> None:
        """Look on no more."""
        self._alarm.off()
        self._watch.close()

    def activity(self) -> Activity:
        """What a simulated machine was seen to do, where nothing was to be traced."""
        if self.traces or self._lost or not self._tracing:
            return NOTHING_SEEN
        trace = self._tracing.trace()
        work = [each for each in trace.spans if each.kind in DEVICE_KINDS]
        busy = Window(trace.length_s).merged(work)
        return Activity(trace.spans, trace.length_s, seconds_busy([busy], at_once=1))

    def profile(self) -> Profile | None:
        """What ran when, if asked; it is saved now, where that was asked for."""
        if not self.traces or not self._tracing:
            return None
        if self._lost:
            return profile_of(Trace((), 0.0, f"the trace was lost: {self._lost}"))
        trace, saved_as = self._without_helper(self._tracing.trace()), self._file
        self.began_unix_ns = trace.began_unix_ns
        try:
            if saved_as:
                self._tracing.save(saved_as)
        except (OSError, DeviceError) as error:
            saved_as, problem = "", f"the trace could not be saved: {error}"
            hint = "its figures are complete; name another file to save it"
            if not trace.problem:
                trace = dataclasses.replace(trace, problem=problem, hint=hint)
        return profile_of(trace, saved_as=saved_as or "")

    def _without_helper(self, trace: Trace) -> Trace:
        """The last wait as the code's thread makes it, though another does for it."""
        if not trace.began_unix_ns or not self._code_ended_ns:
            return trace
        ended_s = (self._code_ended_ns - trace.began_unix_ns) / 1e9
        spans = (
            dataclasses.replace(each, thread=0)
            if each.kind is SpanKind.WAIT and each.start_s > ended_s
            else each
            for each in trace.spans
        )
        return dataclasses.replace(trace, spans=tuple(spans))

    def flags(self, profile: Profile | None) -> tuple[Flag, ...]:
        """How looking on, and what it saw, has to be taken into account."""
        if self._untraced:
            reason = f"what each line launched could not be traced: {self._untraced}"
            return (Flag(FlagKind.UNWATCHED, names=(reason,)),)
        if not profile:
            return ()
        return looked_on("--profile", self._kind)


def looked_on(option: str, kind: str) -> tuple[Flag, ...]:
    """That an option takes time, on a kind of device whose clock it can touch."""
    return () if kind in _UNTOUCHED else (Flag(FlagKind.LOOKED_ON, names=(option,)),)


# ------------------------------------------------------------------------ sums


def spans_of(calls: Iterable[SyncCall], started_ns: int) -> tuple[TraceSpan, ...]:
    """When the host waited; a wait of unknown cost has an end and no length."""
    spans = []
    for call in calls:
        if call.ended_ns:
            end_s = max((call.ended_ns - started_ns) / 1e9, 0.0)
            start_s = max(end_s - (call.waited_s or 0.0), 0.0)
            spans.append(TraceSpan(call.what, SpanKind.WAIT, start_s, end_s, thread=0))
    return tuple(spans)


def with_costs(calls: Iterable[SyncCall], reads: Sequence[SyncCall]) -> list[SyncCall]:
    """The waits as seen: one of unknown cost has that of the read it is part of."""
    ends_ns = [each.ended_ns or 0 for each in reads]

    def cost_s(call: SyncCall) -> float | None:
        ended_ns = call.ended_ns or 0
        at = bisect.bisect_left(ends_ns, ended_ns)
        if call.waited_s is not None or at == len(reads):
            return call.waited_s
        its_s = reads[at].waited_s
        is_within = ends_ns[at] - (its_s or 0.0) * 1e9 <= ended_ns
        return its_s if is_within and reads[at].line == call.line else None

    return [dataclasses.replace(each, waited_s=cost_s(each)) for each in calls]


def points_of(calls: Iterable[SyncCall]) -> tuple[SyncPoint, ...]:
    """The calls by line, by who called it and by what they are, the dearest first.

    Points of unknown cost come last: one call of unknown cost makes its point one.
    """
    groups: dict[object, list[SyncCall]] = {}
    for call in calls:
        groups.setdefault((call.what, call.line, call.caller), []).append(call)
    points = [
        SyncPoint(
            its[0].what,
            its[0].line or LIBRARY,
            len(its),
            known_sum([call.waited_s for call in its]),
            its[0].caller,
        )
        for its in groups.values()
    ]
    return tuple(
        sorted(points, key=lambda it: (it.waited_s is None, -(it.waited_s or 0.0)))
    )


def profile_of(trace: Trace, *, saved_as: str = "") -> Profile:
    """Sum up a trace; what lies outside of its window does not count."""
    work = [span for span in trace.spans if span.kind in DEVICE_KINDS]
    window = Window(trace.length_s)
    queues: defaultdict[tuple[int, int | None], list[TraceSpan]] = defaultdict(list)
    for span in work:
        queues[span.device or 0, span.stream].append(span)
    busy = {queue: window.merged(spans) for queue, spans in queues.items()}
    copies, kernels = (
        window.merged(each for each in work if each.kind is kind)
        for kind in (SpanKind.COPY, SpanKind.KERNEL)
    )
    streams = [
        StreamShare(*queue, len(its), seconds_busy([busy[queue]], at_once=1))
        for queue, its in queues.items()
    ]
    # A stream without a number comes last of its device.
    streams.sort(key=lambda it: (it.device, it.stream is None, it.stream or 0))
    sees_devices = work or not (trace.problem or trace.length_s <= 0)
    return Profile(
        spans=trace.spans,
        length_s=trace.length_s,
        busy_s=seconds_busy(busy.values(), at_once=1) if sees_devices else None,
        overlapped_s=seconds_busy(busy.values(), at_once=2),
        copying_s=seconds_busy([copies], at_once=1),
        hidden_copy_s=seconds_busy([copies, kernels], at_once=2),
        launches=len(work),
        streams=tuple(streams),
        kernels=_top_kernels(work, window),
        problem=trace.problem or "",
        hint=trace.hint or "",
        saved_as=saved_as,
        operators=trace.operators[:MOST_OPERATORS],
        is_cut=trace.is_cut,
    )


def _top_kernels(work: Iterable[TraceSpan], window: Window) -> tuple[TopKernel, ...]:
    seconds: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    bounds: defaultdict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for span in work:
        start_s, end_s = window.cut(span)
        key = span.name, span.kind.value
        seconds[key].append(end_s - start_s)
        if span.bound:
            so_far_s = bounds[key].get(span.bound, 0.0)
            bounds[key][span.bound] = so_far_s + end_s - start_s
    kernels = [
        TopKernel(
            *key,
            times=len(each),
            total_s=sum(each),
            longest_s=max(each),
            # What most of the time was spent on.
            bound=max(bounds[key], key=bounds[key].__getitem__, default=None),
        )
        for key, each in seconds.items()
    ]
    kernels.sort(key=lambda kernel: (-kernel.total_s, kernel.name))
    return tuple(kernels[:MOST_KERNELS])
