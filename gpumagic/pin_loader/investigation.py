"""One loader under investigation: what is asked, what is at hand, what was found.

Under another, pinning would start that one, and leave some hundred MB there for good.
"""

from __future__ import annotations

import dataclasses
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.simulated import word_of
from gpumagic.errors import DeviceError
from gpumagic.pin_loader.prefetcher import DevicePrefetcher
from gpumagic.pin_loader.rebuild import rebuild
from gpumagic.pin_loader.report import LoaderReport, Rates, Rebuilding, Remark, State
from gpumagic.report.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.devices.protocols import Driver, Runtime
    from gpumagic.pin_loader.rebuild import Rebuilt
    from gpumagic.pin_loader.report import (
        Anatomy,
        Bound,
        EndToEnd,
        FourSteps,
        Guard,
        LoaderFacts,
        Loading,
        ReuseCheck,
        Sameness,
        Setting,
        WorkerSearch,
    )

_MUCH_LONGER = 1.5  # times what was asked for: worth a word


@dataclass(frozen=True)
class Wish:
    """What is asked for.

    Attributes:
        name: What the user calls the loader.

        out: What the new one is to be called.

        workers: How many, "auto" to find out, None to leave them.

        only_looking: Nothing is made, and no device is started.
    """

    name: str | None = None
    out: str | None = None
    workers: int | str | None = None
    prefetch: int | None = None
    depth: int = 1
    step: Callable[[Any], object] | None = None
    batches: int | None = None
    budget_s: float = 10.0
    verify: bool = False
    profile: bool = True
    force: bool = False
    only_looking: bool = False


class Ending(NamedTuple):
    """Why an investigation goes no further."""

    state: State
    reason: Remark | None = None


@dataclass
class Case:
    """What the stages of an investigation hand on.

    What has no default is set by the stage that finds it out, and not there before.

    Attributes:
        is_as_it_is: Whether it cannot be rebuilt.

        batch: A real batch on the host. Gone as soon as it is not needed any more.

        new_load: How fast it loads with the workers that it is to have, where these
            are not those that it has.

        new: The rebuilt loader, still on the host.

        feeding: What the user is to iterate.

        undo: Ends with the last stage.
    """

    loader: Any
    wish: Wish
    runtime: Runtime
    driver: Driver
    device: int | None
    setting: Setting
    facts: LoaderFacts
    tell: Callable[[float], object] = lambda _: None  # how far this stage has come
    is_as_it_is: bool = False
    batch: Any = None
    new: Any = None
    feeding: Any = None
    anatomy: Anatomy = field(init=False)
    guard: Guard | None = None
    rates: Rates = field(default_factory=Rates)
    bound: Bound = field(init=False)
    search: WorkerSearch | None = None
    new_load: Loading | None = None
    rebuilding: Rebuilding = field(init=False)
    sameness: Sameness | None = None
    reuse: ReuseCheck | None = None
    end_to_end: EndToEnd | None = None
    steps: FourSteps | None = None
    remarks: list[Remark] = field(default_factory=list)
    undo: ExitStack = field(default_factory=ExitStack)
    began_s: float = field(default_factory=time.monotonic)

    def left_s(self) -> float:
        """What is left of the time that all of it may take."""
        return self.wish.budget_s - (time.monotonic() - self.began_s)

    def overtime(self) -> list[Remark]:
        """Why it took much longer than it was to take, if it did."""
        took_s = self.wish.budget_s - self.left_s()
        load = self.rates.load
        if load is None or took_s < _MUCH_LONGER * self.wish.budget_s:
            return []
        each = (
            f"{bytes_text(self.anatomy.tensor_bytes)} in {seconds_text(load.batch_s)}"
        )
        return [
            Remark(
                f"this took {seconds_text(took_s)} and was to take "
                f"{seconds_text(self.wish.budget_s)}: each part is measured once at "
                f"least, and a batch is {each}",
                "smaller batches take less; --diagnose leaves the later parts out",
            )
        ]

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
        return self.wish.only_looking and not self.runtime.started()

    @property
    def leaves_pinning_out(self) -> bool:
        """Whether trials may not pin as the loader does: it would start the device."""
        return self.starts_nothing and bool(self.facts.pin_memory)

    @property
    def workers(self) -> int:
        """How many workers the new loader is to have."""
        if self.search is not None and self.search.chosen is not None:
            return self.search.chosen
        if isinstance(self.wish.workers, int):
            return self.wish.workers
        return self.facts.workers or 0

    @property
    def prefetch_factor(self) -> int | None:
        """How many batches each of them prepares ahead."""
        if not self.workers:
            return None
        return self.wish.prefetch or self.facts.prefetch_factor or 2

    def report(self, ending: Ending) -> LoaderReport:
        """All that was found."""
        found = vars(self)  # without those that no stage has come to
        return LoaderReport(
            state=ending.state,
            setting=self.setting,
            loader=dataclasses.replace(self.facts, name=self.wish.name),
            anatomy=found.get("anatomy"),
            rates=self.rates,
            bound=found.get("bound"),
            guard=self.guard,
            workers=self.search,
            rebuilding=found.get("rebuilding"),
            sameness=self.sameness,
            end_to_end=self.end_to_end,
            reuse=self.reuse,
            steps=self.steps,
            remarks=tuple(self.remarks),
            reason=ending.reason,
            out=self.wish.out if self.feeding is not None else None,
        )


def trial_copy(case: Case, **changes: Any) -> Any:
    """A loader like the user's that can be iterated without a trace, if there is one.

    A loader that cannot be rebuilt is iterated itself: its random state is put back.
    """
    if case.leaves_pinning_out:
        changes["pin_memory"] = False
    return clone(case.loader, **changes)


def clone(loader: Any, **changes: Any) -> Any:
    """A loader like this one but for some changes, whose workers end with the epoch."""
    return rebuild(loader, persistent_workers=False, **changes).loader


def wrap(case: Case, made: Rebuilt, *, adapter: bool = False) -> None:
    """Put the prefetcher round a loader."""
    depth = case.wish.depth if case.pins else 0
    case.new = made.loader
    case.feeding = DevicePrefetcher(made.loader, case.place, depth=depth)
    case.rebuilding = Rebuilding(
        way=made.way,
        class_name=case.facts.class_name,
        changes=made.changes,
        reason=made.reason,
        adapter=adapter,
        depth=depth,
        remarks=made.remarks if depth else (),
    )


def make_current(case: Case) -> None:
    """Make the device current until the last stage has ended; this starts it.

    Raises:
        DeviceError: There is no such device, or it cannot be used.
    """
    number = case.device
    if not case.pins or number is None or case.runtime.current_device() == number:
        return
    import torch

    kind = case.runtime.kind
    try:
        case.undo.enter_context(getattr(torch, kind).device(number))
    except RuntimeError as error:
        raise unusable(torch.device(kind, number), error) from error


def unusable(place: object, error: RuntimeError) -> DeviceError:
    """What torch says of a device that it cannot start."""
    reason = " ".join(str(error).split())
    return DeviceError(
        f"{place} cannot be used: {reason}", "%gpu_select shows what is there"
    )
