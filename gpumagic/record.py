"""What every report is: a frozen record of raw numbers that can become a dict."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any


@dataclasses.dataclass(frozen=True)
class Record:
    """Base of all reports: frozen data in base units, `None` where unknown."""

    def to_dict(self) -> dict[str, Any]:
        """The record as plain values that `json.dumps` accepts as they are."""
        return {
            field.name: _plain(getattr(self, field.name))
            for field in dataclasses.fields(self)
        }


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
