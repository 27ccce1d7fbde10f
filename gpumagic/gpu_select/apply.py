"""Carries a request out, all or nothing; answers where it comes too late.

    resolve -> write as a mask -> predict -> verify -> set

All of it happens or none. CUDA is never started by it.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select import claims, variables, vendors
from gpumagic.gpu_select.choice import Choice, NotEnough, everything, named
from gpumagic.gpu_select.free_gpus import freest
from gpumagic.gpu_select.machine import places, rank_of
from gpumagic.gpu_select.options import How
from gpumagic.gpu_select.processes import is_mine
from gpumagic.gpu_select.report import Action, Remark, Severity, Verdict
from gpumagic.gpu_select.reporting import headline_of, report_of, started_by
from gpumagic.gpu_select.request import Kind, read
from gpumagic.gpu_select.situation import (
    allowed_places,
    limiting_mask,
    look,
    rank_shown,
    simulated_anew,
)
from gpumagic.gpu_select.usage import neighbours
from gpumagic.gpu_select.variables import MPS, ORDER, VISIBLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpumagic.devices.protocols import Driver
    from gpumagic.devices.visibility import Visible
    from gpumagic.gpu_select.choice import Opinion
    from gpumagic.gpu_select.claims import HeldClaims
    from gpumagic.gpu_select.machine import Place
    from gpumagic.gpu_select.report import SelectReport
    from gpumagic.gpu_select.request import Request
    from gpumagic.gpu_select.restart import Kept
    from gpumagic.gpu_select.situation import Situation

_A_SCRIPT = How()
_PAUSE_S = 5.0  # between two looks while waiting for a GPU to become free
_RESTART = "type the same with --restart, which keeps it over a restart of the kernel"
_EVERY_GPU: dict[str, str | None] = {VISIBLE: None, ORDER: "PCI_BUS_ID"}


class NotSelected(GpuMagicError):
    """Nothing was changed; `report` shows what was found."""

    def __init__(self, problem: str, hint: str, report: SelectReport) -> None:
        super().__init__(problem, hint)
        self.report = report


def apply(request: Request, driver: Driver, how: How = _A_SCRIPT) -> SelectReport:
    """Carry out a request that has been read."""
    if request.wait_s and request.kind is not Kind.FREE:
        raise GpuMagicError(
            f"--wait is for free GPUs, and {request.text} says which",
            "type %gpu_select free --wait, with the time",
        )
    situation = look(driver, how.witness)
    if (other := vendors.other_vendor(situation.inventory)) is not None:
        return vendors.select(other, request)
    attempt = Attempt(request, situation, how)
    if request.only_tried:
        return attempt.carry_out()
    if situation.verdict is Verdict.FIXED:
        return _answer_too_late(attempt)
    torch_only = situation.verdict is Verdict.FIXED_FOR_TORCH and not request.force
    if torch_only or situation.verdict is Verdict.LOST:
        raise attempt.refusal(*why_too_late(situation, request.text))
    return attempt.carry_out()


def take_up(
    kept: Kept, read_line: Callable[[str], Request], driver: Driver, how: How
) -> SelectReport:
    """Choose again what was chosen before a restart; `read_line` as the magic does."""
    request = read(kept.uuids) if kept.uuids else read_line(kept.text)
    request = replace(request, form=kept.form, force=kept.force)
    report = replace(apply(request, driver, how), action=Action.KEPT)
    return replace(report, request=kept.text, headline=headline_of(report))


class Attempt:
    """A request that is carried out on the machine as it is found."""

    def __init__(self, request: Request, situation: Situation, how: How) -> None:
        self.request = request
        self.situation = situation
        self.how = how
        self._remarks: list[Remark] = []

    def carry_out(self) -> SelectReport:
        """Choose, predict, verify and set, waiting for free GPUs where asked to."""
        deadline = time.monotonic() + self.request.wait_s
        while True:
            try:
                return self._take()
            except NotEnough as error:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise self.refusal(
                        error.problem, error.hint, error.opinions
                    ) from None
                self._wait(min(_PAUSE_S, left_s), error.problem)

    def choice(
        self,
        *,
        among: Sequence[Place] | None = None,
        claimed: Mapping[str, str] | None = None,
    ) -> Choice:
        """The places that the request means.

        `among` stands in place of the limit of this process; `claimed` is what other
        notebooks have taken, and who.
        """
        inventory = self.situation.inventory
        if among is None and not self.request.force:
            among = allowed_places(self.situation)
        match self.request.kind:
            case Kind.NAMED:
                return named(self.request.names, inventory, among)
            case Kind.ALL:
                return everything(inventory, among)
            case Kind.NONE:
                return Choice((), ())
        return freest(
            self.request,
            inventory,
            allowed=among,
            claimed=claimed or {},
            is_mine=is_mine,
            pick=random.SystemRandom().choice,
        )

    def report(
        self,
        action: Action,
        opinions: Iterable[Opinion] = (),
        predicted: Visible | None = None,
    ) -> SelectReport:
        """The situation with what the request has made of it."""
        return report_of(
            self.situation,
            action,
            predicted=predicted,
            opinions=opinions,
            remarks=self._remarks,
            request=self.request.text,
            shell=self.how.shell,
        )

    def refusal(
        self, problem: str, hint: str, opinions: Iterable[Opinion] = ()
    ) -> NotSelected:
        """The error that says why nothing was changed."""
        return NotSelected(problem, hint, self.report(Action.REFUSED, opinions))

    # ---------------------------------------------------------------- other notebooks

    def _take(self) -> SelectReport:
        """Choose while no other notebook can, so that two never take the same."""
        if self.situation.driver.simulated or self.request.kind is Kind.NONE:
            return self._settle(self.choice(), None)
        with claims.held_open() as held:
            claimed = {uuid: str(claim) for uuid, claim in held.others().items()}
            choice = self.choice(claimed=claimed)
            self._note_claims(choice, claimed, held)
            if self.request.kind is Kind.NAMED:
                self._remarks += neighbours(choice.places, is_mine)
            return self._settle(choice, held)

    def _note_claims(
        self, choice: Choice, claimed: Mapping[str, str], held: HeldClaims
    ) -> None:
        if held.problem is not None:
            self._note(f"another notebook may take the same GPU: {held.problem}")
        for place in choice.places:
            if place.uuid is not None and place.uuid in claimed:
                self._note(f"{place.label} is claimed by {claimed[place.uuid]}")

    def _wait(self, pause_s: float, why: str) -> None:
        if self.how.waiting is not None:
            self.how.waiting(pause_s, why)
        time.sleep(pause_s)
        self._remarks.clear()
        self.situation = look(self.situation.driver, self.how.witness)

    # ---------------------------------------------------------------- the variables

    def _settle(self, choice: Choice, held: HeldClaims | None) -> SelectReport:
        """Set what is chosen, unless that was only to be tried."""
        values = self._values(choice)
        predicted = self.situation.prediction(values[VISIBLE], values[ORDER])
        self._check_words(choice, predicted)
        if self.request.verify and not self.situation.driver.simulated:
            self._verify(values, predicted)
        if (tried := self.request.only_tried) is not None:
            return self.report(tried, choice.opinions, predicted)
        unchanged = all(os.environ.get(name) == values[name] for name in values)
        uuids = [place.uuid for place in choice.places if place.uuid]
        with variables.changed(values):
            if held is not None:
                held.take(uuids)
            self.situation = look(self.situation.driver, self.how.witness)
            action = Action.UNCHANGED if unchanged else Action.SELECTED
            return self.report(action, choice.opinions)

    def _values(self, choice: Choice) -> dict[str, str | None]:
        if self.request.kind is Kind.ALL and self._needs_no_mask():
            return _EVERY_GPU
        written = variables.mask_for(
            choice.places,
            self.situation.inventory,
            form=self.request.form,
            mps=MPS in os.environ,
        )
        if written.why:
            self._note(written.why)
        value = written.value
        if self.situation.driver.overlooks(value):
            value = f" {value}"  # means the same, and is not the inherited text
        return {VISIBLE: value, ORDER: written.order}

    def _needs_no_mask(self) -> bool:
        """Whether every GPU is seen where the variable is not set at all."""
        limited = limiting_mask(self.situation) is not None and not self.request.force
        sliced = any(gpu.mig for gpu in self.situation.inventory.gpus)
        return not limited and not sliced and self.request.form is None

    def _check_words(self, choice: Choice, predicted: Visible) -> None:
        """A mask that does not say what was chosen is a fault of ours."""
        ranks = [rank_of(place, predicted) for place in choice.places]
        if self.request.kind is not Kind.ALL and ranks != list(range(len(ranks))):
            raise RuntimeError(f"{choice.places} came out as {predicted}")

    def _verify(self, values: Mapping[str, str | None], predicted: Visible) -> None:
        """Raise where CUDA in a child process sees anything but what is predicted."""
        from gpumagic.devices.oracle import ask_child
        from gpumagic.devices.visible_devices import same_uuid

        asked: dict[str, str | None] = {**os.environ, **values}
        found = ask_child(
            {name: text for name, text in asked.items() if text is not None}
        )
        shown = [device.uuid for device in found]
        if len(shown) != len(predicted.uuids) or not all(
            ours is None or theirs is None or same_uuid(ours, theirs)
            for ours, theirs in zip(predicted.uuids, shown, strict=True)
        ):
            raise self.refusal(
                f"{VISIBLE}={values[VISIBLE]} shows CUDA in a child process "
                f"{_listed(shown)}, and not {_listed(predicted.uuids)}",
                "type the same with --as uuid",
            )
        self._note("verified: CUDA in a child process saw the same")

    def _note(self, text: str) -> None:
        self._remarks.append(Remark(Severity.NOTE, text))


def _listed(uuids: Sequence[str | None]) -> str:
    return ", ".join(uuid or "one without a UUID" for uuid in uuids) or "no GPU"


# ---------------------------------------------------------------- too late


def _answer_too_late(attempt: Attempt) -> SelectReport:
    """The report, if what is visible is what is asked for."""
    choice = _choice(attempt)
    ranks = [rank_shown(place, attempt.situation) for place in choice.places]
    free = attempt.request.kind is Kind.FREE  # in what order they come is chance
    shown = range(len(attempt.situation.shown or ()))
    if set(ranks) == set(shown) if free else ranks == list(shown):
        return attempt.report(Action.UNCHANGED, choice.opinions)
    problem, restart = why_too_late(attempt.situation, attempt.request.text)
    if not ranks or None in ranks:
        raise attempt.refusal(problem, restart, choice.opinions)
    word = attempt.situation.word
    among = ", ".join(
        f"{place.label} is {word}:{rank}"
        for place, rank in zip(choice.places, ranks, strict=True)
    )
    soft = f"{among}: torch.{word}.set_device({ranks[0]}) makes it the current one"
    raise attempt.refusal(problem, f"{soft}; or {restart}", choice.opinions)


def why_too_late(situation: Situation, request: str) -> tuple[str, str]:
    """Why nothing can be chosen any more, and what to do."""
    who = started_by(situation.start)
    said = f" {who}" if who else ""
    if situation.verdict is Verdict.LOST:
        problem = "CUDA is lost: this process was forked from one that had started it"
        hint = (
            "choose in the parent before it uses CUDA, or start this process by "
            'multiprocessing.get_context("spawn")'
        )
    elif situation.verdict is Verdict.FIXED_FOR_TORCH:
        problem = f"torch has looked for GPUs{said}, found none, and looks no more"
        hint = f"{_RESTART}; or with --force, for libraries other than torch"
    elif situation.driver.simulated:
        problem = "the simulated GPUs are in use: which of them are visible is fixed"
        hint = f"have the machine anew: {simulated_anew(request)}"
    else:
        problem = f"CUDA has started{said}: which GPUs are visible is fixed"
        hint = _RESTART
    return problem, hint


def _choice(attempt: Attempt) -> Choice:
    """What is asked for; of free ones those that are visible, if there are enough."""
    if attempt.request.kind is not Kind.FREE:
        return attempt.choice()
    situation = attempt.situation
    visible = [
        place
        for place in places(situation.inventory)
        if rank_shown(place, situation) is not None
    ]
    with suppress(NotEnough):
        return attempt.choice(among=visible)
    try:
        return attempt.choice()
    except NotEnough as error:
        raise attempt.refusal(error.problem, error.hint, error.opinions) from None
