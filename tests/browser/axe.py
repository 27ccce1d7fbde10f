"""What axe-core finds in our outputs on a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

# A legend's patch is no text for axe-core; tests/drawing hold the fills to 3:1.
_PATCH = ">■</span>"


def serious_faults(page: Page, *, fewest_judged: int) -> dict[str, list[str]]:
    """The elements that would shut somebody out, by axe-core's name for the fault.

    Args:
        page: Where our outputs are.

        fewest_judged: How many texts must have had their contrast judged, or nothing
            is proved.

    Returns:
        Also, as "undecided", texts whose contrast axe-core could not judge.
    """
    found = _audit(page)
    judged = len(_elements(found["passes"])["color-contrast"])
    assert judged >= fewest_judged, f"the contrast of only {judged} texts was judged"
    faults = _elements(
        rule
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical")
    )
    undecided = [
        element
        for element in _elements(found["incomplete"]).get("color-contrast", [])
        if not element.endswith(_PATCH)
    ]
    return {**faults, "undecided": undecided} if undecided else faults


def _audit(page):
    from axe_playwright_python.sync_playwright import Axe

    # The front ends' body is 0 pixels high and hides what overflows it. Browsers
    # apply that to the window; axe takes all text for hidden and judges none.
    page.add_style_tag(content="body { height: 100vh }")
    # To write down how each of thousands of elements is found takes half of the time.
    options = {"selectors": False}
    return Axe().run(page, page.evaluate("look.OUTPUT"), options).response


def _elements(rules):
    """What each rule was applied to."""
    return {rule["id"]: [node["html"] for node in rule["nodes"]] for rule in rules}
