"""Draws the rooms of the package and who imports whom: `make map`.

Neither counts nor names of files are in it, so that it is out of date only where a room
begins or ceases to use another one.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

from gpumagic.drawing.html import Html, element, escape, picture
from gpumagic.drawing.palette import BLUE, GREEN, GREY, PURPLE, RULE, TRACK, text_on
from gpumagic.extension import ROOMS

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "pictures" / "rooms.svg"
TEXT = PICTURE.with_suffix(".txt")
_PACKAGE = "gpumagic"

_TOP = "top level"  # __init__, __main__ and extension: the wiring
_MAGICS = tuple(room.folder for room in ROOMS)
# Each uses what stands after it; what does not, stands out in the picture.
_SHARED = ("notebook", "devices", "drawing", "report", "errors")
_ORDER = (_TOP, *_MAGICS, "simulator", *_SHARED)

_ROW, _LABEL = 24, 124  # in pixels: the height of a row, the length of a name


def imports() -> dict[str, dict[str, bool]]:
    """The files of the package, by the names of their modules, with what each imports.

    True stands for what is imported with the file, False for what is imported only when
    one of its functions is called. What is imported for type checking is left out: no
    program runs it.
    """
    files = {_module(path): path for path in (ROOT / _PACKAGE).rglob("*.py")}
    return {module: _imported(module, path, files) for module, path in files.items()}


def circles(graph: Mapping[str, Iterable[str]]) -> list[set[str]]:
    """The largest sets of files that all lead to each other by their imports."""
    reached = {module: _reached_from(module, graph) for module in graph}
    found = {
        frozenset(each for each in reached[module] if module in reached[each])
        for module in graph
    }
    return [set(circle) for circle in found if circle]


def _reached_from(module: str, graph: Mapping[str, Iterable[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = [*graph[module]]
    while waiting:
        if (each := waiting.pop()) not in reached:
            reached.add(each)
            waiting.extend(graph[each])
    return reached


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(module: str, path: Path, files: Container[str]) -> dict[str, bool]:
    found: dict[str, bool] = {}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for statement, at_once in _statements(tree, at_once=True):
        for each in _targets(statement, files):
            found[each] = at_once or found.get(each, False)
    found.pop(module, None)
    return found


def _statements(block: ast.AST, *, at_once: bool) -> Iterator[tuple[ast.AST, bool]]:
    """All statements below another one, and whether they are run with the file."""
    for each in ast.iter_child_nodes(block):
        if isinstance(each, ast.expr) or _is_for_type_checking(each):
            continue
        yield each, at_once
        runs = at_once and not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from _statements(each, at_once=runs)


def _is_for_type_checking(statement: ast.AST) -> bool:
    test = getattr(statement, "test", None)
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _targets(statement: ast.AST, files: Container[str]) -> Iterator[str]:
    if isinstance(statement, ast.Import):
        names = [each.name for each in statement.names]
    elif isinstance(statement, ast.ImportFrom) and statement.module:
        whole = statement.module
        names = [f"{whole}.{each.name}" for each in statement.names]
        names = [each if each in files else whole for each in names]
    else:
        return
    yield from (each for each in names if each in files)


# ---------------------------------------------------------------------- rooms


def room_imports() -> dict[str, dict[str, bool]]:
    """The rooms in their order, each with those it uses: True if from its import on.

    False: only once one of its functions is called. The wiring finds the magics by
    their names.
    """
    used: dict[str, dict[str, bool]] = {room: {} for room in _ORDER}
    used[_TOP] = dict.fromkeys(_MAGICS, False)
    for module, found in imports().items():
        uses = used.setdefault(_room(module), {})
        for each, at_once in found.items():
            uses[_room(each)] = at_once or uses.get(_room(each), False)
    return {
        room: {each: uses[each] for each in used if each in uses and each != room}
        for room, uses in used.items()
    }


def _room(module: str) -> str:
    name = module.partition(".")[2].partition(".")[0]
    return _TOP if name in {"", "__main__", "extension"} else name


def as_text(rooms: Mapping[str, Mapping[str, bool]]) -> str:
    """A line for each room with those that it uses."""
    wide = max(map(len, rooms))
    lines = [
        f"{room:{wide}} -> "
        + (
            ", ".join(
                each if at_once else f"({each})" for each, at_once in uses.items()
            )
        )
        for room, uses in rooms.items()
    ]
    return "\n".join([*lines, "", "(in brackets: only when a function is called)", ""])


def as_svg(rooms: Mapping[str, Mapping[str, bool]]) -> str:
    """A table: a row for each room, a dot below each room that it uses."""
    size = len(rooms) * _ROW
    shapes: list[Html] = []
    for row, (room, uses) in enumerate(rooms.items()):
        y = _LABEL + row * _ROW
        shapes += [
            _label(room, 0, y),
            element(
                "g",
                _label(room, 0, 0),
                transform=f"translate({_LABEL + row * _ROW} {_LABEL}) rotate(-90)",
            ),
            _box(_LABEL, y, size, _ROW, fill="none" if row % 2 else TRACK),
            _box(_LABEL + row * _ROW, y, _ROW, _ROW, fill=RULE),
            *(
                _dot(_LABEL + column * _ROW, y, _colour(room), filled=uses[other])
                for column, other in enumerate(rooms)
                if other in uses
            ),
        ]
    title = "Which room imports which: rows import columns"
    return picture(_LABEL + size, _LABEL + size, title, *shapes) + "\n"


def _colour(room: str) -> str:
    if room in _SHARED:
        return GREEN
    return {_TOP: GREY, "simulator": PURPLE}.get(room, BLUE)


def _label(room: str, x: int, y: int) -> Html:
    text = element(
        "text",
        escape(room),
        x=x + 8,
        y=y + 16,
        fill=text_on(_colour(room)),
        font_size=12,
        font_family="sans-serif",
    )
    box = _box(x + 2, y + 2, _LABEL - 4, _ROW - 4, rx=4, fill=_colour(room))
    return Html(box + text)


def _box(x: int, y: int, width: int, height: int, **looks: str | int) -> Html:
    return element("rect", x=x, y=y, width=width, height=height, **looks)


def _dot(x: int, y: int, colour: str, *, filled: bool) -> Html:
    return element(
        "circle",
        cx=x + _ROW // 2,
        cy=y + _ROW // 2,
        r=6,
        fill=colour if filled else "none",
        stroke=colour,
        stroke_width=2,
    )


if __name__ == "__main__":
    found = room_imports()
    PICTURE.write_text(as_svg(found), encoding="utf-8")
    TEXT.write_text(as_text(found), encoding="utf-8")
