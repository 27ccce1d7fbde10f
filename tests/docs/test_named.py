"""What README and guides name by hand is there under that name."""

from __future__ import annotations

import importlib
import re

import pytest

from docs_build import rooms
from gpumagic.notebook.arguments import options_of
from gpumagic.simulator.models import parse_request
from tests.docs.pages import TOLD, name_of

_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
_FUNCTION = re.compile(r"`gpumagic\.(\w+)`: (.*)")
_MODELS = re.compile(r'simulate\("([^"]+)"|--simulate (\w+)')
_LISTED_MODELS = re.compile(r"^\| `simulate\(.*?\)` \| (.*?);", re.MULTILINE)

# Of other programs, and of `python -m gpumagic`.
_ELSEWHERE = {"--force-reinstall", "--gpus", "--help", "--html", "--out", "--port"}
_ELSEWHERE |= {
    "--file",
    "--gpus-per-node",
    "--gpus-per-task",
    "--job-name",
    "--nodes",
    "--ntasks-per-node",
}
_OPTIONS = _ELSEWHERE.union(
    *(options_of(room.magic.parser) for room in rooms.every() if room.magic)
)


@pytest.mark.parametrize("path", TOLD, ids=name_of)
def test_every_option_that_is_named_can_be_typed(path):
    """A guide speaks of no option that some magic has not."""
    named = set(_OPTION.findall(path.read_text(encoding="utf-8")))
    assert named <= _OPTIONS


@pytest.mark.parametrize(
    "room", [room for room in rooms.every() if room.magic], ids=lambda r: r.folder
)
def test_the_options_of_a_guide_are_those_of_its_magic(room):
    """What stands in the table of what to type is an option of that very magic."""
    guide = next(path for path in TOLD if path.name == room.guide)
    rows = re.findall(r"^\| (`[^|]*) \|", guide.read_text("utf-8"), re.MULTILINE)
    named = {each for row in rows for each in _OPTION.findall(row)}
    assert named <= {*options_of(room.magic.parser), *_ELSEWHERE}


def test_every_function_that_is_listed_is_offered():
    """The list of functions for scripts is what each package offers."""
    listed = {
        folder: set(re.findall(r"`(\w+)(?:\(\))?`", names))
        for path in TOLD
        for folder, names in _FUNCTION.findall(path.read_text(encoding="utf-8"))
    }
    assert set(listed) == {room.folder for room in rooms.every() if room.magic}
    for folder, names in listed.items():
        assert names <= set(importlib.import_module(f"gpumagic.{folder}").__all__)


@pytest.mark.parametrize("path", TOLD, ids=name_of)
def test_every_model_that_is_named_can_be_simulated(path):
    """What a page asks for, and what it lists, the catalogue has."""
    text = path.read_text(encoding="utf-8")
    named = {one or other for one, other in _MODELS.findall(text)}
    for row in _LISTED_MODELS.findall(text):
        named |= {each.strip(' `"') for each in row.split(",")}
    for each in named:
        assert each == "off" or parse_request(each)
