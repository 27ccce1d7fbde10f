"""Why memory ran out, and whether a request fits: causes, the verdict, what to type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.gpu_mem import view_terms as terms
from gpumagic.gpu_mem.answer_leaks import FREE, leaks_table
from gpumagic.gpu_mem.answer_map import held_back_table
from gpumagic.gpu_mem.answer_now import bars, names_table
from gpumagic.gpu_mem.fragmentation import blocking_names
from gpumagic.gpu_mem.records import Cause, Holdings, LeakKind
from gpumagic.report.record import Report
from gpumagic.report.units import bytes_text, count_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic import drawing as kit
    from gpumagic.gpu_mem import records

_MOST_HOLDERS, _MOST_STEPS = 6, 3
_MUCH_OF_THE_DEVICE = 0.1
_MUCH_OF_WHAT_LIVES = 0.25
_USUAL_OUTSIDE_BYTES = 2 << 30  # a context, loaded kernels, some buffers
_SURELY = 0.99  # sizes in the error are rounded to hundredths of their unit
_WORTH_A_LINE_BYTES = 1 << 20
_BATCH = "ask for less at once: a smaller batch, a smaller dtype, or parts in a loop"
_LESS_IN_THE_RUN = (
    _BATCH,
    "use torch.no_grad() where no backward pass follows",
    "use torch.utils.checkpoint where one does",
)
_MAP = "%gpu_mem map shows what lies between the free pieces"
_EXPANDABLE = (
    "%env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in a fresh kernel, before "
    "torch is imported"
)
_EXPANDABLE_IN_THE_MODEL = (
    'allocator="expandable_segments:True" besides what you have given '
    "gpumagic.simulate, after a restart"
)
_LIFT = "torch.{kind}.set_per_process_memory_fraction(1.0) lifts this process's limit"
_POOLS = (
    "del the graphs that are not needed any more, then torch.{kind}.empty_cache()",
    'use torch.compile without mode="reduce-overhead", which records graphs',
)
_TO_LEARN_MORE = (
    "let it out once, without try and except: its words say how much was asked for",
    "%gpu_mem fit 2GiB asks whether so much would fit now",
)
_UNKNOWN = "Neither the text of the error nor the memory now tells why."
_NO_WORDS = (
    "torch counts such errors, but only the error says how much was asked for.\n"
    "Most likely the code, or a library that it uses, has caught it."
)
_AFTER = (
    "Memory was looked at after the error: its frames still held their tensors.\n"
    "torch had already given back what nobody used."
)


class _Words(NamedTuple):
    """How a cause is told, with the figures of the error in braces."""

    short: str  # in the title
    asked: str  # of a request that nobody has made yet
    sentence: str
    table: str = "names"  # what it is about


_CAUSES = {
    Cause.NEVER_FITS: _Words(
        "that is more than {may_take}",
        "{asked} is more than {may_take}, whatever is freed",
        "{asked} is more than {may_take}: freeing memory does not help.",
    ),
    Cause.TOO_MUCH_LIVE: _Words(
        "{alive}{limits}",
        "with what is alive now, {asked} more is too much{limits}",
        "{live} was alive in tensors: {asked} does not fit beside it{limits}.",
    ),
    Cause.FRAGMENTED: _Words(
        "enough was free, but in pieces that are too small",
        "enough is free, but no piece of it is as large as {asked}",
        "{free} was free in what torch keeps, but in pieces that are too small{hole}.",
        "blocks",
    ),
    Cause.OTHERS: _Words(
        "others on the device hold much of its memory",
        "other processes, or what lies outside torch, hold much",
        "Other processes hold {others}{outside}: no tensor that is freed here helps.",
    ),
    Cause.LEAKED: _Words(
        "freeing likely leaks would have been enough",
        "freeing likely leaks would be enough",
        "{leaked} is held by likely leaks: freeing them is enough.",
        "leaks",
    ),
}


# ----------------------------------------------------------------------- the verdict


class Verdict(NamedTuple):
    """All that a request which found no place comes down to."""

    causes: tuple[Cause, ...] = ()  # the most telling first; none where nothing tells
    is_capped: bool = False  # whether a limit of this process is in the way as well
    pools_bytes: int = 0  # what graphs, and pools of the user's, keep for themselves


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
    room = _room_at(oom, answer, memory, pools_bytes)
    causes = tuple(dict.fromkeys(room.causes(leaks_bytes)))
    return Verdict(
        causes, room.is_capped, room.pools if room.is_much(room.pools) else 0
    )


class _Room(NamedTuple):
    """What there was for a request; None is unknown."""

    asked: int | None  # in one piece
    made: bool  # the request has been made, and so has failed
    total: int | None
    live: int | None  # what tensors hold
    free: int | None  # what the driver has
    unused: int | None  # what the allocator has for any request
    pools: int  # what it has for graphs and pools of the user's alone
    others: int
    outside: int  # what this process has besides
    cap: int | None  # what this process may take, where it has a limit
    cap_left: int | None

    def causes(self, leaks: int) -> Iterator[Cause]:
        """The sentences that are true, some perhaps twice."""
        asked, total, room = self.asked, self.total, self.room
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
        short = (self.live or 0) + asked > total - self.outside - self.others
        if room is not None:
            short = asked > room + self.pools
        tells = self.live is not None and (not decisive or self.is_much(self.live))
        if short and tells:
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


def _room_at(
    oom: records.OomFacts | None,
    answer: records.Answer | None,
    memory: records.DeviceMemory | None,
    pools: int,
) -> _Room:
    """The figures of the error, and those of now where it has none."""
    counters = getattr(memory, "counters", None)
    reserved = getattr(counters, "reserved_bytes", None)
    active = getattr(counters, "active_bytes", None)
    cap = getattr(memory, "cap_bytes", None)
    unused = None
    if reserved is not None and active is not None:
        unused = max(reserved - active - pools, 0)
    free = getattr(answer, "device_free_bytes", None)
    now = _Room(
        asked=getattr(answer, "rounded_bytes", None),
        made=oom is not None,
        total=getattr(memory, "total_bytes", None),
        live=getattr(counters, "allocated_bytes", None),
        free=getattr(memory, "free_bytes", None) if free is None else free,
        unused=unused,
        pools=pools,
        others=getattr(memory, "not_ours_bytes", None) or 0,
        outside=getattr(memory, "outside_bytes", None) or 0,
        cap=cap,
        cap_left=None if cap is None or reserved is None else max(cap - reserved, 0),
    )
    if oom is None:
        return now
    live = oom.allocated_bytes
    if live is not None:  # the error counts the free parts of these pools with it
        live -= oom.private_pools_bytes or 0
    told: dict[str, Any] = {
        "asked": oom.requested_bytes,
        "total": oom.total_bytes,
        "live": live,
        "free": oom.free_bytes,
        "unused": oom.reserved_unallocated_bytes,
        "pools": oom.private_pools_bytes or None,
        "others": oom.others_bytes,
    }
    then = now._replace(**{k: v for k, v in told.items() if v is not None})
    cap = oom.allowed_bytes
    if cap is None or then.live is None or then.unused is None:
        return then
    left = cap - then.live - then.unused - then.pools
    return then._replace(cap=cap, cap_left=left)


# ------------------------------------------------------------------- what to type next


class Held(NamedTuple):
    """What is held, and by whom: of leaks and names the largest first."""

    leaks: tuple[records.Leak, ...] = ()
    own_bytes: int = 0  # what the frames of the error hold that is asked about
    gone_bytes: int = 0  # what was alive then and went with the error
    live_bytes: int | None = None
    own: tuple[records.Leak, ...] = ()
    names: tuple[tuple[str, int], ...] = ()


class _Ways(NamedTuple):
    """What can be typed about what is held."""

    need_less: list[str]  # of what the failing run had made, by its names
    let_go: list[str]  # of errors and results
    delete: str  # variables that hold most
    cut: list[str]  # graphs, which may be needed: only the user knows
    again: list[str]  # it comes back, and is needed again: alone it leads in a circle


def _ways(held: Held) -> _Ways:
    own = max(_MUCH_OF_WHAT_LIVES * held.own_bytes, _WORTH_A_LINE_BYTES)
    live = max(_MUCH_OF_WHAT_LIVES * (held.live_bytes or 0), _WORTH_A_LINE_BYTES)
    most = [f"{n} holds {bytes_text(b)}" for n, b in held.names[:2] if b >= live]
    graphs = [leak for leak in held.leaks if leak.kind is LeakKind.GRAPH]
    undone = [leak.undo for leak in held.leaks if leak.kind is not LeakKind.GRAPH]
    named = [undo for undo in undone if not undo.startswith(FREE)]
    by_command = [FREE] if len(named) < len(undone) or not undone else []
    said = (
        f"{FREE} gives back the {bytes_text(held.own_bytes)} that frames of this error "
        "still hold, but the cell will need them again"
    )
    return _Ways(
        need_less=[
            f"{each.where} holds {bytes_text(each.nbytes)}: {each.undo}"
            for each in held.own[:2]
            if each.nbytes >= own
        ],
        let_go=[f"{undo}, then run the cell again" for undo in (*named, *by_command)],
        delete=(
            f"{', '.join(most)}: del what is not needed any more; %gpu_mem shows all"
            if most
            else "%gpu_mem shows which names hold most: del what is not needed"
        ),
        cut=[
            f"{leak.undo}, unless {leak.lost} is still to come"
            for leak in graphs
            if leak.nbytes >= _WORTH_A_LINE_BYTES
        ],
        again=[said] if held.own_bytes >= _WORTH_A_LINE_BYTES else [],
    )


def next_steps(  # noqa: PLR0913 -- each is something that a step may rest on
    verdict: Verdict,
    *,
    setting: records.Setting,
    held: Held,
    expandable: bool | None = None,
    held_back: Sequence[records.HeldBack] = (),
    oom: records.OomFacts | None = None,
) -> tuple[str, ...]:
    """What to do, what gives back the most first."""
    causes, simulated, ways = verdict.causes, setting.label != "", _ways(held)
    steps = [_LIFT] if verdict.is_capped else []
    steps += () if causes else (_MAP,)
    for cause in causes:
        if cause is Cause.NEVER_FITS:
            steps += (_BATCH, "spread it over several GPUs")
        elif cause is Cause.FRAGMENTED:
            in_pieces = (oom and oom.reserved_unallocated_bytes) or 0
            steps += ways.need_less if held.own_bytes > in_pieces else ()
            if names := ", ".join(blocking_names(held_back)):
                steps.append(f"del {names}: this joins the free pieces around it")
            way = _EXPANDABLE_IN_THE_MODEL if simulated else _EXPANDABLE
            steps += [way] if expandable is False else []
            steps += (_MAP, _BATCH)
        elif cause is Cause.OTHERS:
            others = () if oom is None else oom.others
            for pid, nbytes in sorted(others, key=lambda each: -each[1]):
                held_there = bytes_text(nbytes)
                steps.append(f"process {pid} holds {held_there}: ask whose it is")
            steps += [] if simulated else ["!nvidia-smi shows whose the others are"]
            steps.append("%gpu_select free in a fresh kernel takes the freest GPU")
        elif cause is Cause.LEAKED:
            steps += ways.let_go
        else:
            steps += _POOLS if verdict.pools_bytes else ()
            made_bytes = held.own_bytes + held.gone_bytes
            if made_bytes > _MUCH_OF_WHAT_LIVES * (held.live_bytes or 0):
                # The failing run had made much of it: its batch comes before names.
                steps += (*ways.need_less, *_LESS_IN_THE_RUN, *ways.again)
            steps += (ways.delete, *ways.cut, *_LESS_IN_THE_RUN)
    steps += () if Cause.NEVER_FITS in causes else ways.need_less
    steps += (_BATCH,) if Cause.LEAKED in causes and held.own_bytes else ()
    steps += ways.again
    return tuple(dict.fromkeys(step.replace("{kind}", setting.kind) for step in steps))


def steps_for_caught(held: Held) -> tuple[str, ...]:
    """What to type where an error was caught, and nobody knows what was asked for."""
    ways = _ways(held)
    leaks = any(leak.kind is not LeakKind.GRAPH for leak in held.leaks)
    let_go = ways.let_go if leaks else ()
    return (*let_go, *_TO_LEARN_MORE, ways.delete, *ways.cut)


def _steps(steps: Sequence[str]) -> Iterator[kit.Part]:
    """What to type, the best first."""
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
    causes: tuple[Cause, ...] = ()  # all that apply, the most telling first
    answer: records.Answer | None = None
    memory: records.DeviceMemory | None = None
    holders: tuple[records.Holder, ...] = ()
    # what may be held without need, less what the failing run had needed
    leaks: tuple[records.Leak, ...] = ()
    held_back: tuple[records.HeldBack, ...] = ()
    expandable_segments: bool | None = None
    next_steps: tuple[str, ...] = ()  # what to type, the best first
    # met since the error, or instead of one, and no error is left of them
    caught: records.CaughtOoms | None = None
    own_bytes: int = 0  # what the frames of this error still hold
    is_capped: bool = False  # whether a limit of this process is in the way
    pools_bytes: int = 0  # what graphs keep for themselves, where it is much

    @property
    def gone_bytes(self) -> int:
        """What was alive then and is not any more: mostly the failing run's own."""
        counters = getattr(self.memory, "counters", None)
        then = getattr(self.oom, "allocated_bytes", None) or 0
        return max(then - (getattr(counters, "allocated_bytes", None) or then), 0)

    def drawing(self) -> kit.Drawing:
        """The verdict, what to do, who has the memory, and what both rest on."""
        from gpumagic import drawing as kit

        parts = kit.one_screen(_why_parts(self))
        return kit.Drawing(why_headline(self), parts, self.setting.label)


def why_headline(report: WhyReport) -> str:
    """What was asked for, what was free, and what that comes down to."""
    oom = report.oom
    if oom is None:
        if report.caught is not None:
            return _caught(report.caught, report.setting)
        return "no out-of-memory error has been seen in this notebook"
    cell = "" if oom.cell is None else f"In [{oom.cell}]: "
    where = terms.on_devices(report.setting, oom.device)
    said = "memory ran out"
    if oom.requested_bytes is not None:
        said = f"{bytes_text(oom.requested_bytes)} did not fit"
    free = _size(" with {} free", oom, "free_bytes")
    short = "why cannot be told"
    if report.causes:
        short = _CAUSES[report.causes[0]].short.format(**_figures(report))
    return f"{cell}{said} {where}{free}: {short}"


def _caught(caught: records.CaughtOoms, setting: records.Setting) -> str:
    """How often memory ran out without a word, and where as far as that is known."""
    times = "" if caught.times == 1 else f" {caught.times:,} times"
    said = f"memory ran out{times} {terms.on_devices(setting, caught.device)}"
    if caught.cell is None:
        return f"{said}; no error that tells of it is left"
    return f"In [{caught.cell}]: {said}, and the code caught it: its message is lost"


def _figures(report: WhyReport) -> dict[str, str]:
    """What the sentences are filled in with: nothing, where a figure is unknown."""
    oom, memory, answer = report.oom, report.memory, report.answer
    leaks = [each.nbytes for each in report.leaks if each.kind is not LeakKind.GRAPH]
    most = "At most " if len(leaks) > 1 else ""  # what two of them hold is in both
    alive, gone = "too much else is alive", report.gone_bytes
    live_bytes = getattr(oom, "allocated_bytes", None) or 0
    if gone > live_bytes / 2:
        alive = f"{bytes_text(gone)} of what was alive then is free again"
    return {
        **_of_verdict(report),
        "alive": alive,
        "asked": _size("{}", oom, "requested_bytes") or "what was asked for",
        "live": _size("{}", oom, "allocated_bytes") or "Too much",
        "free": _size("{}", oom, "reserved_unallocated_bytes") or "Enough",
        "hole": _size("; the default stream's largest is {}", answer, "hole_bytes"),
        "others": _size("{}", memory, "not_ours_bytes") or "much of the device",
        "outside": _size(
            ", and {} of this one lies outside torch", memory, "outside_bytes"
        ),
        "leaked": f"{most}{bytes_text(sum(leaks))}" if leaks else "Enough",
    }


def _of_verdict(report: WhyReport | FitReport) -> dict[str, str]:
    """The clauses about a limit of this process, and about pools of graphs."""
    limits = " under the limit of this process" if report.is_capped else ""
    if report.pools_bytes:
        limits += f", with {bytes_text(report.pools_bytes)} kept for graphs"
    may_take = "this process may take" if report.is_capped else "the device has"
    return {"limits": limits, "may_take": may_take}


def _size(text: str, thing: object, name: str) -> str:
    """A figure of something in words; nothing where either is unknown."""
    nbytes = getattr(thing, name, None)
    return "" if nbytes is None else text.format(bytes_text(nbytes))


def _why_parts(report: WhyReport) -> Iterator[kit.Part]:
    from gpumagic import drawing as kit
    from gpumagic.drawing.document import MOST_ROWS

    oom, caught = report.oom, report.caught
    if oom is None and caught is None:
        said = "before a large tensor is made, ask whether it fits"
        yield kit.Note("note", said, "%gpu_mem fit 2GiB", said)
        return
    yield from _steps(report.next_steps)
    if report.memory is not None:
        yield bars((report.memory,), report.setting)
    if oom is not None and caught is not None:
        yield kit.Note("note", f"besides, {_caught(caught, report.setting)}")
    wanted = _CAUSES[report.causes[0]].table if report.causes else "names"
    tables = sorted(_tables(report), key=lambda each: each[0] != wanted)
    for _, table in tables[:1]:
        yield table.beginning(MOST_ROWS)
    if oom is None:
        yield kit.how_measured(kit.Paragraph(_NO_WORDS))
        return
    figures = _figures(report)
    causes = [_CAUSES[each].sentence.format(**figures) for each in report.causes]
    why = kit.Paragraph("\n".join(causes or [_UNKNOWN]))
    grid = kit.Grid("", tuple(_facts(report, oom)))
    yield kit.Details("Why it did not fit, in figures", (why, grid), "figures")
    for name, table in tables[1:]:
        yield kit.Details(table.caption, (table,), name)
    yield kit.Details("What torch said", (kit.Paragraph(oom.text),), "torch")
    yield kit.how_measured(kit.Paragraph(_AFTER))


def _tables(report: WhyReport) -> Iterator[tuple[str, kit.Table]]:
    """What there is to show, each by its word."""
    setting, most = report.setting, _MOST_HOLDERS
    if report.holders:
        yield "names", names_table(Holdings(report.holders), most, room=most)
    if report.leaks:
        yield "leaks", leaks_table(report.leaks, setting)
    if report.held_back:
        yield "blocks", held_back_table(report.held_back, setting)


def _facts(
    report: WhyReport, oom: records.OomFacts
) -> Iterator[tuple[str, str | None]]:
    for name, line in (("line", oom.line), ("called from", oom.called_from)):
        if line is not None:
            yield name, line.where + (f": {line.source}" if line.source else "")
    yield "device", terms.device_name(report.setting, oom.device)
    for name, thing, figure in (
        ("asked for", oom, "requested_bytes"),
        ("free on the device", oom, "free_bytes"),
        ("the device has", oom, "total_bytes"),
        ("used by this process", oom, "process_bytes"),
        ("allocated in tensors", oom, "allocated_bytes"),
        ("reserved, not allocated", oom, "reserved_unallocated_bytes"),
        ("largest hole now", report.answer, "hole_bytes"),
    ):
        yield name, _size("{}", thing, figure) or None
    if report.expandable_segments is not None:
        yield "expandable segments", "on" if report.expandable_segments else "off"


# ----------------------------------------------------------------------------- fit


@dataclass(frozen=True)
class FitReport(Report):
    """Whether so many bytes would fit now, on each device in use."""

    setting: records.Setting
    requested_bytes: int
    answers: tuple[records.Answer, ...]
    causes: tuple[Cause, ...] = ()
    next_steps: tuple[str, ...] = ()
    why_not: str | None = None
    hint: str | None = None
    is_capped: bool = False
    pools_bytes: int = 0

    def drawing(self) -> kit.Drawing:
        """Yes or no, why not, and what to do."""
        from gpumagic import drawing as kit

        parts = kit.one_screen(_fit_parts(self))
        return kit.Drawing(fit_headline(self), parts, self.setting.label)


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
            name=terms.device_name(report.setting, only.device),
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
    from gpumagic.drawing.document import MOST_ROWS

    if report.why_not is not None:
        yield kit.Note("note", report.why_not, report.hint or "")
        return
    asked = {"asked": bytes_text(report.requested_bytes), **_of_verdict(report)}
    said = [_CAUSES[cause].asked.format(**asked) for cause in report.causes]
    if said:
        lines = (f"{each[:1].upper()}{each[1:]}." for each in said)
        yield kit.Paragraph("\n".join(lines))
    yield from _steps(report.next_steps)
    properties = (
        terms.devices(report.setting),
        terms.words("Fits", lambda each: kit.Badge(*_PLACES[each.place][:2])),
        terms.figures("Would take", lambda each: each.rounded_bytes),
        terms.figures("Largest hole", lambda each: each.hole_bytes),
        terms.figures("Free on device", lambda each: each.device_free_bytes),
        terms.figures("Could be released", lambda each: each.releasable_bytes),
        terms.figures("Left of the limit", lambda each: each.cap_left_bytes),
    )
    table = kit.Table.of("Where it could go", properties, report.answers)
    if len(report.answers) > 1:
        yield table.beginning(MOST_ROWS)
    if elsewhere := sum(answer.elsewhere_bytes for answer in report.answers):
        said_of_streams = (
            f"{bytes_text(elsewhere)} more is free in segments of other streams: only "
            "tensors made there can have it"
        )
        yield kit.Note("note", said_of_streams)
    if len(report.answers) == 1:
        yield kit.Details("The figures of the device", (table,), "figures")
