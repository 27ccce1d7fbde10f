"""Where things stand in the pictures of all samples of all rooms."""

from __future__ import annotations

import base64
import re
from xml.etree import ElementTree as ET

import pytest

from tests.gallery.samples import drawn

SAMPLES = drawn()
_PICTURE = re.compile(r"data:image/svg\+xml;base64,([^\"' )]+)")
_NUMBER = re.compile(r"-?\d*\.?\d+(?:e-?\d+)?")
_ROUNDED = 0.5


@pytest.mark.parametrize("name", SAMPLES)
def test_nothing_of_a_picture_lies_outside_it(name):
    """No line, and no word, begins or ends where a front end would not draw it."""
    pictures = _PICTURE.findall(SAMPLES[name].html())
    roots = [ET.fromstring(base64.b64decode(each)) for each in pictures]  # noqa: S314
    boxes = [each for root in roots for each in root.iter() if each.get("viewBox")]

    assert [lost for box in boxes for lost in outside(box)] == []


def outside(box):
    """What lies outside a picture, or outside one within a picture, by its box."""
    left, top, width, height = numbers(box.get("viewBox"))
    for shape in shapes(box):
        for x, y in points(shape):
            across = -_ROUNDED <= x - left <= width + _ROUNDED
            down = -_ROUNDED <= y - top <= height + _ROUNDED
            if not (across and down):
                yield shape.attrib, (x, y)
                break


def shapes(box):
    """All that is drawn by the box's own measure."""
    for each in box:
        tag = each.tag.rpartition("}")[2]
        if tag not in ("svg", "pattern"):
            yield each
            yield from shapes(each)


def points(shape):
    """The points that a shape names."""
    if path := shape.get("d"):
        yield from corners(path)
    elif "x" in shape.attrib:
        yield float(shape.get("x")), float(shape.get("y"))


def corners(path):
    """The points that the commands of a path go to."""
    x = y = 0.0
    begin = x, y
    for command, given in re.findall(r"([A-Za-z])([^A-Za-z]*)", path):
        if command in "Zz":
            x, y = begin
            continue
        each = iter(numbers(given))
        for number in each:
            by_x, by_y = (x, y) if command.islower() else (0.0, 0.0)
            if command in "Vv":
                y = by_y + number
            else:
                x = by_x + number
                y = by_y + next(each) if command in "MmLl" else y
            yield x, y
            begin = (x, y) if command in "Mm" else begin


def numbers(text):
    """The numbers in a text."""
    return [float(each) for each in _NUMBER.findall(text)]


def test_what_a_path_goes_through():
    """Steps count from where the path is, and it returns to where it began."""
    assert [*corners("M1 2h3v4H0V1zl1 1L5-6")] == [
        (1, 2), (4, 2), (4, 6), (0, 6), (0, 1), (2, 3), (5, -6),
    ]  # fmt: skip
