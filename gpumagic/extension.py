"""The only wiring: shell, session, magics, completion; all undone on unload."""

from __future__ import annotations

import importlib
from contextlib import ExitStack
from typing import Any, NamedTuple

from gpumagic.notebook.cells import CellTransform, keep_cell_numbers
from gpumagic.notebook.completion import Completion
from gpumagic.notebook.session import GpuMagic, Session
from gpumagic.report.frontend import settings_of


class Room(NamedTuple):
    """One magic: `gpumagic/<folder>/magic.py` with this class in it."""

    folder: str
    magics: str


ROOMS = (
    Room("gpu_doctor", "DoctorMagics"),  # what is there, to begin with
    Room("gpu_select", "SelectMagics"),  # before anything uses a GPU
    Room("tensor_info", "TensorMagics"),  # the thing itself
    Room("cuda_sync_time", "TimeMagics"),  # what it takes: time
    Room("gpu_mem", "MemoryMagics"),  # and memory
    Room("pin_loader", "LoaderMagics"),  # and what feeds it
    Room("gpu_open", "OpenMagics"),  # what was recorded elsewhere
    Room("gpu_ranks", "RanksMagics"),  # all of it over many ranks
)


_ELSEWHERE = ("gpu_ranks",)  # whose cells run on engines


def load(shell: Any) -> None:
    """Add every room to a shell; a second load replaces the first."""
    unload(shell)
    with ExitStack() as undo:
        session = Session()
        keep_cell_numbers(shell, undo)
        settings = GpuMagic(session, parent=shell, unload=undo.close)
        _put_in(shell.configurables, settings, undo)
        names: set[str] = set()
        for room in ROOMS:
            names |= _add_magics(shell, room, session, undo)
        _put_in(
            shell.input_transformers_cleanup,
            CellTransform(shell, names, _ELSEWHERE),
            undo,
        )
        Completion(shell, session, names).install(undo)
        # Everything is in: from here on only `settings.unload` takes it out.
        settings.unload = undo.pop_all().close


def unload(shell: Any) -> None:
    """Take out of a shell whatever `load` has put in."""
    if (settings := settings_of(shell)) is not None:
        settings.unload()


def _add_magics(shell: Any, room: Room, session: Session, undo: ExitStack) -> set[str]:
    module = importlib.import_module(f"gpumagic.{room.folder}.magic")
    magics = getattr(module, room.magics)(shell, session)
    manager = shell.magics_manager
    manager.register(magics)
    undo.callback(manager.registry.pop, room.magics, None)
    undo.callback(_take_out, shell.configurables, magics)  # IPython 9 adds it
    for kind, methods in magics.magics.items():
        for name, method in methods.items():
            undo.callback(_remove_if_ours, manager.magics[kind], name, method)
    magics.install(undo)
    return set(magics.magics["cell"])


def _remove_if_ours(magics: dict[str, Any], name: str, method: Any) -> None:
    """Leave a magic that the user has since defined under the same name."""
    if magics.get(name) == method:
        del magics[name]


def _put_in(items: list[Any], item: Any, undo: ExitStack) -> None:
    items.append(item)
    undo.callback(_take_out, items, item)


def _take_out(items: list[Any], item: Any) -> None:
    items[:] = [each for each in items if each is not item]
