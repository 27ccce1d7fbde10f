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
MOST_USUAL = 10


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
def test_few_options_stand_in_front_of_the_others(loaded, name):
    """A dozen lines are read, and the others are looked up."""
    parser = loaded.find_line_magic(name).parser
    options = {id(each): each for each in options_of(parser).values()}.values()
    usual = [each for each in options if not each.more]

    assert len(usual) <= MOST_USUAL
    assert {"--show", "--all"} <= {each.option_strings[-1] for each in usual}


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


def test_help_has_its_parts_in_order(loaded):
    """What is typed most is read first: lines, words, the few options, the others."""
    text = help_of(loaded, "gpu_mem")
    parts = ["Say where", "  %gpu_mem  ", "\nwords:", "\noptions:"]
    parts += ["\nmore options:", "Looking resets"]

    places = [text.index(part) for part in parts]

    assert places == sorted(places)


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


@pytest.mark.parametrize(
    ("typed", "problem", "hint"),
    [
        (
            "%pin_loader x --budget soon",
            "%pin_loader --budget: 'soon' is not a duration",
            "write 2s, 300ms or 10m",
        ),
        (
            "%gpu_select free --min-free lots",
            "%gpu_select --min-free: 'lots' is not a size",
            "write 20GiB, 512MiB or 1000000",
        ),
        (
            "%cuda_sync_time --wat 1",
            "%cuda_sync_time has no option --wat",
            "type %cuda_sync_time --help to see all options",
        ),
        (
            "%pin_loader x --wacth",
            "%pin_loader has no option --wacth",
            "did you mean --watch?",
        ),
        (
            "%gpu_mem --map",
            "%gpu_mem has no option --map",
            "did you mean map?",
        ),
        (
            "%%tensor_info --view -1,2 --gpu;\n1",
            "%%tensor_info has no tensor to look at",
            "make a tensor x first, then type %%tensor_info --view -1,2 --gpu x",
        ),
    ],
)
def test_a_wrong_line_is_answered_in_its_own_words(loaded, typed, problem, hint):
    """The problem names the option, and the hint keeps what was right."""
    error = loaded.run_cell(typed).error_in_exec

    assert (error.problem, error.hint) == (problem, hint)
