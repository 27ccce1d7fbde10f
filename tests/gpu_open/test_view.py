"""What is told of traces: the answer first, what to do, and nothing that misleads."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpumagic.drawing import Details, Span, Table
from gpumagic.gpu_open.report import TraceReport
from gpumagic.gpu_open.trace_records import Clock, Difference, HostWork, Idle
from gpumagic.gpu_open.view_shares import odd_ones
from gpumagic.gpu_open.view_trace import drawn_lane, host_name, picture
from tests.gpu_open.samples_traces import (
    ADD,
    CHANGES,
    COMMUNICATING,
    CUT,
    EQUAL,
    GEMM,
    GPU_BOUND,
    HOST_BOUND,
    IDLER,
    MANY,
    MS,
    MUL,
    NCCL,
    NO_DEVICE,
    SLOWER,
    STEPS,
    STRAGGLER,
    TINY,
    change,
    compared,
    lane,
    place,
)


def text(report, width=200):
    """What is in sight, on one line."""
    return re.sub(r"\s+", " ", report.drawing().text(width))


def alone(rank, **more):
    """A report on one rank."""
    return TraceReport((replace(rank, **more),))


def late(name, **more):
    """A rank whose host was late in something of that name."""
    idle = Idle(300 * MS, 0.0, 24 * MS, (HostWork(name, 280 * MS),))
    return alone(HOST_BOUND, idle=idle, **more)


# ---------------------------------------------------------------------- one rank


def test_title_says_how_long_how_busy_and_what_held_it_back():
    """The three figures of the answer, each once."""
    title = alone(HOST_BOUND).drawing().title

    assert title == (
        "rank 0: 600 ms, the GPU was busy 46.0 % of it; the host was late for 291 ms"
    )


def test_title_drops_what_is_negligible():
    """A busy GPU was not held back; what it did is the answer then."""
    title = alone(GPU_BOUND).drawing().title

    assert "late" not in title
    assert title.endswith("mostly matrix product kernels (61.8 %)")


def test_communication_that_nothing_hid_is_told_as_such():
    """277 ms of communication, of which 71 are hidden, are 32 % of 640 ms."""
    assert "32.2 % only with communication" in alone(COMMUNICATING).drawing().title


def test_idle_time_that_nothing_explains_is_not_put_on_the_host():
    """What the file does not tell is called unknown."""
    idle = Idle(20 * MS, 0.0, 304 * MS)
    title = alone(HOST_BOUND, idle=idle).drawing().title

    assert title.endswith("why it was idle for 304 ms is unknown")


@pytest.mark.parametrize(
    ("idle", "said", "hint"),
    [
        (
            Idle(150 * MS, 0.0, 174 * MS),
            "the host was late for 150 ms, 174 ms idle for unknown reasons",
            "was the file filtered?",
        ),
        (
            Idle(50 * MS, 90 * MS, 184 * MS, unlaunched_s=184 * MS),
            "90.0 ms idle between two streams, 184 ms idle for unknown reasons",
            "activities=[CPU, CUDA]",
        ),
        (
            Idle(50 * MS, 0.0, 274 * MS, between_s=270 * MS),
            "270 ms idle from one kernel to the next",
            "torch.compile",
        ),
    ],
    ids=["late", "no launch", "short kernels"],
)
def test_what_is_known_of_idle_time_comes_before_what_is_not(idle, said, hint):
    """Both stand in the title where both are large, and a note tells what to do."""
    drawing = alone(HOST_BOUND, idle=idle).drawing()

    assert drawing.title.endswith(f"; {said}")
    assert hint in drawing.text()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "%pin_loader"),
        ("aten::item", "--syncs"),
        ("cudaDeviceSynchronize", "--syncs"),
        ("Optimizer.step#AdamW.step", "fused=True"),
        ("CompiledFunctionBackward", "reduce-overhead"),
        ("save_checkpoint", "less often"),
        (None, "with_stack=True"),
    ],
)
def test_hint_fits_what_the_host_was_in(name, hint):
    """The first thing that somebody who knows would try."""
    assert hint in text(late(name))


def test_short_kernels_are_to_be_launched_together():
    """Launching is the limit where there are thousands of microseconds each."""
    assert "21,400 launches, 4.11 us of work each" in text(alone(TINY))


def test_first_calls_are_not_taken_for_launches():
    """No launch takes milliseconds; libraries that are loaded do."""
    assert "warmup=1" in text(late("aten::conv2d", launches=98))


def test_backward_of_an_operator_is_no_evaluation():
    """Autograd's own prefix says nothing of what the host did."""
    said = text(late("autograd::engine::evaluate_function: MulBackward0"))

    assert "save and evaluate" not in said
    assert "MulBackward0 (93.3 %)" in said


def test_gravest_note_stands_first_and_three_are_in_sight():
    """What is missing of the file, then by the time that it is about."""
    idle = Idle(100 * MS, 80 * MS, 0.0, (HostWork("aten::item", 100 * MS),))
    report = alone(COMMUNICATING, idle=idle, file=CUT.file, steps=STEPS.steps)
    notes = report.drawing().notes

    assert [each.text.split()[0] for each in notes] == ["the", "206", "step"]
    assert "notes" in report.parts


def test_table_in_sight_is_what_has_to_change():
    """The host's own work where that is late, else the kernels."""

    def caption(rank):
        parts = alone(rank).drawing().parts
        return next(each.caption for each in parts if isinstance(each, Table))

    assert caption(HOST_BOUND) == "Where the host was while it was late"
    assert caption(GPU_BOUND) == "What took most of the GPU's time"


@pytest.mark.parametrize(
    ("launches", "device_name", "said"),
    [
        (None, None, "only the host was recorded"),
        (None, "NVIDIA H100", "was given nothing to do, or was not recorded"),
        (0, "NVIDIA H100", "was given nothing to do meanwhile"),
        (3, "NVIDIA H100", "launches were recorded (3), but not their work"),
    ],
)
def test_why_there_is_no_gpu_work_is_said_as_far_as_the_file_tells(
    launches, device_name, said
):
    """A file that names a GPU, or has calls of CUDA, is not blamed on its options."""
    rank = replace(NO_DEVICE, launches=launches, device_name=device_name)

    assert said in text(alone(rank))


def test_trace_without_gpu_work_says_how_to_record_it():
    """Its figures are unknown, and none of them is told as 0."""
    said = text(alone(NO_DEVICE))

    assert said.startswith("no GPU work is in this trace; the host ran for 1.20 s")
    assert "ProfilerActivity.CUDA" in said
    assert "busy 0" not in said


@pytest.mark.parametrize("nothing", [(), (0.0,)])
def test_empty_trace_is_drawn(nothing):
    """Neither a lane nor a kernel nor a length is needed."""
    length_s = nothing[0] if nothing else None
    empty = replace(NO_DEVICE, lanes=(), operators=(), length_s=length_s)

    assert "no GPU work" in text(TraceReport((replace(empty, host_length_s=None),)))


def test_copies_alone_are_gpu_work():
    """A trace of a stretch that only moves data has no kernel, and is busy."""
    said = text(alone(GPU_BOUND, kernels=()))

    assert "the GPU was busy 98.3 % of it, only with copies" in said
    assert "ProfilerActivity" not in said


def test_odd_step_is_named():
    """By its number, and how many times the median it took."""
    assert "step 7 took 2.70x the median of 11 (105 to 284 ms)" in text(alone(STEPS))


def test_first_step_that_is_odd_warmed_up():
    """Nobody has to look for the reason."""
    first, *others = STEPS.steps
    steps = (replace(first, length_s=0.9), *others)

    assert "the first steps warm up" in text(alone(STEPS, steps=steps))


def test_two_steps_have_no_odd_one():
    """There is no usual one to compare with."""
    assert "the median of" not in text(alone(STEPS, steps=STEPS.steps[6:8]))


def test_kernels_of_one_short_name_are_one_row():
    """However many types they were made for; in full they are told apart."""
    drawing = alone(GPU_BOUND).drawing()
    table = next(each for each in drawing.parts if isinstance(each, Table))
    row = next(row for row in table.rows if row[0] == "vectorized_elementwise_kernel")
    full = drawing.folded["kernels"].parts[0]

    assert row[2:4] == ("2,880", "72.3 ms")
    assert {ADD, MUL} < {row[0] for row in full.rows}


def test_names_that_a_file_made_long_are_cut():
    """A name of 10,000 letters does not bury the notebook."""
    kernels = tuple(
        replace(each, name=f"{at}{'x' * 10_000}")
        for at, each in enumerate(GPU_BOUND.kernels)
    )
    html = alone(GPU_BOUND, kernels=kernels).drawing().html()

    assert len(html) < 60_000


def test_lane_is_as_busy_as_it_was_before_spans_were_put_together():
    """The picture shows strokes, the figure beside it is of the events."""
    trace = lane("stream 7", (0, 100, GEMM, "kernel"), count=9, busy_s=40 * MS)

    assert drawn_lane(trace, Span(0.0, 0.1), 0.0).busy_s == pytest.approx(0.04)


def test_kinds_are_told_apart_in_a_terminal():
    """Ten steps of three kinds each have no room for a letter for every span."""
    host = next(
        line
        for line in text(alone(GPU_BOUND), 80).split("stream")[:1]
        if "host" in line
    )

    assert {"▞", "░", "▒"} <= set(host)
    assert not set("▂▃▄▅▆▇") & set(host)


def test_idle_streams_are_folded():
    """What hardly ran takes no room from what did."""
    idle = lane("stream 99", (0, 1, ADD, "kernel"))
    busy = lane("stream 7", (0, 500, GEMM, "kernel"))
    drawing = alone(GPU_BOUND, lanes=(busy, idle)).drawing()

    assert [each.name for each in drawing.parts[0].lanes] == ["stream 7"]
    assert "stream 99" in drawing.asked(["lanes"]).text()


@pytest.mark.parametrize("notes", range(4))
def test_more_to_say_leaves_fewer_rows(notes):
    """The first screen has 30 lines, whatever is found."""
    late = Idle(100 * MS, 80 * MS, 0.0, (HostWork("aten::item", 100 * MS),))
    told = (
        {},
        {"file": CUT.file},
        {"file": CUT.file, "idle": late},
        {"file": CUT.file, "idle": late, "steps": STEPS.steps},
    )
    rank = GPU_BOUND if notes < 2 else COMMUNICATING
    drawing = alone(rank, **told[notes]).drawing()

    assert len(drawing.text(80).splitlines()) <= 30


def test_waiting_host_is_not_busy():
    """Time in which it stands still does not count."""
    spans = (0, 60, "", "launch"), (60, 100, "", "host waits")

    assert drawn_lane(lane("host", *spans), None, 0.0).busy_s == pytest.approx(0.06)


def test_host_is_drawn_from_the_first_gpu_work_on():
    """Minutes of imports before it would leave no room for what is asked."""
    host = lane("host", (-90_000, 10, "import", "host code"), (10, 520, "", "launch"))
    drawn = picture(GPU_BOUND, (host,))

    assert drawn.scale.start_s == 0.0
    assert drawn.scale.end_s == pytest.approx(0.52)
    assert drawn.lanes[0].busy_s == pytest.approx(0.52)


def test_host_alone_is_drawn_from_its_beginning():
    """Without work of a GPU there is no other zero."""
    lanes = (lane("host", (5_000, 6_000, "", "host code")),)
    drawn = picture(replace(NO_DEVICE, lanes=lanes), lanes)

    assert drawn.scale.ticks() == ["0 s", "500 ms", "1.00 s"]


def test_name_of_nothing_is_something():
    """Marks of `#` alone, and no name at all."""
    assert host_name("## ##")
    assert host_name("") == host_name(None)


# -------------------------------------------------------------------- many ranks


def test_slow_rank_is_named_with_its_cost_and_its_place():
    """Who, how much, where, and what the others paid for it."""
    assert STRAGGLER.drawing().title == (
        "rank 3 took 1.57x the median for its own work, in backward;"
        " others waited 117 ms for it (28.1 %)"
    )


def test_part_that_explains_little_is_not_blamed():
    """The slow rank has 138 ms more, of which 16 lie in forward."""
    small = (Difference("forward", 96 * MS, 80 * MS),)
    report = replace(STRAGGLER, together=replace(STRAGGLER.together, differences=small))

    assert "forward" not in report.drawing().title
    assert "slower in all that it does" in text(report)


def test_equal_ranks_have_no_slow_one():
    """They are told as a range."""
    said = text(EQUAL)

    assert said.startswith("no rank stands out: 8 ranks ")
    assert "8 ranks 380 to 387 ms" in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"busy_s": 0.4}, "leave their GPUs idle 60.0 % of the time"),
        ({"waits_s": 0.3, "own_s": 0.6}, "wait for each other 30.0 % of the time"),
        ({"moves_s": 0.3, "own_s": 0.6}, "do nothing but move data 30.0 % of the time"),
        ({}, "compute 90.0 % of the time"),
    ],
)
def test_what_costs_equal_ranks_most_is_said_first(changes, words):
    """Idle GPUs, waits and exposed communication come before the work itself."""
    costs = {"length_s": 1.0, "own_s": 0.9, "busy_s": 1.0, "waits_s": 0.05}
    costs |= {"moves_s": 0.05} | changes
    ranks = tuple(replace(each, **costs) for each in EQUAL.together.ranks)
    report = replace(EQUAL, together=replace(EQUAL.together, ranks=ranks))

    assert report.drawing().title == f"no rank stands out: 8 ranks {words}"


def test_odd_ranks_of_128_are_shown_and_the_rest_is_a_range():
    """An answer of a dozen lines, beside the picture."""
    drawing = MANY.drawing()
    table = next(each for each in drawing.parts if isinstance(each, Table))
    picture_lines = 1 + 4 + 1 + 1

    assert [row[0] for row in table.rows] == ["rank 77", "127 others"]
    assert table.rows[1][1] == "262 to 273 ms"
    filled = [line for line in drawing.text(80).splitlines() if line.strip()]
    assert len(filled) - picture_lines <= 12


def test_most_ranks_are_never_odd():
    """Where half of them are fast and half slow, the median lies between."""
    shares = tuple(place(rank, 100 + 300 * (rank % 2), 0) for rank in range(8))

    assert len(odd_ones(shares, None)) <= 1


def test_waiting_is_drawn_where_nothing_was_worked():
    """Rank 0 waits three times before the others come; the slow one never."""
    lanes = {each.name: each for each in STRAGGLER.drawing().parts[0].lanes}

    def waited(name):
        spans = lanes[name].drawn
        return sum(
            each.end_s - each.start_s
            for each in spans
            if each.kind == "waits for others"
        )

    assert waited("rank 0") == pytest.approx(3 * 29 * MS)
    assert waited("rank 3") == 0


def test_ranks_are_moved_to_the_common_clock():
    """By what the record says has to be added."""
    shares = tuple(
        replace(each, offset_s=float(each.rank)) for each in STRAGGLER.together.ranks
    )
    report = replace(STRAGGLER, together=replace(STRAGGLER.together, ranks=shares))
    lanes = {each.name: each for each in report.drawing().parts[0].lanes}

    assert lanes["rank 3"].drawn[0].start_s == pytest.approx(3.0)


def test_clocks_apart_are_drawn_as_bars():
    """Lanes side by side would tell what nobody knows."""
    together = replace(STRAGGLER.together, clock=Clock.APART)
    report = replace(STRAGGLER, together=together)

    assert "own work" in text(report)
    assert "each rank has its own" in re.sub(r"\s+", " ", str(report.show("how")))


@pytest.mark.parametrize("first", range(3))
def test_ranks_without_numbers_are_told_by_their_place(first):
    """Files that do not tell their rank still have a trace each."""
    traces = tuple(replace(each, rank=None) for each in STRAGGLER.ranks)
    lanes = {
        each.name: each
        for each in replace(STRAGGLER, ranks=traces).drawing().parts[0].lanes
    }

    assert lanes["rank 3"].drawn
    assert first < len(lanes)


def test_missing_ranks_are_said():
    """The slow one may be among them."""
    together = replace(EQUAL.together, world_size=64)

    assert "8 of 64 ranks are here" in text(replace(EQUAL, together=together))


# ---------------------------------------------------------------------- two runs


def test_slower_run_names_the_kernel_that_made_it_so():
    """With both lengths and how often it ran."""
    assert SLOWER.drawing().title == (
        "the second is 1.24x slower (318 -> 394 ms):"
        " ampere_bf16_s1681..._32x5_tn took 60.0 ms more (180 runs)"
    )


def test_idle_time_is_named_where_it_made_the_difference():
    """No kernel is blamed for what the host did."""
    assert IDLER.drawing().title.endswith("the GPU was idle for 78.0 ms more")


def test_kind_is_named_where_no_kernel_stands_out():
    """Ten kernels with a tenth of it each."""
    kernels = tuple(
        change(f"nccl{at}()", "communication", (1, 1), 1, 8) for at in range(10)
    )
    title = compared((318, 394), (301, 372), kernels).drawing().title

    assert title.endswith("communication took 70.0 ms more")


def test_small_difference_is_none():
    """One recording of each does not tell 2 %."""
    title = compared((318, 324), (301, 306), CHANGES[3:4]).drawing().title

    assert title == "both take the same time (318 -> 324 ms)"


def test_kernel_that_only_one_run_has_is_new_or_gone():
    """It never ran 0 times in 0 s without saying so."""
    new = change(GEMM, "matrix product", (None, 12), None, 80)
    gone = change(NCCL, "communication", (12, None), 80, None)
    slower = compared((318, 394), (301, 372), (new,)).drawing()
    faster = compared((394, 318), (372, 301), (gone,)).drawing()

    assert slower.title.endswith("is new and took 80.0 ms")
    assert faster.title.endswith("is gone, which took 80.0 ms")


def test_run_without_gpu_work_is_not_compared():
    """There is no ratio to nothing."""
    nothing = replace(SLOWER.comparison, length_after_s=None, busy_after_s=None)

    assert "nothing can be compared" in text(replace(SLOWER, comparison=nothing))


def test_everything_folded_has_a_word():
    """What the first screen leaves out can be asked for."""
    names = {
        part.name
        for report in (alone(COMMUNICATING), STRAGGLER, SLOWER)
        for part in report.drawing().parts
        if isinstance(part, Details)
    }

    assert names >= {"kernels", "kinds", "idle", "steps", "operators", "collectives"}
    assert names >= {"ranks", "slowest", "file", "how", "names"}
