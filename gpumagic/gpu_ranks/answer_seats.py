"""Who sits where: host, local rank and GPU of each rank, and what is wrong with it."""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpumagic.gpu_ranks.answers import DOCTOR, Seat, Unfinished, each_once
from gpumagic.gpu_ranks.unfinished import (
    Names,
    numbers_text,
    unfinished_notes,
    unfinished_of,
    unfinished_table,
    unfinished_text,
    verb,
)
from gpumagic.report.record import Record, Report
from gpumagic.report.units import UNKNOWN, count_text, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpumagic.drawing import Badge, NoteKind, Part, Property, Table
    from gpumagic.gpu_ranks.answers import Answer

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
    DRIVERS = "different drivers"
    TORCHES = "different versions of torch"
    FAR_NETWORK = "GPU and network card on different sockets"


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
    Misplaced.DRIVERS: (
        "warning",
        "",
        "NCCL and CUDA then follow different rules on each host",
        "install one driver on all hosts",
    ),
    Misplaced.TORCHES: (
        "problem",
        "",
        "messages and operators may differ between versions",
        "`%px %pip install torch==VERSION`, then restart the engines",
    ),
    Misplaced.FAR_NETWORK: (
        "warning",
        "far from network",
        "what they send crosses from one socket to the other",
        "`nvidia-smi topo -m` on the host shows which card is near",
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
    given_by: str | None = None  # who has given it, "Slurm"; None if nobody is known
    is_on_hosts: bool = False  # whether a group of several hosts was to begin

    def drawing(self) -> Any:
        """What is wrong first; else where all sit."""
        from gpumagic.drawing import Drawing, one_screen

        simulated = bool(self.seats) and all(each.simulated for each in self.seats)
        label = "simulated" if simulated else ""
        return Drawing(headline(self), one_screen(_parts(self)), label)


# ------------------------------------------------------------------------ verdict


def headline(report: SeatsReport) -> str:
    """What is wrong first; else where all sit, and how certain that is."""
    names = Names(report.seats)
    if report.unfinished:
        return _unanswered(report, names)
    if report.findings:
        return finding_text(report.findings[0], report.seats, names)
    seats = report.seats
    hosts = sorted({each.host for each in seats})
    on = hosts[0] if len(hosts) == 1 else count_text(len(hosts), "host")
    said = f"{count_text(len(seats), names.noun)} on {on}"
    if not any(each.gpu for each in seats):
        return f"{said}, without a GPU"
    if report.already:
        by = report.given_by or "its launcher"
        return f"{said}: {by} has given each a GPU of its own; nothing was changed"
    if report.chosen and all(each.local_rank == each.gpu_number for each in seats):
        said = f"{said}: local rank k takes GPU k"
    elif any(each.simulated for each in seats):
        return f"{said}, each on a simulated GPU of its own"
    elif len(seats) == 1:
        said = f"{said}, on GPU {seats[0].gpu_number}"
    else:
        said = f"{said}, each on a GPU of its own"
    return f"{said} ({_certainty(seats)})"


def _unanswered(report: SeatsReport, names: Names) -> str:
    why = unfinished_text(report.unfinished, names)
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
    who, what = names.several(finding.ranks), shortened(finding.what, 80)
    its = next((each for each in seats if each.gpu == finding.what), None)
    match finding.kind:
        case Misplaced.SHARED_GPU:
            at = "" if its is None else f" on {its.host} (GPU {its.gpu_number})"
            return f"{who} share one GPU{at}"
        case Misplaced.ON_GPU_0:
            gpu = "a GPU that is another's"
            if its is not None:
                owner = f"which is that of {names.one(its.name)}"
                gpu = f"GPU {its.gpu_number} of {its.host}, {owner}"
            return f"{who} {verb(finding.ranks, 'holds', 'hold')} memory on {gpu}"
        case Misplaced.NO_GPU:
            return f"{who} {verb(finding.ranks, 'has', 'have')} no GPU"
        case Misplaced.FAR_NETWORK:
            sit = verb(finding.ranks, "sits", "sit")
            return f"{who} {sit} far from any network card"
        case _:
            return f"{finding.kind.value}: {what}"


def seats_of(read: Iterable[Answer]) -> SeatsReport:
    """Where ranks sit, and what is wrong with it."""
    read = each_once(read)
    found = sorted((e for e in read if isinstance(e, Seat)), key=lambda each: each.name)
    backends = Counter(each.backend for each in found if each.backend)
    return SeatsReport(
        tuple(found),
        tuple(_findings(found)),
        unfinished_of(each for each in read if not isinstance(each, Seat)),
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
            e for e in found if gpu in e.also_on and {*on[e.host, gpu]} - {e.name}
        ]
        if guests:
            names_there = tuple(each.name for each in guests)
            yield SeatFinding(Misplaced.ON_GPU_0, names_there, gpu)
    without = tuple(each.name for each in found if each.gpu is None)
    if 0 < len(without) < len(found):
        yield SeatFinding(Misplaced.NO_GPU, without)
    yield from _versions(found)
    if far := tuple(each.name for each in found if each.network_far):
        yield SeatFinding(Misplaced.FAR_NETWORK, far)


def _versions(found: Sequence[Seat]) -> Iterator[SeatFinding]:
    for kind, what in ((Misplaced.DRIVERS, "driver"), (Misplaced.TORCHES, "torch")):
        versions = {getattr(e, what): e.name for e in found if getattr(e, what)}
        if len(versions) > 1:
            told = [f"{v} (rank {name})" for v, name in sorted(versions.items())]
            ranks = tuple(sorted(versions.values()))
            yield SeatFinding(kind, ranks, ", ".join(told))


# ------------------------------------------------------------------------- screen


def _parts(report: SeatsReport) -> Iterator[Part]:
    """Ranks, or of many their hosts, then what to type."""
    from gpumagic.drawing import Details, Grid, Paragraph, how_measured
    from gpumagic.drawing.document import MOST_ROWS

    names, many = Names(report.seats), len(report.seats) > MOST_ROWS
    if report.seats:
        yield _by_host(report) if many else _by_rank(report, names)
    yield from _notes(report, names)
    every = [_machines(report, names)] if report.seats else []
    if many:
        every.insert(0, replace(_by_rank(report, names), caption=""))
    every = [e.beginning(_FIRST) if len(e.rows) > _MANY else e for e in every]
    if tables := (*unfinished_table(report.unfinished), *every):
        yield Details(f"Every {names.noun}", tables, "ranks")
    facts = [
        ("group", f"over {report.backend}" if report.backend else "none that is known"),
        ("certain", _certainty(report.seats) if report.seats else UNKNOWN),
    ]
    yield how_measured(Grid("", tuple(facts)), Paragraph(_HOW))


def _notes(report: SeatsReport, names: Names) -> Iterator[Part]:
    from gpumagic.drawing import Note

    if any(each.why == "refused" for each in report.unfinished):
        text = "CUDA reads its variables once, when it starts"
        yield Note("problem", text, _RESTART)
    if report.is_on_hosts and any(each.why == "raised" for each in report.unfinished):
        text = "hosts have to reach each other's TCP ports"
        yield Note("problem", text, _NETWORK)
    yield from unfinished_notes(report.unfinished, names)
    for at, each in enumerate(report.findings):
        kind, _, why, hint = _TOLD[each.kind]
        first = at == 0 and not report.unfinished
        text = why if first else finding_text(each, report.seats, names)
        if each.kind is Misplaced.SHARED_GPU and any(
            seat.confirmed for seat in report.seats if seat.name in each.ranks
        ):
            hint = _RESTART
        yield Note(kind, text, hint)
    healthy = not (report.findings or report.unfinished)
    if healthy and names.noun == "engine" and len(report.seats) > 1:
        yield Note("note", "there is no group yet", "`%gpu_ranks group` begins one")


def _caption(report: SeatsReport) -> str:
    models = {each.gpu_name for each in report.seats if each.gpu_name}
    gpus = f", on {models.pop()}" if len(models) == 1 else ""
    group = f"; their group is over {report.backend}" if report.backend else ""
    return f"Who sits where{gpus}{group}"


def _by_rank(report: SeatsReport, names: Names) -> Table:
    from gpumagic.drawing import Column, Property, Table

    seats, wrong = report.seats, _wrong(report)

    def column(heading: str, name: str) -> Property:
        number = name in {"local_rank", "pid"}
        text = lambda each: _text(getattr(each, name))  # noqa: E731
        return Property(Column(heading, number=number), text)

    properties = [column(names.noun.capitalize(), "name")]
    # Engines, as `--on` names them, may have other numbers than their ranks.
    if any(each.engine not in {None, each.name} for each in seats):
        properties.append(column("Engine", "engine"))
    if len({each.host for each in seats}) > 1:
        properties.append(column("Host", "host"))
    if any(each.local_rank is not None for each in seats):
        properties.append(column("Local rank", "local_rank"))
    if any(each.gpu for each in seats):
        properties.append(Property(Column("GPU"), gpu_text))
        if len({each.gpu_name for each in seats if each.gpu_name}) > 1:
            properties.append(column("Model", "gpu_name"))
        badge = Property(Column("Is"), lambda each: _badge([each], wrong))
        properties.append(badge)
    else:
        properties.append(column("Process", "pid"))
    return Table.of(_caption(report), properties, seats)


def _text(value: object) -> str:
    return "none" if value is None else str(value)


def gpu_text(seat: Seat) -> str:
    """The number of its GPU, or else its UUID."""
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
    from gpumagic.drawing import Badge

    bad = [wrong[each.name] for each in seats if each.name in wrong]
    count = f"{len(bad)} " if len(seats) > 1 else ""
    if bad:
        kind, text, _, _ = _TOLD[bad[0]]
        return Badge(f"{count}{text}", "problem" if kind == "problem" else "warning")
    if any(each.gpu is None for each in seats):
        return Badge("without a GPU", "unknown")
    sure = all(each.confirmed for each in seats)
    return Badge("confirmed", "ok") if sure else Badge("predicted", "note")


def _by_host(report: SeatsReport) -> Table:
    from gpumagic.drawing import Column, Property, Table

    wrong, hosts = _wrong(report), defaultdict[str, list[Seat]](list)
    for each in report.seats:
        hosts[each.host].append(each)
    properties = (
        Property(Column("Host"), lambda row: row[0]),
        Property(
            Column(f"{Names(report.seats).noun.capitalize()}s"),
            lambda row: numbers_text(each.name for each in row[1]),
        ),
        Property(
            Column("GPUs", number=True),
            lambda row: str(len({each.gpu for each in row[1]} - {None})),
        ),
        Property(Column("Are"), lambda row: _badge(row[1], wrong)),
    )
    # What is wrong comes first, as long lists are cut.
    rows = sorted(
        hosts.items(), key=lambda row: not {e.name for e in row[1]} & {*wrong}
    )
    return Table.of(_caption(report), properties, rows, name="hosts")


def _machines(report: SeatsReport, names: Names) -> Table:
    from gpumagic.drawing import Column, Property, Table

    far = {None: UNKNOWN, True: "on another socket", False: "near"}
    properties = (
        Property(Column(names.noun.capitalize()), lambda each: str(each.name)),
        Property(Column("Engine"), lambda each: _text(each.engine)),
        Property(Column("Process"), lambda each: str(each.pid)),
        Property(Column("Driver"), lambda each: each.driver),
        Property(Column("torch"), lambda each: each.torch),
        Property(Column("GPU"), lambda each: each.gpu or "none"),
        Property(Column("Also on"), lambda each: ", ".join(each.also_on) or "no other"),
        Property(Column("Network card"), lambda each: far[each.network_far]),
    )
    return Table.of("Processes, versions and GPUs", properties, report.seats)


def seat_columns(seats: Sequence[Seat]) -> tuple[Property, ...]:
    """Where a rank sits, for a table of what else it did."""
    from gpumagic.drawing import Column, Property

    by_name = {each.name: each for each in seats}

    def told(heading: str, text: Any) -> Property:
        def cell(row: Any) -> Any:
            seat = by_name.get(row.shares[0].name)
            return None if seat is None else text(seat)

        return Property(Column(heading), cell)

    return told("Host", lambda each: each.host), told("GPU", gpu_text)
