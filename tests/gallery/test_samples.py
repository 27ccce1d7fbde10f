"""What holds for every sample of every room."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from tests.drawing.survives import assert_numbers_agree, assert_survives
from tests.gallery.__main__ import main
from tests.gallery.headings import of_room
from tests.gallery.samples import PICTURES, drawn, everything, views

SAMPLES = drawn()
ROOMS_AND_NAMES = [name.split("-", 1) for name, _ in views()]
HABIT_BYTES, EXCEPTION_BYTES = 10_000, 40_000
WIDTHS = (40, 60, 88, 120)


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
    widest = {width: _widest(SAMPLES[name].text(width)) for width in WIDTHS}

    assert {width for width, letters in widest.items() if letters > width} == set()
    assert_numbers_agree(SAMPLES[name])


def _widest(text):
    return max(map(cell_len, text.split("\n")))


def test_gallery_is_written(tmp_path, capsys):
    """One page shows every sample, light and dark, with its text."""
    main([str(tmp_path)])

    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert all(f'<h2 id="{name}">' in page for name in SAMPLES)
    assert capsys.readouterr().out.strip().endswith("index.html")
