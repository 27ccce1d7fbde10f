"""`%gpu_doctor` is right on machines of every kind, and starts nothing on any."""

from __future__ import annotations

import json

import pytest

from tests.fakes.run import run_module, run_python

# A process with a torch built for CUDA, which this machine does not have: the files
# that are read, without the package. Only what the doctor reads is in it.
CUDA_TORCH = """
import pathlib, sys, tempfile
folder = pathlib.Path(tempfile.mkdtemp()) / "torch"
folder.mkdir()
(folder / "__init__.py").write_text("raise ImportError('only to be read')")
said = {"__version__": "2.11.0+cu130", "cuda": "13.0", "hip": None}
lines = (f"{name} = {value!r}" for name, value in said.items())
(folder / "version.py").write_text("\\n".join(lines))
sys.path.insert(0, str(folder.parent))
"""
FOREIGN_FILE = """
import os, pathlib, sys, tempfile
os.chdir(tempfile.mkdtemp())
sys.path.insert(0, "")
pathlib.Path("torch.py").write_text("")
"""
EXAMINE = """
import json
from gpumagic.gpu_doctor import examine
report = examine()
print(json.dumps([report.to_dict(), str(report), "torch" in sys.modules]))
"""


def examine(scenario, prelude=CUDA_TORCH, **machine):
    """The report on a machine, as a dict, and its text."""
    run = run_python(prelude + EXAMINE, scenario=scenario, **machine)
    report, text, _ = run.json()
    assert run.cuinit_calls() == [], "looking has started CUDA"
    report["by_topic"] = {each["topic"]: each for each in report["findings"]}
    return report, text


@pytest.mark.parametrize(
    ("scenario", "machine", "headline", "says"),
    [
        ("no_gpus", {"load": ()}, "No GPU here", "there is no NVIDIA driver here"),
        ("no_gpus", {}, "No GPU here", "none, though the driver runs"),
        ("four_gpus", {}, "Ready: 4 GPUs", "4 GPUs (NVIDIA H100 80GB HBM3) GPU"),
        ("mismatch", {}, "NVIDIA driver: ", "reboot"),
        ("wsl", {}, "Ready: 1 GPU", "not listed by the driver"),
        ("container_foreign_pids", {}, "Ready: ", "they may run outside here"),
        ("no_permission", {}, "Ready: 1 GPU", "may not use this GPU"),
        ("gpu_lost", {}, "Ready: ", "! warning: GPU "),
        ("nothing_supported", {}, "Ready: 1 GPU (NVIDIA GB10)", "unknown"),
        ("mig_with_holes", {}, "Ready: ", "split by MIG, with 2 slices"),
        ("old_driver", {}, "torch: 2.11.0+cu130, built for CUDA 13.0, but", "update"),
    ],
)
def test_the_doctor_is_right_on_this_machine(scenario, machine, headline, says):
    """The answer comes first, the reason and the next step are in the text."""
    report, text = examine(scenario, **machine)
    assert report["headline"].startswith(headline), text
    assert text.startswith(headline)
    assert says in " ".join(text.split())
    json.dumps(report, allow_nan=False)


def test_the_cpu_torch_of_this_machine_is_recognised_beside_a_gpu():
    """The build is read from torch's files: torch itself is not imported."""
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this torch has CUDA")
    run = run_python("import sys\n" + EXAMINE, scenario="one_gpu")
    report, _, imported = run.json()
    assert not imported
    assert report["facts"]["torch"]["version"].startswith("2.")
    assert "cannot use the GPU" in report["headline"]


@pytest.mark.parametrize(
    ("prelude", "headline", "says"),
    [
        # A teaching mock, as lecturers make them.
        (
            "import sys, types; sys.modules['torch'] = types.ModuleType('torch')\n",
            "torch: unknown version, built without CUDA",
            "cannot use the GPU",
        ),
        # The classic: a script of one's own, called like the library.
        (
            FOREIGN_FILE,
            "torch: hidden by the file ",
            "rename that file",
        ),
    ],
)
def test_what_is_not_torch_is_not_taken_for_it(prelude, headline, says):
    """A stand-in or a file of that name is told, and breaks nothing."""
    report, text = examine("one_gpu", prelude=prelude)
    assert report["headline"].startswith(headline)
    assert says in text


def test_unknown_figures_are_unknown_in_the_report_and_in_the_picture():
    """A machine that tells nothing gets no zeros."""
    report, text = examine("nothing_supported")
    (gpu,) = report["facts"]["inventory"]["gpus"]
    assert gpu["memory_total_bytes"] is gpu["utilisation_share"] is None
    assert gpu["processes"] is None
    row = text.splitlines()[-1] if "unknown" in text.splitlines()[-1] else text
    assert "0 B" not in row
    assert " 0 %" not in text


def test_started_cuda_is_noticed_and_not_counted_as_ours():
    """After a foreign cuInit the doctor says that the choice is fixed."""
    start = "fakes[1].cuInit(0)\n"
    run = run_python(CUDA_TORCH + start + EXAMINE, scenario="four_gpus")
    report, _, _ = run.json()
    assert len(run.cuinit_calls()) == 1
    assert report["facts"]["cuda"]["state"] == "initialised"
    assert report["facts"]["cuda"]["device_count"] == 4
    assert "the choice of GPUs is fixed" in report["headline"]


@pytest.mark.parametrize(
    ("scenario", "hint"),
    [
        ("one_gpu", "take it back: del os.environ['CUDA_VISIBLE_DEVICES']"),
        ("four_gpus", "%gpu_select 3 --restart"),
    ],
)
def test_a_choice_after_the_start_of_cuda_is_said_to_be_too_late(scenario, hint):
    """Both in front of the cell and afterwards; the way out is one of this machine."""
    run = run_python(
        CUDA_TORCH
        + """
import json, os
fakes[1].cuInit(0)
from gpumagic.gpu_doctor import examine, watch
with watch() as watched:
    os.environ["CUDA_VISIBLE_DEVICES"] = "2,0"
print(json.dumps([watched.report.headline, examine().to_dict()]))
""",
        scenario=scenario,
    )
    changed, report = run.json()
    (found,) = (
        each for each in report["findings"] if each["topic"] == "CUDA_VISIBLE_DEVICES"
    )

    assert "Too late to count" in changed
    assert report["headline"].endswith("and CUDA_VISIBLE_DEVICES came too late.")
    assert "'2,0' came too late" in found["found"]
    assert found["verdict"] == "warning"
    assert hint in found["next_step"]


def test_the_magic_in_front_of_a_cell_names_what_started_cuda():
    """`%%gpu_doctor` says that this cell initialised CUDA, and shows its value."""
    run = run_python(
        """
        import json
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        shell.run_line_magic("load_ext", "gpumagic")
        shell.user_ns["cuda"] = fakes[1]
        shown = []
        shell.display_pub.publish = lambda data, **_: shown.append(data)
        run = shell.run_cell("%%gpu_doctor\\ncuda.cuInit(0)")
        print(json.dumps([run.result, shown[0]["text/plain"].splitlines()[0]]))
        """,
        scenario="four_gpus",
    )
    value, headline = run.json()
    assert value == 0
    assert headline.startswith("CUDA was started: the choice of GPUs is fixed")


def test_the_command_line_says_the_same_as_the_magic():
    """`python -m gpumagic doctor` draws it, parts on demand; --json: plain values."""
    machine = {"scenario": "wsl", "check": False}
    text = run_module("gpumagic", "doctor", **machine).stdout
    plain = json.loads(run_module("gpumagic", "doctor", "--json", **machine).stdout)
    assert plain["headline"] in " ".join(text.split())
    fine = run_module("gpumagic", "doctor", "--show", "fine", **machine).stdout
    whole = run_module("gpumagic", "doctor", "--all", **machine).stdout
    assert ["Front end" in each for each in (text, fine, whole)] == [False, True, True]


def test_the_exit_status_tells_of_a_problem():
    """A script can stop on a machine where something does not fit."""
    broken = run_module("gpumagic", "doctor", scenario="mismatch", check=False)
    sound = run_module("gpumagic", "doctor", scenario="no_gpus", load=(), check=False)
    assert (broken.returncode, sound.returncode) == (1, 0)


@pytest.mark.parametrize(
    ("words", "problem", "hint"),
    [
        (["doctr"], "'doctr' (choose from", "python -m gpumagic --help"),
        (["doctor", "--jsn"], "doctor knows no --jsn", "did you mean --json?"),
        ([], "required", "python -m gpumagic --help"),
    ],
)
def test_a_wrong_command_gives_two_lines(words, problem, hint):
    """What is wrong, and what to type next; exit status 2."""
    run = run_module("gpumagic", *words, scenario="no_gpus", load=(), check=False)
    lines = run.stderr.strip().splitlines()
    assert (run.returncode, len(lines)) == (2, 2)
    assert problem in lines[0]
    assert hint in lines[1]
