"""`%gpu_select` in real shells: what is typed, what is shown, what it leaves."""

from __future__ import annotations

import json
import subprocess
import sys
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


def test_in_front_of_a_cell_the_choice_is_made_before_the_cell_runs():
    """The cell finds the variable set, and its own value is the value."""
    (seen,) = cells("%%gpu_select 3\nimport os\nos.environ['CUDA_VISIBLE_DEVICES']")

    assert seen["result"] == "3"


def test_a_refusal_shows_what_was_found_and_stops_the_notebook():
    """After the start one sentence is shown, then the error of two lines."""
    _, _, late, after = cells("%gpu_select 2", START, "%gpu_select 1", "%gpu_select 2")

    assert "In[2], line 1" in late["shown"]
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


def test_a_start_as_predicted_is_silent():
    """Nothing is shown where the driver does what was said."""
    _, started = cells("%gpu_select 2", f"{START};")

    assert started["shown"] == ""


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


def test_the_guard_is_switched_by_hand():
    """`--no-guard` leaves torch as it is, `--guard` puts it back."""
    off, value, on = cells(
        "%gpu_select --no-guard",
        "import os; str(os.environ.get('PYTORCH_NVML_BASED_CUDA_CHECK'))",
        "%gpu_select --guard --show state",
    )

    assert value["result"] == "None"
    assert "the guard is off\n    -> %gpu_select --guard" in off["shown"]
    assert "Guard                 on" in on["shown"]


WRONG = {
    "%gpu_select -n 2": "say which, as in %gpu_select free -n 2",
    "%gpu_select fre": "did you mean free?",
    "%gpu_select cuda:1": "type %gpu_select 1",
    "%gpu_select -1": "type %gpu_select none",
    "%gpu_select 0,0": "named twice",
    "%gpu_select 2 --wait soon": "soon",
    "%gpu_select 2 --reset": "type %gpu_select --reset, or %gpu_select 2",
    "%gpu_select 2 --wait 10m": "type %gpu_select free --wait",
    "%gpu_select 2 --min-free 1GiB": "%gpu_select free --min-free",
}


@pytest.fixture(scope="module")
def after_wrong_lines():
    """What each of them comes to, one after the other."""
    return dict(zip(WRONG, cells(*WRONG), strict=True))


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_line_says_what_to_type(line, after_wrong_lines):
    """A slip is two lines, and nothing is set."""
    seen = after_wrong_lines[line]

    assert WRONG[line] in seen["error"]
    assert seen["mask"] is None


def test_waiting_counts_in_one_place_and_ends_in_the_refusal():
    """`--wait` shows how long it has waited, and then why it was in vain."""
    (seen,) = cells("%gpu_select free -n 3 --wait 1s")

    assert "Waiting for a free GPU" in seen["shown"]
    assert "3 GPUs were asked for, 2 are free" in seen["error"]


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


KEEP = """
import os, subprocess, sys
os.environ["JPY_SESSION_NAME"], os.environ["XDG_STATE_HOME"] = "a.ipynb", {home!r}
code = '''
from gpumagic.gpu_select import restart
from gpumagic.gpu_select.notebook import kept_folder

restart.keep(kept_folder(), {kept}, "a.ipynb")
'''
done = subprocess.run([sys.executable, "-c", code], check=True)
"""


def test_words_are_taken_up_again_where_the_driver_tells_no_uuids(tmp_path):
    """What is kept without UUIDs means after the restart what it meant when typed."""
    keep = KEEP.format(home=str(tmp_path), kept='"free -n 2 --exclude 0", []')
    _, taken_up = cells(keep, "%reload_ext gpumagic")

    assert taken_up["shown"].startswith("Kept over the restart: cuda:0 is GPU ")
    assert len(taken_up["mask"].split(",")) == 2
    assert "0" not in taken_up["mask"].split(",")


@pytest.mark.kernel
def test_a_limit_that_was_left_is_left_again_after_a_restart(tmp_path):
    """`--force` and `--as` belong to the choice, so they are kept with it."""
    machine = machine_environment(tmp_path) | {
        "GPUMAGIC_FAKE_LOAD": "",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    with kernel(tmp_path, **machine) as manager:
        run(manager, "%load_ext gpumagic", "%gpu_select 2 --force --as uuid --restart")
        manager.restart_kernel(now=True)
        second = run(
            manager,
            "%load_ext gpumagic",
            "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])",
        )

    assert second[0].startswith("Kept over the restart: cuda:0 is GPU 2")
    assert second[1].startswith("GPU-")


# They wait for the lock for as long as it takes: a busy machine may stop the other one
# while it has it.
RACER = """
import functools, json, os, sys
from gpumagic.gpu_select import claims, select

claims.held_open = functools.partial(claims.held_open, timeout_s=300)
for line in sys.stdin:
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        taken = [row.physical for row in select("free").rows if row.chosen]
    except Exception as error:
        taken = str(error)
    print(json.dumps(taken), flush=True)
    sys.stdin.readline()
    claims.release()
    print("released", flush=True)
"""


def test_two_notebooks_that_ask_at_once_get_different_gpus(tmp_path):
    """In 60 rounds on the same idle GPUs there is no collision; unlocked, in 20."""
    machine = machine_environment(tmp_path) | {"TMPDIR": str(tmp_path)}
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER],
            env=machine,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]

    def all_say() -> list[str]:
        for racer in racers:
            racer.stdin.write("go\n")
            racer.stdin.flush()
        return [racer.stdout.readline().strip() for racer in racers]

    rounds = []
    for _ in range(60):
        rounds.append(sorted(all_say()))
        assert all_say() == ["released", "released"]
    for racer in racers:
        racer.communicate()

    assert {tuple(each) for each in rounds} == {("[1]", "[3]")}


def test_loading_brings_in_no_more_of_this_room_than_watches():
    """What chooses, keeps and judges is imported when it is asked for."""
    loaded = run_python(
        """
        import json, sys
        from IPython.core.interactiveshell import InteractiveShell

        InteractiveShell.instance().run_line_magic("load_ext", "gpumagic")
        room = "gpumagic.gpu_select."
        print(json.dumps([name for name in sys.modules if name.startswith(room)]))
        """
    ).json()

    assert sorted(each.rpartition(".")[2] for each in loaded) == [
        "magic",
        "notebook",
        "watch",
    ]
