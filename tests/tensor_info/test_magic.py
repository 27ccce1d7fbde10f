from __future__ import annotations

import gc
import weakref

import pytest

from gpumagic.errors import GpuMagicError, UsageProblem
from gpumagic.notebook.session import Session
from gpumagic.tensor_info.magic import split
from gpumagic.tensor_info.report import AliasReport, ModelReport

torch = pytest.importorskip("torch")


CASES = {
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
    assert [text for text, _ in split(code)] == CASES[code]


@pytest.fixture
def shell():
    """A shell with this one magic, and a few names."""
    from IPython.core.interactiveshell import InteractiveShell

    from gpumagic.tensor_info.magic import TensorMagics

    shell = InteractiveShell()
    shell.register_magics(TensorMagics(shell, Session()))
    shell.user_ns["torch"] = torch
    shell.user_ns["x"] = torch.arange(24.0).reshape(4, 6)
    yield shell
    shell.reset(new_session=False)
    shell.history_manager.end_session()


@pytest.fixture
def shown(monkeypatch):
    """What the magic displays."""
    found = []
    monkeypatch.setattr(
        "gpumagic.notebook.magics.display", lambda *what, **_: found.extend(what)
    )
    return found


def tensor_info(shell, line):
    """The report that a line hands out, without showing it."""
    return shell.run_line_magic("tensor_info", f"-o -q {line}")


def test_a_shape_is_tried(shell):
    """`--view` takes a shape, also one that begins with -1; else it shows one."""
    report = tensor_info(shell, "--view -1,12 x.t()")

    assert (report.view, report.shape) == (False, (2, 12))
    with pytest.raises(UsageProblem, match="--view 6,4"):
        tensor_info(shell, "--view 6x4 x")


def test_braces_and_dollars_are_code(shell):
    """The line is code as it was typed: nothing is filled in for braces."""
    shell.user_ns["d"] = {(1,): shell.user_ns["x"]}
    shell.user_ns["i"] = 1

    report = tensor_info(shell, "d[(*{i},)]")

    assert report.tensors[0].expression == "d[(*{i},)]"


def test_what_raises_costs_one_line(shell):
    """A raising expression is one remark, and the others are shown."""
    report = tensor_info(shell, "x, y, x.view(5)")

    assert [each.expression for each in report.tensors] == ["x"]
    assert report.remarks[0] == "y: NameError: name 'y' is not defined"
    assert report.remarks[1].startswith("x.view(5): RuntimeError: shape '[5]'")


@pytest.mark.parametrize(
    ("line", "said", "hint"),
    [
        ("y", "name 'y' is not defined", "whole traceback"),
        ("x.t().view(1, -1, 7)", "RuntimeError", "--view 1,-1,7 x.t()"),
        ("x --view 24", "", "options come first"),
        ("x --values", "name 'values' is not defined", "options come first"),
        ("--view 4 [x]", "[x] is no tensor", "[x][0]"),
        ("x +", "no Python expression", "with commas between them"),
        ("a = 1", "no Python expression", "with commas between them"),
        ("", "no tensor to look at", "name one or more"),
    ],
)
def test_nothing_but_failures_is_two_lines(shell, line, said, hint):
    """Where no tensor is left, two lines say why, and what to type in its place."""
    with pytest.raises(GpuMagicError) as caught:
        tensor_info(shell, line)

    assert said in caught.value.problem
    assert hint in caught.value.hint
    assert len(caught.value._render_traceback_()) == 2


def test_aliases_of_the_notebook_are_shown(shell):
    """`--alias` groups the names of the notebook, outputs among them."""
    shell.user_ns["row"] = shell.user_ns["x"][0]
    shell.run_cell("x.t()", store_history=True)

    report = tensor_info(shell, "--alias")

    assert isinstance(report, AliasReport)
    found = {each.name: each.is_output for each in report.groups[0].names}
    assert found == {"x": False, "row": False, "Out[1]": True}


def test_a_cell_runs_before_its_tensors_are_shown(shell, shown):
    """In front of a cell the tensors are those that the cell has made."""
    result = shell.run_cell("%%tensor_info z\nz = x.t()\nz.shape")

    result.raise_error()
    assert shown[0].tensors[0].size == (6, 4)
    assert result.result == (6, 4)


@pytest.mark.parametrize(
    "line", ["-q made(), x", "-q made(), 1 / 0", "-q [made()]", "-q --view 5 made()"]
)
def test_what_an_expression_makes_dies_with_the_report(shell, line):
    """No tensor is kept by the report, by an output or by the last error."""
    made = []

    def make():
        tensor = torch.zeros(10)
        made.append(weakref.ref(tensor))
        return tensor

    shell.user_ns["made"] = make
    shell.showtraceback = lambda *_, **__: None
    gc.disable()
    try:
        result = shell.run_cell(f"%tensor_info {line}", store_history=True)
        assert len(made) == 1
        assert made[0]() is None
    finally:
        gc.enable()
    assert shell.user_ns["Out"] == {}
    assert result is not None


def test_a_model_alone_is_looked_at_as_a_whole(shell):
    """A module is a tree; `--values` counts NaNs, and names the first with any."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    with torch.no_grad():
        model[1].weight[0, 2] = float("nan")
    shell.user_ns["model"] = model

    report = tensor_info(shell, "--values model")

    assert isinstance(report, ModelReport)
    assert (report.root.parameters, report.root.nan_count) == (13, 1)
    assert "1 NaN in model[1].weight" in str(report)
    assert "weight 3 x 2" in str(report.show("tree"))
    assert tensor_info(shell, "model").root.nan_count is None
