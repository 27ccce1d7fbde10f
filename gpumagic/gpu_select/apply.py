"""Carries a request out, all or nothing; answers where it comes too late.

    which places are meant -> the mask -> what it will show -> set it

CUDA is never started by it.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpumagic.devices.visibility import BY_PCI_ADDRESS
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select import claims, variables
from gpumagic.gpu_select.free import Choice, NotEnough, freest, out_of_reach
from gpumagic.gpu_select.machine import (
    Place,
    places,
    rank_of,
    require_gpus,
    resolve,
    together,
)
from gpumagic.gpu_select.report import TRIED, Action, Remark, Verdict
from gpumagic.gpu_select.request import Kind
from gpumagic.gpu_select.situation import (
    allowed_places,
    look,
    rank_shown,
    report_of,
    way_out,
)
from gpumagic.gpu_select.variables import MPS, ORDER, VISIBLE
from gpumagic.gpu_select.watch import NOBODY
from gpumagic.report.units import bytes_text, count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gpumagic.devices.protocols import Driver, VisibleDevice
    from gpumagic.devices.visibility import Visible
    from gpumagic.gpu_select.answer_gpus import SelectReport
    from gpumagic.gpu_select.claims import Claims
    from gpumagic.gpu_select.request import Request
    from gpumagic.gpu_select.situation import Situation
    from gpumagic.gpu_select.watch import Witness

_PAUSE_S = 5.0  # between two looks while waiting for a GPU to become free
_RESTART = "type the same with --restart, which keeps it over a restart of the kernel"


class NotSelected(GpuMagicError):
    """Nothing was changed; `report` shows what was found."""

    def __init__(self, problem: str, hint: str, report: SelectReport) -> None:
        super().__init__(problem, hint)
        self.report = report


def apply(
    request: Request,
    driver: Driver,
    witness: Witness = NOBODY,
    waiting: Callable[[float, str], object] | None = None,
) -> SelectReport:
    """Carry out a request that has been read.

    `waiting` is called while waiting with the seconds since the last call and what is
    still in the way.
    """
    __tracebackhide__ = True
    attempt = Attempt(request, look(driver, witness), witness, waiting)
    verdict = attempt.situation.verdict
    if request.action in TRIED:
        return attempt.carry_out()
    if verdict is Verdict.FIXED:
        return attempt.answer_too_late()
    for_torch = verdict is Verdict.FIXED_FOR_TORCH and not request.force
    if for_torch or verdict is Verdict.LOST:
        raise attempt.refusal(*_why_too_late(attempt.situation, request.text))
    return attempt.carry_out()


@dataclass
class Attempt:
    """A request that is carried out on the machine as it is found."""

    request: Request
    situation: Situation
    witness: Witness
    waiting: Callable[[float, str], object] | None
    _remarks: list[Remark] = field(default_factory=list)

    def carry_out(self) -> SelectReport:
        """Choose, predict and set, waiting for free GPUs where asked to."""
        __tracebackhide__ = True
        deadline = time.monotonic() + self.request.wait_s
        while True:
            try:
                return self._take()
            except NotEnough as error:
                found = error
            # Not in the handler: a Ctrl-C here is no error of an error.
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise self.refusal(found.problem, found.hint, found.whys)
            pause_s = min(_PAUSE_S, left_s)
            if self.waiting:
                self.waiting(pause_s, found.problem)
            time.sleep(pause_s)
            self.situation = look(self.situation.driver, self.witness)

    def answer_too_late(self) -> SelectReport:
        """The report, if what is visible is what is asked for."""
        situation, request = self.situation, self.request
        problem, hint = _why_too_late(situation, request.text)
        if request.kind is Kind.FREE:
            raise self.refusal(problem, hint)
        choice = self._choice({})
        ranks = [rank_shown(place, situation) for place in choice.places]
        if ranks == list(range(len(situation.shown))):
            return self._report(request.action, choice.whys)
        if ranks and None not in ranks:
            word = situation.word
            among = ", ".join(
                f"{place.label} is {word}:{rank}"
                for place, rank in zip(choice.places, ranks, strict=True)
            )
            current = f"torch.{word}.set_device({ranks[0]}) makes it the current one"
            hint = f"{among}: {current}; or {hint}"
        raise self.refusal(problem, hint, choice.whys)

    def refusal(
        self, problem: str, hint: str, whys: Mapping[Place, str] | None = None
    ) -> NotSelected:
        """The error that says why nothing was changed."""
        return NotSelected(problem, hint, self._report(Action.REFUSED, whys))

    def _choice(self, claimed: dict[str, str]) -> Choice:
        """The places that are meant; `claimed` is what other processes have chosen."""
        request, situation = self.request, self.situation
        allowed = allowed_places(situation, force=request.force)
        match request.kind:
            case Kind.NAMED:
                return named(request.names, situation, allowed)
            case Kind.ALL:
                return everything(situation, allowed)
            case Kind.NONE:
                return Choice(())
        return freest(request, situation.inventory, allowed=allowed, claimed=claimed)

    def _report(
        self,
        action: Action,
        whys: Mapping[Place, str] | None,
        predicted: Visible | None = None,
    ) -> SelectReport:
        """The situation with what the request has made of it."""
        return report_of(
            self.situation,
            action,
            predicted=predicted,
            whys=whys,
            remarks=self._remarks,
            request=self.request.text,
        )

    def _take(self) -> SelectReport:
        """Choose while no other notebook can, so that two never take the same."""
        self._remarks.clear()
        # Simulated GPUs are this process's alone.
        with claims.one_at_a_time(of_all=not self.situation.driver.simulated) as held:
            known = [each.uuid for each in places(self.situation.inventory)]
            claimed = held.of_others(uuid for uuid in known if uuid)
            choice = self._choice(claimed)
            if held.problem:
                self._note(f"another notebook may take the same GPU: {held.problem}")
            if self.request.kind is Kind.NAMED:
                shown = self.situation.shown
                self._remarks += _neighbours(choice.places, claimed, shown)
            return self._settle(choice, held)

    def _settle(self, choice: Choice, held: Claims) -> SelectReport:
        """Set what is chosen, unless that was only to be tried."""
        situation, chosen = self.situation, choice.places
        mask = self._mask(chosen)
        predicted = situation.prediction(mask, BY_PCI_ADDRESS)
        ranks = [rank_of(place, predicted) for place in chosen]
        if self.request.kind is not Kind.ALL and ranks != list(range(len(ranks))):
            raise RuntimeError(f"{chosen} came out as {predicted}")  # a fault of ours
        if self.request.action in TRIED:
            return self._report(self.request.action, choice.whys, predicted)
        with variables.changed({VISIBLE: mask, ORDER: BY_PCI_ADDRESS}):
            held.take(place.uuid for place in chosen if place.uuid)
            self.situation = look(situation.driver, self.witness)
            return self._report(self.request.action, choice.whys)

    def _mask(self, chosen: Sequence[Place]) -> str | None:
        """The value that shows these; None where every GPU is seen without one."""
        situation, request = self.situation, self.request
        whole = request.kind is Kind.ALL and chosen == places(situation.inventory)
        inherited = variables.at_start(VISIBLE)
        if whole and (request.force or situation.driver.overlooks(inherited)):
            return None
        mps = MPS in os.environ
        value, why = variables.mask_for(chosen, situation.inventory, mps=mps)
        if why:
            self._note(why)
        # With a blank it means the same, and is not the inherited text.
        return f" {value}" if situation.driver.overlooks(value) else value

    def _note(self, text: str) -> None:
        self._remarks.append(Remark("note", text))


def _neighbours(
    chosen: Sequence[Place],
    claimed: Mapping[str, str],
    shown: Sequence[VisibleDevice],
) -> Iterator[Remark]:
    """That others have claimed a place, or are on it."""
    for place in chosen:
        if holder := claimed.get(place.uuid or ""):
            yield Remark("note", f"{place.label} is claimed by {holder}")
        if place.processes and not shown:  # else one of them may be this one
            who = count_text(place.processes, "process", "processes")
            left = bytes_text(place.device.memory_free_bytes)
            yield Remark(
                "warning",
                f"{place.label} is in use by {who}; memory free: {left}",
                "%gpu_select free chooses others, while this can still be changed",
            )


# ---------------------------------------------------------------- what is meant


def named(
    names: Sequence[str], situation: Situation, allowed: Sequence[Place]
) -> Choice:
    """The places that names mean, within what this process may choose from."""
    chosen = list[Place]()
    for name in names:
        place = resolve(name, situation.inventory)
        if place in chosen:
            raise GpuMagicError(
                f"{place.label} is named twice: CUDA would then hide every GPU",
                "name it once",
            )
        if not place.is_within(allowed):
            raise GpuMagicError(
                f"{place.label} is outside of what this kernel was given "
                f"({together(allowed)})",
                f"type %gpu_select {name} --force to leave that limit",
            )
        chosen.append(place)
    if len(chosen) > 1 and any(place.is_slice for place in chosen):
        raise GpuMagicError(
            f"{together(chosen)} cannot be had together: a process sees whole GPUs, "
            "or one MIG slice",
            "name one slice alone, or whole GPUs",
        )
    return Choice(tuple(chosen))


def everything(situation: Situation, allowed: Sequence[Place]) -> Choice:
    """All that one process can see: the whole GPUs, or else the first slice."""
    require_gpus(situation.inventory)
    every = places(situation.inventory)
    if not every:
        raise GpuMagicError(
            "no GPU of this machine can be used" + out_of_reach(situation.inventory),
            "type %gpu_doctor to see more",
        )
    there = tuple(x for each in allowed for x in every if x.is_within([each]))
    if not there:
        raise GpuMagicError(
            "this kernel was given no GPU of this machine",
            "type %gpu_select all --force to leave that limit",
        )
    chosen = tuple(place for place in there if not place.is_slice) or there[:1]
    why = "one process sees one slice, or whole GPUs: to have this one, name it"
    return Choice(chosen, {place: why for place in there if place not in chosen})


def _why_too_late(situation: Situation, request: str) -> tuple[str, str]:
    """Why nothing can be chosen any more, and what to do."""
    who = f" {situation.start or ''}".rstrip()
    if situation.verdict is Verdict.LOST:
        return (
            "CUDA is lost: this process was forked from one that had started it",
            "choose in the parent, before it uses CUDA",
        )
    if situation.verdict is Verdict.FIXED_FOR_TORCH:
        return (
            f"torch has looked for GPUs{who}, found none, and looks no more",
            f"{_RESTART}; or with --force, for libraries other than torch",
        )
    if situation.driver.simulated:
        return (
            "the simulated GPUs are in use: which of them are visible is fixed",
            f"switch the machine on again: {way_out(situation, request)}",
        )
    return f"CUDA has started{who}: which GPUs are visible is fixed", _RESTART
