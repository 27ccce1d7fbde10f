"""What a magic says of itself, and of a word that it does not know."""

from __future__ import annotations

import re

import pytest
from IPython.core.interactiveshell import InteractiveShell

from gpumagic import extension
from gpumagic.extension import ROOMS
from gpumagic.notebook.arguments import (
    examples_of,
    options_of,
    parse,
    split_code,
    words_of,
)

NAMES = [room.folder for room in ROOMS]
WITH_WORDS = ["cuda_sync_time", "gpu_doctor", "gpu_mem", "gpu_ranks"]


@pytest.fixture(scope="module")
def loaded():
    """A shell with the extension."""
    shell = InteractiveShell.instance()
    extension.load(shell)
    yield shell
    extension.unload(shell)
    shell.reset(new_session=False)
    InteractiveShell.clear_instance()


def help_of(shell, name):
    """What `?` shows."""
    return shell.find_line_magic(name).__doc__


@pytest.mark.parametrize("name", NAMES)
def test_help_says_first_what_a_magic_is_for_and_how_to_begin(loaded, name):
    """A sentence, then two or three lines to type; no list of all that is possible."""
    purpose, begin, *_ = help_of(loaded, name).split("\n\n")

    assert re.fullmatch(r"[A-Z].*\.", purpose)
    assert 2 <= len(begin.splitlines()) <= 3
    assert all(
        line.startswith(f"  %{name}") for line in begin.replace("%%", "%").splitlines()
    )
    assert "[-" not in help_of(loaded, name)


@pytest.mark.parametrize("name", NAMES)
def test_each_line_to_begin_with_is_one_that_the_magic_reads(loaded, name):
    """What help shows can be typed: its options are known, and their values fit."""
    parser = loaded.find_line_magic(name).parser

    for line in examples_of(parser):
        typed, _, rest = line.partition(" ")
        if any(each.metavar == "CODE" for each in parser._actions):
            split_code(parser, typed, rest)
        else:
            parse(parser, typed, rest)


@pytest.mark.parametrize("name", NAMES)
def test_help_is_complete_and_narrow(loaded, name):
    """Each option and each word with what it does, in 80 columns."""
    text = help_of(loaded, name)
    parser = loaded.find_line_magic(name).parser
    lists = re.sub(r"\s+", " ", text)

    assert max(map(len, text.splitlines())) <= 80
    for spelling, action in options_of(parser).items():
        assert re.search(rf"{re.escape(spelling)}[ ,\n]", text)
        assert action.help in lists
    for word, does in words_of(parser).items():
        row = rf"^  {re.escape(word)} +{re.escape(does)}$"
        assert re.search(row, text, re.MULTILINE)
    assert ("\nwords:\n" in text) == (name in WITH_WORDS)


@pytest.mark.parametrize("name", NAMES)
def test_both_ways_of_asking_show_the_same(loaded, name, capsys, monkeypatch):
    """`--help` and `?` differ in nothing but where the text appears."""
    shown = []
    publish = shown.append
    monkeypatch.setattr(
        loaded.display_pub, "publish", lambda data, **_: publish(data["text/plain"])
    )
    loaded.run_cell(f"%{name} --help")
    capsys.readouterr()
    loaded.run_cell(f"%{name}?")

    assert shown == [help_of(loaded, name)]
    assert all(line in capsys.readouterr().out for line in shown[0].split("\n\n")[:1])
