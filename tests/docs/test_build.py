"""The site itself: it builds, it is complete, and it asks nobody for anything."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from tests.docs.pages import REPOSITORY

MISSING = [
    name
    for name in ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers")
    if importlib.util.find_spec(name) is None
]
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"the pages need {', '.join(MISSING)}: make docs installs it"
)

# A page that is heavier than this needs a page of its own for its pictures.
_HEAVIEST_GUIDE_BYTES = 200_000
_HEAVIEST_PAGE_BYTES = 2_000_000


class _Loaded(HTMLParser):
    """What a browser would fetch to show a page."""

    def __init__(self):
        super().__init__()
        self.addresses = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag != "a":
            self.addresses += [given.get("src"), given.get("srcset")]
        if tag == "link" and given.get("rel") != "canonical":
            self.addresses.append(given.get("href"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", folder],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def _pages(site):
    return {
        path.relative_to(site).as_posix(): path.read_text(encoding="utf-8")
        for path in site.rglob("*.html")
    }


def test_no_page_loads_anything_from_elsewhere(site):
    """Pages, styles and scripts are all in the site: it works without a network."""
    for name, text in _pages(site).items():
        loaded = _Loaded()
        loaded.feed(text)
        away = [each for each in loaded.addresses if each and "//" in each[:9]]
        assert not away, name
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(\W?https?:|@import", path.read_text()), path


def test_each_guide_ends_with_what_is_generated(site):
    """Options, functions with their docstrings, and answers stand below the guide."""
    page = (site / "gpu_mem.html").read_text(encoding="utf-8")

    assert "Of a cell: lines, and its exact peak." in page
    assert 'id="gpumagic.gpu_mem.fit"' in page
    assert 'href="gallery/gpu_mem.html#why-fragmented"' in page


def test_the_gallery_shows_the_programs_own_html(site):
    """A drawing reaches the page as it is, and no place for one is left over."""
    pages = _pages(site)

    assert (
        "+1.25 GiB on cuda:0, peak 3.40 GiB; graph of loss +840 MiB</strong>"
        in pages["gallery/gpu_mem.html"]
    )
    assert "data:image/svg+xml;base64," in pages["gallery/tensor_info.html"]
    for name, text in pages.items():
        assert 'id="output-' not in text, name


def test_the_course_is_in_the_site_with_its_outputs(site):
    """A notebook's page has its sentences, its code and what its cells showed."""
    page = (site / "notebooks" / "03_asynchrony.html").read_text(encoding="utf-8")

    assert "Asynchrony, or why was your timing wrong?" in page
    assert "<summary>Solution</summary>" in page
    assert "earlier work, not counted" in page
    assert "```" not in page


def test_no_page_is_heavy(site):
    """A guide opens at once; a gallery may take as much as a photograph."""
    for name, text in _pages(site).items():
        small = "/" not in name
        most = _HEAVIEST_GUIDE_BYTES if small else _HEAVIEST_PAGE_BYTES
        assert len(text.encode()) < most, name
