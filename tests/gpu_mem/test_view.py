"""What holds of every answer about memory, whatever is known."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpumagic.drawing import Table
from gpumagic.gpu_mem import answer_map
from gpumagic.gpu_mem.answer_cell import BriefReport, peak_text
from gpumagic.gpu_mem.answer_map import MapReport
from gpumagic.gpu_mem.answer_now import BADGES, MemoryReport, notes
from gpumagic.gpu_mem.answer_why import Verdict, WhyReport
from gpumagic.gpu_mem.oom import read_oom
from gpumagic.gpu_mem.records import (
    BadgeKind,
    Cause,
    CellBadge,
    Counters,
    DeviceChange,
    DeviceMemory,
    Holder,
    HolderKind,
    Holdings,
    OomFacts,
    Peak,
    PeakKind,
)
from gpumagic.report.units import bytes_text
from tests.drawing.survives import assert_numbers_agree, assert_survives
from tests.gpu_mem import samples
from tests.gpu_mem.samples import CUDA, GIB, MIB, SAMPLES, gib

BYTES = st.none() | st.integers(0, 10**13)
patient = settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)


def replaced(report, **changes):
    """The report with some of it changed."""
    return dataclasses.replace(report, **changes)


@pytest.mark.parametrize("report", dict(SAMPLES).values(), ids=dict(SAMPLES))
def test_no_sample_shows_what_is_no_word(report):
    """No None, no open brace of a template, no name of a class; a label is shown."""
    text = report.drawing().whole().text(2000).replace("{line}", "")

    assert not re.search(r"\bNone\b|[{}]|\w+Kind\.|nan", text)
    of = report.cell if isinstance(report, BriefReport) else report
    assert report.drawing().label == of.setting.label


@patient
@given(st.tuples(*[BYTES] * 6), st.none() | st.integers(0, 9))
def test_unknown_is_never_drawn_as_nothing(figures, processes):
    """Whatever is known of a device, an unknown figure is called so."""
    allocated, reserved, total, free, others, cap = figures
    counters = Counters(0, allocated, reserved)
    memory = DeviceMemory(counters, None, total, free, others, processes, cap)

    drawing = MemoryReport(CUDA, (memory,)).drawing()

    assert_numbers_agree(drawing)
    rows = dict(drawing.folded["counters"].parts[0].pairs)
    for name, figure in (
        ("in use", allocated),
        ("cached", memory.cached_bytes),
        ("free", free),
        ("total", total),
        ("others", others),
        ("outside torch", memory.outside_bytes),
    ):
        assert rows[name] == bytes_text(figure)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (HolderKind.ERROR, "is held by a failed call: %gpu_mem leaks"),
        (HolderKind.OUTPUT, "is held by shown results: %gpu_mem leaks"),
        (HolderKind.UNATTRIBUTED, "is held by no name that was found"),
    ],
)
def test_title_is_never_silent_about_the_largest_part(kind, said):
    """Who reads no more than the first line knows what to let go of."""
    holders = (
        replaced(samples.BATCH, own_bytes=109 * MIB, reachable_bytes=109 * MIB),
        replaced(samples.ERROR, kind=kind, own_bytes=448 * MIB, delta_bytes=30 * MIB),
    )
    sums = ((0, HolderKind.VARIABLE, 109 * MIB), (0, kind, 448 * MIB))
    holdings = Holdings(holders, ((0, 557 * MIB),), sums)

    counters = samples.counters(0, 557 / 1024, 0.7)
    device = replaced(samples.ONE, counters=counters)
    report = replaced(samples.BALANCE, devices=(device,), holdings=holdings)
    cell = replaced(samples.CELL, holdings=holdings)

    assert report.drawing().title == f"448 of 557 MiB allocated on cuda:0 {said}"
    assert cell.drawing().title.endswith(f"; 30.0 MiB {said}")


@patient
@given(
    st.lists(
        st.builds(
            Holder,
            st.text(max_size=8),
            st.sampled_from(HolderKind),
            st.integers(0, 3),
            st.integers(0, 10**12),
            st.integers(0, 10**12),
            delta_bytes=st.integers(-(10**9), 10**9),
        ),
        max_size=12,
    ),
    st.integers(0, 10**13),
)
def test_any_names_are_drawn_with_their_sum(holders, allocated):
    """The last row is what is allocated, and what is alone adds up to it."""
    holdings = Holdings(tuple(holders), ((0, allocated),))

    drawing = replaced(samples.BALANCE, holdings=holdings).drawing()

    assert_numbers_agree(drawing)
    if holders:
        (table,) = (p for p in drawing.parts if isinstance(p, Table))
        assert table.rows[-1][0] == "allocated"
        assert bytes_text(allocated) in table.rows[-1]
        assert len(table.rows) <= 12


def test_every_peak_has_words():
    """An unknown one is unknown in each form; two bounds are no exact figure."""
    assert peak_text(Peak()) == "unknown"
    for low, high, said in (
        (3 * GIB, math.inf, "at least 3.00 GiB"),
        (4 * GIB, 4 * GIB + 512, "about 4.00 GiB"),
        (512 * MIB, GIB, "512 MiB to 1.00 GiB"),
        (3 * GIB, 4 * GIB, "3.00 to 4.00 GiB"),
        (3 * GIB, 3 * GIB, "3.00 GiB"),
    ):
        assert peak_text(Peak(PeakKind.BOUND, low, high)) == said


@pytest.mark.parametrize("amount", [0, 1, 3 * MIB])
def test_every_badge_is_told_whatever_is_known_of_it(amount):
    """With or without a figure; the most serious first, no open brace."""
    assert set(BADGES) == set(BadgeKind)
    told = notes([CellBadge(kind, 1, amount) for kind in BadgeKind], CUDA)
    kinds = [note.kind for note in told]

    assert kinds == sorted(kinds, key=["problem", "warning", "note"].index)
    assert not any(re.search(r"[{}]|None", f"{n.text}{n.hint}") for n in told)


def test_what_was_not_recorded_is_said_in_sight():
    """Who asked for lines and has none reads why, and what to do."""
    report = replaced(samples.BOUNDED, remarks=("nothing was recorded: run it again",))

    assert "nothing was recorded: run it again" in report.drawing().text()
    unknown = replaced(report, changes=(DeviceChange(Counters(0), Counters(0)),) * 3)
    assert unknown.headline.endswith("how much moved on cuda:0 is not counted")
    assert "an unknown change on 3 devices together" in unknown.headline


STATES = {"": "free", "in use": "allocated", "awaited": "pending"}


@patient
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(["small", "large", "7"]),
            st.lists(
                st.tuples(st.sampled_from("apf"), st.integers(1, 300)),
                min_size=1,
                max_size=30,
            ),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_any_map_is_drawn_to_the_byte(made):
    """Segments of any device, stream and pool; what is not drawn is said."""
    segments = tuple(
        samples.segment(n << 32, *pieces, device=n % 2, stream=stream, pool=pool)
        for n, (stream, pool, pieces) in enumerate(made)
    )
    drawn, there = {}, {}
    devices = {each.device for each in segments}
    own = [[s for s in segments if s.device == device] for device in devices]
    for picture in (answer_map.picture_of(its, "cuda", 40) for its in own):
        for row in picture.rows:
            assert row.length <= picture.full
            for piece in row.pieces:
                kind = STATES[piece.kind]
                drawn[kind] = drawn.get(kind, 0) + piece.size
    for block in (block for segment in segments for block in segment.blocks):
        there[block.state.value] = there.get(block.state.value, 0) + block.nbytes

    drawing = MapReport(CUDA, segments).drawing().whole()

    assert drawn == there or "not drawn" in drawing.text()
    assert_survives(drawing.html())


def test_thousands_of_blocks_cost_as_little_as_a_few():
    """The picture grows with what can be seen, and not with the blocks."""
    few, many = (
        MapReport(CUDA, (samples.segment(0, *[("a", 1), ("f", 2)] * pairs),))
        for pairs in (60, 2500)
    )

    assert len(many.drawing().html()) < min(40_000, 6 * len(few.drawing().html()))


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_is_told_whatever_is_known(cause):
    """With all figures and with none; what is unknown is left out of the sentence."""
    for report in (samples.LIVE, WhyReport(CUDA, read_oom(""))):
        verdict = Verdict((cause, cause), report is samples.LIVE, gib(9))
        drawing = replaced(report, oom=samples.OOM, verdict=verdict).drawing()
        sentence = drawing.folded["figures"].parts[1].text
        assert sentence.startswith("Besides, ")
        assert not re.search(r"None|[{}]|unknown", f"{drawing.title} {sentence}")


def test_a_limit_is_not_told_of_what_is_free_again():
    """What was alive then and went is no matter of the limit of this process."""
    verdict, held = Verdict((Cause.TOO_MUCH_LIVE,), is_capped=True), samples.LIVE.held
    now, then = (
        replaced(samples.LIVE, verdict=verdict, held=replaced(held, gone_bytes=gone))
        for gone in (0, gib(40))
    )

    assert now.drawing().title.endswith("is alive under the limit of this process")
    assert then.drawing().title.endswith("what was alive then is free again")


@patient
@given(st.tuples(*[BYTES] * 7))
def test_any_error_is_drawn(figures):
    """Torch tells different figures in different versions."""
    oom = OomFacts("text", 1, None, 0, *figures)

    drawing = replaced(samples.LIVE, oom=oom).drawing()

    assert_numbers_agree(drawing)
    assert "None" not in drawing.text()
