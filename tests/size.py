"""Counts how large the house is, by room; `make size` notes in size.json what fell."""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_name("size.json")
_PARTS = {"Details", "how_measured"}  # they build what opens below a report


def measured() -> dict[str, dict[str, int]]:
    """The figures of the package by room, of its tests, and of what users can type."""
    rooms = {}
    for room in sorted((_ROOT / "gpumagic").iterdir()):
        if room.is_dir() and any(room.glob("*.py")):
            rooms[room.name] = _of_files(room.rglob("*.py"))
    rooms["top"] = _of_files((_ROOT / "gpumagic").glob("*.py"))
    package = {
        name: sum(each[name] for each in rooms.values()) for name in rooms["top"]
    }
    tests = {"lines": sum(map(_lines, (_ROOT / "tests").rglob("*.py")))}
    tests["golden files"] = len([*(_ROOT / "tests" / "golden").glob("*.*")])
    return {"package": package, "tests": tests, "typed": _typed()} | rooms


def _of_files(files: Iterable[Path]) -> dict[str, int]:
    count: Counter[str] = Counter()
    for file in files:
        nodes = list(ast.walk(ast.parse(file.read_text())))
        count["files"] += 1
        count["lines"] += _lines(file)
        count["statements"] += sum(
            isinstance(each, ast.stmt) and not _is_text(each) for each in nodes
        )
        count["functions"] += sum(
            isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in nodes
        )
        count["parts"] += sum(
            isinstance(each, ast.Call)
            and isinstance(each.func, ast.Name)
            and each.func.id in _PARTS
            for each in nodes
        )
        count["conditional expressions"] += sum(
            isinstance(each, ast.IfExp) for each in nodes
        )
        count["tests for None"] += sum(
            isinstance(each, ast.Compare)
            and any(isinstance(op, ast.Is | ast.IsNot) for op in each.ops)
            and any(
                isinstance(it, ast.Constant) and it.value is None
                for it in each.comparators
            )
            for each in nodes
        )
    return dict(count)


def _lines(file: Path) -> int:
    return file.read_text().count("\n")


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _typed() -> dict[str, int]:
    """Options, those of all magics once, and the words that stand in front of them."""
    from docs_build.rooms import every
    from gpumagic.notebook.arguments import actions_of, words_of

    parsers = [room.magic.parser for room in every() if room.magic]
    options = [
        {each.option_strings[-1] for each in actions_of(parser) if each.option_strings}
        for parser in parsers
    ]
    common = set.intersection(*options)
    return {
        "options": len(common) + sum(len(each - common) for each in options),
        "words": sum(len(words_of(parser)) for parser in parsers),
    }


def _main() -> None:
    before, now = json.loads(FILE.read_text()), measured()
    print(f"{'':24}{'was':>9}{'is':>9}")  # noqa: T201 -- a command's answer
    for part, figures in now.items():
        for name, figure in figures.items():
            was = before.get(part, {}).get(name, figure)
            figures[name] = min(was, figure)  # what has grown stays red
            if part in ("package", "tests", "typed") or was != figure:
                print(f"{part + ' ' + name:40}{was:>9}{figure:>9}")  # noqa: T201
    FILE.write_text(json.dumps(now | {"why": before.get("why", [])}, indent=1) + "\n")


if __name__ == "__main__":
    _main()
