"""What is said about memory, in which words, and how large it becomes."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
    """All that is said of a report, as one line, also what is folded."""
    return flat(draw(report).whole().text(2000))


def parts_of(report, kind, folded=None):
    """The parts of one kind that are in sight, or of what is folded by a word."""
    drawing = draw(report)
    parts = drawing.parts if folded is None else drawing.folded[folded].parts
    return [part for part in parts if isinstance(part, kind)]


def table_of(report, caption, folded=None):
    """The rows of a table, by the words of their headings."""
    (table,) = (t for t in parts_of(report, Table, folded) if t.caption == caption)
    heads = [column.heading for column in table.columns]
    return [dict(zip(heads, row, strict=True)) for row in table.rows]


def replaced(report, **changes):
    """The report with some of it changed."""
    return dataclasses.replace(report, **changes)


# ---------------------------------------------------------------- every sample


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


# ------------------------------------------------------------------ the balance


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
    grid = drawing.folded["counters"].parts[0]
    rows = dict(grid.pairs)
    told = (
        ("in use", allocated),
        ("cached", memory.cached_bytes),
        ("free", free),
        ("total", total),
    )
    for name, figure in told:
        assert (rows[name] is None) == (figure is None)
        assert figure is None or bytes_text(figure) in rows[name]
    told_of_others = rows["others"] or "unknown"
    assert ("unknown" in told_of_others) == (others is None)
    assert others is None or bytes_text(others) in told_of_others
    outside = rows["outside torch"]
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
    rest = (samples.ERROR, samples.WORKSPACES, samples.unattributed(9 * MIB))
    together = bytes_text(sum(each.own_bytes for each in rest))
    assert alone["1 more name, and what has none"] == together
    assert rows[-1]["Name"] == "allocated"
    folded = table_of(samples.BALANCE, "Who holds it", "names")
    assert {row["Name"]: row["Alone"] for row in folded}["no name found"] == "9.00 MiB"


def test_names_that_are_not_shown_count():
    """The rest stands in a row of its own, with its sum."""
    rows = table_of(replaced(samples.BALANCE, top=2), "Who holds it")

    names = [row["Name"] for row in rows]
    assert names[:3] == ["optimizer", "model", "4 more names, and what has none"]
    hidden = samples.TRAINING.holders[2:]
    assert rows[2]["Alone"] == bytes_text(sum(each.own_bytes for each in hidden))


def test_more_names_are_in_sight_where_they_are_asked_for():
    """One screen has eight rows; `--top` with more than the default has its way."""
    holders = tuple(replaced(samples.BATCH, name=f"x{number}") for number in range(30))
    holdings = samples.holdings_of(*holders)

    for top, shown in ((10, 6), (20, 20)):
        rows = table_of(
            replaced(samples.BALANCE, holdings=holdings, top=top), "Who holds it"
        )
        assert sum(row["Name"].startswith("x") for row in rows) == shown
        assert rows[-1]["Name"] == "allocated"


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
    sums = ((0, HolderKind.VARIABLE, 109 * MIB), (0, kind, 448 * MIB))
    holders = (
        replaced(samples.BATCH, own_bytes=109 * MIB, reachable_bytes=109 * MIB),
        replaced(samples.ERROR, kind=kind, own_bytes=448 * MIB),
    )
    holdings = Holdings(holders, ((0, 557 * MIB),), sums)

    report = replaced(samples.A_FAILED_CALL, holdings=holdings)

    assert draw(report).title == f"448 of 557 MiB allocated on cuda:0 {said}"


def test_bar_of_a_large_device_ends_behind_what_is_used():
    """16 MiB of 79 GiB can be seen, and where the bar ends is said."""
    (bars,) = parts_of(samples.LITTLE, Stacks)

    (stack,) = bars.stacks
    assert stack.length == GIB
    assert "the bar ends at 1.00 of 79.6 GiB" in bars.caption
    assert dict(stack.pieces)["in use"] == samples.gib(16 / 1024)


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
    assert dict(before.pieces)["in use"] == gib(1.96)
    assert dict(peak.pieces) == {
        "in use": gib(3.21),
        "perhaps": gib(3.4) - gib(3.21),
    }
    assert dict(after.pieces)["cached"] == gib(4.5) - gib(3.21)


def test_names_of_a_cell_have_their_change():
    """One that was not compared is unknown, and not unchanged."""
    rows = {row["Name"]: row for row in table_of(samples.CELL, "Who holds it", "names")}

    assert rows["hidden"]["Change"] == "+440 MiB"
    assert rows["optimizer"]["Change"] == "0 B"
    assert rows["Out[12]"]["Change"] is None
    assert rows["no name found"]["Change"] == "-2.00 MiB"


def test_lines_are_in_the_order_of_the_cell():
    """Backward passes are marked, and what has no line is last and counted."""
    rows = table_of(samples.BY_LINE, "", "lines")

    assert [row["Line"] for row in rows] == ["3", "4", "4", "5", "-", "-", ""]
    codes = [row["Code"] for row in rows]
    assert codes[1:3] == ["loss.backward()", "backward of loss.backward()"]
    assert codes[5] == "no line of the cell"
    net = sum(line.net_bytes for line in samples.LINES)
    assert rows[-1]["Change"] == f"+{bytes_text(net)}"
    assert rows[0]["Left"] == bytes_text(samples.LINES[0].left_bytes)


def test_the_line_that_left_most_is_in_the_title():
    """Who looks for the line that leaks reads it first, whoever gave back what."""
    assert draw(samples.BY_LINE).title.endswith("; line 5 left 993 MiB")


# ------------------------------------------------------------------------ peaks


@pytest.mark.parametrize("kind", PeakKind)
@pytest.mark.parametrize("low", [None, 0, 3 * GIB])
@pytest.mark.parametrize("high", [None, 3 * GIB, 4 * GIB])
def test_every_peak_has_words(kind, low, high):
    """An unknown one is unknown in each form, and is not drawn."""
    peak = Peak(kind, low, high)

    known = drawn_peak(peak) is not None
    for words in (peak_text, peak_short):
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
        (
            CellBadge(BadgeKind.RETRY, 0, 1),
            "cuda:0 had no memory left: torch emptied its cache",
        ),
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
    kinds = [
        note.kind
        for folded in (None, "notes")
        for note in parts_of(samples.EVERY_BADGE, Note, folded)
    ]

    assert len(kinds) == len(samples.EVERY_BADGE.badges)
    assert kinds == sorted(kinds, key=["problem", "warning", "note"].index)


# ------------------------------------------------------------------- the ledger


def test_latest_cells_are_in_the_table():
    """The oldest ones are left out, and not the newest."""
    for folded, first in ((None, "In [53]"), ("cells", "In [41]")):
        (table,) = parts_of(samples.LONG_LEDGER, Table, folded)
        assert [table.rows[0][0], table.rows[-1][0]] == [first, "In [60]"]


# ---------------------------------------------------------------------- the map


STATES = {"": "free", "in use": "allocated", "awaited": "pending"}


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
                kind = STATES[piece.kind]
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
    drawing = draw(MapReport(CUDA, segments, ())).whole()

    assert shown == whole or "not drawn" in drawing.text()
    assert_survives(drawing.html())


def test_map_tells_names_where_the_pointer_rests():
    """Size, state, names and line of the block."""
    html = draw(samples.MAP).html()

    assert 'title="40.0 MiB in use: model.weight, allocated in In [3], line 2"' in html
    assert 'title="10.0 MiB awaited: batch' in html


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
    """In sight is a row for each, folded are those of which each has its scale."""
    (in_sight,) = parts_of(samples.TWO_MAPS, Strips)
    folded = parts_of(samples.TWO_MAPS, Strips, "segments")

    assert [row.label for row in in_sight.rows] == ["cuda:0", "cuda:1"]
    assert [picture.caption.split(",")[0] for picture in folded] == [
        "Segments on cuda:0",
        "Segments on cuda:1",
    ]


def test_what_holds_a_nearly_free_segment_is_in_the_title():
    """A mask of 2 MiB that keeps 998 MiB from going back is what one can change."""
    (first, second) = table_of(
        samples.HELD_BY_ONE, "What keeps free memory from going back"
    )

    assert draw(samples.HELD_BY_ONE).title.endswith("mask holds back 998 MiB of it")
    assert (first["Held back by"], first["Free"]) == ("mask", "998 MiB")
    assert (second["Segments"], second["Free"]) == ("5", "20.0 MiB")


def test_several_blocks_hold_back():
    """One block holds back, many hold back."""
    named = [("a", 1, f"frag[{number}]") for number in range(50)]
    report = samples.MapReport(
        samples.CUDA, (samples.segment(0, *named, ("f", 998)),), ()
    )

    assert "frag[0] and 49 other blocks hold back 998 MiB of it" in draw(report).title


def test_an_emptied_cache_is_told_as_the_codes_own_doing():
    """Without a retry nobody was short of memory, so that nothing has to go."""
    (note,) = notes([CellBadge(BadgeKind.STREAM_WAITS, 0, 1)], CUDA)

    assert note.kind == "note"
    assert note.text.endswith("once, since the code emptied its cache")
    assert "torch.cuda.graph does that by itself" in note.hint


def test_blocks_of_the_same_names_are_one_row():
    """Five blocks of two names are said once, with their sum."""
    rows = table_of(samples.HELD_BY_ONE, "", "blocks")

    assert [(row["Name"], row["Blocks"], row["Bytes"]) for row in rows] == [
        ("graphs in history, graphs in tracker", "5", "100 MiB"),
        ("mask", "1", "2.00 MiB"),
    ]


# -------------------------------------------------------------- leaks, freeing


def test_memory_that_went_to_the_device_is_not_said_to_be_kept():
    """The way to give it back is told only where it was not given back."""
    assert "processes cannot have it" in text_of(samples.FREED)
    assert "processes cannot have it" not in text_of(samples.FREED_TO_DEVICE)
    assert "processes cannot have it" not in text_of(samples.NOTHING_FREED)


# ----------------------------------------------------------------- why and fit


def fits_on(count):
    """A request that each of so many devices has room for."""
    answers = (replaced(samples.SMALL, device=number) for number in range(count))
    return replaced(samples.FITS, answers=tuple(answers))


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (samples.LIVE, "In [7]: 40.0 GiB did not fit on cuda:0 with 31.2 GiB free"),
        (samples.LIVE, "44.1 GiB was alive in tensors: 40.0 GiB does not fit beside"),
        (samples.LIVE, "1. del what is not needed"),
        (samples.LIVE, "2. work on less at once"),
        (samples.LIVE, "In [7], line 3: scores = q @ k.transpose(-2, -1)"),
        (samples.LIVE, "Memory was looked at after the error"),
        (samples.LIVE, "Tried to allocate 40.00 GiB. GPU 0"),
        (samples.LIVE, "expandable segments off"),
        (fits_on(2), "fits on both devices now"),
        (fits_on(3), "fits on all 3 devices now"),
        (samples.ON_A_STREAM, "the largest of the default stream is 4.00 GiB"),
        (samples.ON_A_STREAM, "the error does not say for which stream it was"),
        (samples.FITS_NO_STREAM, "2.00 GiB more is free in segments of other streams"),
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

    assert "free 20.8 GiB" in said
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

    assert_numbers_agree(drawing)
    assert "None" not in drawing.text()


def test_letting_go_in_vain_says_how_to_go_on():
    """Who got nothing back is told where to look; who got some is not."""
    assert "other names may hold the same memory" in text_of(samples.NOTHING_FREED)
    assert "other names may hold the same memory" not in text_of(samples.FREED)


def test_title_of_a_cell_tells_how_much_more_nobody_holds():
    """What nobody held before the cell is none of its doing."""
    nobody = replaced(
        samples.BATCH,
        name="unattributed",
        kind=HolderKind.UNATTRIBUTED,
        own_bytes=50 * MIB,
        reachable_bytes=50 * MIB,
        delta_bytes=30 * MIB,
    )
    sums = ((0, HolderKind.UNATTRIBUTED, 50 * MIB),)
    holdings = Holdings((nobody,), ((0, 50 * MIB),), sums)

    title = draw(replaced(samples.CELL, holdings=holdings, lines=None)).title

    assert "30.0 MiB is held by no name that was found" in title
