"""What may stand behind `%gpu_ranks`, checked before anybody is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.errors import UsageProblem, did_you_mean
from gpumagic.report.units import parse_seconds

if TYPE_CHECKING:
    import argparse

SELECT, GROUP, WHERE = "select", "group", "where"
_WORDS = (SELECT, GROUP, WHERE)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is wanted of many ranks."""

    word: str = ""  # what is asked; empty for where ranks sit, and for a cell
    on: str | None = None  # which engines, as typed; None for all
    memory: bool = False  # whether memory is what is asked of a cell
    # of the group that is begun; None for what fits the devices
    backend: str | None = None
    dry_run: bool = False  # whether a choice is only told
    hang_s: float = 5.0  # how long a collective may stay open until it is told


def options_of(typed: argparse.Namespace, *, above_a_cell: bool) -> Options:
    """What was typed, unless it does not belong together: then it is refused."""
    word, *more = typed.what or ("",)
    if word and (above_a_cell or word not in _WORDS):
        sign = "%%" if above_a_cell else "%"
        raise UsageProblem(
            f"{sign}gpu_ranks takes no word {word}"
            if above_a_cell
            else f"%gpu_ranks has no word {word}",
            did_you_mean(word, _WORDS) or f"say one of {', '.join(_WORDS)}, or nothing",
        )
    if more:
        raise UsageProblem(
            f"%gpu_ranks {word}: {more[0]} is one word too many", "leave it out"
        )
    for option, places in (
        ("mem", "%%gpu_ranks"),
        ("hang", "%%gpu_ranks"),
        ("backend", "%gpu_ranks group"),
        ("dry_run", "%gpu_ranks select"),
    ):
        here = "%%gpu_ranks" if above_a_cell else f"%gpu_ranks {word}".rstrip()
        if getattr(typed, option) and here != places:
            spelt = option.replace("_", "-")
            raise UsageProblem(
                f"%gpu_ranks: --{spelt} has no meaning here",
                f"it belongs to {places}: type {places} --{spelt}",
            )
    return Options(
        word=word,
        on=typed.on,
        memory=typed.mem,
        backend=typed.backend,
        dry_run=typed.dry_run,
        hang_s=5.0 if typed.hang is None else parse_seconds(typed.hang),
    )
