"""Who sits where: host, local rank and GPU of each rank, and what is wrong with it."""

from __future__ import annotations

import enum
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpumagic.drawing import (
    Badge,
    Column,
    Drawing,
    Note,
    Paragraph,
    Property,
    Table,
    how_measured,
    one_screen,
)
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_ranks import unfinished as words
from gpumagic.gpu_ranks.answers import DOCTOR, Seat, Unfinished, each_once, label_of
from gpumagic.report.record import Record, Report
from gpumagic.report.units import count_text, listed

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from gpumagic.drawing import Part
    from gpumagic.gpu_ranks.answers import Answer
    from gpumagic.gpu_ranks.unfinished import Names

_HOW = (
    "Once CUDA has started in a process, the driver says which GPU it uses; before, it "
    "is predicted from the variables. Launchers give local ranks. Nothing was started."
)
_SELECT = "`%gpu_ranks select` gives each a GPU of its own"
_NETWORK = "GLOO_SOCKET_IFNAME=eth0 in what starts the engines names gloo's network"
_RESTART = f"restart the engines, then {_SELECT}"
_CONFIRMED, _PREDICTED = Badge("confirmed", "ok"), Badge("predicted", "note")


class Misplaced(enum.Enum):
    """What can be wrong with where ranks sit, the gravest first."""

    SHARED_GPU = "shared"
    ON_GPU_0 = "on another GPU too"
    NO_GPU = "without a GPU"


_SAID: dict[Misplaced, tuple[Literal["warning", "problem"], str, str]] = {
    Misplaced.SHARED_GPU: (
        "problem",
        "they take turns on it, and both fill its memory",
        _SELECT,
    ),
    Misplaced.ON_GPU_0: (
        "warning",
        "CUDA began there before a GPU was chosen",
        "first of all `torch.cuda.set_device(local_rank)` on each",
    ),
    Misplaced.NO_GPU: (
        "problem",
        "with nccl the group cannot begin, with gloo it waits for their CPU",
        DOCTOR,
    ),
}


@dataclass(frozen=True)
class SeatFinding(Record):
    """Something that is wrong with where ranks sit."""

    kind: Misplaced
    ranks: tuple[int, ...]
    what: str = ""  # as in "share one GPU on node0 (GPU 1)"


@dataclass(frozen=True)
class SeatsReport(Report):
    """Where ranks sit."""

    seats: tuple[Seat, ...]  # in order of their names
    findings: tuple[SeatFinding, ...] = ()  # what is wrong with that, the gravest first
    unfinished: tuple[Unfinished, ...] = ()  # those that did not answer
    backend: str = ""  # of the group, "nccl" or "gloo"; empty without one
    chosen: bool = False  # whether these seats have just been chosen

    def drawing(self) -> Drawing:
        """What is wrong first; else where all sit."""
        return Drawing(headline(self), one_screen(_parts(self)), label_of(self.seats))


# ------------------------------------------------------------------------ verdict


def headline(report: SeatsReport) -> str:
    """What is wrong first; else where all sit, and how certain that is."""
    names, seats = words.Names(report.seats), report.seats
    if report.unfinished:
        return _unanswered(report, names)
    if report.findings:
        return _finding_text(report.findings[0], names)
    hosts = count_text(len({each.host for each in seats}), "host")
    sits = f", each on a GPU of its own ({_certainty(seats)})"
    if not any(each.gpu for each in seats):
        sits = ", without a GPU"
    elif report.chosen and all(each.local_rank == each.gpu_number for each in seats):
        sits = f": local rank k takes GPU k ({_certainty(seats)})"
    elif any(each.simulated for each in seats):
        sits = ", each on a simulated GPU of its own"
    return f"{count_text(len(seats), names.noun)} on {hosts}{sits}"


def _unanswered(report: SeatsReport, names: Names) -> str:
    why = words.unfinished_text(report.unfinished, names)
    if any(each.why == "refused" for each in report.unfinished):
        return f"nothing was changed: {why}"
    here = {each.name for each in report.seats}
    there = len(here | {each.name for each in report.unfinished})
    return f"{len(here):,} of {count_text(there, names.noun)} answered; {why}"


def _certainty(seats: Sequence[Seat]) -> str:
    confirmed = sum(each.confirmed for each in seats)
    if confirmed == len(seats):
        return "confirmed by the driver"
    where = f"on {confirmed:,} of {len(seats):,}" if confirmed else "nowhere"
    return f"predicted: CUDA has started {where}"


def _finding_text(finding: SeatFinding, names: Names) -> str:
    return f"{names.several(finding.ranks)} {finding.what}"


def seats_of(read: Iterable[Answer]) -> SeatsReport:
    """Where ranks sit, and what is wrong with it."""
    read = each_once(read)
    found = sorted((e for e in read if isinstance(e, Seat)), key=lambda each: each.name)
    return SeatsReport(
        tuple(found),
        tuple(_findings(found)),
        words.unfinished_of(each for each in read if not isinstance(each, Seat)),
        backend=next((each.backend for each in found if each.backend), ""),
    )


def _findings(found: Sequence[Seat]) -> Iterator[SeatFinding]:
    """What is wrong, the gravest first."""
    on: dict[tuple[str, str], list[Seat]] = defaultdict(list)
    for each in found:
        if each.gpu:
            on[each.host, each.gpu].append(each)
    for (host, _), its in on.items():
        if len(its) > 1:
            what = f"share one GPU on {host} (GPU {its[0].gpu_number})"
            ranks = tuple(each.name for each in its)
            yield SeatFinding(Misplaced.SHARED_GPU, ranks, what)
    for (host, gpu), its in on.items():
        guests = [e.name for e in found if gpu in e.also_on and e.host == host]
        if guests:
            what = f"put memory on GPU {its[0].gpu_number} of {host}, "
            what += f"which is that of rank {its[0].name}"
            yield SeatFinding(Misplaced.ON_GPU_0, tuple(guests), what)
    without = tuple(each.name for each in found if not each.gpu)
    if 0 < len(without) < len(found):
        yield SeatFinding(Misplaced.NO_GPU, without, "found no GPU")


# ------------------------------------------------------------------------- screen


def _parts(report: SeatsReport) -> Iterator[Part]:
    """Ranks, those that something is wrong with first, then what to type."""
    names, seats = words.Names(report.seats), report.seats
    if seats:
        models = sorted({each.gpu_name for each in seats if each.gpu_name})
        caption = ", on ".join(filter(None, ("Who sits where", listed(models))))
        over = report.backend and f"their group is over {report.backend}"
        yield _by_rank(report, names, "; ".join(filter(None, (caption, over))))
    yield from _notes(report, names)
    yield how_measured(Paragraph(_HOW))


def _notes(report: SeatsReport, names: Names) -> Iterator[Part]:
    whys = {each.why for each in report.unfinished}
    if "refused" in whys:
        text = "CUDA reads its variables once, when it starts"
        yield Note("problem", text, _RESTART)
    if "raised" in whys and len({each.host for each in report.seats}) > 1:
        text = "hosts have to reach each other's TCP ports"
        yield Note("problem", text, _NETWORK)
    yield from words.unfinished_notes(report.unfinished, names)
    for at, each in enumerate(report.findings):
        severity, why, hint = _SAID[each.kind]
        in_title = at == 0 and not report.unfinished
        if each.kind is Misplaced.SHARED_GPU and any(
            seat.confirmed for seat in report.seats if seat.name in each.ranks
        ):
            hint = _RESTART
        text = why if in_title else _finding_text(each, names)
        yield Note(severity, text, hint)
    healthy = not (report.findings or report.unfinished)
    if healthy and names.noun == "engine" and len(report.seats) > 1:
        yield Note("note", "there is no group yet", "`%gpu_ranks group` begins one")


def _column(heading: str, name: str, *, number: bool = False) -> Property:
    def told(seat: Seat) -> str:
        value = getattr(seat, name)
        return "none" if value is None else str(value)

    return Property(Column(heading, number=number), told)


def _by_rank(report: SeatsReport, names: Names, caption: str) -> Table:
    # Of what is wrong with a rank the gravest, which comes first, counts.
    wrong = {rank: e.kind for e in reversed(report.findings) for rank in e.ranks}

    def badge(seat: Seat) -> Badge:
        if seat.name in wrong:
            kind = wrong[seat.name]
            return Badge(kind.value, _SAID[kind][0])
        if not seat.gpu:
            return Badge("without a GPU", "unknown")
        return _CONFIRMED if seat.confirmed else _PREDICTED

    columns = [_column(names.noun.capitalize(), "name")]
    # Engines, as `--on` names them, may have other numbers than their ranks.
    if any(each.engine not in {None, each.name} for each in report.seats):
        columns.append(_column("Engine", "engine"))
    if len({each.host for each in report.seats}) > 1:
        columns.append(_column("Host", "host"))
    columns += (
        _column("Local rank", "local_rank", number=True),
        _column("GPU", "gpu_number"),
        Property(Column("Is"), badge),
    )
    rows = sorted(report.seats, key=lambda each: each.name not in wrong)
    return Table.of(caption, columns, rows, name="ranks")


# ---------------------------------------------------------- who is to have which GPU


# What an engine may be given: as nvidia-smi counts those it lists for it, and its UUID.
Choice: TypeAlias = "tuple[int, str | None]"


def names_of(
    askers: Mapping[int, tuple[Hashable, Sequence[Choice]]],
) -> dict[int, str]:
    """What each engine is given, as `gpu_select` takes it: a GPU of its own.

    Each is asked for by its host and what it may be given, in the order of CUDA: that
    is what it was started with, as a batch system has left the others to somebody else.
    Who may have one alone keeps it, and all others take the first that is left.
    """
    taken: set[tuple[Hashable, Choice]] = set()
    found = {}
    for engine, (host, choices) in sorted(
        askers.items(), key=lambda each: len(each[1][1]) > 1
    ):
        free = [each for each in choices if (host, each) not in taken]
        if not free:
            here = [its for at, its in askers.values() if at == host]
            gpus = len({choice for its in here for choice in its})
            raise GpuMagicError(
                f"nothing was changed: engine {engine} finds none that is free: its "
                f"host has {count_text(gpus, 'GPU')} for "
                f"{count_text(len(here), 'engine')}",
                "start as many engines as GPUs, let a batch system give each its own "
                f"(srun --gpus-per-task=1), or choose some by --on; {DOCTOR}",
            )
        taken.add((host, free[0]))
        number, uuid = free[0]
        # Slices of one GPU have one number.
        is_slice = [each for each, _ in choices].count(number) > 1
        found[engine] = str(uuid if is_slice and uuid else number)
    return found
