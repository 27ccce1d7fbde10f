"""What every report is: frozen raw numbers, as a dict, as text, as a picture."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import math
from typing import Any


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

    def __str__(self) -> str:
        return str(self.drawing().text())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        shown: dict[str, str] = importlib.import_module(
            "gpumagic.notebook.display"
        ).bundle(self)
        return shown


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
