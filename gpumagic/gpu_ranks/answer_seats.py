"""Who sits where: host, local rank and GPU of each rank, and what is wrong with it."""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.drawing import (
    Badge,
    Column,
    Details,
    Drawing,
    Grid,
    Note,
    Paragraph,
    Property,
    Table,
    how_measured,
    one_screen,
)
from gpumagic.drawing.document import MOST_ROWS
from gpumagic.gpu_ranks import unfinished as words
from gpumagic.gpu_ranks.answers import DOCTOR, Seat, Unfinished, each_once
from gpumagic.report.record import Record, Report
from gpumagic.report.units import UNKNOWN, count_text, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpumagic.drawing import NoteKind, Part
    from gpumagic.gpu_ranks.answers import Answer
    from gpumagic.gpu_ranks.unfinished import Names

_MANY = 64  # of more seats the first are listed
_FIRST = 16
_HOW = (
    "Once CUDA has started in a process, the driver says which GPU it uses. "
    "Before, it is predicted from the variables. "
    "A local rank is the place of a process on its host; launchers give it. "
    "Nothing was started to find out."
)
_SELECT = "`%gpu_ranks select` gives each a GPU of its own"
_NETWORK = "GLOO_SOCKET_IFNAME=eth0 in what starts the engines names gloo's network"
_RESTART = f"restart the engines, then {_SELECT}"


class Misplaced(enum.Enum):
    """What can be wrong with where ranks sit, the gravest first."""

    SHARED_GPU = "several ranks on one GPU"
    ON_GPU_0 = "ranks hold memory on a GPU that is another rank's"
    NO_GPU = "no GPU"
    VERSIONS = "different versions"


# How much it matters, in a row of the table, why, and what to type.
_TOLD: dict[Misplaced, tuple[NoteKind, str, str, str]] = {
    Misplaced.SHARED_GPU: (
        "problem",
        "shared",
        "they take turns on it, and both fill its memory",
        _SELECT,
    ),
    Misplaced.ON_GPU_0: (
        "warning",
        "on another GPU too",
        "CUDA began there before a GPU was chosen",
        "first of all `torch.cuda.set_device(local_rank)` on each",
    ),
    Misplaced.NO_GPU: (
        "problem",
        "without a GPU",
        "with nccl the group cannot begin, with gloo it waits for their CPU",
        DOCTOR,
    ),
    Misplaced.VERSIONS: (
        "problem",
        "",
        "messages, operators and rules may differ between versions",
        "install one driver and one torch on all hosts, then restart the engines",
    ),
}


@dataclass(frozen=True)
class SeatFinding(Record):
    """Something that is wrong with where ranks sit."""

    kind: Misplaced
    ranks: tuple[int, ...]
    what: str = ""  # the GPU, or the versions


@dataclass(frozen=True)
class SeatsReport(Report):
    """Where ranks sit."""

    seats: tuple[Seat, ...]  # in order of their names
    findings: tuple[SeatFinding, ...] = ()  # what is wrong with that, the gravest first
    unfinished: tuple[Unfinished, ...] = ()  # those that did not answer
    backend: str | None = None  # of the group, "nccl" or "gloo"; None without one
    chosen: bool = False  # whether these seats have just been chosen
    # whether each had a GPU of its own from its start on, so that none was chosen
    already: bool = False

    def drawing(self) -> Drawing:
        """What is wrong first; else where all sit."""
        simulated = bool(self.seats) and all(each.simulated for each in self.seats)
        label = "simulated" if simulated else ""
        return Drawing(headline(self), one_screen(_parts(self)), label)


# ------------------------------------------------------------------------ verdict


def headline(report: SeatsReport) -> str:
    """What is wrong first; else where all sit, and how certain that is."""
    names, seats = words.Names(report.seats), report.seats
    if report.unfinished:
        return _unanswered(report, names)
    if report.findings:
        return finding_text(report.findings[0], seats, names)
    hosts = sorted({each.host for each in seats})
    on = hosts[0] if len(hosts) == 1 else count_text(len(hosts), "host")
    said = f"{count_text(len(seats), names.noun)} on {on}"
    sits = f", each on a GPU of its own ({_certainty(seats)})"
    if not any(each.gpu for each in seats):
        sits = ", without a GPU"
    elif report.already:
        sits = ": each has been given a GPU of its own; nothing was changed"
    elif report.chosen and all(each.local_rank == each.gpu_number for each in seats):
        sits = f": local rank k takes GPU k ({_certainty(seats)})"
    elif any(each.simulated for each in seats):
        sits = ", each on a simulated GPU of its own"
    return f"{said}{sits}"


def _unanswered(report: SeatsReport, names: Names) -> str:
    why = words.unfinished_text(report.unfinished, names)
    if any(each.why == "refused" for each in report.unfinished):
        return f"nothing was changed: {why}"
    here = {each.name for each in report.seats}
    there = len(here | {each.name for each in report.unfinished})
    answer = "answers" if len(here) == 1 else "answer"
    return f"{len(here):,} of {count_text(there, names.noun)} {answer}; {why}"


def _certainty(seats: Sequence[Seat]) -> str:
    confirmed = sum(each.confirmed for each in seats)
    if confirmed == len(seats):
        return "confirmed by the driver"
    where = f"on {confirmed:,} of {len(seats):,}" if confirmed else "nowhere"
    return f"predicted: CUDA has started {where}"


def finding_text(finding: SeatFinding, seats: Sequence[Seat], names: Names) -> str:
    """What is wrong, in a sentence."""
    who, verb = names.several(finding.ranks), words.verb
    its = next((each for each in seats if each.gpu == finding.what), None)
    if finding.kind is Misplaced.SHARED_GPU:
        at = "" if its is None else f" on {its.host} (GPU {its.gpu_number})"
        return f"{who} share one GPU{at}"
    if finding.kind is Misplaced.ON_GPU_0:
        gpu = "a GPU that is another's"
        if its is not None:
            owner = f"which is that of {names.one(its.name)}"
            gpu = f"GPU {its.gpu_number} of {its.host}, {owner}"
        return f"{who} {verb(finding.ranks, 'holds', 'hold')} memory on {gpu}"
    if finding.kind is Misplaced.NO_GPU:
        return f"{who} {verb(finding.ranks, 'has', 'have')} no GPU"
    return f"{finding.kind.value}: {shortened(finding.what, 80)}"


def seats_of(read: Iterable[Answer]) -> SeatsReport:
    """Where ranks sit, and what is wrong with it."""
    read = each_once(read)
    found = sorted((e for e in read if isinstance(e, Seat)), key=lambda each: each.name)
    backends = Counter(each.backend for each in found if each.backend)
    return SeatsReport(
        tuple(found),
        tuple(_findings(found)),
        words.unfinished_of(each for each in read if not isinstance(each, Seat)),
        backend=max(backends, key=lambda each: backends[each], default=None),
    )


def _findings(found: Sequence[Seat]) -> Iterator[SeatFinding]:
    """What is wrong, the gravest first."""
    on: dict[tuple[str, str], list[int]] = defaultdict(list)
    for each in found:
        if each.gpu is not None:
            on[each.host, each.gpu].append(each.name)
    for (_, gpu), names in on.items():
        if len(names) > 1:
            yield SeatFinding(Misplaced.SHARED_GPU, tuple(names), gpu)
    for gpu in dict.fromkeys(gpu for each in found for gpu in each.also_on):
        guests = [
            e.name for e in found if gpu in e.also_on and {*on[e.host, gpu]} - {e.name}
        ]
        if guests:
            yield SeatFinding(Misplaced.ON_GPU_0, tuple(guests), gpu)
    without = tuple(each.name for each in found if each.gpu is None)
    if 0 < len(without) < len(found):
        yield SeatFinding(Misplaced.NO_GPU, without)
    for what in ("driver", "torch"):
        versions = {getattr(e, what): e.name for e in found if getattr(e, what)}
        if len(versions) > 1:
            told = [f"{v} (rank {name})" for v, name in sorted(versions.items())]
            ranks, which = tuple(sorted(versions.values())), ", ".join(told)
            yield SeatFinding(Misplaced.VERSIONS, ranks, f"{what} {which}")


# ------------------------------------------------------------------------- screen


def _parts(report: SeatsReport) -> Iterator[Part]:
    """Ranks, or of many their hosts, then what to type."""
    names, seats = words.Names(report.seats), report.seats
    tables = [*words.unfinished_table(report.unfinished)]
    if seats:
        yield _by_host(report) if len(seats) > MOST_ROWS else _by_rank(report, names)
        every = Table.of("", _every_column(names), seats)
        tables.append(every.beginning(_FIRST) if len(seats) > _MANY else every)
    yield from _notes(report, names)
    if tables:
        yield Details(f"Every {names.noun}", tuple(tables), "ranks")
    facts = [
        ("group", f"over {report.backend}" if report.backend else "none that is known"),
        ("certain", _certainty(seats) if seats else UNKNOWN),
    ]
    yield how_measured(Grid("", tuple(facts)), Paragraph(_HOW))


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
        kind, _, why, hint = _TOLD[each.kind]
        first = at == 0 and not report.unfinished
        text = why if first else finding_text(each, report.seats, names)
        late = any(seat.confirmed for seat in report.seats if seat.name in each.ranks)
        is_late = each.kind is Misplaced.SHARED_GPU and late
        yield Note(kind, text, _RESTART if is_late else hint)
    healthy = not (report.findings or report.unfinished)
    if healthy and names.noun == "engine" and len(report.seats) > 1:
        yield Note("note", "there is no group yet", "`%gpu_ranks group` begins one")


def _caption(report: SeatsReport) -> str:
    models = {each.gpu_name for each in report.seats if each.gpu_name}
    gpus = f", on {models.pop()}" if len(models) == 1 else ""
    group = f"; their group is over {report.backend}" if report.backend else ""
    return f"Who sits where{gpus}{group}"


def _column(heading: str, name: str) -> Property:
    column = Column(heading, number=name in {"local_rank", "pid"})
    return Property(column, lambda each: _text(getattr(each, name)))


def _by_rank(report: SeatsReport, names: Names) -> Table:
    wrong = _wrong(report)
    properties = [_column(names.noun.capitalize(), "name")]
    # Engines, as `--on` names them, may have other numbers than their ranks.
    if any(each.engine not in {None, each.name} for each in report.seats):
        properties.append(_column("Engine", "engine"))
    if len({each.host for each in report.seats}) > 1:
        properties.append(_column("Host", "host"))
    properties += (
        _column("Local rank", "local_rank"),
        Property(Column("GPU"), gpu_text),
        Property(Column("Is"), lambda each: _badge([each], wrong)),
    )
    return Table.of(_caption(report), properties, report.seats)


def _every_column(names: Names) -> tuple[Property, ...]:
    return (
        _column(names.noun.capitalize(), "name"),
        _column("Engine", "engine"),
        _column("Host", "host"),
        _column("Process", "pid"),
        _column("GPU", "gpu"),
        Property(Column("Driver"), lambda each: each.driver),
        Property(Column("torch"), lambda each: each.torch),
        Property(Column("Also on"), lambda each: ", ".join(each.also_on) or "no other"),
    )


def _text(value: object) -> str:
    return "none" if value is None else str(value)


def gpu_text(seat: Seat) -> str:
    """The number of its GPU."""
    return _text(seat.gpu and shortened(_text(seat.gpu_number), 12))


def _wrong(report: SeatsReport) -> dict[int, Misplaced]:
    """What is wrong with each, the gravest."""
    return {
        name: finding.kind
        for finding in reversed(report.findings)
        if _TOLD[finding.kind][1]
        for name in finding.ranks
    }


def _badge(seats: Sequence[Seat], wrong: Mapping[int, Misplaced]) -> Badge:
    """What is wrong with the first of them that has something; else how certain."""
    bad = [wrong[each.name] for each in seats if each.name in wrong]
    if bad:
        kind, text, _, _ = _TOLD[bad[0]]
        count = f"{len(bad)} " if len(seats) > 1 else ""
        return Badge(f"{count}{text}", "problem" if kind == "problem" else "warning")
    if any(each.gpu is None for each in seats):
        return Badge("without a GPU", "unknown")
    sure = all(each.confirmed for each in seats)
    return Badge("confirmed", "ok") if sure else Badge("predicted", "note")


def _by_host(report: SeatsReport) -> Table:
    wrong, hosts = _wrong(report), defaultdict[str, list[Seat]](list)
    for each in report.seats:
        hosts[each.host].append(each)
    noun = f"{words.Names(report.seats).noun.capitalize()}s"

    def numbers(row: Any) -> str:
        return words.numbers_text(each.name for each in row[1])

    def gpus(row: Any) -> str:
        return str(len({each.gpu for each in row[1]} - {None}))

    properties = (
        Property(Column("Host"), lambda row: row[0]),
        Property(Column(noun), numbers),
        Property(Column("GPUs", number=True), gpus),
        Property(Column("Are"), lambda row: _badge(row[1], wrong)),
    )
    # What is wrong comes first, as long lists are cut.
    rows = sorted(
        hosts.items(), key=lambda row: not {e.name for e in row[1]} & {*wrong}
    )
    return Table.of(_caption(report), properties, rows, name="hosts")


def seat_columns(seats: Sequence[Seat]) -> tuple[Property, ...]:
    """Where a rank sits, for a table of what else it did."""
    by_name = {each.name: each for each in seats}

    def told(heading: str, text: Any) -> Property:
        def cell(row: Any) -> Any:
            seat = by_name.get(row.shares[0].name)
            return None if seat is None else text(seat)

        return Property(Column(heading), cell)

    return told("Host", lambda each: each.host), told("GPU", gpu_text)
