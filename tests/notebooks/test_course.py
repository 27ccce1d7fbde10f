"""The course as it lies there, and as it runs where there is no GPU."""

from __future__ import annotations

import ast
import importlib.util
import re

import nbformat
import pytest

from tests.notebooks.running import (
    COURSE,
    FOLDER,
    answered,
    executed,
    read,
    said,
    solution_of,
    tagged,
    twice,
    words_shown,
)
from tests.notebooks.students import answers_to
from tests.quick_kernels import quick_kernels

pytest.importorskip("torch")

MOST_BYTES = 250_000
NAMES = [path.stem for path in COURSE]


@pytest.fixture(params=COURSE, ids=NAMES)
def path(request):
    """Each notebook's file."""
    return request.param


@pytest.fixture
def notebook(path):
    """Each notebook as it was committed."""
    return read(path)


def code_cells(notebook):
    """Its cells with code."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


# ------------------------------------------------------------- as it lies there


def test_it_begins_with_a_question_and_ends_with_what_to_remember(notebook):
    """The title asks; the last heading says what to keep."""
    first, last = notebook.cells[0].source, notebook.cells[-1].source

    assert first.startswith("# ")
    assert "?" in first
    assert last.startswith("## What to remember")


def test_the_list_of_the_course_says_how_long_it_takes(notebook, path):
    """The minutes in the list are those that the notebook itself names."""
    rows = (FOLDER / "README.md").read_text().splitlines()
    (row,) = [row for row in rows if f"]({path.name})" in row]

    listed = re.findall(r"(\d+) min", row)

    assert re.findall(
        r"About (\d+) minutes, and (\d+) for", notebook.cells[0].source
    ) == [tuple(listed)]


def test_each_exercise_has_answers_that_students_give(notebook, path):
    """For each there are two plausible wrong ones, and one that is right otherwise."""
    exercises = answers_to(path.stem)
    words = [[answer.word for answer in exercise.answers] for exercise in exercises]

    assert len(words) == len(tagged(notebook, "exercise"))
    assert all(each.count("not yet") >= 2 and "right" in each for each in words)


def test_it_is_committed_with_what_came_out(notebook, path):
    """Every code cell has been run, none has failed, and the file is small."""
    cells = code_cells(notebook)

    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert not [
        output
        for cell in cells
        for output in cell.outputs
        if output.output_type == "error"
    ]
    assert path.stat().st_size < MOST_BYTES


def test_its_figures_are_labelled(notebook):
    """What came out of the simulated GPU says so."""
    outputs = str([cell.outputs for cell in code_cells(notebook)])

    assert "simulated" in outputs


def test_nothing_of_a_machine_is_left_in_it(notebook):
    """Neither the text nor the outputs tell where it was run."""
    whole = str(notebook)

    assert not re.search(r"/(home|root|work|tmp|Users)/", whole)
    assert "\x1b[" not in whole


def test_each_exercise_has_a_check_and_a_solution(notebook):
    """Task, exercise, check and solution come in this order, two or three times."""
    kinds = [
        tag
        for cell in notebook.cells
        for tag in cell.metadata.get("tags", ())
        if tag in ("task", "exercise", "check", "solution")
    ]

    assert kinds in (
        ["task", "exercise", "check", "solution"] * 2,
        ["task", "exercise", "check", "solution"] * 3,
    )
    for solution in tagged(notebook, "solution"):
        assert solution.source.startswith("<details>")
        assert solution_of(solution)


def test_a_check_says_right_or_not_yet(notebook):
    """As it lies there, nothing is solved, and every check says so."""
    checks = tagged(notebook, "check")

    assert [said(cell).startswith("not yet: ") for cell in checks] == [True] * len(
        checks
    )


def test_plain_cells_can_be_read_by_python(notebook):
    """A cell without magics is Python, in lines that a projector can show."""
    for cell in code_cells(notebook):
        if not re.search(r"^\s*[%!]|=\s*%", cell.source, re.MULTILINE):
            ast.parse(cell.source)
        assert max(map(len, cell.source.splitlines()), default=0) <= 100


# -------------------------------------------------------------------- as it runs


@pytest.mark.kernel
def test_its_checks_know_right_from_wrong(notebook, path):
    """It runs to its end, solved, each cell twice; each check judges what is tried."""
    if "import ipyparallel" in str(notebook):
        pytest.importorskip("ipyparallel", reason="pip install 'gpumagic[ranks]'")
    asked, tries = answered(notebook, answers_to(path.stem))

    with quick_kernels():
        ran = {cell.id: cell for cell in executed(twice(asked)).cells}

    judged = [(title, word, said(ran[check.id])) for title, word, check in tries]
    assert [each for each in judged if not each[2].startswith(f"{each[1]}: ")] == []
    stale = [
        (cell.source, words_shown(cell), words_shown(ran[cell.id]))
        for cell in code_cells(notebook)
        if not {"exercise", "check"} & {*cell.metadata.get("tags", ())}
        and words_shown(cell) != words_shown(ran[cell.id])
    ]
    assert stale == [], "`make notebooks` writes what the program says now"


@pytest.mark.kernel
def test_the_first_cell_of_the_course_counts_the_real_gpus_alone():
    """Run once more, it says the same: those that it has simulated are not counted."""
    notebook = read(FOLDER / "01_which_gpu.ipynb")
    setup = code_cells(notebook)[0].source
    notebook.cells = [nbformat.v4.new_code_cell(setup) for _ in range(2)]

    with quick_kernels():
        first, second = map(said, executed(notebook).cells)

    assert first == second
