"""Times each part of a step on its own: loading, pinning, copies, the link, compute.

A batch is loaded while nobody does anything with it. A failure of the user's dataset is
told in a few words: the error itself is let go, as its frames would keep the loader's
workers and its batches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import sysconfig
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.devices.busy import Busy
from gpumagic.devices.memory_counters import allocator_figures, figure
from gpumagic.devices.torch_private import empty_host_cache
from gpumagic.errors import DeviceError, GpuMagicError
from gpumagic.pin_loader import link
from gpumagic.pin_loader.batch import tensors_in, to_device
from gpumagic.pin_loader.inspect_loader import USUAL_PREFETCH
from gpumagic.pin_loader.report import Loading, Rates, Remark, Samples, Step
from gpumagic.pin_loader.trial import batches_of
from gpumagic.report.places import name_of
from gpumagic.report.units import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.devices.protocols import Driver, Runtime
    from gpumagic.pin_loader.trial import Trial

PATIENCE_S = 60.0  # for one batch, where nothing else is said
_FEWEST_ROUNDS = 5
_AHEAD_SHARE = 0.5  # of the budget, for what was prepared ahead
# What stands in the error itself, and what to do about it.
_HINTS = (
    (
        "Bus error",
        (
            "shared memory is full: use fewer workers, or start the container with a "
            "larger --shm-size"
        ),
    ),
    (
        "killed by signal",
        "the system may have ended it for want of memory: use fewer workers",
    ),
    (
        "timed out",
        (
            "a worker hangs or is very slow: try with --workers 0, where Ctrl-C shows "
            "the line it is at"
        ),
    ),
    (
        "exited unexpectedly",
        (
            "its standard error says why: the system may have ended it for want of "
            "memory, or it could not import what a notebook defines"
        ),
    ),
    (
        "Too many open files",
        'call torch.multiprocessing.set_sharing_strategy("file_system") first',
    ),
)
_HINT = "`for batch in loader: pass` shows the whole traceback"
_IN_WORKER = re.compile(r"^Caught \w+ in (DataLoader worker process|pin memory thread)")
_PLACE = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<name>.+)$')
_NOT_THE_USERS = re.compile(
    r"[\\/](site-packages|dist-packages|torch[\\/]utils|gpumagic|multiprocessing)[\\/]"
)
_LONGEST = 300
# What torch raises where a worker dies between sending a batch and its memory.
_HANDING_OVER = (ConnectionError, EOFError, FileNotFoundError)

_PIN_SHARE, _FRESH_SHARE, _COPIES_SHARE, _STEP_SHARE = 0.15, 0.1, 0.3, 0.35
_FRESH_COPIES = 3  # of the batch, at least; a figure that can be done without
_ALL = 1.0
_UNSAFE = ("mps",)  # torch itself forces pinning off there
_NO_LEAVES = Remark(
    "the batch has no dense tensors on the host, so there is nothing to copy",
    "let the dataset, or the collate_fn, return tensors",
)
_STEP_WARM_UPS = 2
_SAMPLES, _FEWEST_SAMPLES = 10, 3
_IN_A_ROW = 4  # so that the host's work for one step hides behind the one before
_SIDES = (256, 512, 1024, 2048, 4096)  # of the matrices that are multiplied
_LARGER = 8  # times the work of the size before
_FEWEST_PRODUCTS = 8  # in one step, so that its length can be set within a few percent
_TRIED = 5
STAND_IN = "a loop of matrix products"


# --------------------------------------------------------------------- loading


def measure_loading(  # noqa: PLR0913 - each is a word of its own
    loader: Any,
    *,
    batches: int = 20,
    budget_s: float = 2.0,
    patience_s: float = PATIENCE_S,
    nbytes: int | None = None,
    look: Callable[[tuple[int, ...]], object] | None = None,
    progress: Callable[[float], object] | None = None,
) -> Loading:
    """Iterate a loader and time its batches, one of which is alive at a time.

    What workers have prepared ahead does not count: as many batches as may be under
    way, and one for each worker more. Workers that take equally long hand over in
    bursts, so that most batches follow the one before at once; a sample is therefore
    the time of one round, a batch from each worker, divided by the workers.

    A loader without workers whose epoch is short is iterated again and again.

    Args:
        loader: A clone of the user's.

        batches: How many to time; with workers, five rounds at least.

        budget_s: How long it may take after the first batch; one round is timed in
            any case, and without workers one batch, where that takes longer.

        patience_s: How long workers may take for one batch.

        nbytes: Of a batch, if that is known.

        look: Called with the workers' process numbers, after the first batch and
            again at the end, when those of a short epoch are gone already.

        progress: Called between batches with the share of the budget that is spent.

    Raises:
        LoaderFailed: The loader has raised, or has no batches.
    """
    workers = number_of(getattr(loader, "num_workers", 0))
    arrivals = Arrivals(loader, workers, batches, budget_s, progress)
    failure: LoaderFailed | None = None
    try:
        ended_early = arrivals.take(patience_s, look)
    except Raised as raised:
        failure = failure_of(raised.error, raised.batch)
    except RuntimeError as error:
        # The death of a worker is raised wherever the main thread happens to be.
        if not is_death_of_worker(error):
            raise
        failure = failure_of(error, len(arrivals.seconds))
    if failure is not None:
        raise failure  # outside, so that it does not hold the frames of the error
    return Loading(
        between=Samples(tuple(arrivals.samples())),
        workers=workers,
        start_s=arrivals.seconds[0],
        nbytes=nbytes,
        ended_early=ended_early,
    )


class Arrivals:
    """When the batches of a loader arrived; what is wanted of them is taken once.

    Args:
        loader: A clone of the user's.

        workers: How many it has.

        batches: How many to time; with workers, five rounds at least.

        budget_s: How long it may take after the first batch; one round is timed in
            any case.

        progress: Called between batches with the share of the budget that is spent.

    Attributes:
        seconds: From the beginning of the first epoch to each of its batches.
    """

    def __init__(
        self,
        loader: Any,
        workers: int,
        batches: int,
        budget_s: float,
        progress: Callable[[float], object] | None,
    ) -> None:
        self.seconds: list[float] = []
        self._loader, self._budget_s, self._progress = loader, budget_s, progress
        self._round = max(workers, 1)
        self._rounds = batches
        if workers:
            self._rounds = max(math.ceil(batches / workers), _FEWEST_ROUNDS)
        prefetch = number_of(getattr(loader, "prefetch_factor", None)) or USUAL_PREFETCH
        self._ahead = prefetch * workers + workers
        self._is_alone = workers == 0
        self._from = 0  # the arrival that the first round begins with
        self._more: list[float] = []  # samples of later epochs
        self._first_at: float | None = None  # on the clock

    def take(
        self, patience_s: float, look: Callable[[tuple[int, ...]], object] | None
    ) -> bool:
        """Take what is wanted; whether the first epoch ended before that.

        Raises:
            Raised: The loader has raised.

            LoaderFailed: It has no batches.
        """
        ended_early = self._take_epoch(patience_s, look)
        if ended_early and self._round == 1 and len(self.seconds) > 1:
            while self._wants_more and self._take_another(patience_s):
                pass
        return ended_early

    def _take_epoch(
        self, patience_s: float, look: Callable[[tuple[int, ...]], object] | None
    ) -> bool:
        began = time.perf_counter()
        with batches_of(self._loader, patience_s=patience_s) as trial:
            ended = not self._take_one(trial, began)
            if look is not None and not ended:
                look(trial.worker_pids())
            ended = ended or self._take_all(trial, began)
            if look is not None:
                look(trial.worker_pids())
        if not self.seconds:
            raise LoaderFailed(
                "the loader has no batches", "look at the length of its dataset"
            )
        return ended

    def _take_another(self, patience_s: float) -> bool:
        """Take from one epoch more, without its first batch; whether it had any."""
        taken = len(self._more)
        with batches_of(self._loader, patience_s=patience_s) as trial:
            self._sample_more(trial, taken)
        return len(self._more) > taken

    def _sample_more(self, trial: Trial, taken: int) -> None:
        before: float | None = None
        while (self._wants_more or before is None) and _next(trial, taken):
            now = time.perf_counter()
            if before is not None:
                self._more.append(now - before)
            before = now

    @property
    def _wants_more(self) -> bool:
        """Whether samples are missing, and there is time for them."""
        missing = self._complete_rounds() + len(self._more) < self._rounds
        return missing and self._spent() < 1

    def samples(self) -> list[float]:
        """Seconds from batch to batch; there is at least one."""
        stamps, size = self.seconds, self._round
        begin = self._from
        if len(stamps) - 1 - begin < size:  # not even one round: take what there is
            begin = max(len(stamps) - 1 - size, 0)
        rounds = [
            (stamps[end] - stamps[end - size]) / size
            for end in range(begin + size, len(stamps), size)
        ]
        if rounds or self._more:
            return rounds + self._more
        between = len(stamps) - 1
        return [(stamps[-1] - stamps[0]) / between if between else stamps[0]]

    def _take_all(self, trial: Trial, began: float) -> bool:
        while self._goes_on():
            if not self._take_one(trial, began):
                return True
        return False

    def _take_one(self, trial: Trial, began: float) -> bool:
        if not _next(trial, len(self.seconds)):
            return False
        now = time.perf_counter()
        self.seconds.append(now - began)
        self._first_at = self._first_at or now
        if self._progress is not None:
            self._progress(min(self._spent(), 1.0))
        return True

    def _goes_on(self) -> bool:
        # Without workers nothing is started for the first batch: it is one as all are.
        if self._is_alone and self.seconds[0] > self._budget_s:
            return False
        if len(self.seconds) <= self._ahead and self._spent() < _AHEAD_SHARE:
            self._from = len(self.seconds)
            return True
        return self._complete_rounds() < 1 or self._wants_more

    def _complete_rounds(self) -> int:
        return max(len(self.seconds) - 1 - self._from, 0) // self._round

    def _spent(self) -> float:
        if self._first_at is None:
            return 0.0
        passed_s = time.perf_counter() - self._first_at
        return passed_s / self._budget_s if self._budget_s > 0 else 1.0


class Raised(Exception):
    """The loader has raised; what is said of it is made when its workers have ended."""

    def __init__(self, error: Exception, batch: int) -> None:
        super().__init__()
        self.error, self.batch = error, batch


def _next(trial: Trial, batch: int) -> bool:
    """Have the next batch made, and let it go; whether there was one."""
    try:
        next(trial)
    except StopIteration:
        return False
    except GpuMagicError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's own, whatever it is
        raise Raised(error, batch) from None
    return True


def number_of(value: Any) -> int:
    """A setting that is a number; 0 where it is none."""
    return value if isinstance(value, int) else 0


class LoaderFailed(GpuMagicError):
    """The loader, or the dataset behind it, has raised.

    Attributes:
        batch: The number of the batch that could not be had; the first is 0.
    """

    def __init__(self, problem: str, hint: str = "", *, batch: int = 0) -> None:
        super().__init__(problem, hint)
        self.batch = batch


def is_death_of_worker(error: BaseException) -> bool:
    """Whether torch says by this error that a worker has died."""
    return isinstance(error, RuntimeError) and "DataLoader worker (pid" in str(error)


def failure_of(error: BaseException, batch: int) -> LoaderFailed:
    """The failure that this error is; it holds nothing of the error.

    Args:
        error: What iterating has raised.

        batch: The number of the batch that was asked for; the first is 0.
    """
    said, places = _said_and_places(error)
    place = next((each for each in reversed(places) if not _foreign(each)), None)
    if isinstance(error, _HANDING_OVER) and places and _hands_over(places[-1]):
        said = f"a worker exited unexpectedly while it handed over ({said})"
    at = f" ({name_of(place[0])}, line {place[1]}, in {place[2]})" if place else ""
    hints = (hint for fragment, hint in _HINTS if fragment in said)
    return LoaderFailed(
        f"the loader failed at batch {batch}: {said}{at}",
        next(hints, _HINT),
        batch=batch,
    )


def _said_and_places(error: BaseException) -> tuple[str, list[tuple[str, str, str]]]:
    """Its line, and the places it came through, innermost last.

    An error from a worker is raised here again: its first line names the worker, then
    the original traceback follows as text, the error's own line last.
    """
    lines = str(error).strip().splitlines()
    if not lines or not _IN_WORKER.match(lines[0]):
        frames = traceback.extract_tb(error.__traceback__)
        places = [(each.filename, str(each.lineno), each.name) for each in frames]
        first = next((line for line in lines if line.strip()), "")
        name = type(error).__name__
        said = f"{name}: {first}" if first else name
        return shortened(said, _LONGEST), places
    matches = [match for line in lines if (match := _PLACE.match(line))]
    told = [line for line in lines[1:] if line and not line[0].isspace()]
    told = [line for line in told if not line.startswith(("Original Tr", "Traceback"))]
    places = [(match["file"], match["line"], match["name"]) for match in matches]
    return shortened(told[0] if told else lines[0], _LONGEST), places


def _foreign(place: tuple[str, str, str]) -> bool:
    libraries = ("<frozen", sysconfig.get_path("stdlib"))
    return place[0].startswith(libraries) or _NOT_THE_USERS.search(place[0]) is not None


def _hands_over(place: tuple[str, str, str]) -> bool:
    return "multiprocessing" in Path(place[0]).parts


# ------------------------------------------------------- the way, and the step


def measure_rates(  # noqa: PLR0913 -- each is a part, or what it is measured with
    batch: Any,
    runtime: Runtime,
    *,
    device: int,
    load: Loading | None = None,
    step: Callable[[Any], object] | None = None,
    budget_s: float = 2.0,
    driver: Driver | None = None,
    room_bytes: int | None = None,
    progress: Callable[[float], object] | None = None,
) -> Rates:
    """Measure what a batch costs on its way, part by part; it starts the device.

    Random numbers are not drawn, and memory that was taken for it is given back. On a
    simulated device copies to it and compute are the model's, work within the host is
    this machine's. On the CPU nothing is measured, and on MPS only the blocking copy.

    Args:
        batch: A real one, on the host; it is not changed.

        runtime: The device's kind.

        device: Its number.

        load: How fast the loader gives batches, if that was measured.

        step: What is done with a batch on the device, and is really called; None lets
            a loop stand in for it that is as long as the slowest other part.

        budget_s: About how long all of it may take, once the device has started.

        driver: Tells of the link.

        room_bytes: How much memory of the host is to spare.

        progress: Called with the share that is done.
    """
    leaves = [
        leaf for leaf in tensors_in(batch, objects=True) if _is_dense_on_host(leaf)
    ]
    found = Rates(load=load, nbytes=sum(leaf.nbytes for leaf in leaves))
    if runtime.kind == "cpu":
        return found
    tell = progress or (lambda _: None)
    with given_back(runtime, device):
        if leaves:
            found = _fed(found, leaves, runtime, device, driver, room_bytes, budget_s)
        else:
            found = dataclasses.replace(found, remarks=(_NO_LEAVES,))
        tell(_ALL - _STEP_SHARE)
        found = dataclasses.replace(
            found, step=step_of(found, batch, runtime, device, step, budget_s)
        )
    tell(_ALL)
    return found


def _fed(  # noqa: PLR0913, PLR0917 -- what `measure_rates` was given
    found: Rates,
    leaves: list[Any],
    runtime: Runtime,
    device: int,
    driver: Driver | None,
    room_bytes: int | None,
    budget_s: float,
) -> Rates:
    """Everything on the way to the device."""
    with link.one_thread():
        modes = link.copy_modes(
            leaves, runtime, device, budget_s=budget_s * _COPIES_SHARE
        )
    if not runtime.can_pin():
        return dataclasses.replace(found, copies=modes)
    pin_copy = link.pin_copy(leaves, runtime, budget_s=budget_s * _PIN_SHARE)
    fresh_pin = None
    if pin_copy is None or pin_copy.median_s * _FRESH_COPIES <= budget_s:
        fresh_budget_s = budget_s * _FRESH_SHARE
        fresh_pin = link.fresh_pin(leaves, runtime, budget_s=fresh_budget_s)
    return dataclasses.replace(
        found,
        pin_copy=pin_copy,
        fresh_pin=fresh_pin,
        copies=modes,
        link=link.measure_link(runtime, device, driver, room_bytes=room_bytes),
    )


def step_of(  # noqa: PLR0913, PLR0917 -- what `measure_rates` was given
    found: Rates,
    batch: Any,
    runtime: Runtime,
    device: int,
    function: Callable[[Any], object] | None,
    budget_s: float,
) -> Step | None:
    """The user's step, or one that is as long as the slowest of the parts found."""
    import torch

    budget_s *= _STEP_SHARE
    if function is not None:
        place = torch.device(runtime.kind, device)
        there = to_device(batch, place, non_blocking=False, objects=True)
        return measure_step(function, there, runtime, budget_s=budget_s)
    seconds = slowest_other_part_s(found)
    if seconds <= 0:
        return None
    stand_in = StandIn(runtime, device, seconds)
    return measure_step(stand_in, None, runtime, budget_s=budget_s, synthetic=True)


def _is_dense_on_host(leaf: Any) -> bool:
    import torch

    return (
        leaf.device.type == "cpu" and leaf.layout is torch.strided and leaf.nbytes > 0
    )


@contextlib.contextmanager
def given_back(runtime: Runtime, device: int) -> Iterator[None]:
    """Start the device, and leave no more memory with torch than it had before."""
    import torch

    place = torch.device(runtime.kind, device)
    try:
        torch.empty(1, device=place)
    except RuntimeError as error:
        raise unusable(place, error) from error
    before = _reserved_bytes(runtime, device)
    try:
        yield
    finally:
        with contextlib.suppress(RuntimeError, GpuMagicError):
            runtime.synchronize()
            if _reserved_bytes(runtime, device) > before:
                getattr(torch, runtime.kind).empty_cache()
            if runtime.kind not in _UNSAFE and not runtime.simulated:
                empty_host_cache(torch)


def unusable(place: object, error: RuntimeError) -> DeviceError:
    """What torch says of a device that it cannot start."""
    reason = " ".join(str(error).split())
    return DeviceError(
        f"{place} cannot be used: {reason}", "%gpu_select shows what is there"
    )


def _reserved_bytes(runtime: Runtime, device: int) -> int:
    """What torch keeps; 0 of an allocator that was plugged in, and need not count."""
    figures = allocator_figures(runtime, device) or {}
    return figure(figures, "reserved_bytes.all.current") or 0


class StandIn:
    """Takes about as long as was asked for, and does nothing with the batch.

    On a simulated device it is one piece of work of exactly that length; elsewhere a
    loop of matrix products, which are timed when it is made.

    Args:
        runtime: The device's kind; the device is started.

        device: Its number.

        seconds: How long a call is to keep the device busy.
    """

    name = STAND_IN

    def __init__(self, runtime: Runtime, device: int, seconds: float) -> None:
        self._seconds = max(seconds, 0.0)
        self._busy: Busy | None = None
        if runtime.simulated:
            self._busy = Busy(runtime, device, name="stand-in for compute")
            return
        import torch

        self._torch = torch
        self._place = torch.device(runtime.kind, device)
        self._matrices, each_s = self._fitting(runtime)
        self._times = round(self._seconds / each_s) if each_s > 0 else 0

    def __call__(self, batch: object) -> None:
        """Keep the device busy; the batch only has to be there."""
        del batch
        if self._busy is not None:
            self._busy.submit(self._seconds)
        else:
            self._multiply(self._times)

    def _multiply(self, times: int) -> None:
        left, right, product = self._matrices
        with self._torch.no_grad():
            for _ in range(times):
                self._torch.mm(left, right, out=product)

    def _fitting(self, runtime: Runtime) -> tuple[tuple[Any, Any, Any], float]:
        """The largest matrices of which several products fit into the time."""
        each_s = 0.0
        for side in _SIDES:
            if each_s * _LARGER * _FEWEST_PRODUCTS > self._seconds:
                break
            shape = side, side
            self._matrices = tuple(
                self._torch.zeros(shape, device=self._place) for _ in range(3)
            )
            self._multiply(_TRIED)
            each_s = _timed(lambda: self._multiply(_TRIED), runtime) / _TRIED
        return self._matrices, each_s


def measure_step(
    function: Callable[[Any], object],
    batch: Any,
    runtime: Runtime,
    *,
    budget_s: float,
    synthetic: bool = False,
) -> Step:
    """How long a step takes when its batch is on the device already.

    The function is really called, some ten to fifty times with the same batch: what it
    changes (weights, gradients, counters) is changed afterwards.

    Args:
        function: Takes a batch on the device.

        batch: Such a batch.

        runtime: Whose devices are waited for, and whose clock is read.

        budget_s: How long this may take; at least three samples are taken.

        synthetic: Whether the function stands in for the user's.
    """
    began_s = time.perf_counter()
    for _ in range(_STEP_WARM_UPS):
        _timed(lambda: function(batch), runtime)
    spent_s = time.perf_counter() - began_s
    affordable = spent_s * _IN_A_ROW * _FEWEST_SAMPLES / _STEP_WARM_UPS <= budget_s
    in_a_row = _IN_A_ROW if affordable else 1

    def several() -> None:
        for _ in range(in_a_row):
            function(batch)

    samples = [_timed(several, runtime) / in_a_row]
    while len(samples) < _SAMPLES:
        if len(samples) >= _FEWEST_SAMPLES and time.perf_counter() - began_s > budget_s:
            break
        samples.append(_timed(several, runtime) / in_a_row)
    name = getattr(function, "__name__", None) or getattr(function, "name", None)
    return Step(
        str(name or type(function).__name__), Samples(tuple(samples)), synthetic
    )


def slowest_other_part_s(rates: Rates) -> float:
    """What a stand-in should take: as long as the slowest part beside compute.

    A shorter step leaves less to hide behind, a longer one hides anything. So the gain
    that is found with it is the most that feeding can give to any step.
    """
    copy = rates.copy(pinned=True, blocking=False) or rates.copy(
        pinned=False, blocking=True
    )
    on_device = None if copy is None else copy.device or copy.host
    between = None if rates.load is None else rates.load.between
    parts = (between, rates.pin_copy, on_device)
    return max((part.median_s for part in parts if part is not None), default=0.0)


def _timed(action: Callable[[], object], runtime: Runtime) -> float:
    runtime.synchronize()
    began_ns = runtime.now_ns()
    action()
    runtime.synchronize()
    return (runtime.now_ns() - began_ns) / 1e9
