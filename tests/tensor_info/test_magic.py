from __future__ import annotations

import gc
import weakref

import pytest

from gpumagic.errors import GpuMagicError, UsageProblem
from gpumagic.notebook.session import Session
from gpumagic.tensor_info.report import AliasReport, ModelReport

torch = pytest.importorskip("torch")


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


@pytest.mark.parametrize("shape", ["24", "-1,12"])
def test_a_shape_is_tried(shell, shape):
    """`--view` takes a shape, also one that begins with -1."""
    report = tensor_info(shell, f"--view {shape} x.t()")

    assert not report.view
    assert torch.empty(24).view(report.shape).numel() == 24


def test_a_broken_shape_is_refused(shell):
    """What is no shape is named with the form of one."""
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
    ("line", "words"),
    [
        ("y", "NameError"),
        ("--view 4 [x]", "[x][0]"),
        ("x +", "expression"),
    ],
)
def test_nothing_but_failures_is_two_lines(shell, line, words):
    """Where no tensor is left there is an error of two lines, without a traceback."""
    with pytest.raises(GpuMagicError) as caught:
        tensor_info(shell, line)

    assert words in str(caught.value)
    assert len(caught.value._render_traceback_()) == 2


@pytest.mark.parametrize(
    ("line", "said", "hint"),
    [
        ("x.view(3, 3)", "shape '[3, 3]' is invalid", "whole traceback"),
        ("y", "name 'y' is not defined", "names within a function are not seen"),
        ("x --view 24", "", "options come first"),
    ],
)
def test_the_hint_fits_the_error_of_the_expression(shell, line, said, hint):
    """Only where a name is missing it is another name that helps."""
    with pytest.raises(GpuMagicError) as caught:
        tensor_info(shell, line)

    assert said in caught.value.problem
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        (("batch",), "name one or more: %tensor_info -o -q batch"),
        (("batch", "y"), "name one or more: %tensor_info -o -q batch, y"),
        ((), "make a tensor x first, then type %tensor_info -o -q x"),
    ],
)
def test_nothing_asked_names_tensors_of_the_notebook(shell, names, hint):
    """Without an expression the hint is a line that works, or will."""
    x = shell.user_ns.pop("x")
    shell.user_ns.update(dict.fromkeys((5, *names), x))
    with pytest.raises(UsageProblem) as caught:
        tensor_info(shell, "")

    assert caught.value.hint == hint


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
    """A module is a tree; what its text leaves out is behind a word."""
    shell.user_ns["model"] = torch.nn.Sequential(
        torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(2, 3)))
    )

    report = tensor_info(shell, "model")

    assert isinstance(report, ModelReport)
    assert report.root.parameters == 9
    assert "weight 3 x 2" in str(report.show("tree"))


def test_a_model_is_asked_for_its_values(shell):
    """`--values` counts the NaNs of each tensor, and names the first one with any."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    with torch.no_grad():
        model[1].weight[0, 2] = float("nan")
    shell.user_ns["model"] = model

    report = tensor_info(shell, "--values model")

    assert report.root.nan_count == 1
    assert "1 NaN in model[1].weight" in str(report)
    assert tensor_info(shell, "model").root.nan_count is None
