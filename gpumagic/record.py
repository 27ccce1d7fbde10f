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
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(_plain(each) for each in value)
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no NaN or infinity: such a figure is unknown
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
