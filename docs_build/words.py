"""Writes the page of words from those that the program explains: `make words`."""

from __future__ import annotations

from pathlib import Path

from gpumagic.report.words import WORDS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "words.md"
_BEGINNING = """\
# What the words mean

The reports use the words of the field. Here is one sentence on each.
In a notebook `%gpu_doctor words kernel` says it, in a terminal
`python -m gpumagic words kernel`.
"""
_ABOUT = {
    "time": "Time",
    "memory": "Memory",
    "tensors": "Tensors",
    "loaders": "Loaders",
    "machines": "Machines",
}


def page() -> str:
    """The whole page; a group is a section."""
    sections = (
        "\n".join(
            (
                f"## {_ABOUT[group]}",
                "",
                "| Word | It means |",
                "| --- | --- |",
                *(f"| {term} | {meaning} |" for term, meaning in words.items()),
            )
        )
        for group, words in WORDS.items()
    )
    return "\n".join((_BEGINNING, "\n\n".join(sections), ""))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
