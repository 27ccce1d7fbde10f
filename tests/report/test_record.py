"""A report is frozen, and becomes plain values that JSON accepts."""

from __future__ import annotations

import dataclasses
import enum
import json
from pathlib import Path

import pytest

from gpumagic.gpu_doctor.answer_doctor import DoctorReport
from gpumagic.report.record import Record
from tests.gpu_doctor.samples import SAMPLES


class Tone(enum.Enum):
    """An enum as reports have them."""

    LOUD = "loud"


@dataclasses.dataclass(frozen=True)
class Leaf(Record):
    """A record in a record."""

    size_bytes: int | None


@dataclasses.dataclass(frozen=True)
class Tree(Record):
    """One of everything."""

    leaves: tuple[Leaf, ...]
    tone: Tone
    table: dict[object, object]
    share: float
    names: frozenset[str]
    path: Path


TREE = Tree(
    leaves=(Leaf(3), Leaf(None)),
    tone=Tone.LOUD,
    table={1: (2, Leaf(4))},
    share=float("nan"),
    names=frozenset({"b", "a"}),
    path=Path("x"),
)


def test_a_record_is_plain_all_the_way_down():
    """Nested records, enums, tuples, sets, paths and NaN become JSON's own values."""
    plain = {
        "leaves": [{"size_bytes": 3}, {"size_bytes": None}],
        "tone": "loud",
        "table": {"1": [2, {"size_bytes": 4}]},
        "share": None,
        "names": ["a", "b"],
        "path": "x",
    }
    assert TREE.to_dict() == plain
    assert json.loads(json.dumps(TREE.to_dict(), allow_nan=False)) == plain


def test_a_record_cannot_be_changed():
    """What was measured stays as it was measured."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        TREE.share = 1.0


def test_the_parts_of_a_report_are_told_and_shown_by_their_words():
    """What is folded is a word and a line each, and is shown without a new look."""
    report = dict(SAMPLES)["laptop"]

    assert isinstance(report, DoctorReport)
    name, summary = next(iter(report.parts.items()))
    assert summary not in str(report)
    assert summary in str(report.show(name))
    assert all(each in str(report.show()) for each in report.parts.values())
