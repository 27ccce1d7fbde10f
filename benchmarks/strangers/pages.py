"""The results as the tables of the guide; a test holds the guide to the results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.runner import RESULTS
from benchmarks.strangers.outcomes import SAME
from benchmarks.strangers.programs import PROGRAMS
from benchmarks.strangers.verdicts import (
    BEYOND,
    KNOWN,
    OURS,
    PASSED,
    SKIPPED,
    THE_TESTS,
    counted,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PAGE = Path(__file__).parents[2] / "docs" / "other_programs.md"
BEGIN, END = "<!-- written by make strangers -->", "<!-- to here -->"


def write_table(page: Path = PAGE) -> Path:
    """Put what was found last into the page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{tables()}\n{END}{after}", encoding="utf-8")
    return page


def tables(results: Path = RESULTS) -> str:
    """All tables, of the results that are kept."""
    programs, notebooks, tests = (
        _read(results / f"strangers_{each}.json")
        for each in ("programs", "notebooks", "torch_tests")
    )
    return "\n".join([*_programs(programs, notebooks), "", *_tests(tests)])


def _programs(found: Mapping[str, Any], notebooks: Mapping[str, Any]) -> Iterator[str]:
    versions = {"torch": found["environment"]["versions"]["torch"], **found["packages"]}
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield f"On {found['environment']['date'][:10]}, with {named}:\n"
    yield "| Program | By | as cuda | on sim | times as long | under magics |"
    yield "| --- | --- | --- | --- | --- | --- |"
    magics = {(row["origin"], row["name"]): row for row in notebooks["programs"]}
    order = {(each.origin, each.name): place for place, each in enumerate(PROGRAMS)}
    rows = [row for row in found["programs"] if (row["origin"], row["name"]) in order]
    for row in sorted(rows, key=lambda row: order[row["origin"], row["name"]]):
        ratio = row["times as long"]
        cells = (
            row["name"],
            row["origin"],
            _word(row["cuda"]),
            _word(row.get("sim", "")),
            f"{ratio:g}" if ratio else "",
            _magics(magics.get((row["origin"], row["name"]))),
        )
        yield "| " + " | ".join(cells) + " |"


def _magics(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    if row["without"] != "runs":
        return _word(row["without"])
    others = row["not the same"]
    return "; ".join(f"`{way}`: {_word(each)}" for way, each in others.items()) or SAME


def _word(said: str) -> str:
    """A verdict, or the first sentence of an error, fit for a cell of a table."""
    first = said.splitlines()[0] if said else ""
    return first.replace("|", "\\|")[:100]


def _tests(found: Mapping[str, Any]) -> Iterator[str]:
    outcomes = found["outcomes"]
    files = sorted({name.split(".")[0] for name in outcomes})
    words = (PASSED, SKIPPED, BEYOND, THE_TESTS, OURS)
    yield f"PyTorch's own tests, of {found['tests_of']}:\n"
    yield "| File | " + " | ".join(words) + " |"
    yield "| --- |" + " --- |" * len(words)
    for file in files:
        of_file = {k: v for k, v in outcomes.items() if k.split(".")[0] == file}
        numbers = counted(of_file)
        yield f"| `{file}` | " + " | ".join(str(numbers[word]) for word in words) + " |"
    yield ""
    yield "| Tests that fail | Whose | Why |"
    yield "| --- | --- | --- |"
    for each in KNOWN:
        yield f"| `{each.tests}` | {each.whose} | {each.why} |"


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))
