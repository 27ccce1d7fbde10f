"""Why memory ran out, and whether a request fits: causes, the verdict, what to type."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

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
from gpumagic.report.units import bytes_text, count_text, known_sum

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
_UNKNOWN = records.DeviceMemory(records.Counters(-1))
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
        limits, may_take = "", "the device can give"
        if self.is_capped:
            limits, may_take = _UNDER_A_LIMIT, "this process may take"
        if self.pools_bytes:
            limits += f", with {bytes_text(self.pools_bytes)} kept for graphs"
        return {"limits": limits, "may_take": may_take}


def verdict_of(
    oom: records.OomFacts,
    answer: records.Answer = records.NO_ANSWER,
    memory: records.DeviceMemory = _UNKNOWN,
    *,
    leaks_bytes: int = 0,
    pools_bytes: int = 0,
) -> Verdict:
    """Why a request has failed, or would fail now."""
    if not oom.text and answer.place != "nowhere":
        return Verdict()
    room = _room_then(oom, _room_now(answer, memory, pools_bytes))
    causes = tuple(dict.fromkeys(room.causes(leaks_bytes)))
    pools = room.pools if room.is_much(room.pools) else 0
    return Verdict(causes, room.is_capped, pools)


def verdict_now(
    oom: records.OomFacts,
    answer: records.Answer,
    memory: records.DeviceMemory,
    segments: tuple[records.Segment, ...],
    found: LeakReport,
) -> Verdict:
    """What it comes down to; graphs are no leaks here, as they may be needed."""
    device = memory.counters.device
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
    """What there was for a request."""

    asked: int  # in one piece; 0 is unknown
    total: float  # infinite is unknown
    live: int  # what tensors hold; 0 is unknown
    free: int | None  # what the driver has; None is unknown
    unused: int | None  # what the allocator has for any request
    pools: int  # what it has for graphs and pools of the user's alone
    others: int
    outside: int  # what this process has besides
    cap: float  # what this process may take; infinite without a limit
    cap_left: float
    made: bool = False  # the request has been made, and so has failed

    def causes(self, leaks: int) -> Iterator[Cause]:
        """The sentences that are true, some perhaps twice."""
        asked = self.asked
        if not asked:
            return
        if asked > min(self.total - self.outside, self.cap):
            yield Cause.NEVER_FITS
            return
        if leaks and asked <= leaks + (self.to_take or 0):
            yield Cause.LEAKED
        decisive = self._decisive(asked)
        if decisive:
            yield decisive
        short = self.live + asked > self.total - self.outside - self.others
        if self.room is not None:
            short = asked > self.room + self.pools
        if short and self.live and (not decisive or self.is_much(self.live)):
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
    def room(self) -> float | None:
        """What torch has for any request, and can get."""
        return known_sum([self.to_take, self.unused])

    @property
    def to_take(self) -> float | None:
        """What the driver has for this process."""
        return self.free and max(min(self.free, self.cap_left), 0)

    @property
    def is_capped(self) -> bool:
        """Whether there would have been enough without the limit of this process."""
        asked, free, take = self.asked, self.free or 0, self.to_take or 0
        unused = self.unused or 0
        return take < asked <= free or take + unused < asked <= free + unused

    def is_much(self, nbytes: int) -> bool:
        """Whether it is a good part of the device."""
        return nbytes >= _MUCH_OF_THE_DEVICE * self.total


def _room_now(
    answer: records.Answer, memory: records.DeviceMemory, pools: int
) -> _Room:
    counters, cap, left = memory.counters, memory.cap_bytes, memory.cap_left_bytes
    unused = records.difference(counters.reserved_bytes, counters.active_bytes)
    others = records.difference(memory.used_bytes, memory.process_bytes)  # unlisted too
    return _Room(
        asked=answer.rounded_bytes,
        total=memory.total_bytes or math.inf,
        live=counters.allocated_bytes or 0,
        free=answer.device_free_bytes or memory.free_bytes,
        unused=records.excess(unused, pools),
        pools=pools,
        others=max(others or 0, memory.others_bytes or 0),
        outside=memory.outside_bytes or 0,
        cap=math.inf if cap is None else cap,
        cap_left=math.inf if left is None else left,
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
        "made": bool(oom.text),
    }
    then = now._replace(**{k: v for k, v in told.items() if v is not None})
    cap = oom.allowed_bytes
    if cap is None or oom.allocated_bytes is None or then.unused is None:
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
    rigid: bool = False  # whether no segment can grow

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
    if held.own_bytes > (report.oom.reserved_unallocated_bytes or 0):
        yield from _of_the_run(report)[0]
    if names := ", ".join(blocking_names(held.held_back)):
        yield f"del {names}: this joins the free pieces around it"
    if held.rigid:
        yield _EXPAND_SIMULATED if report.setting.label else _EXPAND
    yield from (_MAP, _BATCH)


def _ask_others(report: Asked) -> Iterator[str]:
    for pid, nbytes in sorted(report.oom.others, key=lambda each: -each[1]):
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
    """An out-of-memory error in words; `oom` is empty where no words are known."""

    setting: records.Setting
    oom: records.OomFacts = records.NO_OOM
    verdict: Verdict = Verdict()
    answer: records.Answer = records.NO_ANSWER
    memory: records.DeviceMemory = _UNKNOWN
    held: Held = Held()

    @property
    def next_steps(self) -> tuple[str, ...]:
        """What to type, the best first."""
        return next_steps(self)

    def drawing(self) -> kit.Drawing:
        """The verdict, what to do, who has the memory, and what both rest on."""
        return screen(why_headline(self), _why_parts(self), self.setting)


def why_headline(report: WhyReport) -> str:
    """What was asked for, what was free, and what that comes down to."""
    oom = report.oom
    if not oom.text:
        return "no out-of-memory error has ended a cell of this notebook"
    said = f"memory ran out {report.setting.on(oom.device)}"
    if oom.requested_bytes:
        asked = bytes_text(oom.requested_bytes)
        said = f"{asked} did not fit {report.setting.on(oom.device)}"
    if oom.free_bytes is not None:
        said += f" with {bytes_text(oom.free_bytes)} free"
    if oom.cell is not None:
        said = f"In [{oom.cell}]: {said}"
    return f"{said}: {next(_why_sentences(report), 'why cannot be told')}"


def _why_sentences(report: WhyReport) -> Iterator[str]:
    """All that is true of it, the most telling first."""
    alive, gone = "too much else is alive", report.held.gone_bytes
    clauses = report.verdict.clauses()
    if gone > (report.oom.allocated_bytes or 0) / 2:
        alive = f"{bytes_text(gone)} of what was alive then is free again"
        clauses["limits"] = clauses["limits"].removeprefix(_UNDER_A_LIMIT)
    for cause in report.verdict.causes:
        yield _CAUSES[cause].why.format(alive=alive, **clauses)


def _why_parts(report: WhyReport) -> Iterator[kit.Part]:
    from gpumagic import drawing as kit

    if not report.oom.text:
        said = "before a large tensor is made, ask whether it fits"
        yield kit.Note("note", said, "%gpu_mem fit 2GiB", said)
        yield kit.Note("note", _NO_WORDS)
        return
    yield from _steps_parts(report.next_steps)
    if report.memory.total_bytes:
        yield bars((report.memory,), report.setting)
    about = [_CAUSES[cause].table for cause in report.verdict.causes]
    wanted = next(iter(about), "names")
    tables = sorted(_tables(report), key=lambda each: each[0] != wanted)
    for _, table in tables[:1]:
        yield table
    besides = tuple(_why_sentences(report))[1:]
    parts: tuple[kit.Part, ...] = (kit.Grid("", tuple(_facts(report))),)
    if besides:
        parts += (kit.Paragraph(f"Besides, {'; '.join(besides)}."),)
    yield kit.Details("Why it did not fit, in figures", parts, "figures")
    for name, table in tables[1:]:
        yield kit.Details(table.caption, (table,), name)
    yield kit.Details("What torch said", (kit.Paragraph(report.oom.text),), "torch")
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


def _facts(report: WhyReport) -> Iterator[tuple[str, str]]:
    oom = report.oom
    for name, line in (("line", oom.line), ("called from", oom.called_from)):
        if line:
            yield name, ": ".join(filter(None, (line.where, line.source)))
    yield "device", report.setting.device(oom.device)
    for name, nbytes in (
        ("asked for", oom.requested_bytes),
        ("free on the device", oom.free_bytes),
        ("the device has", oom.total_bytes),
        ("used by other processes", oom.others_bytes if oom.others else None),
        ("used by this process", oom.process_bytes),
        ("allocated in tensors", oom.allocated_bytes),
        ("reserved, not allocated", oom.reserved_unallocated_bytes),
        ("largest hole now", report.answer.hole_bytes),
    ):
        yield name, bytes_text(nbytes)
    if report.held.rigid:
        yield "expandable segments", "off"


# ----------------------------------------------------------------------------- fit


@dataclass(frozen=True)
class FitReport(Report):
    """Whether so many bytes would fit now, on each device in use."""

    setting: records.Setting
    requested_bytes: int
    answers: tuple[records.Answer, ...] = ()
    verdict: Verdict = Verdict()
    held: Held = Held()
    why_not: str = ""
    hint: str = ""
    oom: records.OomFacts = records.NO_OOM  # nobody has asked for it yet

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
    if not answers:
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

    if report.why_not:
        yield kit.Note("note", report.why_not, report.hint)
        return
    asked = {"asked": bytes_text(report.requested_bytes), **report.verdict.clauses()}
    said = [_CAUSES[cause].fit.format(**asked) for cause in report.verdict.causes]
    if said:
        lines = (f"{each[:1].upper()}{each[1:]}." for each in said)
        yield kit.Paragraph("\n".join(lines))
    yield from _steps_parts(report.next_steps)
    properties = [
        devices(report.setting),
        words("Fits", lambda each: kit.Badge(*_PLACES[each.place][:2])),
        figures("Would take", lambda each: each.rounded_bytes),
        figures("Largest hole", lambda each: each.hole_bytes),
        figures("Free on device", lambda each: each.device_free_bytes),
        figures("Could be released", lambda each: each.releasable_bytes),
    ]
    if any(each.cap_left_bytes is not None for each in report.answers):
        left = figures("Left of the limit", lambda each: each.cap_left_bytes)
        properties.append(left)
    table = kit.Table.of("Where it could go", properties, report.answers)
    if len(report.answers) > 1:
        yield table
    elif report.answers:
        yield kit.Details("The figures of the device", (table,), "figures")
