"""What held a rank up, the dearest first, and what to do about each."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing import Note
from gpumagic.gpu_open.view_trace import (
    exposed_s,
    host_name,
    unknown_entries,
)
from gpumagic.report.robust import median
from gpumagic.report.units import (
    count_text,
    range_text,
    ratio_text,
    seconds_text,
    share_text,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.gpu_open.trace_records import HostWork, Idle, RankTrace, Step

GRAVE = 0.1  # of the time: what takes more is a warning
WORTH_A_NOTE = 0.05
_SHORT_S = 15e-6  # kernels that take no longer than it takes to launch them
_LONG_S = 2e-4  # for each launch: no launch takes so long
_ODD = 1.5  # times the median: such a step is told
_FEWEST_STEPS = 3
_LONGEST_WHERE = 28
_FIRST = 2.0, 3.0  # more than all of the time: these come before all others


class _Advice(NamedTuple):
    """What to do where the host was in something that has such a name."""

    name: re.Pattern[str]
    hint: str


_ADVICE = (
    _Advice(
        re.compile("DataLoader|data_?load|fetch|batch$", re.IGNORECASE),
        "`%pin_loader LOADER` finds num_workers and pin_memory for it",
    ),
    _Advice(
        re.compile(
            r"item$|_local_scalar_dense|Synchronize|nonzero|aten::to$|_to_copy"
            r"|aten::copy_|MemcpyAsync|aten::unique|masked_select",
            re.IGNORECASE,
        ),
        "`%%cuda_sync_time --syncs` names the lines that wait, such as .item()",
    ),
    _Advice(
        re.compile("Optimizer|zero_grad", re.IGNORECASE),
        "`fused=True` lets the optimizer launch one kernel for many parameters",
    ),
    _Advice(
        re.compile("^Compiled"),
        "`torch.compile(mode='reduce-overhead')` adds CUDA graphs, which launch faster",
    ),
    _Advice(
        re.compile("checkpoint|save|evaluat|valid", re.IGNORECASE),
        "save and evaluate less often, or in a thread of their own",
    ),
)
_TINY = "try `torch.compile` or CUDA graphs"
_PYTHON = "`profile(with_stack=True)` records the lines that it was in"
_WARM_UP = "the first calls load kernels: `schedule(wait=1, warmup=1)` skips them"
_NO_DEVICE = "profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"
_BOTH = "activities=[CPU, CUDA]"
_NO_WORK = f"was it {_BOTH}? then another profiler (nsys, ncu) may hold the GPU"
_NOTHING_TO_DO = "profile a stretch of code that works on the GPU"
_FROM_THE_FIRST = (
    f"{_BOTH} from the first profile on: after one of the CPU alone, torch records no "
    "GPU until the kernel is restarted"
)
_UNLAUNCHED = f"record the whole program: {_BOTH}, no filter on the file"
_BETWEEN = "fuse short kernels by `torch.compile`, or give each more to do"
_LAUNCHED = "was the file filtered? or `%gpu_select` tells who else uses the GPU"
_ODD_STEP = "what did it do that others do not: saving, evaluating, gc, recompiling?"
_FIRST_STEP = (
    "the first steps warm up: `schedule(wait=1, warmup=1, active=3)` skips them"
)


class _Weighed(NamedTuple):
    """A note, and how much of the time it is about."""

    weight: float
    note: Note


def notes(rank: RankTrace) -> list[Note]:
    """All there is to say, the dearest first."""
    weighed = sorted(_notes(rank), key=lambda each: -each.weight)
    return [each.note for each in weighed]


def _notes(rank: RankTrace) -> Iterator[_Weighed]:
    if rank.file.missing:
        text = f"the file is not whole: {shortened(rank.file.missing, 120)}"
        hint = "the figures are of what could be read; --show file tells how much"
        yield _Weighed(_FIRST[0], Note("warning", text, hint))
    if not rank.length_s:
        yield _Weighed(_FIRST[1], Note("warning", *_without_work(rank)))
        return
    yield from _late(rank, rank.length_s)
    yield from _exposed(rank, rank.length_s)
    yield from _other_stream(rank, rank.length_s)
    yield from _unknown(rank.idle, rank.length_s)
    yield from _odd_steps(rank.steps, rank.length_s)
    if left_out := unknown_entries(rank.file):
        kinds = ", ".join(kind for kind, _ in rank.file.unknown)
        text = f"{left_out:,} entries of kinds unknown here: {shortened(kinds, 60)}"
        yield _Weighed(0.0, Note("note", text))


def _without_work(rank: RankTrace) -> tuple[str, str]:
    """Why there is no work of a device in the file, as far as it tells, and what to do.

    The profiler names the GPU of the machine in each file, also where it has recorded
    the host alone: only a call of CUDA's tells that it has listened.
    """
    left_out = unknown_entries(rank.file)
    if rank.launches:
        said = f"launches were recorded ({rank.launches:,}), but not their work"
        return said, _NO_WORK
    if rank.host_length_s is None and left_out:
        kinds = shortened(", ".join(kind for kind, _ in rank.file.unknown), 60)
        said = f"all {left_out:,} entries are of another program: {kinds}"
        return said, "open what prof.export_chrome_trace('trace.json.gz') has written"
    if rank.launches == 0:
        return "the GPU was given nothing to do meanwhile", _NOTHING_TO_DO
    if rank.device_name:
        return "the GPU was given nothing to do, or was not recorded", _FROM_THE_FIRST
    return "only the host was recorded", _NO_DEVICE


def _weighed(seconds: float, length_s: float, text: str, hint: str) -> _Weighed:
    weight = seconds / length_s
    return _Weighed(weight, Note("warning" if weight >= GRAVE else "note", text, hint))


def _late(rank: RankTrace, length_s: float) -> Iterator[_Weighed]:
    idle = rank.idle
    if idle is None or idle.host_late_s < WORTH_A_NOTE * length_s:
        return
    first = idle.host_was_in[0] if idle.host_was_in else None
    text = f"the host was late for {seconds_text(idle.host_late_s)}"
    if first is not None:
        where = shortened(host_name(first.name), _LONGEST_WHERE)
        of_it = share_text(min(first.seconds / idle.host_late_s, 1.0))
        text = f"while it was late, the host was in {where} ({of_it})"
    yield _weighed(idle.host_late_s, length_s, text, _what_to_do(rank, first))


def _what_to_do(rank: RankTrace, first: HostWork | None) -> str:
    if first is None or not first.name:
        return _PYTHON
    name = host_name(first.name)
    for advice in _ADVICE:
        if advice.name.search(name):
            return advice.hint
    launches, busy_s = rank.launches or 1, rank.busy_s or 0.0
    if first.seconds / launches > _LONG_S:
        return _WARM_UP
    if busy_s / launches > _SHORT_S:
        return _TINY
    each = seconds_text(busy_s / launches)
    return f"{launches:,} launches, {each} of work each: {_TINY}"


def _exposed(rank: RankTrace, length_s: float) -> Iterator[_Weighed]:
    seconds = exposed_s(rank) or 0.0
    if seconds < WORTH_A_NOTE * length_s:
        return
    both_s = seconds_text(seconds), seconds_text(rank.communication_s)
    text = f"{range_text(*both_s, ' of ')} of communication was not hidden"
    longest = _longest_collective(rank)
    if longest:
        text += f", mostly {shortened(longest, _LONGEST_WHERE)}"
    hint = "open the files of all ranks: they tell who waited for whom"
    if rank.world_size == 1:
        hint = "start it earlier, or send less at a time"
    yield _weighed(seconds, length_s, text, hint)


def _longest_collective(rank: RankTrace) -> str:
    taken: Counter[str] = Counter()
    for each in rank.collectives:
        taken[each.name] += round((each.end_s - each.start_s) * 1e9)
    return taken.most_common(1)[0][0] if taken else ""


def _other_stream(rank: RankTrace, length_s: float) -> Iterator[_Weighed]:
    seconds = rank.idle.other_stream_s if rank.idle is not None else 0.0
    if seconds < WORTH_A_NOTE * length_s:
        return
    text = f"{seconds_text(seconds)} passed between the work of two streams"
    hint = "one waits for the other: --show lanes; start copies and sends earlier"
    yield _weighed(seconds, length_s, text, hint)


def _unknown(idle: Idle | None, length_s: float) -> Iterator[_Weighed]:
    """What the file lacks, for it to tell why nothing ran."""
    if idle is None:
        return
    named = (
        (idle.unlaunched_s, "before work with no launch recorded", _UNLAUNCHED),
        (idle.between_s, "from one kernel to the next", _BETWEEN),
        (idle.unexplained_s, "though work had been launched", _LAUNCHED),
    )
    for seconds, why, hint in named:
        if seconds >= GRAVE * length_s:
            text = f"{seconds_text(seconds)} idle {why}"
            yield _weighed(seconds, length_s, text, hint)


def _odd_steps(steps: Sequence[Step], length_s: float) -> Iterator[_Weighed]:
    if len(steps) < _FEWEST_STEPS:
        return
    usual_s = median([each.length_s for each in steps])
    odd = [each for each in steps if each.length_s > _ODD * usual_s]
    if not odd or not usual_s:
        return
    step = max(odd, key=lambda each: each.length_s)
    times = ratio_text(step.length_s / usual_s)
    told = range_text(seconds_text(usual_s), seconds_text(step.length_s))
    text = f"step {step.number} took {times} the median of {len(steps)} ({told})"
    if len(odd) > 1:
        text += f"; {count_text(len(odd) - 1, 'other')} took long as well"
    hint = _FIRST_STEP if step is steps[0] else _ODD_STEP
    yield _weighed(step.length_s - usual_s, length_s, text, hint)
