"""What is said about measured times, in which words, and how large it becomes."""

from __future__ import annotations

import dataclasses
import doctest
import re
import time
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpumagic.cuda_sync_time import digits
from gpumagic.cuda_sync_time.digits import measured
from gpumagic.cuda_sync_time.magic import TimeMagics
from gpumagic.cuda_sync_time.report import (
    Flag,
    FlagKind,
    LogReport,
    Roofline,
    Run,
    Setting,
    SyncPoint,
)
from gpumagic.cuda_sync_time.view import draw
from gpumagic.cuda_sync_time.view_flags import FLAG_TEXTS, notes
from gpumagic.cuda_sync_time.view_profile import timeline
from gpumagic.drawing import (
    Drawing,
    Histogram,
    Note,
    Plane,
    Range,
    Ranges,
    Stack,
    Stacks,
    Table,
)
from gpumagic.errors import UsageProblem
from gpumagic.notebook.arguments import parse
from tests.cuda_sync_time import samples
from tests.cuda_sync_time.samples import MS, SAMPLES, US
from tests.drawing.drawings import NUMBERS, TEXTS
from tests.drawing.survives import assert_numbers_agree, assert_survives

BY_NAME = dict(SAMPLES)
TIMES = st.floats(1e-9, 1e5)
patient = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)


def flat(text):
    """The text without its line breaks."""
    return " ".join(text.split())


def text_of(report):
    """All that is said of a report, as one line."""
    return flat(draw(report).text(2000))


def without_titles(drawing):
    """The drawing less what only the pointer finds, which is a closer look."""
    shown = re.sub(r' title="[^"]*"', "", drawing.html())
    return SimpleNamespace(html=lambda: shown, text=drawing.text)


# ------------------------------------------------------------------- digits


def test_examples_of_digits_hold():
    """What the docstrings show is what happens."""
    assert not doctest.testmod(digits).failed


@patient
@given(TIMES, st.floats(1e-7, 1e-2))
def test_no_digit_is_finer_than_a_tenth_of_the_floor(seconds, floor_s):
    """What an empty cell takes is not known better than that."""
    text = measured(seconds, floor_s)

    if seconds < floor_s:
        assert text.startswith("below ")
        assert text.endswith("(the floor)")
    elif seconds < 50:
        number, unit = text.split()
        scale = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}[unit]
        assert len(number.replace(".", "").lstrip("0")) <= 3
        last = scale * 10.0 ** -len(number.partition(".")[2])
        near_the_floor = seconds < 1.5 * floor_s
        assert near_the_floor or last * 10.001 >= floor_s or _ends_in_nought(number)
        assert float(number) * scale == pytest.approx(seconds, rel=0.5)


def _ends_in_nought(number):
    return "." not in number and number.endswith("0")


@patient
@given(TIMES)
def test_without_a_floor_three_digits_are_told(seconds):
    """A time is never more exact than anyone reads."""
    assert len(re.sub(r"[^0-9]", "", measured(seconds, None)).lstrip("0")) <= 7


def test_time_above_the_floor_does_not_look_below_it():
    """Rounding does not contradict the floor that is told beside it."""
    assert measured(24.6 * US, 21 * US) == "21 us"
    assert measured(26 * US, 21 * US) == "30 us"


# -------------------------------------------------------------------- one run


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (
            samples.GPU_BOUND,
            (
                "84.3 ms, of which the host waited 83.9 ms for the GPU. "
                "%%time would have said 400 us, 211 times too little"
            ),
        ),
        (
            samples.LAUNCH_BOUND,
            (
                "20.1 ms, nearly all while the code ran; the GPU was done 100 us after "
                "the code was. %%time would have said the same"
            ),
        ),
        (
            dataclasses.replace(samples.LAUNCH_BOUND, run=Run(20.1 * MS, 20.1 * MS)),
            (
                "20.1 ms, all while the code ran; the GPU was done as soon as the code "
                "was. %%time would have said the same"
            ),
        ),
        (
            dataclasses.replace(samples.LAUNCH_BOUND, run=Run(130 * US, 110 * US)),
            (
                "130 us, all while the code ran; the GPU was done as soon as the code "
                "was. %%time would have said 110 us: the rest is what an empty cell "
                "takes"
            ),
        ),
        (
            samples.OVERLAPPED,
            (
                "step: 31.4 ms, of which the host waited 11.6 ms for the GPU. "
                "%%time would have said 19.8 ms, 1.6 times too little"
            ),
        ),
        (samples.ON_CPU, "1.20 s on the host; no GPU was used"),
        (samples.EMPTY, "below 21 us (the floor): hardly more than an empty cell"),
        (samples.TINY, "21 us: hardly more than an empty cell"),
        (
            samples.FAILED,
            (
                "failed after 12.1 ms (ValueError: shapes (4, 3) and (4, 3) cannot be "
                "multiplied)"
            ),
        ),
    ],
)
def test_title_is_the_answer(report, said):
    """The time, who waited, and what %%time would have said, in the first line."""
    assert draw(report).title == said


@pytest.mark.parametrize("name", ["launch-bound", "syncs", "no-syncs"])
def test_title_and_sentence_say_alike_when_the_gpu_was_done(name):
    """What is told as 100 us above is not told as nothing below."""
    text = text_of(BY_NAME[name])

    assert text.lower().count("the gpu was done 100 us after the code was") == 2
    assert "as soon as the code was" not in text


def test_waits_beside_each_other_make_no_sum():
    """Several threads may wait for longer together than the code ran."""
    waits = (SyncPoint(".item()", None, 9, 15 * MS),) * 2
    report = dataclasses.replace(samples.LAUNCH_BOUND, syncs=waits)

    title = draw(report).title

    assert "the code itself waited now and then for the GPU" in title
    assert "30.0 ms" not in title


def test_a_wait_shorter_than_an_empty_cell_has_its_own_time():
    """Waits were timed one by one, so that no floor of a cell is in them."""
    waits = (SyncPoint(".item()", None, 1, 5 * US),)
    report = dataclasses.replace(samples.LAUNCH_BOUND, syncs=waits)

    (table,) = (part for part in draw(report).parts if isinstance(part, Table))

    assert table.rows[0][-1] == "5.00 us"


def test_times_below_the_floor_have_no_piece_of_the_bar():
    """A tail and a backlog that an empty cell has as well are not drawn."""
    run = dataclasses.replace(samples.TAIL.run, tail_s=20 * US, backlog_s=20 * US)
    report = dataclasses.replace(samples.TAIL, run=run)

    (bars,) = (part for part in draw(report).parts if isinstance(part, Stacks))

    pieces = dict(bars.stacks[0].pieces)
    assert pieces["waited for before, not counted"] == 0
    assert pieces["it waits for work on other streams"] == 0


def test_naive_time_below_the_floor_gives_a_bound():
    """A ratio to what cannot be told from nothing would be made up."""
    run = Run(84.3 * MS, 5 * US)

    title = draw(dataclasses.replace(samples.GPU_BOUND, run=run)).title

    assert "less than 21 us, more than 4,014 times too little" in title


def test_bar_is_made_of_the_times():
    """Backlog, code, wait and tail are pieces as long as they took."""
    (bars,) = (part for part in draw(samples.TAIL).parts if isinstance(part, Stacks))

    run, device = bars.stacks
    sizes = [round(size * 1e6) for _, size in run.pieces]
    assert sizes == [33_400, 300, 7_600, 50_200]
    assert [round(size * 1e6) for _, size in device.pieces] == [33_400, 7_800]


def test_backlog_that_would_hide_the_run_is_only_told():
    """Work of earlier cells may have taken a thousand times as long."""
    report = samples.LONG_BACKLOG
    (bars,) = (part for part in draw(report).parts if isinstance(part, Stacks))

    assert dict(bars.stacks[0].pieces)["waited for before, not counted"] == 0
    assert "1.31 s of queued work from earlier cells" in text_of(report)


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (samples.GPU_BOUND, "The GPU decided this time"),
        (samples.LAUNCH_BOUND, "--syncs tells which"),
        (samples.SYNCING, "The code itself waits for it, in the lines below."),
        (BY_NAME["no-syncs"], "Nothing made the host wait in between"),
        (BY_NAME["no-syncs"], "Nothing made the host wait while the code ran."),
        (samples.OVERLAPPED, "Host and GPU both took their part"),
        (samples.ON_CPU, "No device was in use"),
        (samples.TINY, "--repeat takes many in a row"),
        (
            samples.GPU_BOUND,
            "An empty cell is measured as 21 us here (the floor); nothing",
        ),
        (samples.ON_SIMULATOR, "Python's own time is not in it"),
        (samples.ON_SIMULATOR, "simulated in 42.0 ms of this machine's own time"),
        (samples.SYNCING, "In [5], line 2 losses.append(step(batch).item()) .item()"),
        (samples.FAILED, "says nothing about code that works"),
    ],
)
def test_what_must_be_said_of_a_run_is_said(report, said):
    """Each state has its sentence."""
    assert said in text_of(report)


@pytest.mark.parametrize("run", [samples.GPU_BOUND.run, samples.LAUNCH_BOUND.run])
def test_failed_run_is_never_explained_like_one_that_worked(run):
    """Its split between host and GPU means nothing."""
    text = text_of(dataclasses.replace(samples.FAILED, run=run))

    assert text.startswith("failed after ")
    assert "decided this time" not in text
    assert "as soon as the code was" not in text
    assert "%%time would have said" not in text


def test_nothing_is_said_of_syncs_where_nobody_looked():
    """No table, and no claim that nothing waited."""
    assert "made the host wait" not in text_of(samples.GPU_BOUND)


@pytest.mark.parametrize(("name", "report"), SAMPLES)
def test_simulated_figures_are_labelled(name, report):
    """Whoever copies the picture copies that with it."""
    setting = getattr(report, "setting", None)

    if setting is not None:
        assert draw(report).label == setting.label, name


# ---------------------------------------------------------------------- flags


def test_every_flag_has_words():
    """A new flag needs its sentence."""
    assert set(FLAG_TEXTS) == set(FlagKind)


@pytest.mark.parametrize("kind", FlagKind)
@pytest.mark.parametrize("amount", [None, 0.0, 1, -0.08, 1024])
def test_every_flag_is_told_whatever_is_known_of_it(kind, amount):
    """With or without a figure, names and a device; no brace is left open."""
    for names, device in (((), None), (("{a}", "b"), 1)):
        (note,) = notes([Flag(kind, amount, names, device)], samples.H100)

        assert note.text
        assert "None" not in note.text + note.hint
        assert re.search(r"{(?!a})", note.text) is None


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        (Flag(FlagKind.SHARED, 1, device=0), "1 other process was using cuda:0"),
        (Flag(FlagKind.CLOCK, -0.08, device=1), "the clock of cuda:1 fell by 8.0 %"),
        (Flag(FlagKind.COLLECTED, 1), "garbage collector ran once"),
        (Flag(FlagKind.SPREAD, 0.12), "the samples differ: the middle half"),
        (Flag(FlagKind.SPREAD, 0.31), "the samples are unstable: the middle half"),
        (Flag(FlagKind.DRIFT, -0.06), "the last third is 6.0 % faster"),
        (Flag(FlagKind.TWO_HUMPS, None, ("0.0021", "3.4 ms")), "2.10 ms and 3.4 ms"),
        (Flag(FlagKind.QUEUE_FULL, 1024), "1,024 launches in flight"),
        (Flag(FlagKind.LIMITED, None, ("heat",), 0), "cuda:0 down: heat"),
    ],
)
def test_flag_says_its_figure(flag, said):
    """The amount stands in the sentence, in the unit that it has."""
    (note,) = notes([flag], samples.H100)
    assert said in note.text


def test_serious_flags_come_first():
    """A problem is not found below twenty notes."""
    parts = draw(BY_NAME["every-flag"]).parts

    kinds = [part.kind for part in parts if isinstance(part, Note)]

    assert len(kinds) == len(FlagKind)
    assert kinds == sorted(kinds, key=["problem", "warning", "note"].index)


# ------------------------------------------------------------- several runs


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (samples.STEADY, "1.23 ms a call (median; 95 % interval: within 0.10 % of it)"),
        (samples.NOISY, "2.17 ms a call (median; 95 % interval: 2.11 ms to 3.34 ms)"),
        (samples.EXACT, "420 us a call, in each of 10 samples"),
        (samples.FEW, "850 ms a call, the median of 3 samples"),
        (samples.STEADY, "40 samples of 8 calls each, 320 calls together"),
        (samples.STEADY, "many calls, then one wait (throughput)"),
        (samples.STEADY, "(hot)"),
        (samples.STEADY, "The code ran 342 times altogether"),
        (samples.COLD, "(cold)"),
        (samples.COLD, "each call is waited for (latency)"),
        (samples.NOISY, "1 of 35, 1 of them far; all are kept"),
        (samples.NOISY, "3.0 times the median"[4:]),
        (samples.FEW, "too few samples for an interval"),
    ],
)
def test_what_must_be_said_of_samples_is_said(report, said):
    """Median, interval, counts, mode, caches, outliers."""
    assert said in text_of(report)


def test_calls_share_the_floor_of_their_sample():
    """A call far below the floor has digits where many are timed together."""
    report = samples.repeated((3.21 * US, 3.25 * US, 3.22 * US) * 4, 1024)

    assert draw(report).title.startswith("3.22 us a call")


@patient
@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=200))
def test_histogram_counts_every_sample(values):
    """What is not in a column is said to be beyond the picture."""
    histogram = Histogram("C", values)

    beyond = re.search(r"(\d+|1) values? beyond", histogram.words())
    assert sum(histogram.counts) + (int(beyond[1]) if beyond else 0) == len(values)


# ------------------------------------------------------------------ comparison


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (samples.FASTER, "new is 1.31 times as fast as base (1.28 to 1.34)"),
        (samples.SLOWER, "new takes 1.31 times as long as base (1.28 to 1.34)"),
        (samples.SAME, "new and base take the same time, within 1 %"),
        (
            samples.CANNOT_TELL,
            (
                "cannot tell whether this code or the base is faster: about 40 more "
                "pairs might"
            ),
        ),
        (samples.SLOWER, "base against itself came out as 0.996 to 1.003"),
        (samples.CANNOT_TELL, "the difference is within that, so it is noise"),
    ],
)
def test_verdict_is_said_with_its_interval(report, said):
    """Faster and slower are told as the reader thinks of them."""
    assert said in text_of(report)


def test_unsteady_noise_is_a_warning():
    """Where the base is faster than itself, nothing else can be believed."""
    noise = samples.against_itself(1.02, 1.05, samples.Verdict.SLOWER)
    report = dataclasses.replace(samples.SLOWER, noise=noise)

    notes = [part for part in draw(report).parts if isinstance(part, Note)]

    assert [note.kind for note in notes] == ["warning"]


def test_two_codes_of_one_name_are_told_apart():
    """A cell that was changed and run again may have kept its name."""
    report = dataclasses.replace(samples.FASTER, base=samples.FASTER.code)

    assert "the newer new is 1.31 times as fast as the older new" in text_of(report)


# ---------------------------------------------------------- races, roofs, logs


def test_races_are_told_with_both_lines_and_without_a_time():
    """Problem, what to type, both places; and what was not looked at."""
    text = text_of(samples.RACES)

    assert draw(samples.RACES).title == "2 races found"
    assert "side.wait_stream(torch.cuda.current_stream()) before" in text
    assert "first In [11], line 1 x = torch.randn" in text
    assert "then In [11], line 2 total = x.sum()" in text
    assert not re.search(r"\d (ms|us|s)\b", text)


def test_no_race_is_said_with_the_limits_of_looking():
    """It is no proof, and says how far it goes."""
    text = text_of(samples.NO_RACES)

    assert text.startswith("no race was seen")
    assert "by torch's sanitizer, which notes the tensors" in text
    assert "this run only" in text
    assert text_of(samples.NO_STREAMS).startswith("races could not be looked for")


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (samples.COMPUTE, "computing is the limit: the device does 742 TFLOP/s"),
        (samples.COMPUTE, "reached 84.4 % of that"),
        (samples.MEMORY, "the memory is the limit: it allows 652 GFLOP/s"),
        (samples.MEMORY, "reached 65.5 % of that"),
        (samples.ONLY_BYTES, "1.71 TB/s"),
        (samples.MODELLED, "as the model does it"),
        (samples.MODELLED, "--bytes SIZE says"),
        (samples.REFUSED, "operations could not be counted: the cell calls a compiled"),
        (samples.COMPUTE, "counted in one more run of the code"),
    ],
)
def test_roof_that_binds_is_named(report, said):
    """Achieved, allowed, and the share of it."""
    assert said in text_of(report)


def test_roof_is_drawn_where_all_of_it_is_known():
    """With one limit only there is no corner to draw."""

    def planes(report):
        return [part for part in draw(report).parts if isinstance(part, Plane)]

    assert len(planes(samples.COMPUTE)) == len(planes(samples.MEMORY)) == 1
    assert not planes(samples.MODELLED)
    assert not planes(samples.ONLY_BYTES)


@patient
@given(
    st.none() | st.integers(0, 10**18),
    st.none() | st.integers(0, 10**15),
    st.just(0.0) | st.floats(1e-6, 1e3),
    st.none() | st.floats(1e-3, 1e18),
)
def test_any_roofline_is_drawn(flops, nbytes, seconds, peak):
    """Nothing counted, nothing declared, no time: whatever is left is said."""
    peaks = dataclasses.replace(samples.PEAKS, flops_per_s=peak)
    roofline = Roofline(seconds, peaks, flops, nbytes)

    drawing = draw(dataclasses.replace(samples.GPU_BOUND, roofline=roofline))

    assert_survives(drawing.html())
    assert_numbers_agree(drawing)


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (samples.LOG, "12 timed cells; the slowest took 1.90 s: y = step(0)"),
        (samples.LOG, "failed after 12.0 ms"),
        (samples.LOG, "15.9 % 1 tail"),
        (samples.LOG, "first use, allocation"),
        (samples.LOG, "%cuda_sync_time log times.csv"),
        (samples.LONG_LOG, "the last 50 of 60"),
        (samples.LONG_LOG, "13 older cells before these were forgotten"),
        (samples.LONG_LOG, "saved as times.csv"),
        (LogReport(()), "no cell has been timed yet"),
    ],
)
def test_what_must_be_said_of_the_log_is_said(report, said):
    """Times, what %%time saw of them, flags in a word, and how to keep it."""
    assert said in text_of(report)


def test_long_log_shows_the_newest_cells():
    """What was timed last is what one wants to see."""
    text = text_of(samples.LONG_LOG)

    assert "In [59]" in text
    assert "In [9]" not in text


# -------------------------------------------------------------------- profiles


def test_lanes_are_host_first_then_streams():
    """Launches and waits lie inside operations, and have a lane of their own."""
    names = [lane.name for lane in timeline(samples.TWO_STREAMS, samples.H100).lanes]

    assert names == [
        "host",
        "host: waits, launches",
        "host, thread 1",
        "cuda:0 stream 7",
        "cuda:0 stream 13",
    ]


def test_time_line_has_the_length_of_the_run():
    """What is idle at the end is drawn."""
    scale = timeline(samples.TWO_STREAMS, samples.H100).scale

    assert (scale.start_s, scale.end_s) == (0.0, 4.4 * MS)


def test_of_many_streams_the_busiest_are_shown_and_the_rest_counted():
    """Forty streams do not bury the notebook, and the idle ones are left out."""
    report = samples.profiled(samples.MANY_STREAMS)

    drawn = timeline(samples.MANY_STREAMS, samples.H100)

    numbers = sorted(int(lane.name.rpartition(" ")[2]) for lane in drawn.shown)
    assert numbers == list(range(28, 40))
    assert len(drawn.lanes) == 40
    assert "... and 28 lanes more" in text_of(report)


def test_very_many_spans_are_quick_and_small():
    """Ten thousand spans are drawn within a second, and within 40 KB."""
    began = time.process_time()

    drawing = draw(samples.profiled(samples.MANY_SPANS))
    size = len(drawing.html().encode())

    assert len(samples.MANY_SPANS.spans) == 10_000
    assert size < 40_000
    assert time.process_time() - began < 1
    assert "6000 spans" in drawing.text()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("profile-two-streams", "none for 18.2 %"),
        ("profile-two-streams", "90.9 % of that was hidden behind kernels"),
        ("profile-two-streams", "At least two streams ran at once for 27.3 %"),
        ("profile-two-streams", "sm90_xmma_gemm_bf16 kernel 4 3.60 ms"),
        ("profile-two-streams", "the whole trace was saved as trace.json"),
        ("profile-no-device", "no GPU activity could be traced"),
        ("profile-no-device", "close nsys"),
        ("profile-nothing", "nothing to draw"),
    ],
)
def test_what_must_be_said_of_a_profile_is_said(name, said):
    """Busy, idle, overlapped, hidden, and where it was saved."""
    assert said in text_of(BY_NAME[name])


# --------------------------------------------------------------- all of them


@pytest.mark.parametrize(("name", "report"), SAMPLES)
def test_every_sample_survives_and_tells_the_same_in_both_forms(name, report):
    """Nothing is dropped by a notebook that is not trusted, nor said in HTML only."""
    drawing = draw(report)

    assert_survives(drawing.html())
    assert_numbers_agree(without_titles(drawing))
    assert len(drawing.html().encode()) < 40_000, name


def test_nothing_known_is_still_drawn():
    """A runtime that tells nothing but two times gives a picture."""
    text = text_of(samples.UNKNOWN)

    assert "of that, for other streams unknown" in text
    assert "an empty cell (the floor) unknown" in text


KINDS = st.sampled_from(("a", "b", "", "c"))
SIZES = st.floats() | st.floats(0, 10)
CLOCK = st.integers(-(10**9), 10**15).map(lambda ticks: ticks / 1e9)


@patient
@given(
    st.lists(st.tuples(TEXTS, st.lists(st.tuples(KINDS, SIZES), max_size=5), TEXTS)),
    st.lists(NUMBERS.filter(lambda size: size is not None), max_size=40),
    st.lists(st.tuples(TEXTS, SIZES, SIZES, SIZES, TEXTS), max_size=3),
    TEXTS,
)
def test_new_parts_survive_any_content(stacks, values, ranges, words):
    """Hostile names and impossible sizes are drawn, and told alike in both forms."""
    bars = tuple(Stack(label, tuple(of), text) for label, of, text in stacks)
    drawing = Drawing(
        "T",
        (
            Stacks(words, bars, (("a", words), ("b", ""), ("c", "3"))),
            Histogram(words, values),
            Ranges(words, tuple(Range(*one) for one in ranges), 1.0, (0.9, 1.1), words),
            Plane(words, ((1, 1), (9, 9)), (3, 2), words, words, words),
        ),
    )

    assert_survives(drawing.html())
    assert_numbers_agree(drawing)


@patient
@given(CLOCK, CLOCK, st.none() | CLOCK, st.none() | CLOCK, st.none() | TIMES)
def test_any_run_is_drawn(elapsed, naive, tail, backlog, floor):
    """Clocks that stand still or go wild do not end in a traceback."""
    setting = Setting("cuda", floor_s=floor)
    run = Run(elapsed, naive, tail_s=tail, backlog_s=backlog)

    drawing = draw(dataclasses.replace(samples.GPU_BOUND, setting=setting, run=run))

    assert_survives(drawing.html())
    assert_numbers_agree(drawing)


@pytest.mark.parametrize(
    "options", ["--latency --throughput", "--throughput -n 3 --latency"]
)
def test_two_ways_to_wait_are_refused(options):
    """The last one does not win in silence; the two lines name both."""
    parser = TimeMagics.cuda_sync_time.parser

    with pytest.raises(UsageProblem) as refused:
        parse(parser, "%cuda_sync_time", options)

    assert "--latency" in refused.value.problem
    assert "--throughput" in refused.value.problem
    assert refused.value.hint == "leave one of them away"


def test_one_way_to_wait_may_be_said_twice():
    """Saying the same once more contradicts nothing."""
    options = parse(
        TimeMagics.cuda_sync_time.parser, "%cuda_sync_time", "--latency --latency"
    )

    assert options.mode == "latency"
