"""`%gpu_select` in real shells: what is typed, what is shown, what it leaves."""

from __future__ import annotations

import json
import textwrap

import pytest

from tests.fakes.run import cuinit_calls, machine_environment, run_python
from tests.gpu_select.kernels import kernel, run

SHELL = """
    import ctypes, json, os
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "gpumagic")

    def cell(text):
        with capture_output() as seen:
            done = shell.run_cell(text, store_history=True)
        shown = "".join(each.data["text/plain"] + "\\n" for each in seen.outputs)
        error = done.error_before_exec or done.error_in_exec
        return {
            "shown": shown + seen.stdout,
            "error": error and f"{type(error).__name__}: {error}",
            "result": done.result if isinstance(done.result, (int, str)) else None,
            "mask": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }

    def tell(found):
        print(json.dumps(found))
"""
START = "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)"


def cells(*texts, scenario="four_gpus", **options):
    """What each cell of a notebook came to, on a fake machine."""
    program = textwrap.dedent(SHELL) + f"tell([cell(each) for each in {list(texts)!r}])"
    machine = {"load": ("libcuda",), "install": ("nvml", "libcuda")} | options
    return run_python(program, scenario=scenario, **machine).json()


def test_a_choice_is_shown_once_and_handed_out_on_request():
    """The line shows the table; `-o` hands out the report, `-q` shows nothing."""
    plain, silent, json_form = cells(
        "%gpu_select 2,0",
        "report = %gpu_select 1 -o -q\nreport.to_dict()['rows'][1]['predicted']",
        "%gpu_select 3 --json",
    )

    assert plain["shown"].startswith("cuda:0 is GPU 2, cuda:1 is GPU 0 (predicted")
    assert plain["mask"] == "2,0"
    assert silent["result"] == 0
    assert json.loads(json_form["shown"])["action"] == "selected"


def test_a_refusal_shows_what_was_found_and_stops_the_notebook():
    """After the start one sentence is shown, then the error of two lines."""
    _, _, late, after = cells("%gpu_select 2", START, "%gpu_select 1", "%gpu_select 2")

    assert "In[2]" in late["shown"]
    assert "Memory free" not in late["shown"]
    assert late["error"].startswith("NotSelected: CUDA has started in In[2]")
    assert "--restart" in late["error"]
    assert late["mask"] == "2"
    assert after["error"] is None
    assert "confirmed by the driver" in after["shown"]


def test_a_start_that_is_not_as_predicted_is_shown_by_itself():
    """If somebody changed the variable in between, the first use of CUDA says so."""
    _, _, started, later = cells(
        "%gpu_select 2",
        "import os; os.environ['CUDA_VISIBLE_DEVICES'] = '1'",
        f"os.environ['CUDA_VISIBLE_DEVICES'] = '0'; {START}\n"
        "os.environ['CUDA_VISIBLE_DEVICES'] = '2'",
        "x = 1 + 1",
    )

    assert "the driver shows otherwise than the variables say" in started["shown"]
    assert later["shown"] == ""


def test_the_choice_outlives_an_unload_and_the_guard_does_not():
    """What was asked for stays; what was set of our own accord is undone."""
    _, before, _, after, again = cells(
        "%gpu_select 2",
        "import os; os.environ['PYTORCH_NVML_BASED_CUDA_CHECK']",
        "%unload_ext gpumagic",
        "str(os.environ.get('PYTORCH_NVML_BASED_CUDA_CHECK'))",
        "%load_ext gpumagic\n%gpu_select",
    )

    assert (before["result"], after["result"]) == ("1", "None")
    assert again["mask"] == "2"
    assert "cuda:0 is GPU 2" in again["shown"]


def test_waiting_counts_in_one_place_and_ends_in_the_refusal():
    """`--wait` shows how long it has waited, and then why it was in vain."""
    (seen,) = cells("%gpu_select free -n 3 --wait 1s")

    assert "Waiting for a free GPU" in seen["shown"]
    assert "3 GPUs asked for, 2 free" in seen["error"]


@pytest.mark.kernel
def test_a_choice_is_taken_up_again_after_a_restart(tmp_path):
    """With `--restart` the next life of the kernel begins with the same GPU."""
    machine = machine_environment(tmp_path) | {"GPUMAGIC_FAKE_LOAD": ""}
    with kernel(tmp_path, **machine) as manager:
        first = run(
            manager,
            "%load_ext gpumagic",
            f"{START}",
            "%gpu_select 2,0 --restart",
        )
        manager.restart_kernel(now=True)
        second = run(
            manager,
            "%load_ext gpumagic",
            "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])",
            "%reload_ext gpumagic",
        )

    assert "Restart the kernel now" in first[2]
    assert "After the restart: cuda:0 is GPU 2, cuda:1 is GPU 0." in first[2]
    assert "Nothing is set" not in first[2]
    assert second[0].startswith("Kept over the restart: cuda:0 is GPU 2")
    assert second[1] == "2,0"
    assert second[2] == ""  # it is taken up once
    assert len(cuinit_calls(tmp_path / "log")) == 1  # the user's own
