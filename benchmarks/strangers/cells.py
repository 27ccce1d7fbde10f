"""A program as cells: the source of a published file, cut and changed where it is said.

What a cell does to the device is in its text: "cuda" stays, or is replaced by the
device that the program is to run on.
"""

from __future__ import annotations

import ast
import re
import shlex
from typing import TYPE_CHECKING

from benchmarks.strangers.programs import FOLDERS, Program

if TYPE_CHECKING:
    from pathlib import Path

CPU, SIM, CUDA = "cpu", "sim", "cuda"
_SECTION = re.compile(r"^(?:#{15,}|# ?%%.*)$", re.MULTILINE)
_BLOCK = re.compile(
    r"^```\{\.python \.input[^\n]*\}\n(.*?)^```", re.MULTILINE | re.DOTALL
)
_TAB = re.compile(r"^(?:%%tab|#@tab) (.*)$", re.MULTILINE)

# A device that is named, and not chosen by what there is.
_NAMED = re.compile(
    r"""((?:device ?= ?|torch\.device\()(['"]))cuda(?::\d)?(\2)(?! if)"""
)
_MAGIC = re.compile(
    r"^%.*$", re.MULTILINE
)  # %matplotlib inline, which does nothing here


def cells_of(program: Program, sources: Path, device: str) -> list[str]:
    """The cells that run a program on a device."""
    if program.from_package:
        call = f'found = {program.place}("{device}")\nglobals().update(found)'
        return [f"from benchmarks.strangers.packages import {program.place}\n{call}"]
    text = edited(program, path_of(program, sources).read_text(encoding="utf-8"))
    cut = _of_a_chapter(text) if program.place.endswith(".md") else _of_a_script(text)
    cells = [on_device(cell, device) for cell in cut if _does_something(cell)]
    if program.names_no_device:
        return [f'import torch\ntorch.set_default_device("{device}")', *cells]
    return cells


def path_of(program: Program, sources: Path) -> Path:
    """Where a program lies, in a folder with one checkout for each repository."""
    return sources / FOLDERS[program.origin] / program.place


def arguments_of(program: Program, sources: Path, device: str) -> list[str]:
    """What stands in `sys.argv` while a program runs."""
    if program.from_package:
        return ["notebook"]
    words = shlex.split(program.arguments)
    if device == CPU:
        words = [word for word in words if word != "--accel"]
    words = [on_device(word, device) for word in words]
    return [str(path_of(program, sources)), *words]


def edited(program: Program, text: str) -> str:
    """The text with all that is said to be changed."""
    for old, new in program.edits:
        if old not in text:
            raise ValueError(f"{program.name}: nothing reads {old!r} any more")
        text = text.replace(old, new)
    return text


def on_device(text: str, device: str) -> str:
    """A program that says "cuda", saying another device instead."""
    if device == CUDA:
        return text
    if device == SIM:
        return re.sub(r"\bcuda(?=\b|_)", "sim", text)
    text = _NAMED.sub(r"\1cpu\3", text)
    return re.sub(r"=cuda\b", "=cpu", text)


def _of_a_script(text: str) -> list[str]:
    """A tutorial is cut where its sections begin; what cannot be cut is one cell."""
    cells = _SECTION.split(text)
    try:
        for cell in cells:
            compile(cell, "cell", "exec")
    except SyntaxError:
        return [text]
    return cells


def _of_a_chapter(text: str) -> list[str]:
    """The blocks of a chapter of d2l that are for torch."""
    blocks = (each.group(1) for each in _BLOCK.finditer(text))
    return [
        _MAGIC.sub("", _TAB.sub("", block)) for block in blocks if _is_for_torch(block)
    ]


def _is_for_torch(block: str) -> bool:
    if "d2lbook.tab" in block or "tab.interact_select" in block:
        return False
    tab = _TAB.search(block)
    return tab is None or bool(
        {"pytorch", "all"} & {*re.split(r"[,\s]+", tab.group(1))}
    )


def _does_something(cell: str) -> bool:
    return bool(ast.parse(cell).body)
