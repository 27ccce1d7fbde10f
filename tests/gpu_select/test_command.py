"""`python -m gpumagic select`, as it is typed in a terminal."""

from __future__ import annotations

import json
import sys

import pytest

from tests.fakes.run import run_module

MACHINE = {"load": (), "install": ("nvml", "libcuda")}
SHOW = "import os; print([os.environ.get('CUDA_VISIBLE_DEVICES'), os.getpid()])"


def test_a_program_is_started_with_its_gpus():
    """Behind `--` stands a program, which takes the place of the command."""
    run = run_module(
        "gpumagic", "select", "3,1", "--", sys.executable, "-c", SHOW, **MACHINE
    )

    assert run.stdout.startswith("['3,1', ")
    assert "cuda:0 is GPU 3, cuda:1 is GPU 1" in run.stderr
    assert run.cuinit_calls() == []


def test_two_programs_get_different_free_gpus(tmp_path):
    """The claim goes over to the program, and holds as long as it runs."""
    show = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True)"
    again = ["-m", "gpumagic", "select", "free", "--", sys.executable, "-c", show]
    program = (
        f"{show}\n"
        "import subprocess, sys; del os.environ['CUDA_VISIBLE_DEVICES']\n"
        f"subprocess.run([sys.executable, *{again!r}], check=True)"
    )
    run = run_module(
        *("gpumagic", "select", "free", "--", sys.executable, "-c", program),
        **MACHINE,
        env={"TMPDIR": str(tmp_path)},
    )

    assert sorted(run.stdout.split()) == ["1", "3"]


def test_without_a_program_it_is_said_what_would_be_chosen():
    """The table is a dry run; `--json` gives all of it."""
    shown = run_module("gpumagic", "select", "2", **MACHINE)
    plain = run_module("gpumagic", "select", "2", "--json", **MACHINE)

    assert "Nothing is set (dry run); it would be: cuda:0 is GPU 2" in shown.stdout
    assert json.loads(plain.stdout)["action"] == "dry run"


def test_without_words_it_shows_how_things_stand():
    """No words, no choice: it is shown, parts on demand; nothing is started."""
    run = run_module("gpumagic", "select", **MACHINE)

    assert "You can still choose" in run.stdout
    for words in (["--show", "addresses"], ["--all"]):
        shown = run_module("gpumagic", "select", *words, **MACHINE).stdout
        assert "UUID" in shown


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("free", "-n", "3"), 2, "3 GPUs asked for, 2 free"),
        (("9",), 2, "there is no GPU 9"),
        (("2", "--min-fre3"), 2, "did you mean --min-free?"),
        (("--", "python"), 2, "select free -- python"),
        (("1", "sh", "train.sh"), 2, "a program stands behind --"),
        (("fre",), 2, "did you mean free?"),
        (("2", "--", "no-such-program"), 127, "there is no program no-such-program"),
    ],
)
def test_what_cannot_be_is_said_in_words_and_by_the_status(words, status, said):
    """A refusal is two lines on stderr and no traceback."""
    run = run_module("gpumagic", "select", *words, **MACHINE, check=False)

    assert run.returncode == status
    assert said in run.stderr
    assert "Traceback" not in run.stderr
