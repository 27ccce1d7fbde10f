"""What one loaded extension remembers, and the few settings worth keeping."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from traitlets import Bool, Integer
from traitlets.config import Configurable

from gpumagic.devices.nvidia import NvidiaDriver, simulated_driver

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.devices.protocols import Driver
    from gpumagic.drawing import Drawing
    from gpumagic.notebook.cell_hooks import EveryCell

    Words = frozenset[str]


class Session:
    """Opened devices, and the reports that were shown."""

    def __init__(self, open_driver: Callable[[], Driver] = NvidiaDriver) -> None:
        self._open_driver = open_driver
        self._driver: Driver | None = None
        self._shown: tuple[weakref.ref[Any], int] | None = None
        self.last: dict[str, Any] = {}  # report of each room, whose parts are asked for
        self._said: dict[str, tuple[weakref.ref[Any], frozenset[str], Words]] = {}
        self._every_cell: EveryCell | None = None

    @property
    def driver(self) -> Driver:
        """What the machine has; a simulated one where one is switched on."""
        return simulated_driver() or self.driver_of_this_machine

    @property
    def driver_of_this_machine(self) -> Driver:
        """What the machine really has, whatever is simulated."""
        if self._driver is None:
            self._driver = self._open_driver()
        return self._driver

    def every_cell(self, shell: Any) -> EveryCell:
        """What goes round every cell of the shell, for all magics together."""
        from gpumagic.notebook.cell_hooks import EveryCell

        if self._every_cell is None:
            self._every_cell = EveryCell(shell)
        return self._every_cell

    def remember_shown(self, report: Any, cell_number: int) -> None:
        """Note that this cell has displayed a report that it also returns."""
        self._shown = (weakref.ref(report), cell_number)

    def was_shown(self, report: Any, cell_number: int) -> bool:
        """Whether showing the report now would repeat it within its cell."""
        if self._shown is None:
            return False
        shown, in_cell = self._shown
        return shown() is report and in_cell == cell_number

    def without_repetition(self, shown: Any, drawing: Drawing) -> Drawing:
        """The drawing without the notes that the report before it had as well."""
        report = getattr(shown, "of", shown)
        words = frozenset(note.word for note in drawing.notes if note.word)
        kind = type(report).__module__.rpartition(".")[0]
        last, known, said = self._said.get(kind, (None, frozenset(), frozenset()))
        if words and (last is None or last() is not report):
            known = words & said
            self._said[kind] = (weakref.ref(report), known, words)
        return drawing.after(known)


class GpuMagic(Configurable):  # the name is what users type after %config
    """How gpumagic shows its reports in this shell."""

    html = Bool(
        default_value=True,
        help="Draw reports as HTML beside the text, where the front end can.",
    ).tag(config=True)
    width = Integer(
        default_value=88, min=40, help="The width of the text form in a notebook."
    ).tag(config=True)

    def __init__(
        self, session: Session, *, unload: Callable[[], None], **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.session = session
        self.unload = unload
