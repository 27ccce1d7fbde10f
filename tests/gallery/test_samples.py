"""What holds for every sample of every room."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from gpumagic.drawing import Details, Table
from gpumagic.drawing.document import MOST_NOTES, MOST_ROWS
from tests.drawing.eyes import EYES
from tests.drawing.survives import assert_numbers_agree, assert_survives
from tests.gallery.__main__ import main
from tests.gallery.headings import of_room
from tests.gallery.samples import PARTS, PICTURES, drawn, everything, view_names

SAMPLES = drawn()
ROOMS_AND_NAMES = [name.split("-", 1) for name in view_names()]
HABIT_BYTES, EXCEPTION_BYTES = 10_000, 40_000
WIDTHS = (40, 60, 88, 120)
VIEWS = [f"{room}-{name}" for room, name in ROOMS_AND_NAMES]
MOST_LINES = 30


def test_names_are_unique():
    """Two samples of one name would share a golden file."""
    assert len(SAMPLES) == len(everything())


@pytest.mark.parametrize("room", sorted({room for room, _ in ROOMS_AND_NAMES}))
def test_each_sample_of_a_room_has_a_heading_of_its_own(room):
    """A reader of the gallery is told what an answer is about, not its file's name."""
    names = [name for its, name in ROOMS_AND_NAMES if its == room]
    headings = of_room(room)

    assert list(headings) == names
    assert len(set(headings.values())) == len(names)


@pytest.mark.parametrize("name", SAMPLES)
def test_html_is_small_and_survives_where_nobody_trusts_it(name):
    """Ten kilobytes, forty where listed, and no front end drops what matters."""
    html = SAMPLES[name].html()
    most = EXCEPTION_BYTES if name.startswith(PICTURES) else HABIT_BYTES

    assert len(html.encode()) <= most
    assert_survives(html)


@pytest.mark.parametrize("name", SAMPLES)
def test_text_keeps_to_its_width_and_has_the_numbers_of_the_html(name):
    """No line is wider than was asked for; who reads it knows all that is drawn."""
    whole = SAMPLES[name].whole()
    widest = {width: _widest(whole.text(width)) for width in WIDTHS}

    assert {width for width, letters in widest.items() if letters > width} == set()
    assert_numbers_agree(SAMPLES[name])


@pytest.mark.parametrize("name", VIEWS)
def test_an_answer_fits_one_screen_of_a_terminal(name):
    """At 80 columns, what is in sight takes 30 lines, 3 notes and 8 rows at most."""
    drawing = SAMPLES[name]
    tables = [part for part in drawing.parts if isinstance(part, Table)]

    assert len(drawing.text(80).splitlines()) <= MOST_LINES
    assert len(drawing.notes) <= MOST_NOTES
    assert [each.caption for each in tables if len(each.rows) > MOST_ROWS] == []


@pytest.mark.parametrize("name", VIEWS)
def test_each_part_that_is_folded_has_a_word_of_its_own(name):
    """What a view folds away can be asked for, by one short word each."""
    drawing = SAMPLES[name]
    details = [part for part in drawing.parts if isinstance(part, Details)]

    assert len(drawing.folded) == len(details)
    assert all(word.isidentifier() and len(word) <= 14 for word in drawing.folded)


def _widest(text):
    return max(map(cell_len, text.split("\n")))


def test_gallery_is_written(tmp_path, capsys, monkeypatch):
    """One page shows every sample, light and dark, with its text.

    All are drawn by the tests above: here each part, and a view that folds some away.
    """
    shown = {name: SAMPLES[name] for name in (*dict(PARTS), "pin_loader-fixed")}
    monkeypatch.setattr("tests.gallery.__main__.drawn", lambda: shown)

    main([str(tmp_path)])

    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    eyes = (tmp_path / "palette.html").read_text(encoding="utf-8")
    assert all(f'<h2 id="{name}">' in page for name in shown)
    assert all(f"filter:url(#{each})" in eyes for each in EYES)
    assert capsys.readouterr().out.strip().endswith("index.html")
