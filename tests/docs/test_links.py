"""No dead link, on GitHub or in the site."""

from __future__ import annotations

import pytest

from docs_build.links import for_the_site
from tests.docs.pages import ALL, GUIDES, README, anchors, links, name_of


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_every_link_leads_somewhere(path):
    """What a page points to is there: files beside it, and headings in them."""
    for target in links(path):
        file, _, anchor = target.partition("#")
        if ":" in file:
            continue
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), target


def test_headings_of_one_name_have_anchors_of_their_own(tmp_path):
    """As on GitHub, the second "Added" of a page is #added-1."""
    page = tmp_path / "page.md"
    page.write_text("# A\n## Added\n## `%a`: it's - so\n## Added\n", encoding="utf-8")

    assert anchors(page) == {"a", "added", "a-its---so", "added-1"}


def test_every_guide_is_found_from_the_readme():
    """From link to link a reader of the README comes to each guide."""
    seen, ahead = set(), [README]
    while ahead:
        path = ahead.pop()
        seen.add(path)
        near = {
            (path.parent / target.partition("#")[0]).resolve()
            for target in links(path)
            if ":" not in target and ".md" in target
        }
        ahead.extend(near - seen)
    assert set(GUIDES) <= seen


@pytest.mark.parametrize(
    ("page", "written", "in_the_site"),
    [
        ("readme.md", "[a](docs/gpu_mem.md#leaks)", "[a](gpu_mem.md#leaks)"),
        ("gpu_mem.md", "[a](../notebooks/tour.ipynb)", "[a](notebooks/tour.md)"),
        ("notebooks/index.md", "[a](../docs/gpu_mem.md)", "[a](../gpu_mem.md)"),
        ("gpu_mem.md", "[a](#leaks)", "[a](#leaks)"),
        ("readme.md", "[the results](benchmarks/results)", "the results"),
        ("gpu_mem.md", "```py\na[0](../x)\n```\n", "```py\na[0](../x)\n```\n"),
    ],
)
def test_a_link_of_the_repository_becomes_one_of_the_site(page, written, in_the_site):
    """Links lead to the page of a file; what has none becomes text; code stays."""
    assert for_the_site(written, page) == in_the_site
