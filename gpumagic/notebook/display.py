"""How a report reaches the screen, and the few settings worth keeping."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from traitlets import Bool, Integer
from traitlets.config import Configurable

from gpumagic.report.frontend import is_terminal, running_shell

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.drawing import Drawing
    from gpumagic.notebook.session import Session
    from gpumagic.report.record import Report, Shown


def bundle(report: Report | Shown) -> dict[str, str]:
    """What IPython is to show: in a terminal text, in a notebook text and HTML."""
    shell = running_shell()
    settings = settings_of(shell)
    if settings is not None and _is_echo() and settings.was_shown(report):
        return {"text/plain": f"<{type(report).__name__}: shown above>"}
    drawing = report.drawing()
    if settings is not None:
        drawing = settings.without_repetition(report, drawing)
    if shell is not None and is_terminal(shell):
        return {"text/plain": drawing.terminal()}
    if settings is None:
        return dict(drawing.mimebundle())
    shown = dict(drawing.mimebundle(width=settings.width))
    return shown if settings.html else {"text/plain": shown["text/plain"]}


def settings_of(shell: Any | None) -> Any | None:
    """The `GpuMagic` of a shell with the extension loaded.

    It is found by its name: a reload makes a new class of it.
    """
    configurables = getattr(shell, "configurables", ())
    ours = (each for each in configurables if type(each).__name__ == "GpuMagic")
    return next(ours, None)


def _is_echo() -> bool:
    """Whether IPython shows a cell's value, and not what the user asked to display."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "compute_format_data":
        frame = frame.f_back
    return frame is not None


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

    def was_shown(self, report: Any) -> bool:
        """Whether the running cell has displayed this report already."""
        return self.session.was_shown(report, self.parent.execution_count)

    def without_repetition(self, shown: Any, drawing: Drawing) -> Drawing:
        """The drawing without the notes that the report before it had as well."""
        words = frozenset(note.word for note in drawing.notes if note.word)
        whole = getattr(shown, "of", shown)
        known = self.session.said_before(whole, words) if words else words
        return drawing.after(known)
