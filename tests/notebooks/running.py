"""Runs a notebook of the course in a real kernel, as it is or with its solutions."""

from __future__ import annotations

import copy
import os
import re
from pathlib import Path

import nbclient
import nbformat

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "notebooks"
COURSE = sorted(FOLDER.glob("0*.ipynb"))
_PATIENCE_S = 900  # what hangs fails in the end; what is slow does not
_WORD = re.compile(r"[^\W\d_]{4,}")  # longer than a unit
_SOLUTION = re.compile(r"```python\n(.*?)\n```", re.DOTALL)


def read(path):
    """The notebook of a file."""
    return nbformat.read(path, as_version=4)


def tagged(notebook, tag):
    """Its cells with a tag, in order."""
    return [cell for cell in notebook.cells if tag in cell.metadata.get("tags", ())]


def solution_of(cell):
    """The code that a solution cell has for the exercise before it."""
    (code,) = _SOLUTION.findall(cell.source)
    return code


def solved(notebook):
    """A copy with the solution in the place of each exercise."""
    notebook = copy.deepcopy(notebook)
    pairs = zip(tagged(notebook, "exercise"), tagged(notebook, "solution"), strict=True)
    for exercise, solution in pairs:
        exercise.source = solution_of(solution)
    return notebook


def answered(notebook, exercises):
    """A copy in which students try each exercise, with the cells that judge them.

    A student first runs what is given, and then writes over it: so the given cell and
    its check come first, then the solution and its check, then the other answers, each
    with a check of its own. An answer may end in an error; a check may not.

    Returns:
        The notebook; and for each try its title, the word expected and the check.
    """
    given, notebook = iter(tagged(notebook, "exercise")), solved(notebook)
    checks = iter(tagged(notebook, "check"))
    cells, tries, waiting = [], [], iter(exercises)

    def attempt(title, word, code, check):
        cells.extend((_code(code, tags=["raises-exception"]), _code(check.source)))
        tries.append((title, word, cells[-1]))

    for cell in notebook.cells:
        tags = cell.metadata.get("tags", ())
        if "exercise" in tags:
            check = next(checks)
            attempt("what is given", "not yet", next(given).source, check)
        cells.append(cell)
        if "check" in tags:
            tries.append(("the solution", "right", cell))
            exercise = next(waiting)
            for answer in exercise.answers:
                if exercise.afresh:
                    cells.append(_code(exercise.afresh))
                attempt(answer.title, answer.word, answer.code, check)
    notebook.cells = cells
    return notebook, tries


def twice(notebook):
    """A copy in which each cell of the lesson, exercises apart, is typed twice."""
    notebook = copy.deepcopy(notebook)
    cells, is_lesson = [], True
    for cell in notebook.cells:
        cells.append(cell)
        tags = cell.metadata.get("tags", ())
        is_lesson = is_lesson and "task" not in tags
        if cell.cell_type == "code" and is_lesson:
            cells.append(_code(cell.source, tags))
    notebook.cells = cells
    return notebook


def _code(source, tags=()):
    return nbformat.v4.new_code_cell(source, metadata={"tags": [*tags]})


# Engines of ipyparallel do not hear the signal that is to end them while they wait for
# messages, and each would be waited for; and their starts are kept apart for clusters.
_KERNEL_OPTIONS = (
    "--IPKernelApp.log_level=ERROR",
    "--LocalEngineLauncher.stop_seconds_until_kill=0",
    "--LocalEngineSetLauncher.delay=0",
)


def executed(notebook, *options):
    """The notebook with the outputs of a run; an error of a cell is raised."""
    notebook = copy.deepcopy(notebook)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(REPOSITORY), before)))
    try:
        nbclient.NotebookClient(
            notebook,
            timeout=_PATIENCE_S,
            startup_timeout=_PATIENCE_S,
            iopub_timeout=_PATIENCE_S,  # otherwise outputs that come late are left out
            kernel_name="python3",
            extra_arguments=[*_KERNEL_OPTIONS, *options],
            record_timing=False,
            resources={"metadata": {"path": str(FOLDER)}},
        ).execute()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return notebook


def said(cell):
    """The last value of a cell, where it is a text."""
    values = [each for each in cell.outputs if each.output_type == "execute_result"]
    return values[-1].data["text/plain"].strip("'\"") if values else ""


def words_shown(cell):
    """What a cell says first, without its figures: they are others in each run."""
    texts = [each.get("text") or each.data["text/plain"] for each in cell.outputs]
    return _WORD.findall(" ".join(text.split("\n\n")[0] for text in texts))


def keep_outputs(path):
    """Run a notebook as it is, and write it with what came out."""
    notebook = executed(read(path))
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    notebook.metadata.language_info = {"name": "python"}
    nbformat.write(notebook, path)
