"""The rooms are complete, wired, and named after what they do."""

from __future__ import annotations

import ast
import dis
import functools
import importlib
import sys
import tomllib
from pathlib import Path

import pytest

import gpumagic
from docs_build import room_map
from gpumagic.extension import ROOMS
from gpumagic.report.record import Report

PACKAGE = Path(gpumagic.__file__).parent
REPOSITORY = PACKAGE.parent
ROOM_FOLDERS = sorted(path.parent.name for path in PACKAGE.glob("*/magic.py"))
MODULES = sorted(PACKAGE.rglob("*.py"))


def test_every_room_is_wired_and_nothing_else():
    """A folder with a magic is one line in ROOMS, and the other way round."""
    assert sorted(room.folder for room in ROOMS) == ROOM_FOLDERS


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.folder)
def test_a_room_has_all_its_parts(room):
    """A magic in line and cell form, and a report that draws itself or has a view."""
    names = sorted(path.stem for path in (PACKAGE / room.folder).glob("*.py"))
    modules = [importlib.import_module(f"gpumagic.{room.folder}.{n}") for n in names]
    kinds = [each for module in modules for each in vars(module).values()]
    reports = [each for each in kinds if isinstance(each, type)]
    assert any(issubclass(each, Report) and each is not Report for each in reports)
    magic = importlib.import_module(f"gpumagic.{room.folder}.magic")
    assert room.folder in getattr(magic, room.magics).magics["line"]
    assert room.folder in getattr(magic, room.magics).magics["cell"]


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.folder)
def test_a_room_offers_its_functions_however_they_are_asked_for(room):
    """What works without a magic stays a function after all modules are imported."""
    folder = importlib.import_module(f"gpumagic.{room.folder}")
    for path in sorted((PACKAGE / room.folder).glob("*.py")):
        importlib.import_module(f"gpumagic.{room.folder}.{path.stem}")
    assert folder.__all__
    assert all(callable(getattr(folder, name)) for name in folder.__all__)


@pytest.mark.parametrize("room", [None, "simulator", *(room.folder for room in ROOMS)])
def test_tab_offers_what_people_call_and_nothing_else(room):
    """`dir()` of the package and of each room has no imports, and no files."""
    module = importlib.import_module(f"gpumagic.{room}" if room else "gpumagic")
    offered = {name for name in dir(module) if not name.startswith("_")}
    rooms = {each.folder for each in ROOMS}

    assert offered == (set(module.__all__) if room else {"device", "simulate", *rooms})
    assert all(hasattr(module, name) for name in offered)
    assert "__version__" in dir(importlib.import_module("gpumagic"))


@pytest.mark.parametrize("folder", ROOM_FOLDERS)
def test_a_room_has_samples_and_a_contract(folder):
    """Its reports are drawn in the gallery, and its imports are held by a contract."""
    samples = importlib.import_module(f"tests.{folder}.samples").SAMPLES
    assert samples
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    rooms = next(each for each in contracts if each["name"].startswith("A room never"))
    assert f"gpumagic.{folder}" in " | ".join(rooms["layers"]).split(" | ")


def test_no_module_keeps_state_or_prints():
    """No `global`, no call of print, and a docstring that says what it is."""
    assert {path: wrong for path in MODULES if (wrong := _broken_habits(path))} == {}


def _broken_habits(path):
    tree = _tree_of(path)
    nodes = list(ast.walk(tree))
    called = {each.func for each in nodes if isinstance(each, ast.Call)}
    names = {each.id for each in called if isinstance(each, ast.Name)}
    states = any(isinstance(each, ast.Global) for each in nodes)
    return [
        *(["has no docstring"] if not ast.get_docstring(tree) else ()),
        *(["keeps state"] if states else ()),
        *(["prints"] if "print" in names else ()),
    ]


@functools.cache
def _tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def test_no_file_imports_itself_by_way_of_others():
    """Also not where the import stands in a function; type checking is apart."""
    assert room_map.circles(room_map.imports()) == []


@pytest.mark.parametrize(
    ("graph", "circles"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, [{"b", "c"}]),
        ({"a": {"a"}}, [{"a"}]),
    ],
)
def test_a_circle_of_imports_is_found(graph, circles):
    """However many files it goes through, and without those that lead to it."""
    assert room_map.circles(graph) == circles


def test_imports_are_found_wherever_they_stand(tmp_path, monkeypatch):
    """In a function too, but not for type checking; of a package its file is meant."""
    package = tmp_path / "gpumagic"
    (package / "room").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "room" / "__init__.py").write_text("from gpumagic.room.b import name")
    (package / "room" / "a.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from gpumagic.room import never\n"
        "import gpumagic.room.b\n"
        "def f():\n    from gpumagic import room\n"
    )
    (package / "room" / "b.py").write_text("import ast")
    monkeypatch.setattr(room_map, "ROOT", tmp_path)

    found = room_map.imports()

    assert found["gpumagic.room"] == {"gpumagic.room.b": True}
    assert found["gpumagic.room.a"] == {
        "gpumagic.room.b": True,
        "gpumagic.room": False,
    }


def test_the_map_of_the_rooms_is_up_to_date():
    """Where a room has begun or ceased to use another one, `make map` draws it."""
    rooms = room_map.room_imports()

    assert room_map.TEXT.read_text(encoding="utf-8") == room_map.as_text(rooms)
    assert room_map.PICTURE.read_text(encoding="utf-8") == room_map.as_svg(rooms)


OF_THEIR_OWN = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.GeneratorExp)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
CONDITIONS = (ast.If, ast.Match, ast.Assert)
LISTINGS = (ast.ListComp, ast.SetComp, ast.DictComp)


def _goes_on_under_a_condition(loop):
    """Whether a loop begins its next round where a condition has just been asked."""
    if isinstance(loop, LISTINGS):
        return any(each.ifs for each in loop.generators)
    if isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant):
        return True
    return isinstance(loop, LOOPS) and isinstance(loop.body[-1], CONDITIONS)


def _loops_in(block):
    for each in ast.iter_child_nodes(block):
        if isinstance(each, OF_THEIR_OWN):
            continue
        if _goes_on_under_a_condition(each):
            yield each.lineno
        yield from _loops_in(each)


def _forgetful(tree):
    """The lines of such loops directly in a block that cleans up."""
    blocks = (ast.Try, ast.With, ast.AsyncWith)
    nodes = (node for node in ast.walk(tree) if isinstance(node, blocks))
    return [line for node in nodes for line in _loops_in(node)]


def test_no_loop_under_a_condition_stands_directly_in_a_block_that_cleans_up():
    """Python 3.13 forgets the block where Ctrl-C falls on the end of such a loop.

    (python/cpython#130279.) In a function that the block calls, all is well.
    """
    found = {path: lines for path in MODULES if (lines := _forgetful(_tree_of(path)))}

    assert found == {}


@pytest.mark.parametrize(
    "loop",
    [
        "while going_on(): pass",
        "for each in things:\n  if each: work()",
        "for each in things:\n  if each: work()\n  elif other: work()",
        "for each in things:\n  assert each",
        "for each in things:\n  match each:\n   case 1: work()",
        "[each for each in things if each]",
        "{each for each in things if each}",
        "{each: 1 for each in things if each}",
    ],
)
def test_what_python_forgets_the_block_of_is_found(loop):
    """The rule knows each form; and what it finds is what Python 3.13 leaves bare."""
    code = f"with block:\n {loop}"

    assert _forgetful(ast.parse(code))
    if sys.version_info[:2] in {(3, 12), (3, 13)}:
        assert _bare_jumps(compile(code, "code", "exec"))


def _bare_jumps(code):
    """Where the compiler protects the beginning of a loop, and not the way back."""
    protected = [
        range(each.start, each.end) for each in dis._parse_exception_table(code)
    ]
    jumps = [
        each for each in dis.get_instructions(code) if each.opname == "JUMP_BACKWARD"
    ]
    return [
        each
        for each in jumps
        if any(each.argval in part for part in protected)
        and not any(each.offset in part for part in protected)
    ]


@pytest.mark.parametrize("name", ["no_such_room", "_private"])
def test_an_unknown_name_is_an_attribute_error(name):
    """`gpumagic.x` finds rooms by name and says so where there is none."""
    with pytest.raises(AttributeError, match=name):
        getattr(gpumagic, name)


def test_a_room_is_there_after_importing_the_package_alone():
    """`import gpumagic; gpumagic.gpu_doctor.examine` needs no second import."""
    assert callable(gpumagic.gpu_doctor.examine)
    with pytest.raises(AttributeError, match="nothing"):
        _ = gpumagic.gpu_doctor.nothing
