"""What may stand behind `%gpu_mem`, checked before anything is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.errors import UsageProblem, did_you_mean

if TYPE_CHECKING:
    import argparse

_WORDS = ("on", "off", "log", "map", "leaks", "free", "why", "fit", "live")
LIVE = "live"  # of the cell that runs, in whichever form
# Which words an option belongs to; "" is a cell.
_BELONGS = {
    "lines": ("",),
    "outputs": ("free",),
    "errors": ("free",),
    "gc": ("free", "leaks"),
    "cache": ("free",),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is wanted."""

    word: str = ""  # what is asked; empty for how things stand, and for a cell
    value: str | None = None  # what stands behind the word: a size
    lines: bool = False  # whether a cell's lines and its exact peak are wanted
    top: int = 10  # how many names are to be shown
    # drop results that hold memory from `Out`, `_`, `__`, `___` and IPython's hidden
    # copies
    outputs: bool = False
    # drop the last error with all frames: `%debug` has nothing then
    errors: bool = False
    gc: bool = False  # have Python collect cycles
    cache: bool = False  # give free memory of torch's cache back to the driver

    @property
    def frees_everything(self) -> bool:
        """Whether `free` was asked for with nothing behind it."""
        return not (self.outputs or self.errors or self.gc or self.cache)


def options_of(typed: argparse.Namespace, *, above_a_cell: bool) -> Options:
    """What was typed, unless it does not belong together: then it is refused."""
    word, *values = typed.what or ("",)
    _check_words(word, values, above_a_cell=above_a_cell)
    if typed.top < 1:
        raise UsageProblem(
            f"%gpu_mem --top {typed.top}: that many names cannot be shown",
            "type --top 5, or leave it out",
        )
    here = "" if above_a_cell else word or "now"
    for option, places in _BELONGS.items():
        if getattr(typed, option) and here not in places:
            raise UsageProblem(
                f"%gpu_mem: --{option} has no meaning here", _where(option, places[0])
            )
    return Options(
        word=word,
        value=values[0] if values else None,
        top=typed.top,
        **{option: getattr(typed, option) for option in _BELONGS},
    )


def _check_words(word: str, values: list[str], *, above_a_cell: bool) -> None:
    if above_a_cell and word and word not in _WORDS:
        raise UsageProblem(
            f"%%gpu_mem takes no word {word}",
            "leave it out: what is watched is the cell below",
        )
    if above_a_cell and word and word != LIVE:
        raise UsageProblem(
            f"%%gpu_mem watches the cell below; {word} is a word of its own",
            f"type %gpu_mem {' '.join((word, *values))} in a cell of its own",
        )
    if word and word not in _WORDS:
        raise UsageProblem(
            f"%gpu_mem has no word {word}",
            did_you_mean(word, _WORDS) or f"say one of {', '.join(_WORDS)}, or nothing",
        )
    most = 1 if word == "fit" else 0
    if len(values) > most:
        # A size that was typed with a blank in it is one word without.
        fitting = ["".join(values)] if word == "fit" else values[:most]
        raise UsageProblem(
            f"%gpu_mem {word}: {values[most]} is one word too many",
            f"type %gpu_mem {' '.join((word, *fitting))}",
        )
    if word == "fit" and not values:
        raise UsageProblem(
            "%gpu_mem fit needs to know how much", "type %gpu_mem fit 6GiB"
        )


def _where(option: str, place: str) -> str:
    typed = f"%gpu_mem {place}" if place else "%%gpu_mem"
    return f"it belongs to {typed}: type {typed} --{option}"
