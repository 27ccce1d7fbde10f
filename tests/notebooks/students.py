"""What students answer: the files in `answers/`, one for each notebook."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent / "answers"
_EXERCISE = re.compile(r"^## Exercise \d+$", re.MULTILINE)
_ANSWER = re.compile(
    r"^### ([^\n]+)\n\n```python\n(.*?)\n```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Answer:
    """What a student puts into the cell of an exercise."""

    title: str  # what is done in it
    code: str  # the whole cell
    word: str  # what the check has to say of it: "right" or "not yet"


@dataclass(frozen=True)
class Exercise:
    """The answers to one exercise."""

    answers: tuple[Answer, ...]  # in the order in which they are tried
    # what runs before each of them, where one of them takes away what the next one
    # needs
    afresh: str = ""


def answers_to(name):
    """The exercises of a notebook, with what students answer."""
    text = (_FOLDER / f"{name}.md").read_text(encoding="utf-8")
    return [_exercise(part) for part in _EXERCISE.split(text)[1:]]


def _exercise(text):
    answers, afresh = [], ""
    for title, code in _ANSWER.findall(text):
        kind = title.partition(": ")[0]
        if kind == "Before each answer":
            afresh = code
        else:
            answers.append(
                Answer(title, code, {"Right": "right", "Wrong": "not yet"}[kind])
            )
    return Exercise(tuple(answers), afresh)
