"""A notebook on paper: nbconvert's page, printed by Chromium.

`pdftotext` and `pdftoppm` are poppler's; a page is looked at in build/paper.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter

import pytest

from gpumagic.drawing.palette import BLUE
from tests.frontends.converting import COURSE, known, notebook, to_html
from tests.frontends.outputs import REPOSITORY, outputs
from tests.frontends.reading import read

_TOOLS = ("pdftotext", "pdftoppm")
_MISSING = [name for name in _TOOLS if shutil.which(name) is None]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(_MISSING), reason=f"not on the PATH: {_MISSING}"),
]

PAPER = REPOSITORY / "build" / "paper"
_SAMPLES = (
    "whole",
    "meters",
    "stacks",
    "timeline-many",
    "gpu_mem-balance",
    "gpu_mem-map",
)
_NUMBER = re.compile(r"\d[\d.,]*")
_PATIENCE_MS = 180_000  # a busy machine is slow


@pytest.fixture(scope="module", params=["backgrounds", "no-backgrounds"])
def printed(request, browser):
    """The samples and a notebook of the course as PDF files, by name."""
    from nbconvert import HTMLExporter

    shown = tuple(each for each in outputs() if each.name in _SAMPLES)
    pages = {
        "samples": HTMLExporter().from_notebook_node(notebook(shown))[0],
        COURSE: to_html(COURSE),
    }
    PAPER.mkdir(parents=True, exist_ok=True)
    files = {name: PAPER / f"{name}-{request.param}.pdf" for name in pages}
    for name, page in pages.items():
        _print(browser, page, files[name], backgrounds=request.param == "backgrounds")
    return files


def _print(browser, markup, path, *, backgrounds):
    # Without the network: nbconvert's page asks for scripts that paper does without.
    page = browser.new_page(offline=True)
    page.set_default_timeout(_PATIENCE_MS)
    page.set_content(markup)
    # What is closed on the screen cannot be opened on paper.
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.pdf(path=str(path), format="A4", print_background=backgrounds)
    page.context.close()


def _words(path):
    command = ["pdftotext", "-layout", str(path), "-"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_every_number_is_on_the_paper(printed):
    """No column is cut off at the edge of a sheet, so that its numbers are there."""
    shown = [each.html for each in outputs() if each.name in _SAMPLES]
    wanted = Counter(n for html in shown for n in _NUMBER.findall(_visible(html)))
    assert wanted - Counter(_NUMBER.findall(_words(printed["samples"]))) == Counter()


def test_every_report_of_a_notebook_is_on_the_paper(printed):
    """Each output of the course begins on a sheet with its answer."""
    words = " ".join(_words(printed[COURSE]).split())
    answers = [" ".join(each.text.split()[:4]) for each in known()[COURSE][1]]
    assert [answer for answer in answers if answer not in words] == []


def _visible(markup):
    """The words without those that a picture is told by."""
    return read(re.sub(r'alt="[^"]*"', 'alt=""', markup)).text


def test_bars_and_pictures_are_in_colour(printed, tmp_path):
    """Bars are there also where a printer is told to leave backgrounds out."""
    command = ["pdftoppm", "-r", "50", str(printed["samples"]), str(tmp_path / "page")]
    subprocess.run(command, check=True)
    blue = bytes.fromhex(BLUE.removeprefix("#"))

    seen = Counter(each for path in tmp_path.iterdir() for each in _pixels(path))

    assert sum(count for colour, count in seen.items() if _near(colour, blue)) > 2_000


def _pixels(path):
    """Each pixel of a picture in poppler's own format: three lines, then the bytes."""
    *_, data = path.read_bytes().split(b"\n", 3)
    return zip(*[iter(data)] * 3, strict=True)


def _near(one, other):
    return max(abs(a - b) for a, b in zip(one, other, strict=True)) < 12
