"""What every report is: frozen raw numbers, as a dict, as text, as a picture."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import math
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Record:
    """Frozen data in base units, `None` where unknown."""

    def to_dict(self) -> dict[str, Any]:
        """The record as plain values that `json.dumps` accepts as they are."""
        return {
            field.name: _plain(getattr(self, field.name))
            for field in dataclasses.fields(self)
        }


@dataclasses.dataclass(frozen=True)
class Report(Record):
    """A record that users are shown; `gpumagic/<room>/view.py` knows how.

    The view is found by name when it is needed, so that a report itself imports
    nothing, and one that is older than a `%reload_ext` is drawn by today's view.
    """

    def drawing(self) -> Any:
        """The report as the drawing that its view makes of it."""
        room = type(self).__module__.rpartition(".")[0]
        return importlib.import_module(f"{room}.view").draw(self)

    @property
    def parts(self) -> Mapping[str, str]:
        """What is folded away: the word for each part, and what is in it."""
        return {name: each.summary for name, each in self.drawing().folded.items()}

    def show(self, *names: str) -> Shown:
        """Parts of the report, or with no name all of it; nothing is measured again.

        The last line of a cell shows it, as `print` does.
        """
        parts = self.parts
        if "all" in names and "all" not in parts:
            return Shown(self, ())
        for name in names:
            if name not in parts:
                known = ", ".join(parts) or "none, all of it is in sight"
                raise GpuMagicError(
                    f"this report has no part {name!r}", f"its parts: {known}"
                )
        return Shown(self, names)

    def as_asked(
        self, names: tuple[str, ...], *, whole: bool = False
    ) -> Report | Shown:
        """As options ask for it, typed before it was known which parts there are."""
        return Shown(self, () if whole else names) if whole or names else self

    def __str__(self) -> str:
        return str(self.drawing().text())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return _bundle(self)


@dataclasses.dataclass(frozen=True)
class Shown:
    """Parts of a report to be looked at."""

    of: Report
    names: tuple[str, ...]
    """The words for them; empty for all."""

    def drawing(self) -> Any:
        """The answer, and these parts open."""
        drawing = self.of.drawing()
        return drawing.asked(self.names) if self.names else drawing.whole()

    def __str__(self) -> str:
        return str(self.drawing().text())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return _bundle(self)


def _bundle(shown: Report | Shown) -> dict[str, str]:
    display = importlib.import_module("gpumagic.notebook.display")
    forms: dict[str, str] = display.bundle(shown)
    return forms


def _plain(value: Any) -> Any:
    match value:
        case Record():
            plain: Any = value.to_dict()
        case enum.Enum():
            plain = value.value
        case dict():
            plain = {str(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            plain = [_plain(each) for each in value]
        case set() | frozenset():
            plain = sorted(_plain(each) for each in value)
        case float() if not math.isfinite(value):
            plain = None  # JSON has no NaN or infinity: such a figure is unknown
        case None | bool() | int() | float() | str():
            plain = value
        case _:
            plain = str(value)
    return plain
