"""Leads a loader through the stages of an investigation, and puts all back afterwards.

A stage is a function that is given the case. It notes what it finds, and gives an
ending where the investigation is to go no further.
"""

from __future__ import annotations

import dataclasses
import inspect
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from gpumagic.devices.driver import open_driver
from gpumagic.devices.in_use import KINDS_OF_THE_DRIVER
from gpumagic.devices.opening import open_runtime
from gpumagic.devices.simulated import simulated_box, word_of
from gpumagic.errors import DeviceError, UsageProblem
from gpumagic.pin_loader.inspect_loader import facts_of
from gpumagic.pin_loader.prefetcher import DevicePrefetcher
from gpumagic.pin_loader.random_state import kept
from gpumagic.pin_loader.rebuild import rebuild
from gpumagic.pin_loader.report import (
    LoaderReport,
    Rebuilding,
    Remark,
    Setting,
    State,
)
from gpumagic.pin_loader.timing import unusable
from gpumagic.pin_loader.workers import usable
from gpumagic.report.units import bytes_text, count_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.devices.protocols import Driver, Runtime
    from gpumagic.pin_loader.rebuild import Rebuilt
    from gpumagic.pin_loader.report import (
        Anatomy,
        Bound,
        LoaderFacts,
        Loading,
        Rates,
    )

    Progress = Callable[[float, str], object]

_MUCH_LONGER = 1.25  # times what was asked for: worth a word
_PATIENCE, _WITH_A_MODEL = 1.25, 2.0  # times that, after which nothing long is begun


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is asked of a loader: the one list that line, functions and stages share.

    Attributes:
        name: What the user calls the loader.

        out: The name of the new loader; None where NAME itself is to be replaced, or
            where nothing is made.

        device: Where batches go; None is the current device of the best kind.

        workers: How many, "auto" to find out, None to leave them.

        prefetch: How many batches each worker prepares ahead.

        depth: How many batches are copied ahead.

        step: The function that the loop calls with a batch.

        batches: How many are timed.

        budget_s: About how long all of it may take.

        diagnose: Look and predict: nothing is made, and no device is started.

        verify: Compare a whole epoch.

        profile: Trace how copies and kernels overlap.

        force: Go on where it is refused, or not worth it.
    """

    name: str | None = None
    out: str | None = None
    device: Any = None
    workers: int | str | None = None
    prefetch: int | None = None
    depth: int = 1
    step: Callable[[Any], object] | None = None
    batches: int | None = None
    budget_s: float = 10.0
    diagnose: bool = False
    verify: bool = False
    profile: bool = True
    force: bool = False

    def of_a_look(self) -> Options:
        """Without what belongs to a new loader, where none is going to be made."""
        return dataclasses.replace(
            self, diagnose=True, workers=None, prefetch=None, depth=1, force=False
        )


class Ending(NamedTuple):
    """Why an investigation goes no further."""

    state: State
    reason: Remark | None = None


class Stage(NamedTuple):
    """What is done, the share of the time that it takes, and what is said meanwhile.

    Attributes:
        least: How many batches it loads at least.

        only_for_workers: Whether it takes no time where none are asked for.
    """

    run: Callable[[Case], Ending | None]
    share: float
    note: str
    least: int = 0
    only_for_workers: bool = False

    def takes_s(self, case: Case) -> float:
        """About how long it takes, as far as that can be known now."""
        if self.only_for_workers and case.options.workers is None:
            return 0.0
        return max(self.share * case.options.budget_s, self.least * case.batch_s)


class Improved(NamedTuple):
    """What to iterate from now on, None where nothing was made; and all about it."""

    loader: DevicePrefetcher | None
    report: LoaderReport


@dataclass
class Case:
    """One loader under investigation: what is asked, what is at hand, what was found.

    Attributes:
        found: What was found so far.

        tell: Is told how far this stage has come.

        is_as_it_is: Whether it cannot be rebuilt.

        batch: A real batch on the host. Gone as soon as it is not needed any more.

        first_batch_s: How long it took to get that one.

        new_load: How fast it loads with the workers that it is to have, where these
            are not those that it has.

        new: The rebuilt loader, still on the host.

        feeding: What the user is to iterate.

        undo: Ends with the last stage.
    """

    loader: Any
    options: Options
    runtime: Runtime
    driver: Driver
    device: int | None
    found: LoaderReport
    step: CountedStep | None = None
    tell: Callable[[float], object] = lambda _: None
    is_as_it_is: bool = False
    batch: Any = None
    first_batch_s: float = 0.0
    new: Any = None
    feeding: Any = None
    new_load: Loading | None = None
    undo: ExitStack = field(default_factory=ExitStack)
    began_s: float = 0.0

    # ------------------------------------------------------------ what was found

    def note(self, **found: Any) -> None:
        """Add to what was found, by the names of the report."""
        self.found = dataclasses.replace(self.found, **found)

    def remark(self, remarks: Sequence[Remark]) -> None:
        """Add what a reader has to know."""
        self.note(remarks=(*self.found.remarks, *remarks))

    @property
    def facts(self) -> LoaderFacts:
        """What the loader is set to do."""
        return self.found.loader

    @property
    def rates(self) -> Rates:
        """How fast each part is, as far as it was measured."""
        return self.found.rates

    @property
    def anatomy(self) -> Anatomy:
        """What a batch consists of; a batch has been looked at."""
        assert self.found.anatomy is not None  # noqa: S101 -- by an earlier stage
        return self.found.anatomy

    @property
    def bound(self) -> Bound:
        """What can be gained at most; that has been worked out."""
        assert self.found.bound is not None  # noqa: S101 -- by an earlier stage
        return self.found.bound

    @property
    def rebuilding(self) -> Rebuilding:
        """How the new loader came about; there is one."""
        assert self.found.rebuilding is not None  # noqa: S101 -- by an earlier stage
        return self.found.rebuilding

    # ------------------------------------------------------------- what is at hand

    @property
    def left_s(self) -> float:
        """What is left of the time that all of it may take."""
        return self.options.budget_s - (time.monotonic() - self.began_s)

    @property
    def batch_s(self) -> float:
        """How long loading of one batch takes, by what is known now."""
        load = self.rates.load
        return self.first_batch_s if load is None else load.batch_s

    def is_over_after(self, batches: int) -> bool:
        """Whether loading so many more takes much longer than all of it was to take.

        On a simulated device nothing waits for loading, which is worked out.
        """
        patience, needed_s = _PATIENCE, batches * self.batch_s
        if self.runtime.simulated:
            patience, needed_s = max(_PATIENCE, _WITH_A_MODEL), 0.0
        return self.left_s + (patience - 1) * self.options.budget_s < needed_s

    @property
    def pins(self) -> bool:
        """Whether there is something to pin for."""
        return self.runtime.kind not in ("cpu", "mps")

    @property
    def place(self) -> str:
        """Where batches go, as torch writes it."""
        kind = word_of(self.runtime.kind)
        return kind if self.device is None else f"{kind}:{self.device}"

    @property
    def starts_nothing(self) -> bool:
        """Whether copies cannot be measured without starting the device."""
        return self.options.diagnose and not self.runtime.started()

    @property
    def leaves_pinning_out(self) -> bool:
        """Whether trials may not pin as the loader does: it would start the device."""
        return self.starts_nothing and bool(self.facts.pin_memory)

    @property
    def workers(self) -> int:
        """How many workers the new loader is to have."""
        search = self.found.workers
        if search is not None and search.chosen is not None:
            return search.chosen
        if isinstance(self.options.workers, int):
            return self.options.workers
        return self.facts.workers or 0

    # ----------------------------------------------------- loaders to try, and to keep

    def trial_copy(self, **changes: Any) -> Any:
        """A loader like the user's that can be iterated without a trace, if there is.

        A loader that cannot be rebuilt is iterated itself: its random state is put
        back.
        """
        if self.leaves_pinning_out:
            changes["pin_memory"] = False
        return clone(self.loader, **changes)

    def wrap(self, made: Rebuilt, *, adapter: bool = False) -> None:
        """Put the prefetcher round a loader."""
        depth = self.options.depth if self.pins else 0
        self.new = made.loader
        self.feeding = DevicePrefetcher(made.loader, self.place, depth=depth)
        self.note(
            rebuilding=Rebuilding(
                way=made.way,
                class_name=self.facts.class_name,
                changes=made.changes,
                reason=made.reason,
                adapter=adapter,
                depth=depth,
                remarks=made.remarks if depth else (),
            )
        )

    def make_current(self) -> None:
        """Make the device current until the last stage has ended; this starts it.

        Pinning takes the current device. Under another one it would start that, and
        leave some hundred MB there for good.

        Raises:
            DeviceError: There is no such device, or it cannot be used.
        """
        number = self.device
        if not self.pins or number is None or self.runtime.current_device() == number:
            return
        import torch

        kind = self.runtime.kind
        try:
            self.undo.enter_context(getattr(torch, kind).device(number))
        except RuntimeError as error:
            raise unusable(torch.device(kind, number), error) from error


class CountedStep:
    """Calls a function with a batch, and counts.

    Attributes:
        calls: How often it was called.

    Args:
        function: The user's.
    """

    def __init__(self, function: Callable[[Any], object]) -> None:
        self.calls = 0
        self._function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    @classmethod
    def of(cls, function: Callable[[Any], object] | None) -> Self | None:
        """The function counted, if there is one.

        Raises:
            UsageProblem: It does not take one batch.
        """
        if function is None:
            return None
        try:
            inspect.signature(function).bind(None)
        except TypeError:
            name = getattr(function, "__name__", "step")
            typed = name if name.isidentifier() else "step"
            raise UsageProblem(
                f"{name} does not take one argument, and is called with one: the batch",
                f"def {typed}(batch): x, y = batch ...",
            ) from None
        except ValueError:  # it does not tell what it takes
            pass
        return cls(function)

    def __call__(self, batch: Any) -> object:
        """Call it with a batch."""
        self.calls += 1
        return self._function(batch)

    def remarks(self, *, simulated: bool) -> list[Remark]:
        """What a reader has to know of these calls."""
        found = [
            Remark(
                f"{self.__name__} was called {count_text(self.calls, 'time')}: what it "
                "changes has changed, as weights and an optimizer have",
                "measure with a copy of the model, or make both anew",
            )
        ]
        if simulated:
            found.append(
                Remark(
                    "what the step does on the host takes no time on the simulated "
                    "device's clock: only its work on the device counts"
                )
            )
        return found


def clone(loader: Any, **changes: Any) -> Any:
    """A loader like this one but for some changes, whose workers end with the epoch."""
    return rebuild(loader, persistent_workers=False, **changes).loader


def investigate(
    loader: Any,
    options: Options,
    stages: Sequence[Stage],
    progress: Progress | None = None,
) -> Improved:
    """Go from stage to stage until one of them ends it."""
    case = _open(loader, options, CountedStep.of(options.step))
    with kept(case.loader), case.undo:
        ending = _ending(case, stages, progress)
    case.batch = None
    case.remark(_overtime(case))
    if case.step is not None and case.step.calls:
        case.remark(case.step.remarks(simulated=case.runtime.simulated))
    case.note(
        state=ending.state,
        setting=_setting(case.runtime, case.driver, case.device),
        reason=ending.reason,
        out=options.out if case.feeding is not None else None,
    )
    return Improved(case.feeding, case.found)


def _open(loader: Any, options: Options, step: CountedStep | None) -> Case:
    began_s = time.monotonic()
    facts = facts_of(loader, options.name)
    kind, number = _kind_and_number(options.device)
    runtime, driver = open_runtime(kind), open_driver()
    if number is None and runtime.kind != "cpu":
        number = runtime.current_device() or 0
    _require_device(runtime, number)
    if options.prefetch and not facts.workers and not options.workers:
        raise UsageProblem(
            "prefetch is what each worker prepares ahead, and this loader has none",
            "ask for workers as well: --workers auto, or leave --prefetch away",
        )
    setting = _setting(runtime, driver, number)
    found = LoaderReport(state=State.FIXED, setting=setting, loader=facts)
    return Case(loader, options, runtime, driver, number, found, step, began_s=began_s)


def _ending(case: Case, stages: Sequence[Stage], progress: Progress | None) -> Ending:
    for at, stage in enumerate(stages):
        if progress is not None:
            case.tell = _telling(progress, case, stage, stages[at + 1 :])
            case.tell(0.0)
        ending = stage.run(case)
        if ending is not None:
            return ending
    return Ending(State.FIXED)


def _telling(
    progress: Progress, case: Case, stage: Stage, later: Sequence[Stage]
) -> Callable[[float], object]:
    """Tells the share of the time that has passed, and what is done meanwhile."""
    budget_s = case.options.budget_s
    before_s, here_s = budget_s - case.left_s, stage.takes_s(case)
    whole_s = before_s + here_s + sum(each.takes_s(case) for each in later)
    note = stage.note
    if note and whole_s > _MUCH_LONGER * budget_s:
        each = f"a batch takes {seconds_text(case.batch_s)}"
        note = f"{note}; in all about {seconds_text(whole_s)}, as {each}"
    whole_s = max(whole_s, 1e-9)
    return lambda part: progress((before_s + min(part, 1.0) * here_s) / whole_s, note)


def _overtime(case: Case) -> list[Remark]:
    """Why it took much longer than it was to take, if it did."""
    budget_s, load = case.options.budget_s, case.rates.load
    took_s = budget_s - case.left_s
    if load is None or took_s < _MUCH_LONGER * budget_s:
        return []
    each = f"{bytes_text(case.anatomy.tensor_bytes)}, in {seconds_text(load.batch_s)}"
    return [
        Remark(
            f"this took {seconds_text(took_s)} and was to take "
            f"{seconds_text(budget_s)}: a batch is {each}",
            "smaller batches take less; --diagnose leaves the later parts out",
        )
    ]


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
    known = device is not None and runtime.started()
    of_a_driver = runtime.kind in KINDS_OF_THE_DRIVER
    return Setting(
        kind=word_of(runtime.kind),
        label=str(getattr(box, "label", "")),
        device=None if runtime.kind == "cpu" else device,
        device_name=runtime.device_name(device or 0) if known else None,
        torch_version=str(torch.__version__),
        driver_version=driver.inventory().driver_version if of_a_driver else None,
        processors=usable(),
    )
