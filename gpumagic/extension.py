"""The only wiring: shell, session, magics and views; all taken apart on unload."""

from __future__ import annotations

import importlib
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.cell_transform import CellTransform
from gpumagic.completion import Completion
from gpumagic.frontend import is_terminal
from gpumagic.session import Session
from gpumagic.settings import GpuMagic

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.record import Record


class Room(NamedTuple):
    """One magic: `gpumagic/<folder>/` with magic.py, report.py and view.py."""

    folder: str
    magics: str
    report: str


ROOMS = (
    Room("gpu_doctor", "DoctorMagics", "DoctorReport"),  # what is there, to begin with
)


def load(shell: Any) -> None:
    """Add every room to a shell; a second load replaces the first."""
    unload(shell)
    with ExitStack() as undo:
        session = Session()
        undo.callback(session.restore_environment)
        settings = GpuMagic(parent=shell, unload=undo.close)
        _put_in(shell.configurables, settings, undo)
        names: set[str] = set()
        for room in ROOMS:
            names |= _add_magics(shell, room, session, undo)
            _add_view(shell, room, session, settings, undo)
        transform = CellTransform(shell, names)
        _put_in(shell.input_transformers_cleanup, transform, undo)
        Completion(shell, session, names).install(undo)
        # Everything is in: from here on only `settings.unload` takes it out.
        settings.unload = undo.pop_all().close


def unload(shell: Any) -> None:
    """Take out of a shell whatever `load` has put in."""
    for settings in _settings(shell):
        settings.unload()


def _settings(shell: Any) -> list[Any]:
    """Ours among the shell's configurables, by name: a reload makes a new class."""
    return [each for each in shell.configurables if type(each).__name__ == "GpuMagic"]


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
    return set(magics.magics["cell"])


def _remove_if_ours(magics: dict[str, Any], name: str, method: Any) -> None:
    """Leave a magic that the user has since defined under the same name."""
    if magics.get(name) == method:
        del magics[name]


def _add_view(
    shell: Any, room: Room, session: Session, settings: GpuMagic, undo: ExitStack
) -> None:
    formatter = shell.display_formatter.mimebundle_formatter
    module = f"gpumagic.{room.folder}.report"
    formatter.for_type_by_name(
        module, room.report, _drawer(shell, room, session, settings)
    )
    undo.callback(formatter.pop, f"{module}.{room.report}", None)


def _drawer(
    shell: Any, room: Room, session: Session, settings: GpuMagic
) -> Callable[[Record], dict[str, str]]:
    """How IPython shows the report of a room: by its view, imported when needed."""

    def draw(report: Record) -> dict[str, str]:
        if session.was_shown(report, shell.execution_count):
            return {"text/plain": f"<{type(report).__name__}: shown above>"}
        view = importlib.import_module(f"gpumagic.{room.folder}.view")
        drawing = view.draw(report)
        if is_terminal(shell):
            return {"text/plain": drawing.terminal()}
        bundle: dict[str, str] = drawing.mimebundle(width=settings.width)
        if not settings.html:
            del bundle["text/html"]
        return bundle

    return draw


def _put_in(items: list[Any], item: Any, undo: ExitStack) -> None:
    items.append(item)
    undo.callback(_take_out, items, item)


def _take_out(items: list[Any], item: Any) -> None:
    items[:] = [each for each in items if each is not item]
