from __future__ import annotations

import pytest

from gpumagic.errors import UsageProblem
from gpumagic.tensor_info.expressions import evaluate, split

CASES = {
    "x": ["x"],
    "x, x.t(), x[:, ::2]": ["x", "x.t()", "x[:, ::2]"],
    "f(a, b), (c, d)": ["f(a, b)", "(c, d)"],
    "lambda a, b: a, c": ["lambda a, b: a", "c"],
    'd["a, b"], {1: 2, 3: 4}': ['d["a, b"]', "{1: 2, 3: 4}"],
    "x,": ["x"],
    "x  # a, b": ["x"],
    'f"{x!r:>{n}}", y': ['f"{x!r:>{n}}"', "y"],
    "x  [ {0} ]": ["x  [ {0} ]"],
    "": [],
}


@pytest.mark.parametrize("code", CASES)
def test_commas_outside_of_brackets_split(code):
    """Only commas that stand outside of all else part expressions; text is kept."""
    assert [each.text for each in split(code)] == CASES[code]


@pytest.mark.parametrize("code", ["x +", "a = 1", "x y"])
def test_what_is_no_expression_is_refused(code):
    """Broken code and statements are named with what to type."""
    with pytest.raises(UsageProblem, match="no Python expression"):
        split(code)


def test_each_expression_is_evaluated_once():
    """An expression with an effect has it once."""
    calls = []

    found = evaluate(split("f(1), f(2)"), {"f": calls.append}, {})

    assert calls == [1, 2]
    assert found.texts == ("f(1)", "f(2)")
