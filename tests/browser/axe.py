"""What axe-core finds in our outputs on a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

# A legend's patch is no text for axe-core; tests/drawing hold the fills to 3:1.
_PATCH = ">■</span>"
_CONTRAST = "color-contrast"

# Of what is well the count is enough: to write down thousands of elements would take a
# third of the time, and how each is found another.
_AUDIT = """([outputs, only]) => axe.run(outputs, {
  selectors: false,
  ...(only && {runOnly: only}),
  reporter: (rules, options, tell) => tell(rules.map(rule => ({
    id: rule.id,
    impact: rule.impact,
    passes: rule.passes.length,
    violations: rule.violations.map(({node}) => node.source),
    incomplete: rule.incomplete.map(({node}) => node.source),
  }))),
})"""


def serious_faults(
    page: Page, *, fewest_judged: int, contrast_alone: bool = False
) -> dict[str, list[str]]:
    """The elements that would shut somebody out, by axe-core's name for the fault."""
    rules = _audit(page, contrast_alone=contrast_alone)
    contrast = rules[_CONTRAST]
    judged = contrast["passes"]
    assert judged >= fewest_judged, f"the contrast of only {judged} texts was judged"
    faults = {
        name: rule["violations"]
        for name, rule in rules.items()
        if rule["violations"] and rule["impact"] in ("serious", "critical")
    }
    undecided = [each for each in contrast["incomplete"] if not each.endswith(_PATCH)]
    return {**faults, "undecided": undecided} if undecided else faults


def _audit(page, *, contrast_alone):
    """What each rule has found, by its name."""
    from axe_playwright_python.sync_playwright import Axe

    # The front ends' body is 0 pixels high and hides what overflows it. Browsers
    # apply that to the window; axe takes all text for hidden and judges none.
    page.add_style_tag(content="body { height: 100vh }")
    page.evaluate(Axe().axe_script)
    outputs = page.evaluate("look.OUTPUT")
    found = page.evaluate(_AUDIT, [outputs, [_CONTRAST] if contrast_alone else None])
    return {rule["id"]: rule for rule in found}
