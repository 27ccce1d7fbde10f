"""`%gpu_doctor words` as it is typed."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell

from gpumagic.errors import UsageProblem
from gpumagic.gpu_doctor import words
from gpumagic.gpu_doctor.magic import DoctorMagics
from gpumagic.notebook.session import Session


@pytest.fixture
def shell():
    """A shell with this one magic."""
    shell = InteractiveShell()
    shell.register_magics(DoctorMagics(shell, Session()))
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


@pytest.mark.parametrize(
    ("line", "in_sight"),
    [
        ("words MIG slice", True),
        ("words loaders", True),  # a group that was asked for is not folded
        ("words", False),  # a hundred of them are
    ],
)
def test_words_that_are_asked_for_are_in_sight(shell, shown, line, in_sight):
    """One word or a group is answered at once, and of all words only the groups."""
    shell.run_line_magic("gpu_doctor", line)
    text = " ".join(str(shown[0]).split())
    terms = words(line.removeprefix("words").strip()).terms

    assert all(each.term in text for each in terms)
    assert all(each.meaning in text for each in terms) == in_sight


@pytest.mark.parametrize(
    ("typed", "cell"), [("%gpu_doctor", None), ("%%gpu_doctor", "pass")]
)
@pytest.mark.parametrize("line", ["wrods kernel", "kernel"])
def test_a_word_that_the_magic_does_not_know_is_refused(shell, typed, cell, line):
    """It says what can be typed, and explains nothing that nobody asked for."""
    with pytest.raises(UsageProblem) as refused:
        shell.magics_manager.registry["DoctorMagics"].gpu_doctor(line, cell)

    assert refused.value.problem == f"{typed} has no word {line.split()[0]}"
    assert "%gpu_doctor words" in refused.value.hint
