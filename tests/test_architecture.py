"""The rooms are complete, wired, and named after what they do."""

from __future__ import annotations

import ast
import importlib
import tomllib
from pathlib import Path

import pytest

import gpumagic
from gpumagic.extension import ROOMS
from gpumagic.record import Report

PACKAGE = Path(gpumagic.__file__).parent
REPOSITORY = PACKAGE.parent
ROOM_FOLDERS = sorted(path.parent.name for path in PACKAGE.glob("*/magic.py"))
MODULES = sorted(PACKAGE.rglob("*.py"))


def test_every_room_is_wired_and_nothing_else():
    """A folder with a magic is one line in ROOMS, and the other way round."""
    assert sorted(room.folder for room in ROOMS) == ROOM_FOLDERS


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.folder)
def test_a_room_has_all_its_parts(room):
    """Report, view and magic carry the names that the wiring expects."""
    parts = ("report", "view", "magic")
    report, view, magic = (
        importlib.import_module(f"gpumagic.{room.folder}.{part}") for part in parts
    )
    kinds = [each for each in vars(report).values() if isinstance(each, type)]
    assert any(issubclass(each, Report) and each is not Report for each in kinds)
    assert callable(view.draw)
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


@pytest.mark.parametrize("folder", ROOM_FOLDERS)
def test_a_room_has_samples_and_a_contract(folder):
    """Its reports are drawn in the gallery, and its imports are held by a contract."""
    samples = importlib.import_module(f"tests.{folder}.samples").SAMPLES
    assert samples
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    rooms = next(each for each in contracts if each["name"].startswith("A room never"))
    assert f"gpumagic.{folder}" in rooms["modules"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.name))
def test_a_module_keeps_no_state_and_prints_nothing(path):
    """No `global`, no call of print, and a docstring that says what it is."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    assert not any(isinstance(node, ast.Global) for node in ast.walk(tree))
    assert "print" not in calls
    assert ast.get_docstring(tree)


def _loops_in(block):
    for each in ast.iter_child_nodes(block):
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(each, ast.While) and not isinstance(each.test, ast.Constant):
            yield each.lineno
        yield from _loops_in(each)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_no_loop_under_a_condition_stands_directly_in_a_block_that_cleans_up(path):
    """Python 3.13 forgets the block where Ctrl-C falls on the end of such a loop.

    (python/cpython#130279.) In a function that the block calls, all is well.
    """
    blocks = (ast.Try, ast.With, ast.AsyncWith)
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))

    assert not [
        line for node in nodes if isinstance(node, blocks) for line in _loops_in(node)
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
