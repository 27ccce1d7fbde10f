"""Faults that `make mutants` plants."""

from __future__ import annotations

import builtins

import pytest

from tests.mutants import faults_of, plant

CODE = '''"""A module."""
LIMIT = 3


def judge(a: int, b: int = 2, *, strict: bool = False) -> str | None:
    """Judge a pair: 1 + 1 here is no code."""
    pairs = [x for x in range(4) if x != a]
    if (total := a + b) > LIMIT and not strict:
        return f"{total + 1} of {len(pairs)}"
    a.bit_length()
    return "none"
'''


@pytest.fixture
def tree(tmp_path):
    """A room with one file."""
    (tmp_path / "gpumagic" / "room").mkdir(parents=True)
    (tmp_path / "gpumagic" / "room" / "judge.py").write_text(CODE)
    return tmp_path


def run(tree, awake, *given, **options):
    """What the function gives while one fault is awake."""
    names = {"_planted": lambda number: number == awake, "__builtins__": builtins}
    exec((tree / "gpumagic" / "room" / "judge.py").read_text(), names)  # noqa: S102
    try:
        return names["judge"](*given, **options)
    except (TypeError, ZeroDivisionError) as error:
        return type(error)


CASES = [((1, 1), {}), ((2, 2), {}), ((1, 2), {}), ((2, 2), {"strict": True})]


def test_asleep_they_change_nothing_and_awake_each_does_something(tree):
    """A fault that nobody wakes is not there; most of those awake are told apart."""
    before = [run(tree, 0, *given, **options) for given, options in CASES]
    faults = plant(tree, "room", 50, 1, first=1)

    after = [run(tree, 0, *given, **options) for given, options in CASES]
    changed = {
        each.becomes
        for each in faults
        if [run(tree, each.number, *given, **options) for given, options in CASES]
        != before
    }

    assert after == before
    assert {"None", "(x) == (a)"} <= changed
    assert len(changed) >= len(faults) // 2


def test_they_lie_in_functions_and_not_in_words(tree):
    """Constants of the module, defaults, docstrings and formatted strings stay."""
    text = (tree / "gpumagic" / "room" / "judge.py").read_text()
    places = {text[begin:end] for begin, end, _ in faults_of(text)}

    assert {"a + b", "x != a", "not strict", "a.bit_length()"} <= places
    assert not {"3", "1 + 1", "total + 1", "False"} & places
