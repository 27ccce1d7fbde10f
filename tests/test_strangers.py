"""The runner of others' programs: what it calls the same, and whose a failure is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.strangers import pages
from benchmarks.strangers.cells import cells_of, edited, on_device
from benchmarks.strangers.outcomes import (
    SAME,
    Outcome,
    difference,
    steady,
    text_difference,
)
from benchmarks.strangers.programs import FOLDERS, PROGRAMS, Program
from benchmarks.strangers.verdicts import (
    BEYOND,
    OURS,
    Known,
    counted,
    out_of_date,
    verdict,
)

ROOT = Path(__file__).parents[1]
NAN = float("nan")
KNOWN = (Known("file.Class.test_clock*", BEYOND, "there is no clock"),)


def losses(*numbers, **others):
    """What a run found, with these losses."""
    return Outcome({"losses": numbers}, **others)


@pytest.mark.parametrize(
    ("found", "expected", "said"),
    [
        (losses(1.0, 0.5004), losses(1.0, 0.5), SAME),
        (Outcome({"losses": [1.0], "on_the_gpu": [2.0]}), losses(1.0), SAME),
        (losses(NAN), losses(NAN), SAME),
        (losses(1.0, 0.6), losses(1.0, 0.5), "losses[1] is 0.6 instead of 0.5"),
        (losses(1.0), losses(1.0, 0.5), "losses: 1 numbers instead of 2"),
        (Outcome(), losses(1.0), "it has no losses"),
        (losses(1.0), losses(error="no file"), "cannot be told: no file"),
    ],
)
def test_a_difference_is_the_first_thing_that_is_not_as_expected(found, expected, said):
    """Numbers are the same within a part of them; everything else is told."""
    assert difference(found, expected, within=1e-3) == said


def test_numbers_that_two_plain_runs_give_otherwise_are_not_compared():
    """A tutorial that takes times has new ones in each run; its losses are kept."""
    first = Outcome({"losses": (1.0,), "seconds": (0.16,)}, printed="loss 1.0")
    second = Outcome({"losses": (1.0,), "seconds": (0.27,)})

    assert steady(first, second, within=1e-4) == losses(1.0, printed="loss 1.0")


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        ("loss 0.5 after 12 ms\n", "loss 0.4 after 9.5 ms\n", True),
        ("<Model at 0x7f00>", "<Model at 0x1200>", True),
        (" 5%\r100%\rdone\n", "done\n", True),
        ("loss 0.5\nextra\n", "loss 0.5\n", False),
        ("cuda:0\n", "sim:0\n", False),
    ],
)
def test_printed_text_is_the_same_up_to_its_figures(found, expected, same):
    """Times and addresses are new in each run, words are not."""
    assert (text_difference(found, expected) == SAME) is same


def test_a_failure_that_nobody_has_looked_at_is_ours():
    """Only what is on the list, with its reason, is anybody else's."""
    outcomes = {
        "file.Class.test_clock_speed": "failed",
        "file.Class.test_add": "failed",
        "file.Class.test_mul": "passed",
        "file.Class.test_rocm": "skipped",
    }
    said = [verdict(test, outcome, KNOWN) for test, outcome in outcomes.items()]
    assert said == [BEYOND, OURS, "passed", "skipped"]
    assert sum(counted(outcomes, KNOWN).values()) == len(outcomes)
    assert out_of_date(outcomes, KNOWN) == []
    mended = {"file.Class.test_clock_speed": "passed"}
    assert out_of_date(mended, KNOWN) == list(KNOWN)


def test_a_change_that_no_longer_fits_is_an_error():
    """A program that was published anew is not run at its full size by mistake."""
    program = Program("a", "pytorch/examples", "a.py", edits=(("epochs = 5", ""),))
    with pytest.raises(ValueError, match="nothing reads 'epochs = 5' any more"):
        edited(program, "epochs = 6")


def test_a_program_says_the_device_that_it_is_to_run_on():
    """The word cuda stays, or becomes another device where it stands by itself."""
    text = 'x.cuda(); torch.cuda.synchronize(); torch.device("cuda:0"); is_cuda_on'
    assert on_device(text, "cuda") == text
    assert on_device(text, "sim") == (
        'x.sim(); torch.sim.synchronize(); torch.device("sim:0"); is_cuda_on'
    )
    assert 'torch.device("cpu")' in on_device(text, "cpu")


def test_a_chapter_gives_its_blocks_for_torch_and_no_others(tmp_path):
    """Other frameworks, the book's own switches and empty blocks are left out."""
    blocks = {
        "%load_ext d2lbook.tab\ntab.interact_select('jax', 'pytorch')": False,
        "%%tab jax\nimport jax": False,
        "%%tab pytorch\na = 1": True,
        "%%tab all\nb = 2": True,
        "%matplotlib inline\nc = 3": True,
        "# nothing": False,
    }
    text = "".join(f"```{{.python .input}}\n{block}\n```\n\n" for block in blocks)
    chapter = Program("a", "d2l-ai/d2l-en", "chapter.md")
    folder = tmp_path / FOLDERS[chapter.origin]
    folder.mkdir()
    (folder / "chapter.md").write_text(text, encoding="utf-8")
    cells = cells_of(chapter, tmp_path, "cuda")
    assert [cell.strip() for cell in cells] == ["a = 1", "b = 2", "c = 3"]


def test_every_program_has_a_name_of_its_own():
    """A line of the table means one program."""
    names = [(each.origin, each.name) for each in PROGRAMS]
    assert len(names) == len(set(names)) >= 30


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.from_package], ids=str)
def test_what_comes_from_a_package_is_called_somewhere(program):
    """The name in the list is a function of packages.py."""
    source = (ROOT / "benchmarks/strangers/packages.py").read_text(encoding="utf-8")
    assert f"def {program.place}(" in source or f"\n{program.place} = " in source


def test_the_guide_says_what_was_found():
    """The tables of the page are those of the results that are kept."""
    text = pages.PAGE.read_text(encoding="utf-8")
    inside = text.partition(pages.BEGIN)[2].partition(pages.END)[0]
    assert inside.strip() == pages.tables().strip()


TESTS_OF_TORCH = """
import os, signal, time, unittest
import torch

class TestIt(unittest.TestCase):
    def test_a_passes(self):
        assert torch.ones(2, device="cuda").sum() == 2
    def test_b_fails(self):
        self.assertEqual(torch.zeros(1, device="cuda").item(), 1)
    def test_c_crashes(self):
        os.kill(os.getpid(), signal.SIGSEGV)
    def test_d_hangs(self):
        time.sleep(600)
    def test_e_is_skipped(self):
        self.skipTest("no time")
    def test_f_passes_behind_them(self):
        assert torch.cuda.is_available()
"""
RUN = """
import json, sys
from pathlib import Path
from benchmarks.strangers.torch_tests import run_all, tests_of
folder = Path(sys.argv[1])
ran = run_all(folder, "test_it", tests_of(folder, "test_it"), limit_s=10)
print(json.dumps({each.test: each.outcome for each in ran}))
"""


def test_a_test_of_torch_that_crashes_or_hangs_ends_alone(tmp_path):
    """Those behind it run, and each has its outcome."""
    pytest.importorskip("torch")
    (tmp_path / "test_it.py").write_text(TESTS_OF_TORCH, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    outcomes = json.loads(run.stdout.splitlines()[-1])
    assert outcomes == {
        "TestIt.test_a_passes": "passed",
        "TestIt.test_b_fails": "failed",
        "TestIt.test_c_crashes": "crashed",
        "TestIt.test_d_hangs": "hung",
        "TestIt.test_e_is_skipped": "skipped",
        "TestIt.test_f_passes_behind_them": "passed",
    }
