"""Which guide belongs to which part of the program."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from gpumagic.extension import ROOMS


class Room(NamedTuple):
    """A guide, the package that it is about, and the magic in it, if there is one."""

    guide: str
    folder: str
    title: str
    magic: Any = None
    functions: tuple[str, ...] = ()


def _magic_room(folder: str, magics: str) -> Room:
    module = importlib.import_module(f"gpumagic.{folder}.magic")
    names = importlib.import_module(f"gpumagic.{folder}").__all__
    sign = "%%" if folder == "cuda_sync_time" else "%"
    return Room(
        f"{folder}.md",
        folder,
        f"{sign}{folder}",
        getattr(getattr(module, magics), folder),
        tuple(f"gpumagic.{folder}.{name}" for name in names),
    )


def every() -> tuple[Room, ...]:
    """The magics as the extension has them, and the simulated GPU."""
    simulator = Room(
        "simulated_gpu.md",
        "simulator",
        "The simulated GPU",
        functions=(
            "gpumagic.simulator.simulate",
            "gpumagic.simulator.device",
            "gpumagic.simulator.box.Box",
        ),
    )
    return (*(_magic_room(*room) for room in ROOMS), simulator)


def of_guide(page: str) -> Room | None:
    """The room that a page of the site is the guide of."""
    return next((room for room in every() if room.guide == page), None)
