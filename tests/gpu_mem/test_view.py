"""What is said about memory, in which words, and how large it becomes."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gpumagic.drawing import Note, Stacks, Strips, Table
from gpumagic.gpu_mem.records import (
    BadgeKind,
    Cause,
    CellBadge,
    Counters,
    DeviceMemory,
    Holder,
    HolderKind,
    Holdings,
    OomFacts,
    Peak,
    PeakKind,
)
from gpumagic.gpu_mem.report import (
    BriefReport,
    LedgerReport,
    MapReport,
    MemoryReport,
    WhyReport,
)
from gpumagic.gpu_mem.view import draw
from gpumagic.gpu_mem.view_map import pictures
from gpumagic.gpu_mem.view_terms import (
    BADGE_TEXTS,
    counted_badge,
    drawn_peak,
    note_of,
    notes,
    peak_remarked,
    peak_short,
    peak_text,
)
from gpumagic.gpu_mem.view_why import SHORT, cause_sentence, fit_sentence
from gpumagic.report.units import bytes_text
from tests.drawing.survives import assert_numbers_agree, assert_survives
from tests.gpu_mem import samples
from tests.gpu_mem.samples import CUDA, GIB, MIB, SAMPLES, gib

BY_NAME = dict(SAMPLES)
BYTES = st.none() | st.integers(0, 10**13)
patient = settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)


def flat(text):
    """The text without its line breaks."""
    return " ".join(text.split())


def text_of(report):
    """All that is said of a report, as one line."""
    return flat(draw(report).text(2000))


def parts_of(report, kind):
    """The parts of one kind."""
    return [part for part in draw(report).parts if isinstance(part, kind)]


def table_of(report, caption):
    """The rows of a table, by the words of their headings."""
    (table,) = (t for t in parts_of(report, Table) if t.caption == caption)
    heads = [column.heading for column in table.columns]
    return [dict(zip(heads, row, strict=True)) for row in table.rows]


def replaced(report, **changes):
    """The report with some of it changed."""
    return dataclasses.replace(report, **changes)


# ---------------------------------------------------------------- every sample


@pytest.mark.parametrize("name", BY_NAME)
def test_every_sample_is_drawn_in_both_forms(name):
    """HTML survives, tells what the text tells, and the text keeps to its width."""
    drawing = draw(BY_NAME[name])

    assert_survives(drawing.html())
    assert_numbers_agree(drawing)
    for width in (40, 80):
        assert max(map(cell_len, drawing.text(width).split("\n"))) <= width


@pytest.mark.parametrize("name", BY_NAME)
def test_no_sample_shows_what_is_no_word(name):
    """No None, no open brace of a template, no name of a class."""
    text = text_of(BY_NAME[name]).replace("{line}", "")

    assert not re.search(r"\bNone\b|[{}]|\w+Kind\.|nan", text)


@pytest.mark.parametrize("name", BY_NAME)
def test_simulated_figures_are_labelled(name):
    """Whoever copies the picture copies that with it."""
    report = BY_NAME[name]
    report = report.cell if isinstance(report, BriefReport) else report

    if not isinstance(report, LedgerReport):
        assert draw(BY_NAME[name]).label == report.setting.label


@pytest.mark.parametrize("name", BY_NAME)
def test_html_is_small(name):
    """What every cell may show is small; a map, and eight devices, may be larger."""
    most = 40_000 if name.startswith(("map", "balance-eight")) else 10_000

    assert len(draw(BY_NAME[name]).html().encode()) <= most


# ------------------------------------------------------------------ the balance


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("balance", "3.08 of 79.6 GiB allocated on cuda:0; optimizer holds 1.94 GiB"),
        ("balance", "some of it with model"),
        ("balance", "Page-locked host memory: 512 of 768 MiB"),
        ("balance-not-shared", "cuda:0; graph of loss and batch hold 963 MiB"),
        ("balance-shared", "other processes 26.1 GiB 2 processes"),
        ("balance-shared", "limit 39.8 GiB what this process may take"),
        ("balance-container", "outside the allocator at most 26.7 GiB"),
        ("balance-container", "other processes unknown"),
        ("balance-others-untold", "outside the allocator at most 26.7 GiB"),
        ("balance-others-untold", "used, by whom is unknown"),
        ("balance-eight", "397 of 637 GiB allocated on 8 devices, most on cuda:0"),
        ("balance-eight", "3 more names"),
        ("balance-eight", "42.1 GiB on cuda:6 = variable 42.0 GiB + unattributed"),
        ("balance-mig", "1.50 of 9.75 GiB allocated on cuda:0"),
        ("balance-not-started", "nothing can be told of the memory yet"),
        ("balance-not-started", "has not been started in this process"),
        ("balance-no-devices", "no device is in use, so that nothing is allocated"),
        ("balance-cpu", "1.20 GiB of host memory held by names"),
        ("balance-cpu", "host memory that the notebook's names hold"),
        ("balance-no-counters", "58.2 of 79.6 GiB used on cuda:0; how much of it by"),
        ("balance-no-counters", "allocated unknown"),
        ("balance-no-counters", "unknown, and not nothing"),
        ("balance-unknown", "what is allocated on cuda:0 is unknown"),
        ("balance-partial", "optimizer holds at least 1.94 GiB"),
        ("balance-partial", "200000 objects in 150 ms"),
        ("balance-partial", "a generator of the user's is running"),
        ("balance-surplus", "held, but not counted by the allocator -110 MiB"),
    ],
)
def test_what_must_be_said_of_the_balance_is_said(name, said):
    """Each state has its words."""
    assert said in text_of(BY_NAME[name])


def test_pieces_of_a_bar_come_to_the_device():
    """Allocated, cached, outside, others and free are all of it."""
    (bars,) = parts_of(samples.SHARED_GPU, Stacks)

    assert bars.stacks[0].length == samples.H100_BYTES


@patient
@given(st.tuples(*[BYTES] * 6), st.none() | st.integers(0, 9))
def test_unknown_is_never_drawn_as_nothing(figures, processes):
    """Whatever is known of a device, an unknown figure is called so."""
    allocated, reserved, total, free, others, cap = figures
    counters = Counters(0, allocated, reserved)
    memory = DeviceMemory(counters, None, total, free, others, processes, cap)

    drawing = draw(MemoryReport(CUDA, (memory,)))

    assert_numbers_agree(drawing)
    (table,) = (p for p in drawing.parts if isinstance(p, Table))
    rows = {row[0]: row[1] for row in table.rows}
    told = (
        ("allocated", allocated),
        ("cached", memory.cached_bytes),
        ("other processes", others),
        ("free", free),
        ("total", total),
    )
    for name, figure in told:
        assert (rows[name] is None) == (figure is None)
        assert figure is None or bytes_text(figure) in rows[name]
    outside = rows["outside the allocator"]
    if memory.outside_bytes is None:
        assert outside is None or outside.startswith("at most ")
    else:
        assert outside == bytes_text(memory.outside_bytes)


# -------------------------------------------------------------------- the names


def test_rows_add_up_to_what_is_allocated():
    """Alone, by several names, and no name found: together the allocator's figure."""
    rows = table_of(samples.BALANCE, "Who holds it")
    alone = {row["Name"]: row["Alone"] for row in rows}

    own = sum(each.own_bytes for each in samples.TRAINING.holders)
    ((_, allocated),) = samples.TRAINING.allocated_bytes
    assert alone["held by several names"] == bytes_text(allocated - own)
    assert alone["allocated"] == bytes_text(allocated)
    assert alone["no name found"] == "9.00 MiB"
    assert rows[-1]["Name"] == "allocated"


def test_names_that_are_not_shown_count():
    """The rest stands in a row of its own, with its sum."""
    rows = table_of(replaced(samples.BALANCE, top=2), "Who holds it")

    names = [row["Name"] for row in rows]
    assert names[:3] == ["optimizer", "model", "4 more names"]
    hidden = samples.TRAINING.holders[2:6]
    assert rows[2]["Alone"] == bytes_text(sum(each.own_bytes for each in hidden))
    assert "cuBLAS workspaces" in names


def test_partial_search_says_at_least():
    """In the headings, for all rows at once."""
    (row, *_) = table_of(samples.PARTIAL, "Who holds it")

    assert row["Holds at least"] == "1.94 GiB"
    assert "Alone so far" in row


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
            delta_bytes=st.none() | st.integers(-(10**9), 10**9),
        ),
        max_size=12,
    ),
    st.integers(0, 6),
    st.integers(0, 10**13),
)
def test_any_names_are_drawn_with_their_sum(holders, top, allocated):
    """The last row is what is allocated, whoever holds it."""
    holdings = Holdings(tuple(holders), ((0, allocated),))

    drawing = draw(replaced(samples.BALANCE, holdings=holdings, top=top))

    assert_numbers_agree(drawing)
    if holders:
        (table,) = (
            p
            for p in drawing.parts
            if isinstance(p, Table) and p.caption == "Who holds it"
        )
        assert table.rows[-1][0] == "allocated"
        assert bytes_text(allocated) in table.rows[-1]


# ---------------------------------------------------------------------- a cell


@pytest.mark.parametrize(
    ("report", "title"),
    [
        (samples.CELL, "+1.25 GiB on cuda:0, peak 3.40 GiB (exact)"),
        (samples.BOUNDED, "+1.25 GiB on cuda:0, peak between 3.21 and 3.40 GiB"),
        (
            samples.RESET_INSIDE,
            "+1.25 GiB on cuda:0, peak at least 3.30 GiB (the cell reset the peaks)",
        ),
        (samples.REPLAYED, "+1.25 GiB on cuda:0, peak 3.38 GiB (replayed)"),
        (
            samples.TWO_DEVICES,
            (
                "+1.25 GiB on cuda:0, peak 3.40 GiB (exact); "
                "-1.00 GiB on cuda:1, peak unknown"
            ),
        ),
        (
            samples.EIGHT_DEVICES,
            (
                "+44.0 GiB on 8 devices together; the most: +9.00 GiB on cuda:7, "
                "peak 3.40 GiB (exact)"
            ),
        ),
        (samples.NOTHING, "no memory moved on any device"),
        (samples.NOTHING_ON_CPU, "names hold as much host memory as before"),
        (samples.NOTHING_LEFT, "no change on cuda:0, peak 3.40 GiB (exact)"),
        (samples.CELL_ON_CPU, "+819 MiB of host memory held by names"),
        (samples.CELL_WITHOUT_COUNTERS, "how much moved on cuda:0 is not counted"),
        (
            samples.FAILED,
            (
                "+1.25 GiB on cuda:0, peak 3.40 GiB (exact); the code failed "
                "(OutOfMemoryError: CUDA out of memory. Tried to allocate 40.00 GiB.)"
            ),
        ),
    ],
)
def test_title_of_a_cell_is_the_answer(report, title):
    """The difference, the peak, and how well it is known."""
    assert draw(report).title == title


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (
            samples.CELL,
            (
                "cuda:0 +1.25 GiB (now 3.21 GiB), peak 3.40 GiB, graph of loss "
                "+840 MiB, 2 driver calls"
            ),
        ),
        (samples.BOUNDED, "cuda:0 +1.25 GiB (now 3.21 GiB), peak 3.21 to 3.40 GiB"),
        (samples.NOTHING, "no memory moved on any device"),
        (samples.CELL_ON_CPU, "host memory +819 MiB (now 1.20 GiB), features +819 MiB"),
        (samples.CELL_WITHOUT_COUNTERS, "cuda:0 not counted, no counters"),
    ],
)
def test_brief_report_is_one_line(report, line):
    """The same in a line, without any part below it."""
    drawing = draw(BriefReport(report))

    assert drawing.text(2000) == line
    assert drawing.parts == ()


def test_bars_of_a_cell_go_from_before_over_the_peak_to_after():
    """What may lie between the bounds of the peak is a piece of its own."""
    (bars,) = parts_of(samples.BOUNDED, Stacks)

    before, peak, after = bars.stacks
    assert [each.label for each in bars.stacks] == ["before", "peak", "after"]
    assert dict(before.pieces)["allocated"] == gib(1.96)
    assert dict(peak.pieces) == {
        "allocated": gib(3.21),
        "perhaps": gib(3.4) - gib(3.21),
    }
    assert dict(after.pieces)["cached"] == gib(4.5) - gib(3.21)


def test_names_of_a_cell_have_their_change():
    """One that was not compared is unknown, and not unchanged."""
    rows = {row["Name"]: row for row in table_of(samples.CELL, "Who holds it")}

    assert rows["hidden"]["Change"] == "+440 MiB"
    assert rows["optimizer"]["Change"] == "0 B"
    assert rows["Out[12]"]["Change"] is None
    assert rows["no name found"]["Change"] == "-2.00 MiB"


def test_lines_are_in_the_order_of_the_cell():
    """Backward passes are marked, and what has no line is last and counted."""
    rows = table_of(samples.BY_LINE, "By line of the cell")

    assert [row["Line"] for row in rows] == ["3", "4", "4", "5", "-", "-", ""]
    codes = [row["Code"] for row in rows]
    assert codes[1:3] == ["loss.backward()", "backward of loss.backward()"]
    assert codes[5] == "no line of the cell"
    net = sum(line.net_bytes for line in samples.LINES)
    assert rows[-1]["Left"] == f"+{bytes_text(net)}"


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (samples.FAILED, "%gpu_mem leaks"),
        (samples.LINES_PARTIAL, "the oldest entries are lost"),
        (samples.NO_LINES, "No line of the cell took memory"),
        (samples.CELL, "6.20 GiB was handed out in between"),
        (samples.CELL, "4.50 GiB is reserved from the driver (+1.50 GiB)"),
        (samples.NOTHING_LEFT, "(as before)"),
    ],
)
def test_what_must_be_said_of_a_cell_is_said(report, said):
    """Each state has its sentence."""
    assert said in text_of(report)


# ------------------------------------------------------------------------ peaks


@pytest.mark.parametrize("kind", PeakKind)
@pytest.mark.parametrize("low", [None, 0, 3 * GIB])
@pytest.mark.parametrize("high", [None, 3 * GIB, 4 * GIB])
def test_every_peak_has_words(kind, low, high):
    """An unknown one is unknown in each form, and is not drawn."""
    peak = Peak(kind, low, high)

    known = drawn_peak(peak) is not None
    for words in (peak_text, peak_short, peak_remarked):
        assert "None" not in words(peak)
        assert ("unknown" in words(peak)) != known


def test_bounds_that_read_alike_are_about_that():
    """Two bounds are not told as an exact figure."""
    peak = Peak(PeakKind.BOUND, 4 * GIB, 4 * GIB + 512)

    assert peak_text(peak) == "about 4.00 GiB"
    assert peak_text(Peak(PeakKind.BOUND, 512 * MIB, GIB)) == (
        "between 512 MiB and 1.00 GiB"
    )


# ----------------------------------------------------------------------- badges


def test_every_badge_and_cause_has_words():
    """A new one needs its sentence."""
    assert set(BADGE_TEXTS) == set(BadgeKind)
    assert set(SHORT) == set(Cause)


@pytest.mark.parametrize("kind", BadgeKind)
@pytest.mark.parametrize("amount", [None, 0, 1, 3 * MIB])
def test_every_badge_is_told_whatever_is_known_of_it(kind, amount):
    """With or without a figure, names and a device; no brace is left open."""
    for names, device in (((), None), (("{a}", "b"), 1)):
        badge = CellBadge(kind, device, amount, names)
        said = (*dataclasses.astuple(note_of(badge, CUDA)), counted_badge(badge, CUDA))

        assert all(said[:2])
        assert "None" not in " ".join(said)
        assert re.search(r"{(?!a})", " ".join(said)) is None


@pytest.mark.parametrize(
    ("badge", "said"),
    [
        (CellBadge(BadgeKind.RETRY, 0, 1), "for cuda:0: torch emptied its cache and"),
        (CellBadge(BadgeKind.PENDING, 1, 5 * MIB), "5.00 MiB on cuda:1 was given back"),
        (CellBadge(BadgeKind.SHARED, 0, 1), "shared with 1 other process:"),
        (CellBadge(BadgeKind.BACKEND, 0, names=("x",)), "allocator (x) does not keep"),
    ],
)
def test_badge_says_its_figure(badge, said):
    """The amount stands in the sentence, in the unit that it has."""
    assert said in note_of(badge, CUDA).text


def test_a_hint_looks_at_what_happened_on_the_same_device_only():
    """Calls of one device do not come of the cache that another has given back."""
    calls = [CellBadge(BadgeKind.DRIVER_CALLS, device, 2) for device in (0, 1)]

    told = notes([*calls, CellBadge(BadgeKind.FLUSHED, 1, 5 * MIB)], CUDA)

    by_device = {
        device: note.hint
        for note in told
        for device in ("cuda:0", "cuda:1")
        if f"memory of {device} was taken" in note.text
    }
    assert "run it once more" in by_device["cuda:0"]
    assert "that comes of the cache" in by_device["cuda:1"]


def test_serious_badges_come_first():
    """A problem is not found below ten notes."""
    kinds = [note.kind for note in parts_of(samples.EVERY_BADGE, Note)]

    assert len(kinds) == len(BadgeKind)
    assert kinds == sorted(kinds, key=["problem", "warning", "note"].index)


# ------------------------------------------------------------------- the ledger


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (samples.LEDGER, "12 watched cells; the highest peak was 6.20 GiB on cuda:0"),
        (samples.LEDGER, "failed, cache emptied, driver calls"),
        (samples.LEDGER, "4.70 to 6.20 GiB"),
        (samples.LEDGER, "%gpu_mem off"),
        (samples.MIXED_LEDGER, "120 older entries before these were forgotten"),
        (samples.MIXED_LEDGER, "sim:0, simulated H100 SXM"),
        (samples.MIXED_LEDGER, "saved as memory.csv"),
        (samples.LONG_LEDGER, "the last 20 of 60 entries"),
        (samples.EMPTY_LEDGER, "no cell has been watched yet"),
    ],
)
def test_what_must_be_said_of_the_ledger_is_said(report, said):
    """Cells, peaks, what was left out, and what to type."""
    assert said in text_of(report)


def test_latest_cells_are_in_the_table():
    """The oldest ones are left out, and not the newest."""
    (table,) = parts_of(samples.LONG_LEDGER, Table)

    assert [table.rows[0][0], table.rows[-1][0]] == ["In [41]", "In [60]"]


# ---------------------------------------------------------------------- the map


def blocks(segments):
    """All bytes of all blocks, by state."""
    sums = {}
    for segment in segments:
        for block in segment.blocks:
            sums[block.state.value] = sums.get(block.state.value, 0) + block.nbytes
    return sums


@pytest.mark.parametrize("name", [n for n in BY_NAME if n.startswith("map")])
def test_map_draws_every_byte_once(name):
    """Whatever the rows, blocks that are cut at their end are drawn to the byte."""
    segments = BY_NAME[name].segments
    drawn = {}
    for picture in pictures(segments, CUDA):
        for row in picture.rows:
            assert row.length <= picture.full
            for piece in row.pieces:
                kind = piece.kind or "free"
                drawn[kind] = drawn.get(kind, 0) + piece.size

    assert drawn == blocks(segments)


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

    shown = sum(
        row.length for picture in pictures(segments, CUDA) for row in picture.rows
    )
    whole = sum(segment.nbytes for segment in segments)
    drawing = draw(MapReport(CUDA, segments, ()))

    assert shown == whole or "not drawn" in drawing.text()
    assert_survives(drawing.html())


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (samples.MAP, "125 of 206 MiB reserved on cuda:0 is in use, in 5 segments"),
        (samples.MAP, "The largest hole on cuda:0 is 30.0 MiB, between batch and a"),
        (samples.MAP, "private pool 3"),
        (samples.MAP, "large pool, stream 1"),
        (samples.MAP, "fragmented 57.1 % of the free memory lies outside"),
        (samples.MAP, "model.weight 40.0 MiB allocated large pool In [3], line 2"),
        (samples.ONE_SEGMENT, "16.0 MiB, at the end, behind x"),
        (samples.ALL_FREE, "20.0 MiB, all of a segment"),
        (samples.FULL_MAP, "there is no hole"),
        (samples.FULL_MAP, "fragmented unknown"),
        (samples.EXPANDABLE, "large pool, expandable"),
        (samples.EIGHT_MAPS, "4 devices with less reserved"),
        (samples.MANY, "too fine to draw one by one"),
        (samples.NO_MAP, "there is no map to draw"),
        (samples.EMPTY_MAP, "torch has reserved no memory"),
    ],
)
def test_what_must_be_said_of_the_map_is_said(report, said):
    """The picture in words."""
    assert said in text_of(report)


def test_map_tells_names_where_the_pointer_rests():
    """Size, state, names and line of the block."""
    html = draw(samples.MAP).html()

    assert (
        'title="40.0 MiB allocated: model.weight, allocated in In [3], line 2"' in html
    )
    assert 'title="10.0 MiB pending: batch' in html


@pytest.mark.parametrize("report", [samples.MANY, samples.ONE_OF_MANY])
def test_thousands_of_blocks_cost_as_little_as_a_few(report):
    """The picture grows with what can be seen, and not with the blocks."""
    few = draw(MapReport(CUDA, report.segments[:1], ())).html()
    many = draw(report).html()

    assert len(many) < min(40_000, 6 * len(few))


def test_rows_that_are_not_drawn_are_said():
    """More pools than there is room for."""
    pools = tuple(
        samples.segment(n << 32, ("a", 20), ("f", 4), pool=str(n)) for n in range(30)
    )

    (picture,) = pictures(pools, CUDA)

    assert len(picture.rows) == 12
    assert "18 more rows with 432 MiB are not drawn" in picture.remark


def test_each_device_has_a_picture_of_its_own():
    """Their segments do not share a scale."""
    captions = [part.caption for part in parts_of(samples.TWO_MAPS, Strips)]

    assert [caption.split(",")[0] for caption in captions] == [
        "Blocks on cuda:0",
        "Blocks on cuda:1",
    ]


# -------------------------------------------------------------- leaks, freeing


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (samples.LEAKY, "freed 12.0 MiB on cuda:1; 3 holders keep 2.10 GiB on cuda:0"),
        (samples.LEAKY, "what two of them hold is counted once"),
        (samples.LEAKY, "that loses %debug, Out[12]"),
        (samples.LEAKY, "sys.last_value, sys.last_traceback"),
        (samples.LEAKY, "total_loss = total_loss.detach() nothing"),
        (samples.PARTIAL_LEAKS, "1 holder keeps at least 1.50 GiB on sim:0"),
        (samples.PARTIAL_LEAKS, "cycles were not looked for"),
        (samples.ONLY_COLLECTED, "freed 576 MiB on cuda:0; nothing else was found"),
        (samples.NO_LEAKS, "nothing was found that is held without being wanted"),
        (samples.FREED, "2.10 GiB on cuda:0 came back"),
        (samples.FREED, "1. the last error, from sys.last_value and 2 more"),
        (samples.FREED, "not there any more: %debug for that error, Out[3], Out[12]"),
        (samples.FREED, "others cannot have it -> %gpu_mem free --cache"),
        (samples.FREED_TO_DEVICE, "2.10 GiB on sim:0 came back"),
        (samples.FREED_TO_DEVICE, "sim:1 1.00 GiB 1.00 GiB 0 B unknown unknown"),
        (samples.NOTHING_FREED, "all was let go of, and nothing came back on cuda:0"),
        (samples.NOTHING_TO_FREE, "there was nothing to let go of"),
        (samples.FREED_ON_CPU, "819 MiB of host memory held by names came back"),
        (samples.FREED_UNKNOWN, "how much came back on cuda:0 is unknown"),
    ],
)
def test_what_must_be_said_of_leaks_and_freeing_is_said(report, said):
    """Who holds what, what to type, what is lost, what came back."""
    assert said in text_of(report)


def test_memory_that_went_to_the_device_is_not_said_to_be_kept():
    """The way to give it back is told only where it was not given back."""
    assert "others cannot have it" not in text_of(samples.FREED_TO_DEVICE)
    assert "others cannot have it" not in text_of(samples.NOTHING_FREED)


# ----------------------------------------------------------------- why and fit


def fits_on(count):
    """A request that each of so many devices has room for."""
    answers = (replaced(samples.SMALL, device=number) for number in range(count))
    return replaced(samples.FITS, answers=tuple(answers))


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (samples.LIVE, "In [7]: 40.0 GiB was asked for on cuda:0, 31.2 GiB was free"),
        (samples.LIVE, "44.1 GiB was alive in tensors: 40.0 GiB does not fit beside"),
        (samples.LIVE, "1. del what is not needed"),
        (samples.LIVE, "2. work on less at once"),
        (samples.LIVE, "In [7], line 3: scores = q @ k.transpose(-2, -1)"),
        (samples.LIVE, "Memory was looked at after the error"),
        (samples.LIVE, "Tried to allocate 40.00 GiB. GPU 0"),
        (samples.LIVE, "expandable segments off"),
        (samples.NEVER, "200 GiB is more than the device can give (79.6 GiB in all)"),
        (samples.FRAGMENTED, "9.00 GiB was free in what torch has reserved, but not"),
        (samples.FRAGMENTED, "the largest is 2.20 GiB"),
        (samples.FRAGMENTED, "mask 2.00 MiB 4.00 GiB 3.90 GiB In [4], line 1"),
        (samples.LEAKED, "At most 1.59 GiB is held by what is probably not wanted"),
        (samples.OTHERS, "Other processes hold 26.1 GiB, and 614 MiB of this one"),
        (samples.CAPPED, "may not take more than 39.8 GiB"),
        (samples.CAPPED, "Much is kept for captured graphs"),
        (samples.TOLD_BY_NOBODY, "memory ran out on the device; why cannot be told"),
        (BY_NAME["why-caught"], "and the errors were caught; their words are gone"),
        (BY_NAME["why-caught"], "Most likely the code, or a library that it uses, has"),
        (BY_NAME["why-caught-beside"], "since In [4]; no error that tells of it is"),
        (samples.NO_OOM, "no out-of-memory error has been seen in this notebook"),
        (samples.FITS, "2.00 GiB fits on cuda:0 now: in a hole of 2.20 GiB"),
        (samples.FITS_DRIVER, "fits on cuda:0 now: the driver has 31.2 GiB free"),
        (samples.FITS_AFTER, "once torch has released unused segments (512 MiB)"),
        (samples.FITS_NOWHERE, "40.0 GiB does not fit on cuda:0 now"),
        (samples.FITS_NOWHERE, "With what is alive now, 40.0 GiB more is too much."),
        (samples.FITS_NOWHERE, "1. %gpu_mem free"),
        (samples.FITS_UNKNOWN, "may fit on cuda:0 or not: too little is known"),
        (samples.FITS_SOMEWHERE, "fits on 3 of 5 devices now, on 1 of them only after"),
        (fits_on(2), "fits on both devices now"),
        (fits_on(3), "fits on all 3 devices now"),
        (samples.CANNOT_ASK, "whether 2.00 GiB fits cannot be told"),
        (samples.CALLED, "In [9]: 40.0 GiB was asked for"),
        (samples.CALLED, "line In [7], line 3: scores = q @ k"),
        (samples.CALLED, "called from In [9], line 1: attend(q, k)"),
        (samples.ON_A_STREAM, "the largest of the default stream is 4.00 GiB"),
        (samples.ON_A_STREAM, "the error does not say for which stream it was"),
        (samples.FITS_NO_STREAM, "2.00 GiB is free in segments of other streams"),
    ],
)
def test_what_must_be_said_of_what_does_not_fit_is_said(report, said):
    """What was asked for, what there was, why, and what to do."""
    assert said in text_of(report)


@pytest.mark.parametrize("report", [samples.LIVE, samples.FITS, samples.FITS_NOWHERE])
def test_streams_are_a_matter_only_where_there_are_some(report):
    """Where all memory is the default stream's nobody is told of streams."""
    assert "stream" not in text_of(report)


def test_no_driver_is_said_to_tell_of_ram():
    """On the CPU what is free is RAM, and a total that nobody knows has no row."""
    said = text_of(samples.ON_CPU)

    assert "free 20.8 GiB RAM that this process can still use" in said
    assert "driver" not in said
    assert "total" not in said


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_is_told_whatever_is_known(cause):
    """With all figures and with none; what is unknown is left out of the sentence."""
    nothing = WhyReport(CUDA, OomFacts("", *[None] * 10))

    for report in (samples.LIVE, samples.OTHERS, nothing):
        sentence = cause_sentence(cause, report)
        assert sentence[0].isupper() or sentence[0].isdigit() or sentence[:4] == "what"
        assert sentence.endswith(".")
        assert "None" not in sentence
    assert "unknown" not in cause_sentence(cause, nothing)
    assert "2.00 GiB" not in fit_sentence(cause, samples.FITS_NOWHERE)


@patient
@given(st.tuples(*[BYTES] * 7))
def test_any_error_is_drawn(figures):
    """Torch tells different figures in different versions."""
    oom = OomFacts("text", 1, None, 0, *figures)

    drawing = draw(replaced(samples.LIVE, oom=oom))

    shown = SimpleNamespace(html=drawing.html, text=drawing.text)
    assert_numbers_agree(shown)
    assert "None" not in drawing.text()


def test_letting_go_in_vain_says_how_to_go_on():
    """Who got nothing back is told where to look; who got some is not."""
    assert "other names may hold the same memory" in text_of(samples.NOTHING_FREED)
    assert "other names may hold the same memory" not in text_of(samples.FREED)
