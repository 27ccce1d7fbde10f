"""Every sample as a file: a change in how a view looks is a change to review."""

from __future__ import annotations

from pathlib import Path

import pytest
from syrupy.data import Snapshot, SnapshotCollection
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from tests.gallery.samples import PARTS, RICHEST, drawn

SAMPLES = drawn()
FOLDED = f"{' folded away ':=^88}"
IN_HTML = (*dict(PARTS), *RICHEST)


class _Golden(SingleFileSnapshotExtension):
    """One file for each sample, named after it; syrupy would name it after the test."""

    _write_mode = WriteMode.TEXT
    test = ""

    @classmethod
    def dirname(cls, *, test_location):
        return str(Path(test_location.filepath).parents[1] / "golden")

    @classmethod
    def get_file_basename(cls, *, test_location, index):  # noqa: ARG003
        return test_location.item.callspec.params["name"]

    @classmethod
    def get_snapshot_name(cls, *, test_location, index=0):  # noqa: ARG003
        return test_location.snapshot_name

    @classmethod
    def matches_test_location(cls, *, test_location, snapshot_location):
        expected = cls.get_location(test_location=test_location, index=0)
        return Path(snapshot_location) == Path(expected)

    def read_snapshot_collection(self, *, snapshot_location):
        collection = SnapshotCollection(location=snapshot_location)
        name = Path(snapshot_location).stem
        collection.add(Snapshot(name=f"{self.test}[{name}]"))
        return collection


class GoldenText(_Golden):
    """The text form."""

    file_extension = "txt"
    test = "test_text_is_as_reviewed"


class GoldenHtml(_Golden):
    """The HTML form."""

    file_extension = "html"
    test = "test_html_is_as_reviewed"


@pytest.mark.parametrize("name", SAMPLES)
def test_text_is_as_reviewed(name, snapshot):
    """The text form is the stored one, to the letter, and so is what is folded."""
    drawing = SAMPLES[name]
    text = drawing.text()
    if drawing.folded:
        folded = drawing.asked(drawing.folded).text()
        text += f"\n\n{FOLDED}\n{folded}"
    assert text + "\n" == snapshot(extension_class=GoldenText)


@pytest.mark.parametrize("name", IN_HTML)
def test_html_is_as_reviewed(name, snapshot):
    """The HTML of each part, and of two views or so a room, is the stored one."""
    assert SAMPLES[name].html() + "\n" == snapshot(extension_class=GoldenHtml)


def test_no_file_is_left_over():
    """A sample that is gone, or was renamed, takes its files with it."""
    golden = Path(__file__).parents[1] / "golden"
    files = {f"{name}.txt" for name in SAMPLES} | {f"{name}.html" for name in IN_HTML}

    assert {path.name for path in golden.iterdir()} == files
