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
OF_ALL = "-o|--output|-v r|--variable r|--show how|--all|-q|--quiet|--json"
SO_FAR = {
    "gpu_doctor": "",
    "gpu_select": "-n 2|--min-free 2GiB|--max-util 30|--name A100|--exclude 0|--mine-ok"
    "|--wait 10m|--as uuid|--dry-run|--verify|--force|--reset|--restart|--guard"
    "|--no-guard|--simulate h100|--memory 2GiB|--hazards poison|--as-cuda",
    "tensor_info": "--view 6,4|--gpu|--alias|--values",
    "cuda_sync_time": "-n 4|-r 4|--repeat|--budget 2s|--latency|--throughput|--setup x"
    "|--before x|--cold|--syncs|--profile|--trace f|--races|--flops|--bytes 2GiB"
    "|--name a|--vs a|--calibrate",
    "gpu_mem": "--lines|--exact|--top 4|--outputs|--errors|--gc|--cache",
    "gpu_open": "--compare|--replay|--fit 3GiB",
    "pin_loader": "--device cpu|--out x|--workers 2|--prefetch 2|--step f|--budget 2s"
    "|--diagnose|--force|--watch",
}
TYPED_SO_FAR = [
    (name, typed)
    for name, lines in SO_FAR.items()
    for typed in f"{lines}|{OF_ALL}".strip("|").split("|")
]


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


@pytest.mark.parametrize(("name", "typed"), TYPED_SO_FAR)
def test_what_people_have_typed_goes_on_being_read(loaded, name, typed):
    """No spelling of an option is taken away, wherever the help lists it by now."""
    parser = loaded.find_line_magic(name).parser

    options = parse(parser, f"%{name}", typed)

    spelling, _, value = typed.partition(" ")
    action = options_of(parser)[spelling]
    assert getattr(options, action.dest) not in (None, (), [])
    assert (action.nargs in {0, "?"}) == (not value)


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
            "%cuda_sync_time --budget soon 1",
            "%cuda_sync_time --budget: 'soon' is not a duration",
            "write 2s, 300ms or 10m",
        ),
        (
            "%%cuda_sync_time --bytes many\n1",
            "%%cuda_sync_time --bytes: 'many' is not a size",
            "write 20GiB, 512MiB or 1000000",
        ),
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
            "%cuda_sync_time --pro 1",
            "%cuda_sync_time has no option --pro",
            "did you mean --profile?",
        ),
        (
            "%cuda_sync_time --re 1",
            "%cuda_sync_time has no option --re",
            "did you mean --repeat?",
        ),
        (
            "%cuda_sync_time --la 1",
            "%cuda_sync_time has no option --la",
            "did you mean --latency?",
        ),
        (
            "%gpu_mem --log",
            "%gpu_mem has no option --log",
            "did you mean log?",
        ),
        (
            "%tensor_info --view 24",
            "%tensor_info has no tensor to look at",
            "make a tensor x first, then type %tensor_info --view 24 x",
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
