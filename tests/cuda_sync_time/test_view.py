"""What is said about measured times, in which words, and how large it becomes."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpumagic.cuda_sync_time.answer_run import BriefReport
from gpumagic.cuda_sync_time.findings import measured, notes
from gpumagic.cuda_sync_time.records import (
    LIBRARY,
    Flag,
    FlagKind,
    Run,
    Setting,
    SyncPoint,
)
from tests.cuda_sync_time import samples
from tests.cuda_sync_time.samples import MS, US
from tests.drawing.survives import assert_numbers_agree, assert_survives

TIMES = st.floats(1e-9, 1e5)
patient = settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow]
)


def flat(text):
    """The text without its line breaks."""
    return " ".join(text.split())


# ------------------------------------------------------------------- digits


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


# -------------------------------------------------------------------- one run


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (
            samples.ITEMS,
            "15.0 ms: the GPU works 13.5 ms of it, its lines wait 11.8 ms for that",
        ),
        (
            samples.OWN_TIME,
            (
                "95 us on the simulated clock: the GPU works 38.0 us of it, the host "
                "waits; %%time would say 20 us"
            ),
        ),
        (
            dataclasses.replace(
                samples.ON_CPU,
                run=Run(0.0, 0.0, uses_device=False, simulated_in_s=0.958),
            ),
            "958 ms on this machine; no GPU was used",
        ),
        (
            dataclasses.replace(samples.GPU_BOUND, run=Run(84.3 * MS, 5 * US)),
            (
                "84.3 ms: the GPU works at least 84.3 ms of it, the host waits; %%time "
                "would say less than 21 us"
            ),
        ),
        (
            samples.STARTED,
            "20.6 ms: the GPU works 50.0 us of it, starting cuBLAS takes part of it",
        ),
        (samples.repeated([2 * MS]), "2.00 ms a call, the median of 1 sample"),
        (
            samples.compared(samples.Verdict.SLOWER, 1.31, (1.28, 1.34)),
            "new takes 1.31 times as long as base (1.28 to 1.34)",
        ),
        (
            BriefReport(samples.TAIL),
            (
                "58.1 ms: the GPUs work at least 57.8 ms of it, the host waits; "
                "%%time would say 300 us [backlog, tail]"
            ),
        ),
    ],
)
def test_title_is_the_answer(report, said):
    """The time, who worked, who waited, and where %%time would be wrong."""
    assert report.drawing().title == said


@pytest.mark.parametrize("busy", [0.3, 0.9])
def test_waits_that_let_the_gpu_run_dry_are_named_before_all_else(busy):
    """Neither launching nor the kernels are blamed for what `.item()` costs."""
    activity = dataclasses.replace(samples.ITEMS.activity, busy_s=busy * 15.0 * MS)
    drawing = dataclasses.replace(samples.ITEMS, activity=activity).drawing()

    (note,) = drawing.notes
    assert "wait" in drawing.title
    assert ".item()" in note.text
    assert note.hint == "--syncs names the lines"


# ---------------------------------------------------------------------- flags


@pytest.mark.parametrize("kind", FlagKind)
@pytest.mark.parametrize("amount", [0.0, 1, -0.08, 1024])
def test_every_flag_is_told_whatever_is_known_of_it(kind, amount):
    """With or without a figure, names and a device; no brace is left open."""
    for names, device in (((), None), (("{a}", "b"), 1)):
        (note,) = notes([Flag(kind, amount, names, device)], samples.H100)

        assert note.text
        assert "None" not in note.text + note.hint
        assert re.search(r"{(?!a})", note.text) is None


# --------------------------------------------------------------- all of them


CLOCK = st.integers(-(10**9), 10**15).map(lambda ticks: ticks / 1e9)


@patient
@given(CLOCK, CLOCK, st.none() | CLOCK, st.none() | CLOCK, st.just(0.0) | TIMES)
def test_any_run_is_drawn(elapsed, naive, tail, backlog, floor):
    """Clocks that stand still or go wild do not end in a traceback."""
    setting = Setting("cuda", floor_s=floor)
    run = Run(elapsed, naive, tail_s=tail, backlog_s=backlog)

    drawing = dataclasses.replace(samples.GPU_BOUND, setting=setting, run=run).drawing()

    assert_survives(drawing.html())
    assert_numbers_agree(drawing)


def test_what_the_gpu_is_known_to_have_done_is_no_empty_cell():
    """However long an empty one takes on a busy machine; without, nobody knows."""
    seen = samples.profiled(samples.TWO_STREAMS)
    slow = Setting("cuda", floor_s=seen.run.elapsed_s * 0.6)

    known = dataclasses.replace(seen, setting=slow).drawing()
    unknown = dataclasses.replace(seen, setting=slow, profile=None).drawing()

    assert "the GPU works" in known.title
    assert "hardly more than an empty cell" in unknown.title


@pytest.mark.parametrize(("other_s", "is_all"), [(2 * MS, True), (None, False)])
def test_a_sum_of_waits_with_one_unknown_is_a_least(other_s, is_all):
    """Where one wait has no known cost, the others come to "at least" so much."""
    waits = (
        SyncPoint(".item()", LIBRARY, 1, 3 * MS),
        SyncPoint(".nonzero()", LIBRARY, 1, other_s),
    )
    report = dataclasses.replace(samples.LAUNCH_BOUND, syncs=waits)

    title = report.drawing().title

    assert (f"wait {'5.00' if is_all else 'at least 3.00'} ms for the GPU") in title
