"""Options are read by argparse; code behind them is kept to the letter."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.error import UsageError

from gpumagic.errors import UsageProblem
from gpumagic.notebook import arguments


class Parser(argparse.ArgumentParser):
    """Complains as IPython's parser does."""

    def error(self, message):
        """Raise instead of leaving the process."""
        raise UsageError(message)


@pytest.fixture(scope="module")
def parser():
    """A parser with a flag, a value, a pair and a choice."""
    parser = Parser(add_help=False)
    parser.add_argument("-q", "--quiet", action="store_true")
    parser.add_argument("-n", "--number", type=int)
    parser.add_argument("--label")
    parser.add_argument("--pair", nargs=2)
    parser.add_argument("--unit", choices=["ms", "us"])
    parser.add_argument("--share", type=float, metavar="N")
    parser.add_argument("--for", metavar="TIME")
    parser.add_argument("--room", metavar="SIZE")
    return parser


# Code that does not begin like an option of ours.
code = st.text(
    alphabet=st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=40
).filter(lambda text: text.strip() == text and text[0] not in "-\"'")


@given(code)
def test_code_behind_options_is_untouched(code):
    """The options are cut off by position."""
    parser = Parser(add_help=False)
    parser.add_argument("-q", action="store_true")
    parser.add_argument("--label")
    options, rest = arguments.split_code(parser, "%t", f"-q --label 'a b' {code}")
    assert (options.q, options.label, rest) == (True, "a b", code)


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ('print("a    b")', 'print("a    b")'),
        ("-q f({x})", "f({x})"),
        ("-n 3 -x.sum()", "-x.sum()"),
        ("-n 3 -1", "-1"),
        ("-n=3 x", "x"),
        ("--pair a b --quiet c", "c"),
        ("--quiet -- --label", "--label"),
        ("--label=x --quiet", ""),
        ("", ""),
    ],
)
def test_where_the_code_begins(parser, line, rest):
    """The first word that is neither an option nor its value begins the code."""
    assert arguments.split_code(parser, "%t", line)[1] == rest


@pytest.mark.parametrize(
    ("line", "problem", "hint"),
    [
        ("--quite", "%t has no option --quite", "did you mean --quiet?"),
        ("--lable=3", "%t has no option --lable", "did you mean --label?"),
        ("--xyzzy", "%t has no option --xyzzy", "type %t --help"),
        ("word", "%t has no word word", "type %t --help"),
        ("-n x", "%t --number: invalid int value: 'x'", "write --number 4"),
        ("-n ''", "%t --number: invalid int value: ''", "write --number 4"),
        ("--share much", "%t --share: invalid float value: 'much'", "--share 4"),
        ("--unit s", "%t --unit: invalid choice: 's'", "write --unit ms or --unit us"),
        ("--unit", "%t --unit: expected one argument", "write --unit ms"),
        ("--label -q", "%t --label: expected one argument", "write --label LABEL"),
        ("--pair a", "%t --pair: expected 2 arguments", "write --pair"),
        ("--for x", "%t --for: 'x' is not a duration", "write 2s"),
        ("--for -3s", "%t --for: '-3s' is not a duration", "write 2s"),
        ("-q --for -3s", "%t --for: '-3s' is not a duration", "write 2s"),
        ("--room -1GiB", "%t --room: '-1GiB' is not", "write"),
        ("--label 'a b", "quotation mark ' is not closed", "close it"),
    ],
)
def test_a_wrong_word_says_what_to_type(parser, line, problem, hint):
    """The problem names the word, the hint the next thing to type."""
    with pytest.raises(UsageProblem) as caught:
        arguments.parse(parser, "%t", line)
    assert problem in caught.value.problem
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("line", "number", "label"),
    [
        ("--label -1,2", None, "-1,2"),
        ("-q --label -.5 -n -3", -3, "-.5"),
        ("-n -3 --label -3s", -3, "-3s"),
        ("--label=-1 -n=-3", -3, "-1"),
    ],
)
def test_a_value_below_zero_is_no_option(parser, line, number, label):
    """A dash in front of a figure belongs to the value."""
    options = arguments.parse(parser, "%t", line)

    assert (options.number, options.label) == (number, label)


def test_quotes_belong_to_the_shell_not_to_the_value(parser):
    """A quoted value arrives without its quotes."""
    assert arguments.parse(parser, "%t", "--label 'a b'").label == "a b"
    assert arguments.parse(parser, "%t", '--label="a b"').label == "a b"


@given(st.text(max_size=30))
def test_any_line_is_read_or_refused(line):
    """No line of text makes anything but a reading or a usage problem."""
    parser = Parser(add_help=False)
    parser.add_argument("-q", "--quiet", action="store_true")
    for read in (arguments.parse, arguments.split_code):
        try:
            read(parser, "%t", line)
        except UsageProblem as error:
            assert error.problem  # noqa: PT017 - both outcomes are right here


# ------------------------------------------------------------- a value or code


@pytest.fixture(scope="module")
def repeating():
    """A parser with an option that can be without its value, in front of code."""
    parser = Parser(add_help=False)
    action = parser.add_argument("--repeat", nargs="?", const="", metavar="HOW")
    vars(action)["takes"] = r"(?:fast|\d+)"
    parser.add_argument("--quiet", action="store_true")
    return parser


@pytest.mark.parametrize(
    ("line", "how", "code"),
    [
        ("--repeat f(x)", "", "f(x)"),
        ("--repeat 3 f(x)", "3", "f(x)"),
        ("--repeat fast f(x)", "fast", "f(x)"),
        ("--repeat=fast f(x)", "fast", "f(x)"),
        ("--repeat 3 --quiet f(x)", "3", "f(x)"),
        ("--repeat --quiet 3", "", "3"),
        ("--repeat 3 4", "3", "4"),
        ("--repeat 2", "2", ""),
        ("--repeat -- 2 * x", "", "2 * x"),
        ("--repeat fast;", "", "fast;"),
        ("--repeat", "", ""),
    ],
)
def test_a_value_that_can_be_left_out_takes_no_code_away(repeating, line, how, code):
    """What does not look like the option's value is code, and so is all behind `--`."""
    options, rest = arguments.split_code(repeating, "%t", line)
    assert (options.repeat, rest) == (how, code)


# ------------------------------------------------------------- of the last report


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("--show how", ("how",)),
        ("--show=copies,how ;", ("copies", "how")),
        ("--all", ()),
        ("--show how x", None),
        ("x --all", None),
        ("--show", None),
        ("", None),
    ],
)
def test_a_line_that_names_parts_alone_is_about_the_last_report(line, parts):
    """`--show how` alone asks for no new measurement; with anything else it does."""
    assert arguments.parts_asked_alone(line) == parts
