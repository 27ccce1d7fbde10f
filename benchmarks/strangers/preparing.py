"""Puts a process in the state in which a program finds what it needs, and no more."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

from benchmarks.strangers.cells import CPU, CUDA, arguments_of, path_of
from benchmarks.strangers.dice import load_dice
from benchmarks.strangers.programs import PROGRAMS, Program
from benchmarks.strangers.synthetic import load_synthetic

MACHINE, MEMORY = "2xh100", "8GiB"
_WORDS = (
    "the time traveller for so it will be convenient to speak of him was expounding"
)


def named(name: str) -> Program:
    """The program of this name, written as `origin: name`."""
    return next(each for each in PROGRAMS if f"{each.origin}: {each.name}" == name)


def prepare(program: Program, sources: Path, device: str) -> None:
    """Data, arguments, folder and random numbers; the simulated GPU if asked for.

    The process is in an empty folder of its own, in which the program may write.
    """
    import gpumagic

    warnings.simplefilter("ignore")
    os.environ |= {"MPLBACKEND": "Agg", "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
    if device != CPU and not _is_on():
        gpumagic.simulate(MACHINE, as_cuda=device == CUDA, memory=MEMORY)
    renew(program, sources, device)
    load_synthetic()
    _write_data()
    if not program.from_package:
        _link_files_beside(path_of(program, sources))
    if program.place.endswith(".md"):
        _download_nothing()


def renew(program: Program, sources: Path, device: str) -> None:
    """What a program changes of the process, as it was before it began."""
    import torch

    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)
    load_dice()
    sys.argv = arguments_of(program, sources, device)
    if not program.from_package:
        path = path_of(program, sources)
        _import_from(path.parent, sources / "d2l-en", sources / "minGPT")


def names_to_begin_with(program: Program) -> dict[str, object]:
    """What a chapter of d2l expects to be there."""
    return {"tab": _Tab()} if program.place.endswith(".md") else {}


class _Tab:
    """The book's switch between frameworks."""

    def selected(self, *names: str) -> bool:
        """Whether torch is among them."""
        return "pytorch" in names


def _is_on() -> bool:
    return "torch" in sys.modules and hasattr(sys.modules["torch"], "sim")


def _link_files_beside(path: Path) -> None:
    """Programs read files that lie beside them, and write folders of their own."""
    for each in path.parent.iterdir():
        here = Path(each.name)
        if each.is_file() and not here.exists():
            here.symlink_to(each)


def _download_nothing() -> None:
    """Give the book the file that we have written instead of one from the net."""
    from d2l import torch as d2l

    d2l.download = lambda url, *_, **__: str(Path("data", Path(url).name))


def _import_from(*folders: Path) -> None:
    for folder in map(str, folders):
        if folder not in sys.path:
            sys.path.insert(0, folder)


def _write_data() -> None:
    """Texts and token files where the programs look for them."""
    import numpy as np

    Path("words").mkdir(exist_ok=True)
    for name in ("train", "valid", "test"):
        Path("words", f"{name}.txt").write_text(f"{_WORDS}\n" * 60, encoding="utf-8")
    Path("data/noise").mkdir(parents=True, exist_ok=True)
    dice = np.random.default_rng(0)
    for name in ("train", "val"):
        tokens = dice.integers(0, 64, 4000).astype(np.uint16)
        tokens.tofile(f"data/noise/{name}.bin")
    Path("data/timemachine.txt").write_text(f"{_WORDS}\n" * 200, encoding="utf-8")
