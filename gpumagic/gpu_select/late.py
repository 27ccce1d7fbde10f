"""What can still be done where CUDA has started, and why nothing else can."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from gpumagic.gpu_select.choosing import NotEnough
from gpumagic.gpu_select.headline import started_by
from gpumagic.gpu_select.machine import places
from gpumagic.gpu_select.report import Action, Verdict
from gpumagic.gpu_select.request import Kind
from gpumagic.gpu_select.situation import rank_shown, simulated_anew

if TYPE_CHECKING:
    from gpumagic.gpu_select.attempt import Attempt
    from gpumagic.gpu_select.choosing import Choice
    from gpumagic.gpu_select.report import SelectReport
    from gpumagic.gpu_select.situation import Situation

_RESTART = "type the same with --restart, which keeps it over a restart of the kernel"


def answer(attempt: Attempt) -> SelectReport:
    """The report, if what is visible is what is asked for.

    Raises:
        NotSelected: It is not; the hint says how to come nearest.
    """
    choice = _choice(attempt)
    ranks = [rank_shown(place, attempt.situation) for place in choice.places]
    if ranks == list(range(len(attempt.situation.shown or ()))):
        return attempt.report(Action.UNCHANGED, choice.opinions)
    problem, restart = why_late(attempt.situation, attempt.request.text)
    if not ranks or None in ranks:
        raise attempt.refusal(problem, restart, choice.opinions)
    word = attempt.situation.word
    among = ", ".join(
        f"{place.label} is {word}:{rank}"
        for place, rank in zip(choice.places, ranks, strict=True)
    )
    soft = f"{among}: torch.{word}.set_device({ranks[0]}) makes it the current one"
    raise attempt.refusal(problem, f"{soft}; or {restart}", choice.opinions)


def why_late(situation: Situation, request: str) -> tuple[str, str]:
    """Why nothing can be chosen any more, and what to do.

    Args:
        situation: What has been found.

        request: What was asked for, as it is typed.
    """
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
