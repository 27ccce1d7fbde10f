"""What README and guides print is what their reader would see."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import README, TOLD, blocks, name_of
from tests.docs.printed import missing
from tests.gallery.samples import everything
from tests.notebook.shells import see_in_kernel
from tests.quick_kernels import quick_kernels

# The simulated GPU warns of races; a shell under test shows no warnings otherwise.
_WARN = "import warnings\nwarnings.simplefilter('always', RuntimeWarning)"
_WITH_CELLS = [path for path in TOLD if blocks(path, "python")]
_WITH_TEXTS = [path for path in TOLD if blocks(path, "text")]


@cache
def _drawn():
    return dict(everything())


def _everything_seen(seen):
    texts = [each.get("text/plain", "") for each in seen.shown]
    # A string as a value is shown with its quotation marks, which differ by version.
    result = (seen.result or "").strip("'\"")
    return "\n".join([*texts, result, seen.printed])


def _cells_with_texts(path):
    """Each cell of a page with the blocks of text below it that it has to show."""
    found = []
    for block in blocks(path):
        if block.language == "python":
            found.append((block.text, []))
        elif block.language == "text" and block.sample is None:
            found[-1][1].append(block.text)
    return found


@pytest.mark.kernel
@pytest.mark.parametrize("path", _WITH_CELLS, ids=name_of)
def test_each_cell_runs_and_shows_what_is_printed_below_it(path):
    """Typed into one notebook from the top, no cell of a page fails or shows else."""
    pytest.importorskip("torch")
    cells = _cells_with_texts(path)

    with quick_kernels():
        _, *seen = see_in_kernel([_WARN, *(cell for cell, _ in cells)])

    failed = [each.traceback for each in seen if each.status != "ok"]
    assert not failed, failed[0]
    for (cell, texts), each in zip(cells, seen, strict=True):
        for text in texts:
            part = missing(text, _everything_seen(each))
            assert part is None, (
                f"{cell}\nis said to show\n{part}\nand shows\n{_everything_seen(each)}"
            )


@pytest.mark.parametrize("path", _WITH_TEXTS, ids=name_of)
def test_what_is_cut_from_a_sample_is_still_in_it(path):
    """A block that names a sample is part of its text, or of what it has folded."""
    for block in blocks(path, "text"):
        if block.sample is not None:
            drawing = _drawn()[block.sample]
            text = f"{drawing.text()}\n{drawing.asked(drawing.folded).text()}"
            assert missing(block.text, text) is None, block


@pytest.mark.parametrize("path", _WITH_TEXTS, ids=name_of)
def test_no_printed_output_stands_alone(path):
    """Each block of text has a cell above it, or names the sample it is cut from."""
    above = None
    for block in blocks(path):
        if block.language == "text" and block.sample is None:
            assert above == "python", block.text
        above = block.language


def test_what_the_table_of_magics_quotes_begins_a_report():
    """Each answer in the README's table is the headline of a sample of that magic."""
    titles = {name: " ".join(each.title.split()) for name, each in _drawn().items()}
    table = README.read_text(encoding="utf-8").partition("## The magics")[2]
    rows = re.findall(
        r"^\| \[`%+(\w+)`\].*\| `(.*)` \|$", table.partition("\n## ")[0], re.MULTILINE
    )
    rooms = {path.parent.name for path in Path("gpumagic").glob("*/magic.py")}
    assert {room for room, _ in rows} == rooms
    for room, quoted in rows:
        assert quoted in {
            title for name, title in titles.items() if name.startswith(room)
        }
