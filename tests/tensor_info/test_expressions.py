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


@pytest.mark.parametrize(
    ("code", "word"), [("x +", "expression"), ("a = 1", "statement"), ("x y", "Python")]
)
def test_what_is_no_expression_is_refused(code, word):
    """Broken code and statements are told apart."""
    with pytest.raises(UsageProblem, match=word):
        split(code)


def test_each_expression_is_evaluated_once():
    """An expression with an effect has it once."""
    calls = []

    found = evaluate(split("f(1), f(2)"), {"f": calls.append}, {})

    assert calls == [1, 2]
    assert found.texts == ("f(1)", "f(2)")


def test_an_expression_that_raises_costs_one_line():
    """The others are evaluated all the same."""
    found = evaluate(split("a, 1 / 0, b"), {}, {"a": 1, "b": 2})

    assert found.values == (1, 2)
    assert found.failures == ("1 / 0: ZeroDivisionError: division by zero",)


def test_a_name_that_is_nearly_there_is_offered():
    """A misspelt name comes with the one that was meant."""
    found = evaluate(split("weigths"), {}, {"weights": 1})

    assert found.failures[0].endswith("did you mean weights?")


def test_a_star_stands_for_all_that_is_in_a_list():
    """`*xs` is every item of `xs`, each by its place."""
    found = evaluate(split("*xs, y"), {}, {"xs": [5, 6], "y": 7})

    assert found.texts == ("xs[0]", "xs[1]", "y")
    assert found.values == (5, 6, 7)


def test_an_object_that_cannot_list_its_attributes_costs_one_line_as_well():
    """The search for the attribute that was meant raises nothing."""

    class Unlisted:
        def __dir__(self):
            raise RuntimeError("not to be listed")

    found = evaluate(split("u.shap"), {}, {"u": Unlisted()})

    assert found.failures[0].startswith("u.shap: AttributeError")
