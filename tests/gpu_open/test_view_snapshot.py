"""Snapshots on one screen: whose the peak is, what grew, what would have helped."""

from __future__ import annotations

import dataclasses
import re

import pytest

from gpumagic.drawing import Areas, Strips, Table
from gpumagic.gpu_open.memory_records import LineMemory, SnapshotOfDevice
from gpumagic.gpu_open.report import SnapshotReport
from gpumagic.gpu_open.view import draw
from gpumagic.gpu_open.view_course import areas, half_way, line_name, place
from gpumagic.gpu_open.view_growth import growing
from gpumagic.gpu_open.view_replay import best_of
from gpumagic.gpu_open.view_snapshot import ranked
from gpumagic.report.places import CodeLine
from tests.gpu_open import samples_snapshots as samples

DRAWN = {name: draw(report) for name, report in samples.SAMPLES}
DEVICE = samples.OUT_OF_MEMORY.devices[0]


def text_of(report, *names):
    """What is read in one go, without its lines being broken; or a part of it."""
    drawing = draw(report)
    drawing = drawing.asked(names) if names else drawing
    return re.sub(r"\s+", " ", drawing.text(500))


def with_device(report, **changes):
    """The same with its first device changed."""
    first, *others = report.devices
    changed = dataclasses.replace(first, **changes)
    return dataclasses.replace(report, devices=(changed, *others))


# ---------------------------------------------------------------------- the answer


def test_an_error_is_told_with_who_made_most_of_what_was_held():
    """Nobody has to hover over a picture to learn whose the memory is."""
    assert draw(samples.OUT_OF_MEMORY).title == (
        "out of memory at event 18,211: 2.00 GiB asked for; 61.0 % of what was held "
        "is made in attention.py, line 88"
    )


def test_a_share_is_called_that_of_the_peak_where_the_error_came_later():
    """What was in use at the error may be less than the peak, and made of others."""
    late = dataclasses.replace(DEVICE.failure, allocated_bytes=DEVICE.peak_bytes // 2)

    title = draw(with_device(samples.OUT_OF_MEMORY, failure=late)).title

    assert "61.0 % of the peak before it is made in attention.py" in title


def test_without_stacks_an_error_tells_how_much_was_in_use():
    """A share of no known line would be no answer."""
    assert draw(samples.OUT_WITHOUT_STACKS).title.endswith("asked for, 4.46 GiB in use")
    assert 'stacks="python"' in text_of(samples.OUT_WITHOUT_STACKS, "notes")


def test_without_an_error_the_peak_is_told_with_its_line():
    """In use, reserved, the peak, when it was, and whose the most of it was."""
    assert draw(samples.TRAINING).title == (
        "1.69 GiB in use of 4.97 GiB reserved; peak 4.59 GiB at event 9,698, "
        "41.4 % of it from attention.py, line 88"
    )


def test_memory_from_before_may_be_the_most_of_the_peak():
    """Then no line is blamed that had less."""
    assert "of it from before the recording" in draw(samples.HISTORY_CUT).title


def test_a_peak_before_the_first_event_has_no_number():
    """Nobody looks for event 0."""
    title = draw(with_device(samples.TRAINING, peak_event=0)).title

    assert "peak 4.59 GiB before the first event" in title


def test_what_ran_out_of_memory_comes_first_then_the_fullest():
    """Of several devices the one that the reader came for is told, and named."""
    failed = dataclasses.replace(
        samples.SEVERAL_DEVICES.devices[2], failure=DEVICE.failure
    )
    devices = (*samples.SEVERAL_DEVICES.devices[:2], failed)
    report = dataclasses.replace(samples.SEVERAL_DEVICES, devices=devices)

    assert [each.device for each in ranked(devices)] == [2, 0, 1]
    assert draw(report).title.startswith("cuda:2: out of memory")
    assert "cuda:1" in text_of(report, "devices")


def test_nothing_in_a_snapshot_is_said():
    """An empty file is no error, and no picture."""
    assert draw(samples.NOTHING).title == "torch held no memory on any device"


# --------------------------------------------------------------- picture and table


def test_the_picture_and_the_table_speak_of_a_line_by_one_letter():
    """Said once: the table is the legend of what it lists."""
    picture, table = draw(samples.TRAINING).parts[:2]

    assert isinstance(picture, Areas)
    assert isinstance(table, Table)
    assert [row[0].swatch.mark for row in table.rows] == ["A", "B", "C"]
    assert [row[0].text for row in table.rows] == [
        key.text for key in picture.keys[: len(table.rows)]
    ]
    legend = draw(samples.TRAINING).text(80).partition("▼ the peak")[2].splitlines()[0]
    assert "attention.py" not in legend
    assert "D mlp.py, line 30" in legend


def test_all_lines_have_their_letters_when_they_are_asked_for():
    """The picture's letters that the screen has no room for are explained there."""
    said = text_of(samples.TRAINING, "lines")

    assert all(f" {letter} " in said for letter in "ABCDEFGHIJ")


def test_without_a_history_the_map_is_drawn():
    """What is there is known, though not how it came about."""
    parts = draw(samples.NO_HISTORY).parts

    assert isinstance(parts[0], Strips)
    assert not any(isinstance(part, Areas) for part in parts)


def test_what_a_line_had_before_has_a_name_of_its_own():
    """Blocks from before may be known by the same line as later ones."""
    here, before = (
        LineMemory(CodeLine("train.py, line 3"), each, 1, 1, 1, 1, 0)
        for each in (False, True)
    )
    of = dataclasses.replace(DEVICE, lines=(here, before))

    assert [line_name(each, of) for each in of.lines] == [
        "train.py, line 3",
        "train.py, line 3, before",
    ]


def test_the_last_of_very_many_lines_is_the_rest():
    """Which is more than what no line is known of."""
    nobody = LineMemory(None, False, 1, 1, 1, 1, 0)
    some = tuple(
        LineMemory(CodeLine(f"a.py, line {at}"), False, 1, 1, 1, 1, 0)
        for at in range(200)
    )
    rest = dataclasses.replace(nobody, taken=7)
    of = dataclasses.replace(DEVICE, lines=(nobody, *some, rest))

    assert line_name(nobody, of) == "no line known"
    assert line_name(rest, of) == "all others"


def test_the_end_of_a_long_path_is_what_is_read():
    """File and line stay whole where a name has to be cut."""
    assert place("a" * 60 + "/train.py, line 1024").endswith("/train.py, line 1024")
    assert len(place("a" * 60 + "/train.py, line 1024")) == 40


def test_a_history_of_nothing_has_no_picture():
    """All levels at zero would be drawn as an empty box."""
    course = dataclasses.replace(DEVICE.course, lines=(0,), levels_bytes=((0, 0),))

    assert areas(dataclasses.replace(DEVICE, course=course)) is None
    assert areas(dataclasses.replace(DEVICE, course=None)) is None


# -------------------------------------------------------------------------- notes


def test_each_note_leads_to_something_to_do():
    """A note without a hint would only worry."""
    hints = [(name, note.hint) for name, each in DRAWN.items() for note in each.notes]

    assert [name for name, hint in hints if not hint] == []


def test_what_is_free_in_holes_is_told_where_it_is_much():
    """With the largest hole among segments in use, not that of an empty segment."""
    assert (
        "663 MiB of 4.97 GiB reserved is free in holes of at most 500 MiB"
        in text_of(samples.TRAINING)
    )
    assert "expandable_segments:True leaves fewer" in text_of(samples.TRAINING)
    assert "leaves fewer" not in text_of(
        dataclasses.replace(samples.TRAINING, settings="expandable_segments:True")
    )
    small = with_device(
        samples.TRAINING, segments=samples.TRAINING.devices[0].segments[:2]
    )
    assert "free in holes" not in text_of(small)


def test_holes_are_told_of_the_moment_of_the_error_alone():
    """What was freed while the error went through the program left larger ones."""
    at_once = text_of(samples.OUT_OF_MEMORY)
    later = with_device(samples.OUT_OF_MEMORY, events=DEVICE.failure.event + 40)

    assert "410 MiB was free and torch's largest hole was 180 MiB" in at_once
    assert "410 MiB was free and 5.51 GiB was in use" in text_of(later)


def test_a_line_that_holds_ever_more_is_named():
    """A leak shows in one snapshot already; what is taken once does not."""
    leaking = draw(dataclasses.replace(samples.GROWN, grown=None))
    of = samples.GROWN.devices[0]

    assert any(
        "train.py, line 44 holds ever more" in each.text for each in leaking.notes
    )
    assert [bool(half_way(of, each)) for each in of.lines] == [
        each.line == samples.LOSSES for each in of.lines
    ]


def test_a_file_that_is_not_whole_says_so_first():
    """All that follows is of what could be read."""
    assert "cut.pickle is not whole" in draw(samples.NOT_TOGETHER).notes[0].text
    assert "31 user_defined" in text_of(samples.NOT_TOGETHER, "how")


def test_a_report_without_file_or_fragmentation_is_drawn():
    """A report may be made by hand."""
    bare = SnapshotReport((), (SnapshotOfDevice(0, 5, 10, ()),))

    assert draw(bare).title.startswith("5 B in use of 10 B reserved")
    assert draw(bare).whole().html()


# ------------------------------------------------------------------------- growth


def test_growth_is_told_with_its_line_and_its_pieces():
    """How much, which line, in how many pieces; what became less is folded."""
    assert draw(samples.GROWN).title == (
        "+1.19 GiB between them: train.py, line 44 holds 1.15 GiB more, in 230 pieces"
    )
    assert [each.line for each in growing(samples.GROWN.grown)] == [
        samples.LOSSES,
        samples.STEP,
        None,
    ]
    assert "mlp.py, line 30" in text_of(samples.GROWN, "less")


def test_that_nothing_grew_is_an_answer():
    """Also where something became less."""
    fewer = samples.GROWN.grown[3:]

    for grown in ((), fewer):
        title = draw(dataclasses.replace(samples.GROWN, grown=grown)).title
        assert title.startswith("nothing grew between them: 2.08 GiB is in use")


def test_what_lies_elsewhere_may_be_no_leak():
    """Pieces that are made anew in each step are not told as kept."""
    assert "made anew each step" in text_of(samples.NEW_ONES)
    assert "came and stayed" in text_of(samples.GROWN)


# ------------------------------------------------------------------------- replays


def test_the_setting_that_goes_through_is_the_answer():
    """Whatever others reserve: what fails later has not helped."""
    assert draw(samples.REPLAY_HELPS).title == (
        "expandable_segments:True would have gone through with 6.52 GiB; "
        "the recorded one needs at most 7.40 GiB"
    )
    assert best_of(samples.REPLAY_HELPS.replays[0]).segments == 2
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in text_of(
        samples.REPLAY_HELPS
    )


def test_where_no_setting_helps_none_is_recommended():
    """What is needed is said, and where to look."""
    said = text_of(samples.REPLAY_NO_HELP)

    assert "no setting of these would have gone through" in said
    assert "needs at most 8.90 GiB" in said
    assert "PYTORCH_CUDA_ALLOC_CONF" not in said


def test_a_replay_that_fails_before_the_first_event_says_so():
    """What was in use before the recording may not fit at all; no event is 0."""
    (replay,) = samples.WITH_4_GIB.replays
    first, *others = replay.replays
    at_once = (first, *(dataclasses.replace(e, failed_event=0) for e in others))
    replay = dataclasses.replace(replay, replays=at_once)

    assert "fails at once" in text_of(
        dataclasses.replace(samples.WITH_4_GIB, replays=(replay,))
    )


def test_little_saved_is_no_advice():
    """Five percent are worth a setting, less is not."""
    title = draw(samples.REPLAY_NO_GAIN).title

    assert title.startswith("no setting would have saved much: 4.70 GiB reserved")
    assert draw(samples.REPLAY_NO_GAIN).notes == ()


def test_another_amount_of_memory_is_answered():
    """The recorded setting with it, and what needs less."""
    assert draw(samples.WITH_24_GIB).title.startswith("24.0 GiB would have been enough")
    assert draw(samples.WITH_4_GIB).title == (
        "4.00 GiB would not have been enough: it needs at most 5.70 GiB"
    )
    assert "no limit" in text_of(samples.WITH_4_GIB)


def test_what_is_needed_is_never_less_than_what_was_not_enough():
    """By chance it fails with more than it needs: then where it fails is told."""
    (replay,) = samples.WITH_4_GIB.replays
    less = dataclasses.replace(replay, needed_bytes=3 << 30)
    report = dataclasses.replace(samples.WITH_4_GIB, replays=(less,))
    assert re.fullmatch(
        r"4.00 GiB would not have been enough: memory runs out at event [\d,]+",
        draw(report).title,
    )


def test_how_exact_a_replay_is_and_what_it_cannot_know_are_told():
    """Exact: in how it was measured; not exact: in sight, before it is believed."""
    assert "all 9,312 requests came out" in text_of(samples.REPLAY_HELPS, "how")
    assert "may ask and free at other times" in text_of(samples.REPLAY_HELPS, "how")
    assert "in 412 of 9,312 requests" in text_of(samples.REPLAY_NOT_EXACT)
    assert "asked for first" in text_of(samples.REPLAY_NOT_EXACT, "how")


def test_why_nothing_can_be_replayed_is_the_answer():
    """As a part of a sentence."""
    why_not = dataclasses.replace(
        samples.REPLAY_IMPOSSIBLE.replays[0], why_not="The history has no requests."
    )
    report = dataclasses.replace(samples.REPLAY_IMPOSSIBLE, replays=(why_not,))

    assert draw(report).title == "it cannot be replayed: the history has no requests"


# ----------------------------------------------------------------------------- fit


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (samples.FITS, "3.00 GiB would have fitted on cuda:0, from the driver"),
        (samples.FITS_NOT, "3.00 GiB would not have fitted: 410 MiB was free, and"),
        (samples.FITS_INTO_CACHE, "400 MiB would have fitted, into memory that torch"),
        (samples.FITS_UNKNOWN, "what the driver had is unknown"),
    ],
)
def test_whether_it_would_have_fitted_is_the_answer(report, said):
    """With where from, or what was missing."""
    assert said in draw(report).title


def test_what_was_asked_besides_is_folded():
    """One answer, one picture, one table: the other question is a part."""
    said = text_of(samples.FITS_REPLAYED, "replay")

    assert "garbage_collection_threshold:0.8" in said
    assert (
        len([p for p in draw(samples.FITS_REPLAYED).parts if isinstance(p, Table)]) == 1
    )


def test_every_view_has_one_picture_and_one_table_at_most():
    """One screen, one answer."""
    for name, drawing in DRAWN.items():
        pictures = [each for each in drawing.parts if isinstance(each, Areas | Strips)]
        tables = [each for each in drawing.parts if isinstance(each, Table)]
        assert len(pictures) <= 1, name
        assert len(tables) <= 1, name
