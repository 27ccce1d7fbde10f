"""What is said about measured times, in which words, and how large it becomes."""

from __future__ import annotations

import dataclasses
import doctest
import itertools
import re
import time
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpumagic.cuda_sync_time import digits
from gpumagic.cuda_sync_time.digits import measured
from gpumagic.cuda_sync_time.report import (
    Flag,
    FlagKind,
    Roofline,
    Run,
    Setting,
    SyncPoint,
    TopKernel,
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
    Timeline,
)
from gpumagic.errors import GpuMagicError
from gpumagic.report.events import SpanKind
from tests.cuda_sync_time import samples
from tests.cuda_sync_time.samples import MS, SAMPLES, US
from tests.drawing.drawings import NUMBERS, TEXTS
from tests.drawing.survives import assert_numbers_agree, assert_survives

BY_NAME = dict(SAMPLES)
TIMES = st.floats(1e-9, 1e5)
patient = settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow]
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


def lanes_of(report):
    """What each lane of the picture shows, as kinds with their milliseconds."""
    (drawn,) = (part for part in draw(report).parts if isinstance(part, Timeline))
    return {
        lane.name: [
            (span.kind, round(span.start_s / MS, 4), round(span.end_s / MS, 4))
            for span in lane.drawn
        ]
        for lane in drawn.lanes
    }


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (
            samples.GPU_BOUND,
            (
                "84.3 ms: the GPU works at least 83.9 ms of it, the host waits; "
                "%%time would say 400 us"
            ),
        ),
        (
            dataclasses.replace(samples.LAUNCH_BOUND, run=Run(20.1 * MS, 20.1 * MS)),
            "20.1 ms: the code ran 20.1 ms of it, the GPU was done with it",
        ),
        (
            samples.LAUNCH_BOUND,
            "20.1 ms: the code ran 20.0 ms of it, the GPU was done 100 us later",
        ),
        (samples.NO_WORK, "2.64 ms: the GPU does nothing in it"),
        (
            samples.SMALL_WORK,
            "4.05 ms: the GPU works 600 us of it, launching takes 3.20 ms",
        ),
        (samples.WAITING, "15.0 ms: its lines wait 11.8 ms for the GPU"),
        (
            dataclasses.replace(samples.WAITING, syncs=None),
            "15.0 ms: the GPU works 13.5 ms of it, its lines wait 11.8 ms for that",
        ),
        (
            samples.STARTED,
            "20.6 ms: the GPU works 50.0 us of it, starting cuBLAS takes part of it",
        ),
        (
            samples.TURNS,
            (
                "8.10 ms: the GPUs work 7.60 ms of it, the host waits; %%time would "
                "say 900 us"
            ),
        ),
    ],
)
def test_title_is_the_answer(report, said):
    """The time, who worked, who waited, and where %%time would be wrong."""
    assert draw(report).title == said


def test_title_says_whose_clock_it_is_where_python_matters():
    """What took this machine a second is told as microseconds of a model."""
    drawing = draw(samples.OWN_TIME)

    assert drawing.title.startswith("95 us on the simulated clock: ")
    assert "here it ran 1.31 s" in drawing.notes[0].text
    assert "simulated clock" not in draw(samples.TURNS).title


def test_python_beside_a_simulated_machine_has_its_own_time():
    """The simulated clock stands still then, which is no time of anybody's."""
    run = Run(0.0, 0.0, uses_device=False, simulated_in_s=0.958)
    report = dataclasses.replace(samples.ON_CPU, run=run)

    assert draw(report).title == "958 ms on this machine; no GPU was used"
    assert report.seconds == 0.958


def test_what_is_neither_launching_nor_waiting_is_told():
    """Memory from the driver, or whatever the code does: it is the largest part."""
    run = dataclasses.replace(
        samples.SMALL_WORK.run, elapsed_s=12 * MS, naive_s=11.9 * MS
    )
    report = dataclasses.replace(samples.SMALL_WORK, run=run)

    assert draw(report).title == (
        "12.0 ms: the GPU works 600 us of it, other host code takes 8.70 ms"
    )


ITEMS = dataclasses.replace(
    samples.WAITING,
    syncs=None,
    run=dataclasses.replace(samples.WAITING.run, elapsed_s=15.0 * MS),
)


@pytest.mark.parametrize("busy", [0.3, 0.9])
def test_waits_that_let_the_gpu_run_dry_are_named_before_all_else(busy):
    """Neither launching nor the kernels are blamed for what `.item()` costs."""
    activity = dataclasses.replace(ITEMS.activity, busy_s=busy * 15.0 * MS)
    drawing = draw(dataclasses.replace(ITEMS, activity=activity))

    (note,) = drawing.notes
    assert "wait" in drawing.title
    assert ".item()" in note.text
    assert note.hint == "--syncs names the lines"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([".item()", ".cpu()"], "several calls"),
        (["2 names"], "several calls"),
        (["queue full"], ""),
    ],
)
def test_waits_of_several_kinds_have_no_name(names, said):
    """A pooled one is none either, and a full queue is no line's wait."""
    names = itertools.cycle(names)
    spans = tuple(
        dataclasses.replace(each, name=next(names))
        if each.kind is SpanKind.WAIT
        else each
        for each in ITEMS.activity.spans
    )
    activity = dataclasses.replace(ITEMS.activity, spans=spans, busy_s=5 * MS)

    notes = draw(dataclasses.replace(ITEMS, activity=activity)).notes

    assert [note for note in notes if "the host waits at" in note.text] == [
        note for note in notes if said and said in note.text
    ]
    assert bool(notes) == bool(said)


def test_a_wait_after_which_nothing_is_launched_costs_nothing():
    """A value read at the end keeps nobody from anything."""
    spans = (
        *samples.host(SpanKind.LAUNCH, (0.0, 1.0)),
        *samples.host(SpanKind.WAIT, (1.0, 14.9), name=".item()"),
        *samples.work(0, (1.0, 14.0)),
    )
    activity = samples.seen(*spans, length_s=15.0 * MS, busy_s=13.0 * MS)

    (note,) = draw(dataclasses.replace(ITEMS, activity=activity)).notes

    assert "faster kernels" in note.text
    assert "only" not in note.text


def test_advice_is_said_again_with_what_to_type():
    """A word in the place of a note would keep back what to type."""
    first, second = draw(ITEMS), draw(samples.WAITING)

    again = second.after({note.word for note in first.notes if note.word})

    assert again.notes == second.notes
    assert "keep values on the GPU" in second.notes[0].hint


def test_what_the_gpu_did_while_the_code_ran_is_not_judged():
    """Where half of the time is unknown, nobody knows whether kernels are the limit."""
    run = dataclasses.replace(samples.GPU_BOUND.run, elapsed_s=10 * MS, naive_s=4 * MS)

    (note,) = draw(dataclasses.replace(samples.GPU_BOUND, run=run)).notes

    assert note.hint == "--profile shows when it was busy"


def test_waits_beside_each_other_make_no_sum():
    """Several threads may wait for longer together than the code ran."""
    waits = (SyncPoint(".item()", None, 9, 15 * MS),) * 2
    report = dataclasses.replace(samples.LAUNCH_BOUND, syncs=waits)

    title = draw(report).title

    assert title == "20.1 ms: its lines wait for the GPU 18 times"


def test_a_wait_shorter_than_an_empty_cell_has_its_own_time():
    """Waits were timed one by one, so that no floor of a cell is in them."""
    waits = (SyncPoint(".item()", None, 1, 5 * US),)
    report = dataclasses.replace(samples.LAUNCH_BOUND, syncs=waits)

    (table,) = (part for part in draw(report).parts if isinstance(part, Table))

    assert table.rows[0][-1] == "5.00 us"


def test_naive_time_below_the_floor_gives_a_bound():
    """A ratio to what cannot be told from nothing would be made up."""
    drawing = draw(dataclasses.replace(samples.GPU_BOUND, run=Run(84.3 * MS, 5 * US)))

    assert drawing.title.endswith("; %%time would say less than 21 us")
    assert "more than 4,014 times too little" in flat(drawing.whole().text(2000))


# ------------------------------------------------------------ who was busy when


def test_what_two_stamps_tell_is_solid_and_the_rest_is_not():
    """One GPU works while the host waits for it; of the time before, nobody knows."""
    assert lanes_of(samples.OVERLAPPED) == {
        "host": [("host code", 0.0, 19.8), ("host waits", 19.8, 31.4)],
        "cuda:0": [("perhaps busy", 0.0, 19.8), ("kernel", 19.8, 31.4)],
    }


def test_of_two_devices_only_what_events_tell_is_solid():
    """A tail is on one of them, and nobody knows on which."""
    lanes = lanes_of(samples.TAIL)

    assert lanes["cuda:0"] == [
        ("perhaps busy", 0.0, 0.3),
        ("kernel", 0.3, 7.8),
        ("perhaps busy", 7.8, 58.1),
    ]
    assert lanes["cuda:1"] == [("perhaps busy", 0.0, 58.1)]


def test_a_device_that_was_done_with_the_code_is_never_solid():
    """It may have idled all the time: a wait below the floor is none."""
    report = dataclasses.replace(samples.LAUNCH_BOUND, run=Run(20.1 * MS, 20.09 * MS))

    assert lanes_of(report)["cuda:0"] == [("perhaps busy", 0.0, 20.09)]


def test_two_devices_that_take_turns_are_seen_taking_turns():
    """Neither is drawn while the other one works."""
    lanes = lanes_of(samples.TURNS)

    assert lanes["sim:0"] == [("kernel", 0.1, 2.0), ("kernel", 4.1, 6.0)]
    assert lanes["sim:1"] == [("kernel", 2.1, 4.0), ("kernel", 6.1, 8.0)]


def test_an_idle_device_has_an_empty_lane():
    """Memory alone is no work."""
    assert lanes_of(samples.NO_WORK)["sim:0"] == []


def test_waits_are_drawn_where_they_were():
    """What the title calls waiting is no code in the picture."""
    for report, seconds in ((samples.WAITING, 11.8), (samples.SYNCING, 14.0)):
        spans = lanes_of(report)["host"]
        waits = [end - start for kind, start, end in spans if kind == "host waits"]

        assert sum(waits) == pytest.approx(seconds, rel=0.05)


def test_known_waits_for_the_only_device_show_it_at_work():
    """While the host waits for it, it cannot be idle."""
    (drawn,) = (
        part for part in draw(samples.SYNCING).parts if isinstance(part, Timeline)
    )

    assert drawn.scale.share(drawn.lanes[1]) == "at least 70.1 %"


def test_a_device_without_events_is_in_the_picture():
    """It was first used in the cell, so no event was before it."""
    run = dataclasses.replace(samples.GPU_BOUND.run, events=())

    lanes = lanes_of(dataclasses.replace(samples.GPU_BOUND, run=run))

    assert lanes["cuda:0"] == [("perhaps busy", 0.0, 0.4), ("kernel", 0.4, 84.3)]


def test_short_kinds_in_turn_are_told_apart_in_text():
    """A thousand waits are not one block of code, however narrow the terminal is."""
    line = next(
        each
        for each in draw(samples.SYNCING).text(80).splitlines()
        if each.startswith("  host  ")
    )

    assert len(set(line.split()[1])) > 1


def test_there_is_one_picture_with_a_profile():
    """Two pictures could contradict each other."""
    drawing = draw(samples.profiled(samples.TWO_STREAMS))

    assert len([part for part in drawing.parts if isinstance(part, Timeline)]) == 1
    assert list(drawing.folded) == ["busy", "lanes", "how"]


def test_kernels_of_one_name_share_a_row():
    """However many types and shapes a template was made for."""
    names = [f"void at::native::reduce_kernel<{n}, float>(int)" for n in range(8)]
    kernels = tuple(TopKernel(name, "kernel", 2, MS, MS) for name in names)
    profile = dataclasses.replace(samples.TWO_STREAMS, kernels=kernels)

    drawing = draw(samples.profiled(profile))
    (table,) = (part for part in drawing.parts if isinstance(part, Table))

    assert [row[:3] for row in table.rows] == [("reduce_kernel", "16", "8.00 ms")]
    assert all(name in flat(drawing.whole().text(2000)) for name in names)


# ------------------------------------------------------------------------- zoom


def test_zoom_draws_a_part_on_the_clock_of_the_run():
    """Both ends are where they were asked for, and nothing else is drawn."""
    zoom = samples.TURNS.zoom("3ms", 0.005)
    drawing = draw(zoom)
    (drawn,) = drawing.parts

    assert drawing.title == "2.00 ms of 8.10 ms: sim:0 45.0 %, sim:1 50.0 % busy"
    assert drawn.scale.ticks() == ["3.00 ms", "4.00 ms", "5.00 ms"]
    assert [round(span.end_s / MS, 1) for span in drawn.lanes[2].drawn] == [4.0]
    assert "text/html" in zoom._repr_mimebundle_()


@pytest.mark.parametrize(
    ("start", "end"), [("3ms", "2ms"), (1, 2), (-1, 1), ("1ms", "1ms")]
)
def test_zoom_on_nothing_says_how_long_the_run_was(start, end):
    """The error has the length, and what to type."""
    with pytest.raises(GpuMagicError, match=r"this run took 8.10 ms") as error:
        samples.TURNS.zoom(start, end)

    assert 'report.zoom("0s", "4.05ms")' in error.value.hint


def test_zoom_needs_a_timeline():
    """Where no device was used, nothing was drawn."""
    with pytest.raises(GpuMagicError, match="no timeline"):
        samples.ON_CPU.zoom("1ms", "2ms")


# ---------------------------------------------------------------------- the rest


def test_backlog_is_told_with_its_figure():
    """Work of earlier cells may have taken a thousand times as long."""
    text = text_of(samples.LONG_BACKLOG)

    assert "1.31 s of queued work from earlier cells" in text


@pytest.mark.parametrize("run", [samples.GPU_BOUND.run, samples.LAUNCH_BOUND.run])
def test_failed_run_is_never_explained_like_one_that_worked(run):
    """Its split between host and GPU means nothing."""
    text = text_of(dataclasses.replace(samples.FAILED, run=run))

    assert text.startswith("failed after ")
    assert "the GPU works" not in text
    assert "--syncs" not in text
    assert "%%time would say" not in text


def test_nothing_is_said_of_syncs_where_nobody_looked():
    """No table, and no claim that nothing waited."""
    assert "make the host wait" not in text_of(samples.GPU_BOUND)
    assert "nothing in it waits" not in text_of(samples.LAUNCH_BOUND)


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
    """Three problems are in sight, and nothing of the rest is lost."""
    drawing = draw(BY_NAME["every-flag"])

    assert [note.kind for note in drawing.notes] == ["problem"] * 3
    whole = flat(drawing.whole().text(2000)).lower()
    told = notes(samples.EVERY_FLAG, samples.H100)
    assert [note.text for note in told if note.text.lower() not in whole] == []


# ------------------------------------------------------------- several runs


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


def test_figures_of_a_model_carry_no_statistics():
    """Where all samples are one number, there is nothing to doubt and to draw."""
    flags = (Flag(FlagKind.FEW, 4), Flag(FlagKind.VALUES_TOOK, 2.1))
    exact = dataclasses.replace(samples.EXACT, flags=flags)
    text = flat(draw(exact).whole().text(2000))

    assert draw(samples.EXACT).title == "420 us a call, the same in each run"
    assert not re.search(r"95 %|interval|outlier|highest|column", text)


# ------------------------------------------------------------------ comparison


def test_two_codes_on_a_model_carry_no_statistics():
    """No interval from 1.111 to 1.111, and no picture of it."""
    pairs = ((2.0 * MS, 1.8 * MS),) * 20
    result = samples.Comparison(
        pairs, 0.9, samples.Interval(0.9, 0.9, 0.96), samples.Verdict.FASTER
    )
    report = dataclasses.replace(
        samples.FASTER, setting=samples.SIMULATED, result=result
    )

    drawing = draw(report)
    text = flat(drawing.whole().text(2000))

    assert drawing.title == "new is 1.111 times as fast as base"
    assert not re.search(r"95 %|median|\bto 0\.9|highest", text)
    assert "new 1.80 ms" in text
    assert "base 2.00 ms" in text


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

    assert draw(samples.RACES).title == (
        "2 races found, the first at In [11], line 2: its result may differ each time"
    )
    assert "side.wait_stream(torch.cuda.current_stream()) before" in text
    assert "1 first In [11], line 1 x = torch.randn" in text
    assert "1 then In [11], line 2 total = x.sum()" in text
    assert not re.search(r"\d (ms|us|s)\b", text)


def test_no_race_is_said_with_the_limits_of_looking():
    """It is no proof, and says how far it goes."""
    text = flat(draw(samples.NO_RACES).whole().text(2000))

    assert text.startswith("no race was seen in this run")
    assert "by torch's sanitizer. It notes the tensors" in text
    assert "this run only" in text
    assert text_of(samples.NO_STREAMS).startswith("races could not be looked for")


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


def test_long_log_shows_the_slowest_cells_and_has_the_newest():
    """Where the time went is in sight; the order of cells is asked for."""
    drawing = draw(samples.LONG_LOG)
    (table,) = (part for part in drawing.parts if isinstance(part, Table))

    assert len(table.rows) == 8
    assert {row[3].text for row in table.rows} == {"70.0 ms"}
    whole = flat(drawing.whole().text(2000))
    assert "In [59]" in whole
    assert "In [9]" not in whole


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
    one_device = dataclasses.replace(
        samples.MANY_STREAMS,
        spans=tuple(
            dataclasses.replace(span, device=0) for span in samples.MANY_STREAMS.spans
        ),
    )

    drawn = timeline(one_device, samples.H100)

    numbers = sorted(int(lane.name.rpartition(" ")[2]) for lane in drawn.shown)
    assert numbers == list(range(28, 40))
    assert len(drawn.lanes) == 40
    assert "... and 28 lanes more" in flat(Drawing("T", (drawn,)).text(2000))


def test_very_many_spans_are_quick_and_small():
    """Ten thousand spans are drawn within a second, and within 40 KB."""
    began = time.process_time()

    drawing = draw(samples.profiled(samples.MANY_SPANS))
    size = len(drawing.html().encode())

    assert len(samples.MANY_SPANS.spans) == 10_000
    assert size < 40_000
    assert time.process_time() - began < 1
    assert "54.0 %" in drawing.text()


# --------------------------------------------------------------- all of them


def test_nothing_known_is_still_drawn():
    """A runtime that tells nothing but two times gives a picture."""
    text = flat(draw(samples.UNKNOWN).whole().text(2000))

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


def test_what_the_gpu_is_known_to_have_done_is_no_empty_cell():
    """However long an empty one takes on a busy machine; without, nobody knows."""
    seen = samples.profiled(samples.TWO_STREAMS)
    slow = Setting("cuda", floor_s=seen.run.elapsed_s * 0.6)

    known = draw(dataclasses.replace(seen, setting=slow))
    unknown = draw(dataclasses.replace(seen, setting=slow, profile=None))

    assert "the GPU works" in known.title
    assert "hardly more than an empty cell" in unknown.title


@pytest.mark.parametrize(("other_s", "is_all"), [(2 * MS, True), (None, False)])
def test_a_sum_of_waits_with_one_unknown_is_a_least(other_s, is_all):
    """Where one wait has no known cost, the others come to "at least" so much."""
    waits = (
        SyncPoint(".item()", None, 1, 3 * MS),
        SyncPoint(".nonzero()", None, 1, other_s),
    )
    report = dataclasses.replace(samples.LAUNCH_BOUND, syncs=waits)

    title = draw(report).title

    assert (f"wait {'5.00' if is_all else 'at least 3.00'} ms for the GPU") in title
