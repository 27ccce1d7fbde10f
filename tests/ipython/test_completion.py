"""Options, choices, notebook names and devices complete behind our magics."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from IPython import version_info
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

from gpumagic.completion import Completion
from gpumagic.devices.protocols import Gpu, Inventory
from gpumagic.session import Session


class TwoGpus:
    """A driver that has two GPUs."""

    simulated = False

    def inventory(self):
        """Two, of which nothing else is known."""
        return Inventory(gpus=(Gpu(0), Gpu(1)))


def magic(line):
    """A magic with one of everything that can be completed."""


magic.parser = argparse.ArgumentParser(add_help=False)
magic.parser.add_argument("name", nargs="?", metavar="NAME")
magic.parser.add_argument("-q", "--quiet", action="store_true")
magic.parser.add_argument("--quick", action="store_true")
magic.parser.add_argument("--device", metavar="DEVICE")
magic.parser.add_argument("--unit", choices=["ms", "us"])
magic.parser.add_argument("--count", type=int)
OPTIONS = ["--count", "--device", "--help", "--quick", "--quiet", "--unit"]


@pytest.fixture
def shell():
    """A shell with that magic and one variable."""
    shell = InteractiveShell.instance()
    shell.register_magic_function(magic, "line", "probe")
    shell.user_ns["loader"] = 1
    with ExitStack() as undo:
        Completion(shell, Session(TwoGpus), {"probe"}).install(undo)
        yield shell
    shell.reset(new_session=False)
    InteractiveShell.clear_instance()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%probe --", OPTIONS),
        ("%probe --qui", ["--quick", "--quiet"]),
        ("%probe -", OPTIONS),
        ("x = %probe --dev", ["--device"]),
        ("%probe --device c", ["cpu", "cuda:0", "cuda:1"]),
        ("%probe --device cuda:", ["cuda:0", "cuda:1"]),
        ("%probe --unit u", ["us"]),
        ("%probe load", ["loader"]),
        ("%probe -q load", ["loader"]),
    ],
)
def test_what_completes(shell, line, words):
    """The begun word becomes every word that fits, and nothing else."""
    kept = line[: -len(line.split()[-1])]
    with provisionalcompleter():
        offered = shell.Completer.completions(line, len(line))
        lines = {line[: each.start] + each.text for each in offered}
    assert {kept + word for word in words} <= lines
    # IPython 7 has no way to keep its own guesses out.
    assert version_info[0] == 7 or len(lines) == len(words)


@pytest.mark.parametrize(
    "line", ["%other --", "probe --", "x = 3 --", "%probe --count 1"]
)
def test_what_is_left_to_ipython(shell, line):
    """Other magics, code, and values that can be anything are none of ours."""
    completion = Completion(shell, Session(TwoGpus), {"probe"})
    found = completion.candidates(line)
    assert found is None or found[1] == []


def test_the_matcher_goes_with_the_extension():
    """After the undoing the completer has no matcher more than before."""
    shell = SimpleNamespace(Completer=SimpleNamespace(custom_matchers=[]))
    with ExitStack() as undo:
        Completion(shell, Session(TwoGpus), {"probe"}).install(undo)
        assert len(shell.Completer.custom_matchers) == 1
    assert shell.Completer.custom_matchers == []
