"""Why memory ran out, and whether a request fits: causes, the verdict, what to type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from gpumagic.gpu_mem import records
from gpumagic.gpu_mem.answer_leaks import FREE, LeakReport, leaks_table
from gpumagic.gpu_mem.answer_map import held_back_table
from gpumagic.gpu_mem.answer_now import (
    bars,
    devices,
    figures,
    names_table,
    screen,
    words,
)
from gpumagic.gpu_mem.records import Cause, HolderKind, LeakKind
from gpumagic.gpu_mem.segments import blocking_names, kept_in_pools_bytes
from gpumagic.report.record import Record, Report
from gpumagic.report.units import bytes_text, count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpumagic import drawing as kit

    Asked: TypeAlias = "WhyReport | FitReport"

_MOST_HOLDERS, _MOST_STEPS = 6, 3
_MUCH_OF_THE_DEVICE, _MUCH_OF_WHAT_LIVES = 0.1, 0.25
_USUAL_OUTSIDE_BYTES = 2 << 30  # a context, loaded kernels, some buffers
_SURELY = 0.99  # sizes in the error are rounded to hundredths of their unit
_WORTH_A_LINE_BYTES = 1 << 20
_UNDER_A_LIMIT = " under the limit of this process"
_NO_WORDS = (
    "of an error that the code catches no words are left: let it out once, without try "
    "and except"
)
_AFTER = (
    "Memory was looked at after the error: its frames still held their tensors.\n"
    "torch had already given back what nobody used."
)


class _Words(NamedTuple):
    """How a cause is told, with figures in braces."""

    why: str  # of an error
    fit: str  # of a request that nobody has made yet
    table: str = "names"  # what it is about


_CAUSES = {
    Cause.NEVER_FITS: _Words(
        "that is more than {may_take}",
        "{asked} is more than {may_take}, whatever is freed",
    ),
    Cause.TOO_MUCH_LIVE: _Words(
        "{alive}{limits}", "with what is alive now, {asked} more is too much{limits}"
    ),
    Cause.FRAGMENTED: _Words(
        "enough was free, but in pieces that are too small",
        "enough is free, but no piece of it is as large as {asked}",
        "blocks",
    ),
    Cause.OTHERS: _Words(
        "others on the device hold much of its memory",
        "other processes, or what lies outside torch, hold much",
    ),
    Cause.LEAKED: _Words(
        "freeing likely leaks would have been enough",
        "freeing likely leaks would be enough",
        "leaks",
    ),
}


# ----------------------------------------------------------------------- the verdict


@dataclass(frozen=True)
class Verdict(Record):
    """All that a request which found no place comes down to."""

    causes: tuple[Cause, ...] = ()  # the most telling first; none where nothing tells
    is_capped: bool = False  # whether a limit of this process is in the way as well
    pools_bytes: int = 0  # what graphs, and pools of the user's, keep for themselves

    def clauses(self) -> dict[str, str]:
        """The words about the limit of this process, and about pools of graphs."""
        limits = _UNDER_A_LIMIT if self.is_capped else ""
        if self.pools_bytes:
            limits += f", with {bytes_text(self.pools_bytes)} kept for graphs"
        may_take = "this process may take" if self.is_capped else "the device can give"
        return {"limits": limits, "may_take": may_take}


def verdict_of(
    oom: records.OomFacts | None,
    answer: records.Answer | None = None,
    memory: records.DeviceMemory | None = None,
    *,
    leaks_bytes: int = 0,
    pools_bytes: int = 0,
) -> Verdict:
    """Why a request has failed, or would fail now."""
    if oom is None and (answer is None or answer.place != "nowhere"):
        return Verdict()
    now = memory or records.DeviceMemory(records.Counters(0))
    room = _room_now(answer, now, pools_bytes)
    room = room if oom is None else _room_then(oom, room)
    causes = tuple(dict.fromkeys(room.causes(leaks_bytes)))
    return Verdict(
        causes, room.is_capped, room.pools if room.is_much(room.pools) else 0
    )


def verdict_now(
    oom: records.OomFacts | None,
    answer: records.Answer | None,
    memory: records.DeviceMemory | None,
    segments: tuple[records.Segment, ...],
    found: LeakReport,
) -> Verdict:
    """What it comes down to; graphs are no leaks here, as they may be needed."""
    device = -1 if memory is None else memory.counters.device
    leaks = [e for e in found.leaks if e.device == device]
    likely = sum(each.nbytes for each in leaks if each.kind is not LeakKind.GRAPH)
    return verdict_of(
        oom,
        answer,
        memory,
        leaks_bytes=min(likely, dict(found.total_bytes).get(device, 0)),
        pools_bytes=kept_in_pools_bytes(segments, device),
    )


class _Room(NamedTuple):
    """What there was for a request; None is unknown."""

    asked: int | None  # in one piece
    total: int | None
    live: int | None  # what tensors hold
    free: int | None  # what the driver has
    unused: int | None  # what the allocator has for any request
    pools: int  # what it has for graphs and pools of the user's alone
    others: int
    outside: int  # what this process has besides
    cap: int | None  # what this process may take, where it has a limit
    cap_left: int | None
    made: bool = False  # the request has been made, and so has failed

    def causes(self, leaks: int) -> Iterator[Cause]:
        """The sentences that are true, some perhaps twice."""
        asked, total, live = self.asked, self.total, self.live or 0
        if asked is None:
            return
        limits = (None if total is None else total - self.outside, self.cap)
        if asked > min((each for each in limits if each is not None), default=asked):
            yield Cause.NEVER_FITS
            return
        if leaks and asked <= leaks + (self.to_take or 0):
            yield Cause.LEAKED
        decisive = self._decisive(asked)
        if decisive:
            yield decisive
        if total is None:
            return
        short = live + asked > total - self.outside - self.others
        if self.room is not None:
            short = asked > self.room + self.pools
        if short and self.live is not None and (not decisive or self.is_much(live)):
            yield Cause.TOO_MUCH_LIVE
        if self.is_much(self.others + max(self.outside - _USUAL_OUTSIDE_BYTES, 0)):
            yield Cause.OTHERS

    def _decisive(self, asked: int) -> Cause | None:
        """Without what of all this it would have been enough."""
        room = self.room
        if room is None:
            return None
        if asked <= room:
            # What the driver had in one piece was hindered by something else.
            hindered = self.made and asked <= (self.to_take or 0) * _SURELY
            return None if hindered else Cause.FRAGMENTED
        if asked <= room + self.pools or self.is_capped:
            return Cause.TOO_MUCH_LIVE
        enough = self.is_much(self.others) and asked <= room + self.others
        return Cause.OTHERS if enough else None

    @property
    def room(self) -> int | None:
        """What torch has for any request, and can get."""
        take = self.to_take
        return None if take is None or self.unused is None else take + self.unused

    @property
    def to_take(self) -> int | None:
        """What the driver has for this process."""
        if self.free is None or self.cap_left is None:
            return self.free
        return max(min(self.free, self.cap_left), 0)

    @property
    def is_capped(self) -> bool:
        """Whether there would have been enough without the limit of this process."""
        asked, free, take = self.asked or 0, self.free or 0, self.to_take or 0
        unused = self.unused or 0
        return take < asked <= free or take + unused < asked <= free + unused

    def is_much(self, nbytes: int) -> bool:
        """Whether it is a good part of the device."""
        return self.total is not None and nbytes >= _MUCH_OF_THE_DEVICE * self.total


def _room_now(
    answer: records.Answer | None, memory: records.DeviceMemory, pools: int
) -> _Room:
    counters, free, asked = memory.counters, memory.free_bytes, None
    if answer is not None:
        asked, free = answer.rounded_bytes, answer.device_free_bytes or free
    unused = records.difference(counters.reserved_bytes, counters.active_bytes)
    others = records.difference(memory.used_bytes, memory.process_bytes)  # unlisted too
    return _Room(
        asked=asked,
        total=memory.total_bytes,
        live=counters.allocated_bytes,
        free=free,
        unused=None if unused is None else max(unused - pools, 0),
        pools=pools,
        others=max(others or 0, memory.others_bytes or 0),
        outside=memory.outside_bytes or 0,
        cap=memory.cap_bytes,
        cap_left=memory.cap_left_bytes,
    )


def _room_then(oom: records.OomFacts, now: _Room) -> _Room:
    """The figures of the error, and those of now where it has none."""
    told: dict[str, Any] = {
        "asked": oom.requested_bytes,
        "total": oom.total_bytes,
        # the error counts the free parts of these pools with it
        "live": records.difference(oom.allocated_bytes, oom.private_pools_bytes or 0),
        "free": oom.free_bytes,
        "unused": oom.reserved_unallocated_bytes,
        "pools": oom.private_pools_bytes or None,
        "others": oom.others_bytes,
        "made": True,
    }
    then = now._replace(**{k: v for k, v in told.items() if v is not None})
    cap = oom.allowed_bytes
    if cap is None or then.live is None or then.unused is None:
        return then
    left = cap - then.live - then.unused - then.pools
    return then._replace(cap=cap, cap_left=left)


# ------------------------------------------------------------------- what to type next


@dataclass(frozen=True)
class Held(Record):
    """What is alive and by whom, the largest first, and what lies in the way."""

    # what may be held without need, less what the failing run had needed
    leaks: tuple[records.Leak, ...] = ()
    own: tuple[records.Leak, ...] = ()  # what the frames of this error hold
    gone_bytes: int = 0  # what was alive then and went with the error
    live_bytes: int = 0
    names: tuple[records.Holder, ...] = ()
    held_back: tuple[records.HeldBack, ...] = ()
    expandable: bool | None = None  # whether new segments can grow; None is unknown

    @property
    def own_bytes(self) -> int:
        """What the frames of this error hold together."""
        return sum(each.nbytes for each in self.own)


def _of_the_run(report: Asked) -> tuple[list[str], list[str]]:
    """Of what the failing run had made: to need less of it, and that it comes back."""
    held, least = report.held, _WORTH_A_LINE_BYTES
    much = max(_MUCH_OF_WHAT_LIVES * held.own_bytes, least)
    less = [
        f"{each.where} holds {bytes_text(each.nbytes)}: {each.undo}"
        for each in held.own[:2]
        if each.nbytes >= much
    ]
    # It is needed again: alone it leads in a circle.
    again = (
        f"{FREE} gives back the {bytes_text(held.own_bytes)} that frames of this error "
        "still hold, but the cell will need them again"
    )
    return less, [again] if held.own_bytes >= least else []


def _let_go(report: Asked) -> Iterator[str]:
    """Of errors and results; what a variable holds is not let go of by a command."""
    undone = [e.undo for e in report.held.leaks if e.kind is not LeakKind.GRAPH]
    named = [undo for undo in undone if not undo.startswith(FREE)]
    by_command = [FREE] if len(named) < len(undone) or not undone else []
    for undo in (*named, *by_command):
        yield f"{undo}, then run the cell again"


def _join_pieces(report: Asked) -> Iterator[str]:
    held = report.held
    in_pieces = (report.oom and report.oom.reserved_unallocated_bytes) or 0
    if held.own_bytes > in_pieces:
        yield from _of_the_run(report)[0]
    if names := ", ".join(blocking_names(held.held_back)):
        yield f"del {names}: this joins the free pieces around it"
    if held.expandable is False:
        yield _EXPAND_SIMULATED if report.setting.label else _EXPAND
    yield from (_MAP, _BATCH)


def _ask_others(report: Asked) -> Iterator[str]:
    others = () if report.oom is None else report.oom.others
    for pid, nbytes in sorted(others, key=lambda each: -each[1]):
        yield f"process {pid} holds {bytes_text(nbytes)}: ask whose it is"
    yield "!nvidia-smi shows whose the others are"
    yield "%gpu_select free in a fresh kernel takes the freest GPU"


def _keep_less(report: Asked) -> Iterator[str]:
    """In the run itself, variables that hold most, and graphs, which may be needed."""
    held = report.held
    if report.verdict.pools_bytes:
        yield from _POOLS
    if held.own_bytes + held.gone_bytes > _MUCH_OF_WHAT_LIVES * held.live_bytes:
        # The failing run had made much of it: its batch comes before names.
        less, again = _of_the_run(report)
        yield from (*less, *_LESS_IN_THE_RUN, *again)
    much = max(_MUCH_OF_WHAT_LIVES * held.live_bytes, _WORTH_A_LINE_BYTES)
    most = ", ".join(
        f"{each.name} holds {bytes_text(each.reachable_bytes)}"
        for each in held.names
        if each.kind is HolderKind.VARIABLE and each.reachable_bytes >= much
    )
    if most:
        yield f"{most}: del what is not needed any more; %gpu_mem shows all"
    else:
        yield "%gpu_mem shows which names hold most: del what is not needed"
    for leak in held.leaks:
        if leak.kind is LeakKind.GRAPH and leak.nbytes >= _WORTH_A_LINE_BYTES:
            yield f"{leak.undo}, unless {leak.lost} is still to come"
    yield from _LESS_IN_THE_RUN


_BATCH = "ask for less at once: a smaller batch, a smaller dtype, or parts in a loop"
_LESS_IN_THE_RUN = (
    _BATCH,
    "use torch.no_grad() where no backward pass follows",
    "use torch.utils.checkpoint where one does",
)
_EXPAND = (
    "%env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in a fresh kernel, before "
    "torch is imported"
)
_EXPAND_SIMULATED = (
    'allocator="expandable_segments:True" besides what you have given '
    "gpumagic.simulate, after a restart"
)
_LIFT = "torch.{kind}.set_per_process_memory_fraction(1.0) lifts this process's limit"
_MAP = "%gpu_mem map shows what lies between the free pieces"
_POOLS = (
    "del the graphs that are not needed any more, then torch.{kind}.empty_cache()",
    'use torch.compile without mode="reduce-overhead", which records graphs',
)
_STEPS: dict[Cause, Callable[[Asked], Iterable[str]]] = {
    Cause.NEVER_FITS: lambda _: (_BATCH, "spread it over several GPUs"),
    Cause.FRAGMENTED: _join_pieces,
    Cause.OTHERS: _ask_others,
    Cause.LEAKED: _let_go,
    Cause.TOO_MUCH_LIVE: _keep_less,
}


def next_steps(report: Asked) -> tuple[str, ...]:
    """What to do, what gives back the most first."""
    causes = report.verdict.causes
    steps = [_LIFT] if report.verdict.is_capped else []
    for cause in causes:
        steps += _STEPS[cause](report)
    steps += [] if causes else [_MAP]
    if Cause.NEVER_FITS not in causes:
        less, again = _of_the_run(report)
        steps += [*less, *again]
    kind = report.setting.kind
    return tuple(dict.fromkeys(step.replace("{kind}", kind) for step in steps))


def _steps_parts(steps: Iterable[str]) -> Iterator[kit.Part]:
    from gpumagic import drawing as kit

    lines = [f"{number}. {step}" for number, step in enumerate(steps, 1)]
    if lines:
        first = ("What to do, the best first:", *lines[:_MOST_STEPS])
        yield kit.Paragraph("\n".join(first))
    if more := lines[_MOST_STEPS:]:
        text = kit.Paragraph("\n".join(more))
        yield kit.Details("More that can be done", (text,), "steps")


# ----------------------------------------------------------------------------- why


@dataclass(frozen=True)
class WhyReport(Report):
    """An out-of-memory error in words; `oom` is None where no words are known."""

    setting: records.Setting
    oom: records.OomFacts | None
    verdict: Verdict = Verdict()
    answer: records.Answer | None = None
    memory: records.DeviceMemory | None = None
    held: Held = Held()

    @property
    def next_steps(self) -> tuple[str, ...]:
        """What to type, the best first."""
        return () if self.oom is None else next_steps(self)

    def drawing(self) -> kit.Drawing:
        """The verdict, what to do, who has the memory, and what both rest on."""
        return screen(why_headline(self), _why_parts(self), self.setting)


def why_headline(report: WhyReport) -> str:
    """What was asked for, what was free, and what that comes down to."""
    oom = report.oom
    if oom is None:
        return "no out-of-memory error has ended a cell of this notebook"
    cell = "" if oom.cell is None else f"In [{oom.cell}]: "
    where = report.setting.on(oom.device)
    said = "memory ran out"
    if oom.requested_bytes is not None:
        said = f"{bytes_text(oom.requested_bytes)} did not fit"
    free = "" if oom.free_bytes is None else f" with {bytes_text(oom.free_bytes)} free"
    first = next(_why_sentences(report, oom), "why cannot be told")
    return f"{cell}{said} {where}{free}: {first}"


def _why_sentences(report: WhyReport, oom: records.OomFacts) -> Iterator[str]:
    """All that is true of it, the most telling first."""
    alive, gone = "too much else is alive", report.held.gone_bytes
    clauses = report.verdict.clauses()
    if gone > (oom.allocated_bytes or 0) / 2:
        alive = f"{bytes_text(gone)} of what was alive then is free again"
        clauses["limits"] = clauses["limits"].removeprefix(_UNDER_A_LIMIT)
    for cause in report.verdict.causes:
        yield _CAUSES[cause].why.format(alive=alive, **clauses)


def _why_parts(report: WhyReport) -> Iterator[kit.Part]:
    from gpumagic import drawing as kit

    oom = report.oom
    if oom is None:
        said = "before a large tensor is made, ask whether it fits"
        yield kit.Note("note", said, "%gpu_mem fit 2GiB", said)
        yield kit.Note("note", _NO_WORDS)
        return
    yield from _steps_parts(report.next_steps)
    if report.memory is not None:
        yield bars((report.memory,), report.setting)
    causes = report.verdict.causes
    wanted = _CAUSES[causes[0]].table if causes else "names"
    tables = sorted(_tables(report), key=lambda each: each[0] != wanted)
    for _, table in tables[:1]:
        yield table
    besides = tuple(_why_sentences(report, oom))[1:]
    parts: tuple[kit.Part, ...] = (kit.Grid("", tuple(_facts(report, oom))),)
    if besides:
        parts += (kit.Paragraph(f"Besides, {'; '.join(besides)}."),)
    yield kit.Details("Why it did not fit, in figures", parts, "figures")
    for name, table in tables[1:]:
        yield kit.Details(table.caption, (table,), name)
    yield kit.Details("What torch said", (kit.Paragraph(oom.text),), "torch")
    yield kit.how_measured(kit.Paragraph(_AFTER))


def _tables(report: WhyReport) -> Iterator[tuple[str, kit.Table]]:
    """What there is to show, each by its word."""
    held, setting, most = report.held, report.setting, _MOST_HOLDERS
    if held.names:
        yield "names", names_table(records.Holdings(held.names[:most]), room=most)
    if held.leaks:
        yield "leaks", leaks_table(held.leaks[:most], setting)
    if held.held_back:
        yield "blocks", held_back_table(held.held_back[:most], setting)


def _facts(
    report: WhyReport, oom: records.OomFacts
) -> Iterator[tuple[str, str | None]]:
    for name, line in (("line", oom.line), ("called from", oom.called_from)):
        if line is not None:
            yield name, line.where + (f": {line.source}" if line.source else "")
    yield "device", report.setting.device(oom.device)
    hole = None if report.answer is None else report.answer.hole_bytes
    for name, nbytes in (
        ("asked for", oom.requested_bytes),
        ("free on the device", oom.free_bytes),
        ("the device has", oom.total_bytes),
        ("used by other processes", oom.others_bytes if oom.others else None),
        ("used by this process", oom.process_bytes),
        ("allocated in tensors", oom.allocated_bytes),
        ("reserved, not allocated", oom.reserved_unallocated_bytes),
        ("largest hole now", hole),
    ):
        yield name, None if nbytes is None else bytes_text(nbytes)
    if report.held.expandable is not None:
        yield "expandable segments", "on" if report.held.expandable else "off"


# ----------------------------------------------------------------------------- fit


@dataclass(frozen=True)
class FitReport(Report):
    """Whether so many bytes would fit now, on each device in use."""

    oom: ClassVar[None] = None  # nobody has asked for it yet
    setting: records.Setting
    requested_bytes: int
    answers: tuple[records.Answer, ...]
    verdict: Verdict = Verdict()
    held: Held = Held()
    why_not: str | None = None
    hint: str | None = None

    @property
    def next_steps(self) -> tuple[str, ...]:
        """What to type where it does not fit, the best first."""
        if not any(each.place == "nowhere" for each in self.answers):
            return ()
        return next_steps(self)

    def drawing(self) -> kit.Drawing:
        """Yes or no, why not, and what to do."""
        return screen(fit_headline(self), _fit_parts(self), self.setting)


_PLACES: dict[str | None, tuple[str, kit.Tone, str]] = {
    "hole": ("yes", "ok", "fits on {name} now: torch has a hole of {hole}"),
    "driver": ("yes", "ok", "fits on {name} now: the driver has {free} free"),
    "after releasing": (
        "after releasing",
        "warning",
        "fits on {name} once torch has released {held} of unused segments",
    ),
    "nowhere": ("no", "problem", "does not fit on {name} now"),
    None: ("unknown", "unknown", "may fit on {name} or not: too little is known of it"),
}


def fit_headline(report: FitReport) -> str:
    """Yes, no, or after what; on which devices."""
    asked, answers = bytes_text(report.requested_bytes), report.answers
    if report.why_not is not None or not answers:
        return f"whether {asked} fits cannot be told"
    if len(answers) == 1:
        (only,) = answers
        said = _PLACES[only.place][2].format(
            name=report.setting.device(only.device),
            hole=bytes_text(only.hole_bytes),
            free=bytes_text(only.device_free_bytes),
            held=bytes_text(only.releasable_bytes),
        )
        return f"{asked} {said}"
    fitting = [each for each in answers if each.place not in ("nowhere", None)]
    unknown = sum(each.place is None for each in answers)
    count = count_text(len(answers), "device")
    some = f"{asked} fits on {len(fitting) or 'none'} of {count} now"
    return f"{some}, and may fit on {unknown} more" if unknown else some


def _fit_parts(report: FitReport) -> Iterator[kit.Part]:
    from gpumagic import drawing as kit

    if report.why_not is not None:
        yield kit.Note("note", report.why_not, report.hint or "")
        return
    asked = {"asked": bytes_text(report.requested_bytes), **report.verdict.clauses()}
    said = [_CAUSES[cause].fit.format(**asked) for cause in report.verdict.causes]
    if said:
        lines = (f"{each[:1].upper()}{each[1:]}." for each in said)
        yield kit.Paragraph("\n".join(lines))
    yield from _steps_parts(report.next_steps)
    properties = (
        devices(report.setting),
        words("Fits", lambda each: kit.Badge(*_PLACES[each.place][:2])),
        figures("Would take", lambda each: each.rounded_bytes),
        figures("Largest hole", lambda each: each.hole_bytes),
        figures("Free on device", lambda each: each.device_free_bytes),
        figures("Could be released", lambda each: each.releasable_bytes),
        figures("Left of the limit", lambda each: each.cap_left_bytes),
    )
    table = kit.Table.of("Where it could go", properties, report.answers)
    if len(report.answers) > 1:
        yield table
    elif report.answers:
        yield kit.Details("The figures of the device", (table,), "figures")
