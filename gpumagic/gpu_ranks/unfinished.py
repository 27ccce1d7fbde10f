"""Who gave no whole answer and why; and what ranks are called in sentences."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from gpumagic.gpu_ranks.answers import Alive, Seat, Unfinished
from gpumagic.report.units import count_text, shortened

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from gpumagic.drawing import Note
    from gpumagic.gpu_ranks.answers import Answer
    from gpumagic.report.places import CodeLine

_ROW = 4  # ranks in a row from which on the first and the last are named
_MOST = 4  # rows of ranks that are named
_MANY = 16  # ranks; a sentence has room for their number only
_REBUILD = "`%gpu_ranks group` begins it anew among those that are left"
_RESTART_JOB = (
    "start the job anew from what it saved last: `torchrun --max-restarts=3` does so"
)
# What backends say where it is another rank that is gone, or has not come in time.
_LOST = (
    "connection closed by",
    "connection reset by",
    "connection refused",
    "broken pipe",
    "timed out waiting",
    "socket timeout",
    "collective operation timeout",
    "nccl communicator was aborted",
    "remote process exited",
    "ncclremoteerror",
)
WHY = {  # of one and of several, the gravest last
    "lost": ("lost another", "lost another"),
    "silent": ("does not answer", "do not answer"),
    "interrupted": ("was interrupted", "were interrupted"),
    "deaf": ("does not hear Ctrl-C", "do not hear Ctrl-C"),
    "refused": ("refuses", "refuse"),
    "garbage": ("sent what cannot be read", "sent what cannot be read"),
    "raised": ("raised", "raised"),
    "died": ("died", "died"),
}


def unfinished_of(read: Iterable[Answer]) -> tuple[Unfinished, ...]:
    """Who gave no whole answer; of those that raised, the first one first."""
    found: list[tuple[int, int, Unfinished]] = []
    for each in read:
        ended_ns = -1
        if isinstance(each, Unfinished):
            its = each
        elif isinstance(each, Alive):
            why = "deaf" if each.deaf else "silent"
            its = Unfinished(each.name, why, f"still {each.doing}", each.line)
        elif isinstance(each, Seat) or not each.error:
            continue
        else:
            ended_ns, why = each.ended_ns, why_of(each.error)
            its = Unfinished(each.name, why, each.error, each.error_line)
        found.append((ended_ns, each.name, its))
    every = [its for *_, its in sorted(found, key=lambda each: each[:2])]
    lost = [each for each in every if _has_lost_another(each)]
    if len(lost) == len(every):  # each has raised what it says
        lost = []
    return tuple(replace(e, why="lost") if e in lost else e for e in every)


def why_of(error: str) -> str:
    """Why a rank did not finish that ended by an error, as in "ValueError: x"."""
    is_ctrl_c = error.startswith(KeyboardInterrupt.__name__)
    return "interrupted" if is_ctrl_c else "raised"


def _has_lost_another(unfinished: Unfinished) -> bool:
    """Whether a rank has failed but for another one that is not there."""
    text = unfinished.text.lower()
    return unfinished.why == "raised" and any(each in text for each in _LOST)


# ------------------------------------------------------------------------ names


class Names:
    """What ranks are called: with their host where there are several."""

    def __init__(self, seats: Iterable[Seat] = ()) -> None:
        seats = [*seats]
        hosts = {each.host for each in seats}
        self._at = {e.name: f" ({e.host})" for e in seats if len(hosts) > 1}
        without_group = seats and all(each.rank is None for each in seats)
        self.noun = "engine" if without_group else "rank"

    def one(self, name: int) -> str:
        """As in "rank 3"."""
        return f"{self.noun} {name}"

    def at(self, name: int) -> str:
        """The same with its host, where there are several."""
        return self.one(name) + self._at.get(name, "")

    def several(self, names: Iterable[int]) -> str:
        """As in "ranks 1 and 3", "ranks 0, 1, 3", "ranks 0 to 6", "1,022 ranks"."""
        every = sorted(set(names))
        if len(every) == 1:
            return self.one(every[0])
        if len(every) > _MANY and every[-1] - every[0] >= len(every):
            return f"{len(every):,} {self.noun}s"
        return f"{self.noun}s {numbers_text(every)}"


def numbers_text(numbers: Iterable[int]) -> str:
    """Numbers of ranks, as in "1 and 3", "0, 1, 3", "0 to 6, 8"."""
    rows: list[list[int]] = []
    for number in sorted(set(numbers)):
        if rows and rows[-1][-1] == number - 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    told: list[str] = []
    for row in rows[:_MOST]:
        told += [f"{row[0]} to {row[-1]}"] if len(row) >= _ROW else map(str, row)
    if more := sum(map(len, rows[_MOST:])):
        return f"{', '.join(told)} and {more:,} more"
    is_pair = len(told) == 2 and all(each.isdigit() for each in told)
    return (" and " if is_pair else ", ").join(told)


def verb(names: Sequence[object], one: str, several: str) -> str:
    """That of one rank, or of several."""
    return one if len(names) == 1 else several


def clean(text: str, most: int = 60) -> str:
    """A text of somebody else's on one line."""
    return shortened(" ".join(text.split()), most)


def line_text(line: CodeLine) -> str:
    """A line of code with its place."""
    return ", ".join(filter(None, (line.where, clean(line.source or ""))))


# ---------------------------------------------------------------------- sentences


def unfinished_text(unfinished: Sequence[Unfinished], names: Names) -> str:
    """Who gave no answer and why, the gravest kind of them; and how many more."""
    alike: dict[tuple[str, str], list[Unfinished]] = defaultdict(list)
    for each in unfinished:
        alike[each.why, each.text].append(each)
    gravity = [*WHY]
    (why, text), gravest = max(alike.items(), key=lambda row: gravity.index(row[0][0]))
    first = {each.name for each in gravest}
    said = f"{names.several(first)} {_why_text(why, text, gravest)}"
    lost = {each.name for each in unfinished if each.why == "lost"} - first
    line = gravest[0].line
    if lost and line and len(first) == 1:
        said = f"{said} ({line.where})"
    more = {each.name for each in unfinished} - first - lost
    others = ("did not finish", more), ("lost it", lost)
    counted = (f"{count_text(len(its), 'other')} {did}" for did, its in others if its)
    return "; ".join((said, *counted))


def _why_text(why: str, text: str, names: Sequence[object]) -> str:
    said = verb(names, *WHY[why])
    if why == "raised":
        return f"{said} {clean(text, 100)}"
    says_all = why in {"deaf", "interrupted"} or not text
    return said if says_all else f"{said}: {clean(text, 100)}"


def unfinished_notes(
    unfinished: Sequence[Unfinished],
    names: Names,
    *,
    told: Collection[int] = (),
    in_script: bool = False,
    restart: str = "",
) -> Iterator[Note]:
    """What is not in the first line: where they were, and how to go on."""
    from gpumagic.drawing import Note

    lines: dict[str, list[int]] = defaultdict(list)
    for each in unfinished:
        if each.line and each.why != "lost" and each.name not in told:
            lines[line_text(each.line)].append(each.name)
    for line, there in [*lines.items()][:2]:
        was = verb(there, "was", "were")
        yield Note("problem", f"{names.several(there)} {was} at {line}")
    whys = {each.why for each in unfinished}
    anew = _RESTART_JOB if in_script else _REBUILD
    died = [each.name for each in unfinished if each.why == "died"]
    if died and names.noun == "rank":
        text = f"the group cannot be used any more: {names.several(died)} died"
        yield Note("problem", text, anew)
    if "deaf" in whys:
        text = "they wait in C++, where Ctrl-C arrives only once that has ended"
        yield Note("problem", text, restart or "restart these engines")
    elif "interrupted" in whys and not died:
        text = "ranks that were interrupted may disagree on what comes next"
        yield Note("warning", text, anew)
