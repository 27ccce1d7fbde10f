"""What every report is: frozen raw numbers, as a dict, as text, as a picture."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import typing
from typing import TYPE_CHECKING, Any, TypeVar

from gpumagic.errors import GpuMagicError
from gpumagic.report.frontend import bundle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    _Reader = Callable[[Any, str], Any]

_R = TypeVar("_R")


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
    """A record that users are shown, and that knows how."""

    def drawing(self) -> Any:
        """What people see; each kind of report makes its own."""
        raise NotImplementedError

    @property
    def headline(self) -> str:
        """The answer, in one sentence: the first line of what is shown."""
        return str(self.drawing().title)

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
        return bundle(self)


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
        return bundle(self)


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


# ------------------------------------------------- records that somebody else has sent

_MOST_TEXT, _MOST_ROWS, _LARGEST = 300, 20_000, 1 << 63


class Garbage(ValueError):
    """What cannot be read as a record; it says why."""


def read(cls: type[_R], said: object, **known: Any) -> _R:
    """A dataclass from plain values, each checked by the annotation of its field.

    Keys without a field are ignored, texts cut and cleaned; a NamedTuple is a list.
    """
    if not isinstance(said, dict):
        raise Garbage(f"it sent {type(said).__name__}")
    for name, (reads, has_default) in _fields(typing.cast("Any", cls)).items():
        value = said.get(name)
        if name not in known and not (value is None and has_default):
            known[name] = reads(value, name)
    return cls(**known)


@functools.cache
def _fields(cls: type) -> dict[str, tuple[_Reader, bool]]:
    hints = typing.get_type_hints(cls)
    nothing = dataclasses.MISSING
    return {
        each.name: (
            _reader(hints[each.name]),
            each.default is not nothing or each.default_factory is not nothing,
        )
        for each in dataclasses.fields(cls)
    }


@functools.cache
def _reader(kind: Any) -> _Reader:  # noqa: PLR0911 -- one for each kind
    """What reads one value of a kind."""
    inner, origin = typing.get_args(kind), typing.get_origin(kind) or kind
    if type(None) in inner:
        (of_value,) = (_reader(each) for each in inner if each is not type(None))
        return lambda told, name: None if told is None else of_value(told, name)
    if dataclasses.is_dataclass(kind):
        return lambda told, _: read(typing.cast("type", kind), told)
    if hasattr(kind, "_fields"):
        its = [_reader(each) for each in typing.get_type_hints(kind).values()]
        least = len(its) - len(kind._field_defaults)
        return _row_reader(its, least, lambda values: kind(*values))
    if origin is tuple and inner[-1] is Ellipsis:
        each_of = _reader(inner[0])
        return lambda told, name: tuple(
            each_of(each, name) for each in _of(list, told, name)[:_MOST_ROWS]
        )
    if origin is tuple:
        return _row_reader([_reader(each) for each in inner], len(inner), tuple)
    if origin is dict:
        value_of = _reader(inner[1])
        return lambda told, name: {
            _text(key, name): value_of(each, name)
            for key, each in [*_of(dict, told, name).items()][:100]
        }
    readers: dict[Any, _Reader] = {str: _text, int: _whole, float: _number}
    return readers.get(kind, lambda told, name: _of(kind, told, name))


def _row_reader(
    readers: list[_Reader], least: int, made: Callable[[Any], Any]
) -> _Reader:
    def row(told: Any, name: str) -> Any:
        if len(_of(list, told, name)) < least:
            raise Garbage(f"one of its {name} is cut off")
        return made(
            reads(each, name) for reads, each in zip(readers, told, strict=False)
        )

    return row


def _of(kind: type, told: Any, name: str) -> Any:
    if not isinstance(told, kind) or (kind is not bool and isinstance(told, bool)):
        has = f"its {name} is {type(told).__name__}"
        raise Garbage(f"it does not say its {name}" if told is None else has)
    return told


def _text(told: Any, name: str) -> str:
    text = _of(str, told, name)[:_MOST_TEXT]
    return "".join(each if each.isprintable() else " " for each in text)


def _whole(told: Any, name: str) -> int:
    if abs(_of(int, told, name)) >= _LARGEST:
        raise Garbage(f"its {name} is out of range")
    return int(told)


def _number(told: Any, name: str) -> float:
    if not isinstance(told, float):
        return float(_whole(told, name))
    if not abs(told) < _LARGEST:  # nor is NaN
        raise Garbage(f"its {name} is out of range")
    return told
