"""Who sits where: host, local rank and GPU of each rank, and what is wrong with it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from gpumagic.drawing import (
    Badge,
    Column,
    Details,
    Grid,
    Note,
    Paragraph,
    Property,
    Table,
    how_measured,
)
from gpumagic.drawing.document import MOST_ROWS
from gpumagic.gpu_ranks.records import DOCTOR, Misplaced
from gpumagic.gpu_ranks.view_where import (
    Names,
    is_one,
    numbers_text,
    unfinished_notes,
    unfinished_table,
    unfinished_text,
)
from gpumagic.report.units import UNKNOWN, count_text, listed, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Cell, NoteKind, Part
    from gpumagic.gpu_ranks.records import Seat, SeatFinding, Unfinished
    from gpumagic.gpu_ranks.report import SeatsReport

_MOST_SEATS, _FIRST = 64, 16  # of more than so many, the first
_CONFIRMED = (
    "Once CUDA has started in a process, the driver says which GPU it uses. "
    "Before, it is predicted from the variables."
)
_LOCAL = "A local rank is the place of a process on its host; launchers give it."
_NOTHING_STARTED = "Nothing was started to find out."
_SELECT = "`%gpu_ranks select` gives each a GPU of its own"
_RESTART = f"restart the engines, then {_SELECT}"

# How much it matters, why, and what to type; in the order of the findings.
_TOLD: dict[Misplaced, tuple[NoteKind, str, str]] = {
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
    Misplaced.DRIVERS: (
        "warning",
        "NCCL and CUDA then follow different rules on each host",
        "install one driver on all hosts",
    ),
    Misplaced.TORCHES: (
        "problem",
        "messages and operators may differ between versions",
        "`%px %pip install torch==VERSION`, then restart the engines",
    ),
    Misplaced.FAR_NETWORK: (
        "warning",
        "what they send crosses from one socket to the other",
        "`nvidia-smi topo -m` on the host shows which card is near",
    ),
}
_BADGES = {
    Misplaced.SHARED_GPU: "shared",
    Misplaced.ON_GPU_0: "on another GPU too",
    Misplaced.FAR_NETWORK: "far from network",
}


# ---------------------------------------------------------------------- the answer


def headline(report: SeatsReport) -> str:
    """What is wrong first; else where all sit, and how certain that is."""
    names = Names(report.seats)
    if report.unfinished:
        return _unanswered(report, names)
    if report.group_died:
        died = shortened(report.group_died, 60)
        return f"{_all(report, names)}: their group cannot be used any more: {died}"
    if report.findings:
        return finding_text(report.findings[0], report.seats, names)
    return _whole(report, names)


def _unanswered(report: SeatsReport, names: Names) -> str:
    refused = [each for each in report.unfinished if each.why == "refused"]
    if refused:
        return f"nothing was changed: {unfinished_text(refused, names)}"
    here = {each.name for each in report.seats}
    there = len(here | {each.name for each in report.unfinished})
    answer = "answers" if len(here) == 1 else "answer"
    said = f"{len(here):,} of {count_text(there, names.noun)} {answer}"
    return f"{said}; {unfinished_text(report.unfinished, names)}"


def _all(report: SeatsReport, names: Names) -> str:
    hosts = sorted({each.host for each in report.seats})
    here = count_text(len(report.seats), names.noun)
    on = hosts[0] if len(hosts) == 1 else count_text(len(hosts), "host")
    return f"{here} on {on}" if hosts else here


def _whole(report: SeatsReport, names: Names) -> str:
    seats = report.seats
    said = _all(report, names)
    if not seats:
        return f"{said} here"
    if not any(each.gpu for each in seats):
        return f"{said}, without a GPU"
    as_numbered = all(each.local_rank == each.gpu_number for each in seats)
    if report.already:
        by = report.given_by or "its launcher"
        return f"{said}: {by} has given each a GPU of its own; nothing was changed"
    if len(seats) == 1:
        text = f"{said}, on GPU {seats[0].gpu_number}"
    elif report.chosen and as_numbered:
        text = f"{said}: local rank k takes GPU k"
    elif any(each.simulated for each in seats):
        return f"{said}, each on a simulated GPU of its own"
    else:
        text = f"{said}, each on a GPU of its own"
    return f"{text} ({_certainty(seats)})"


def _certainty(seats: Sequence[Seat]) -> str:
    confirmed = sum(each.confirmed for each in seats)
    if confirmed == len(seats):
        return "confirmed by the driver"
    where = f"on {confirmed:,} of {len(seats):,}" if confirmed else "nowhere"
    return f"predicted: CUDA has started {where}"


def finding_text(finding: SeatFinding, seats: Sequence[Seat], names: Names) -> str:
    """What is wrong, in a sentence."""
    who, one = names.several(finding.ranks), is_one(finding.ranks)
    what = shortened(finding.what, 80)
    match finding.kind:
        case Misplaced.SHARED_GPU:
            return f"{who} share one GPU{_gpu_at(finding, seats)}"
        case Misplaced.ON_GPU_0:
            hold = "holds" if one else "hold"
            return f"{who} {hold} memory on {_owned(finding, seats, names)}"
        case Misplaced.NO_GPU:
            return f"{who} {'has' if one else 'have'} no GPU"
        case Misplaced.DRIVERS:
            return f"drivers differ: {what}"
        case Misplaced.TORCHES:
            return f"versions of torch differ: {what}"
        case _:
            return f"{who} {'sits' if one else 'sit'} far from any network card"


def _gpu_at(finding: SeatFinding, seats: Sequence[Seat]) -> str:
    """Which GPU that is, as far as it has a number, and on which host."""
    found = [each for each in seats if each.gpu == finding.what]
    if not found:
        return ""
    number = found[0].gpu_number
    gpu = "" if number is None else f" (GPU {number})"
    return f" on {found[0].host}{gpu}"


def _owned(finding: SeatFinding, seats: Sequence[Seat], names: Names) -> str:
    owner = next((each for each in seats if each.gpu == finding.what), None)
    if owner is None:
        return "a GPU that is another's"
    number = "its GPU" if owner.gpu_number is None else f"GPU {owner.gpu_number}"
    return f"{number} of {owner.host}, which is that of {names.one(owner.name)}"


# ------------------------------------------------------------------------ the parts


def parts(report: SeatsReport) -> Iterator[Part]:
    """Ranks, or of many their hosts, then what to type."""
    names = Names(report.seats)
    if report.seats:
        yield _table(report, names)
    yield from _notes(report, names)
    if len(report.seats) > MOST_ROWS:
        table = replace(_by_rank(report, names), caption="")
        yield Details(f"Every {names.noun}", (_beginning(table),), "seats")
    if report.seats:
        table = _beginning(_machines(report))
        yield Details("Processes, drivers and versions", (table,), "machine")
        yield Details("GPUs by UUID", (_beginning(_uuids(report, names)),), "uuids")
    yield from unfinished_table(report.unfinished)
    yield _how(report)


def _beginning(table: Table) -> Table:
    """Of very many ranks the first ones; `to_dict()` has all."""
    return table.beginning(_FIRST) if len(table.rows) > _MOST_SEATS else table


def _table(report: SeatsReport, names: Names) -> Table:
    if len(report.seats) <= MOST_ROWS:
        return _by_rank(report, names)
    return _by_host(report)


def _caption(report: SeatsReport) -> str:
    one = _models(report)[0] if len(_models(report)) == 1 else ""
    gpus = f", on {one}" if one else ""
    group = f"; their group is over {report.backend}" if report.backend else ""
    return f"Who sits where{gpus}{group}"


def _models(report: SeatsReport) -> list[str]:
    """What the GPUs are called; a model that all have is told once."""
    return sorted({each.gpu_name for each in report.seats if each.gpu_name})


def _by_rank(report: SeatsReport, names: Names) -> Table:
    wrong = _wrong(report)
    several = len({each.host for each in report.seats}) > 1
    properties = [
        Property(Column(names.noun.capitalize()), lambda each: str(each.name))
    ]
    if _is_renumbered(report.seats):
        properties.append(Property(Column("Engine"), lambda each: _number(each.engine)))
    if several:
        properties.append(Property(Column("Host"), lambda each: each.host))
    if any(each.local_rank is not None for each in report.seats):
        local = Column("Local rank", number=True)
        properties.append(Property(local, lambda each: _number(each.local_rank)))
    if not any(each.gpu for each in report.seats):
        process = Property(Column("Process", number=True), lambda each: str(each.pid))
        return Table.of(_caption(report), (*properties, process), report.seats)
    properties.append(Property(Column("GPU"), _gpu))
    if len(_models(report)) > 1:
        properties.append(Property(Column("Model"), lambda each: each.gpu_name))
    properties.append(Property(Column("Is"), lambda each: _badge(each, wrong)))
    return Table.of(_caption(report), properties, report.seats)


def _is_renumbered(seats: Sequence[Seat]) -> bool:
    """Whether engines, as `--on` names them, have other numbers than their ranks."""
    return any(each.engine not in {None, each.name} for each in seats)


def seats_table(seats: Sequence[Seat]) -> Table:
    """Where ranks sit, for a report on something else."""
    properties = (
        Property(Column("Rank"), lambda each: str(each.name)),
        Property(Column("Host"), lambda each: each.host),
        Property(Column("GPU"), _gpu),
        Property(Column("Model"), lambda each: each.gpu_name),
    )
    return Table.of("", properties, seats)


def _gpu(seat: Seat) -> Cell:
    if seat.gpu is None:
        return "none"
    return shortened(seat.gpu, 12) if seat.gpu_number is None else str(seat.gpu_number)


def _wrong(report: SeatsReport) -> dict[int, str]:
    """What is wrong with each, the gravest."""
    return {
        name: _BADGES[finding.kind]
        for finding in reversed(report.findings)
        if finding.kind in _BADGES
        for name in finding.ranks
    }


def _badge(seat: Seat, wrong: dict[int, str]) -> Cell:
    if seat.name in wrong:
        shared = wrong[seat.name] == _BADGES[Misplaced.SHARED_GPU]
        return Badge(wrong[seat.name], "problem" if shared else "warning")
    if seat.gpu is None:
        return Badge("without a GPU", "unknown")
    return Badge("confirmed", "ok") if seat.confirmed else Badge("predicted", "note")


def _by_host(report: SeatsReport) -> Table:
    wrong = _wrong(report)
    names = Names(report.seats)
    hosts: dict[str, list[Seat]] = {}
    for each in report.seats:
        hosts.setdefault(each.host, []).append(each)

    def seated(row: tuple[str, list[Seat]]) -> Cell:
        return numbers_text([each.name for each in row[1]])

    def numbered(row: tuple[str, list[Seat]]) -> Cell:
        return numbers_text([each.engine for each in row[1] if each.engine is not None])

    def gpus(row: tuple[str, list[Seat]]) -> Cell:
        return str(len({each.gpu for each in row[1]} - {None}))

    def models(row: tuple[str, list[Seat]]) -> Cell:
        known = Counter(each.gpu_name for each in row[1] if each.gpu_name)
        return listed([*known], most=2) if known else None

    def state(row: tuple[str, list[Seat]]) -> Cell:
        bad = [wrong[each.name] for each in row[1] if each.name in wrong]
        if bad:
            shared = bad[0] == _BADGES[Misplaced.SHARED_GPU]
            text = f"{len(bad)} {bad[0]}"
            return Badge(text, "problem" if shared else "warning")
        if any(each.gpu is None for each in row[1]):
            without = sum(each.gpu is None for each in row[1])
            return Badge(f"{without} without a GPU", "unknown")
        sure = all(each.confirmed for each in row[1])
        return Badge("confirmed", "ok") if sure else Badge("predicted", "note")

    # What is wrong comes first, as long lists are cut.
    rows = sorted(
        hosts.items(), key=lambda row: not any(each.name in wrong for each in row[1])
    )
    model = Property(Column("Model"), models)
    engines = Property(Column("Engines"), numbered)
    properties = (
        Property(Column("Host"), lambda row: row[0]),
        Property(Column(f"{names.noun.capitalize()}s"), seated),
        *((engines,) if _is_renumbered(report.seats) else ()),
        Property(Column("GPUs", number=True), gpus),
        *((model,) if len(_models(report)) > 1 else ()),
        Property(Column("Are"), state),
    )
    return Table.of(_caption(report), properties, rows, name="hosts")


def _notes(report: SeatsReport, names: Names) -> Iterator[Note]:
    if report.unfinished:
        yield from _unfinished_notes(report.unfinished, names)
    if report.group_died:
        hint = "`%gpu_ranks group` begins it anew"
        yield Note("problem", "whoever uses it waits or gets an error", hint)
    in_title = not report.unfinished and not report.group_died
    for at, each in enumerate(report.findings):
        kind, why, hint = _TOLD[each.kind]
        first = in_title and at == 0
        text = why if first else finding_text(each, report.seats, names)
        if each.kind is Misplaced.SHARED_GPU and any(
            seat.confirmed for seat in report.seats if seat.name in each.ranks
        ):
            hint = _RESTART
        yield Note(kind, text, hint)
    if _can_begin(report, names):
        yield Note("note", "there is no group yet", "`%gpu_ranks group` begins one")


def _unfinished_notes(unfinished: Sequence[Unfinished], names: Names) -> Iterator[Note]:
    yield from unfinished_notes(unfinished, names)
    if any(each.why == "refused" for each in unfinished):
        text = "CUDA reads its variables once, when it starts"
        yield Note("problem", text, _RESTART)


def _can_begin(report: SeatsReport, names: Names) -> bool:
    healthy = not (report.findings or report.unfinished or report.group_died)
    return healthy and names.noun == "engine" and len(report.seats) > 1


# --------------------------------------------------------------------------- folded


def _machines(report: SeatsReport) -> Table:
    properties = (
        Property(Column("Host"), lambda each: each.host),
        Property(Column("Engine"), lambda each: _number(each.engine)),
        Property(Column("Process", number=True), lambda each: str(each.pid)),
        Property(Column("Driver"), lambda each: each.driver),
        Property(Column("torch"), lambda each: each.torch),
        Property(Column("Network card"), _network),
    )
    rank = Property(Column("Rank"), lambda each: _number(each.rank))
    return Table.of("", (rank, *properties), report.seats)


def _number(number: int | None) -> Cell:
    return "none" if number is None else str(number)


def _network(seat: Seat) -> Cell:
    if seat.network_far is None:
        return UNKNOWN
    return "on another socket" if seat.network_far else "near"


def _uuids(report: SeatsReport, names: Names) -> Table:
    properties = (
        Property(Column(names.noun.capitalize()), lambda each: str(each.name)),
        Property(Column("GPU"), lambda each: each.gpu or "none"),
        Property(
            Column("Holds memory also on"),
            lambda each: ", ".join(each.also_on) or "no other",
        ),
    )
    return Table.of("", properties, report.seats)


def _how(report: SeatsReport) -> Details:
    facts = [
        ("group", f"over {report.backend}" if report.backend else "none that is known"),
        ("certain", _certainty(report.seats) if report.seats else UNKNOWN),
    ]
    said = f"{_CONFIRMED} {_LOCAL} {_NOTHING_STARTED}"
    return how_measured(Grid("", tuple(facts)), Paragraph(said))
