"""What is generated from the program is complete."""

from __future__ import annotations

import argparse
import html
import inspect
import re
from types import SimpleNamespace

import pytest

from docs_build import gallery, reference, rooms
from gpumagic.extension import ROOMS
from gpumagic.notebook.arguments import options_of
from tests.docs.pages import REPOSITORY
from tests.gallery.samples import views

EVERY = rooms.every()
MAGICS = [room for room in EVERY if room.magic]


def _plainly(text):
    """Markdown as a reader sees it."""
    return re.sub(r"\\(.)", r"\1", text)


@pytest.mark.parametrize("room", MAGICS, ids=lambda room: room.folder)
def test_every_option_is_in_the_table(room):
    """All spellings of all options stand in the page, with the help of `?`."""
    table = _plainly(reference.options(room))
    parser = room.magic.parser

    assert len(options_of(parser)) > 4
    for spelling, action in options_of(parser).items():
        assert re.search(rf"`{spelling}[` ]", table), spelling
        assert action.help in table
    assert inspect.cleandoc(parser.description) in table


def test_a_new_option_is_shown_without_being_written_down():
    """The table is read from the parser: choices, values and odd signs included."""
    parser = argparse.ArgumentParser(add_help=False, description="Say *what*.")
    parser.add_argument("what", help="A | B.")
    parser.add_argument("-s", "--shape", choices=("square", "round"), help="Its form.")
    room = rooms.Room("x.md", "x", "%x", SimpleNamespace(parser=parser))

    table = reference.options(room)

    assert "| `what` | A \\| B. |" in table
    assert "| `-s square or round`, `--shape square or round` | Its form. |" in table
    assert "Say \\*what\\*." in table


def test_every_magic_has_a_guide_and_its_functions():
    """Each room of the extension has a page, and all that it offers is in it."""
    assert [room.folder for room in MAGICS] == [room.folder for room in ROOMS]
    for room in EVERY:
        assert (REPOSITORY / "docs" / room.guide).exists()
        told = reference.functions(room)
        assert room.functions
        for function in room.functions:
            assert f"::: {function}\n" in told + "\n"
    for room in MAGICS:
        package = inspect.getmodule(room.magic).__package__
        assert {name.rpartition(".")[0] for name in room.functions} == {package}


@pytest.mark.parametrize("room", EVERY, ids=lambda room: room.folder)
def test_every_sample_of_a_room_is_in_its_gallery(room):
    """Each view that the tests draw is drawn in the site, with its text."""
    written = gallery.pages()[f"gallery/{room.folder}.md"]
    page = gallery.with_drawings(written, room.folder)
    samples = [each for each in views() if each[0].startswith(f"{room.folder}-")]

    assert samples
    for name, drawing in samples:
        found = html.escape(drawing.text()) in page
        assert found, name
        assert f"#{name.removeprefix(room.folder + '-')} " in written


def test_no_sample_is_without_a_gallery():
    """Each view belongs to a room that has a page."""
    folders = tuple(f"{room.folder}-" for room in EVERY)
    assert all(name.startswith(folders) for name, _ in views())
