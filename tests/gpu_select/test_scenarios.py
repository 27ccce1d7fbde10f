"""Every machine and every state of CUDA, each in a process of its own.

Whatever is chosen is then put to the proof: the driver is started, and shows what
was predicted. Whatever is refused leaves the environment as it was.
"""

from __future__ import annotations

import textwrap

import pytest

from tests.fakes.run import run_python

ASK = """
    import ctypes, json, os
    from gpumagic.errors import GpuMagicError
    from gpumagic.gpu_select import select, status

    NAMES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")

    def environment():
        return [os.environ.get(name) for name in NAMES]

    def started():
        return ctypes.CDLL("libcuda.so.1").cuInit(0)

    def told(report):
        return {
            "action": report.action.name,
            "verdict": report.verdict.name,
            "headline": report.headline,
            "predicted": by_rank(report, "predicted"),
            "actual": by_rank(report, "actual"),
            "evidence": report.evidence.name,
            "remarks": [each.text for each in report.remarks],
            "environment": environment(),
        }

    def by_rank(report, attribute):
        seen = [row for row in report.rows if getattr(row, attribute) is not None]
        seen.sort(key=lambda row: getattr(row, attribute))
        return [row.uuid if row.is_slice else row.physical for row in seen]

    def chosen(words, **options):
        before = environment()
        try:
            return told(select(words, **options))
        except GpuMagicError as error:
            report = getattr(error, "report", None)
            return {
                "error": error.problem,
                "hint": error.hint,
                "unchanged": environment() == before,
                "verdict": report and report.verdict.name,
                "whys": report and {row.physical: row.why for row in report.rows},
            }

    def tell(found):
        print(json.dumps(found), flush=True)
"""


def on(scenario: str, code: str, **options):
    """What a snippet tells on a machine, in which nothing of ours started CUDA."""
    program = textwrap.dedent(ASK) + textwrap.dedent(code)
    machine = {"load": ("libcuda",), "install": ("nvml", "libcuda")} | options
    run = run_python(program, scenario=scenario, **machine)
    assert len(run.cuinit_calls()) == code.count("started()")
    return run.json()


M0 = "MIG-aaaa1111-2222-4333-8444-555566667777"
M1 = "MIG-bbbb1111-2222-4333-8444-555566667777"


# ---------------------------------------------------------------- what is chosen


@pytest.mark.parametrize(
    ("scenario", "words", "seen"),
    [
        ("four_gpus", "2,0", [2, 0]),
        ("four_gpus", "3 1-2", [3, 1, 2]),
        ("four_gpus", "GPU-2222", [2]),
        ("four_gpus", "none", []),
        ("four_gpus", "all", [0, 1, 2, 3]),
        ("one_gpu", "0", [0]),
        ("mixed_models", "2,1", [2, 1]),
        ("mig_with_holes", "3,0", [3, 0]),
        ("mig_with_holes", M1, [M1]),
        ("gpu_lost", "0", [0]),
        ("no_permission", "1", [1]),
        ("nothing_supported", "0", [0]),
        ("wsl", "0", [0]),
        ("container_foreign_pids", "0", [0]),
        ("slurm_cgroup", "all", None),
    ],
)
def test_the_driver_shows_what_was_predicted(scenario, words, seen):
    """A choice is predicted, set, and confirmed by the driver once it has started."""
    code = f"""
    words = {words!r}.split()
    first, again = chosen(words), chosen(words)
    code = started()
    tell([first, again, told(status()), code])
    """
    first, again, after, code = on(scenario, code)

    if seen is not None:
        assert first["predicted"] == seen
    assert first["action"] == "SELECTED"
    assert again["predicted"] == first["predicted"]
    assert first["evidence"] == "PREDICTED"
    assert first["environment"][1] == "PCI_BUS_ID"
    if first["predicted"]:
        assert after["verdict"] == "FIXED"
        assert after["evidence"] == "CONFIRMED"
        assert after["actual"] == first["predicted"]
    else:
        assert code == 100  # no device


def test_a_dry_run_and_a_refusal_set_nothing():
    """What is only tried, and what cannot be, leaves both variables unset."""
    tried, wrong, after = on(
        "four_gpus", 'tell([chosen("2", dry_run=True), chosen("9"), environment()])'
    )

    assert tried["action"] == "DRY_RUN"
    assert tried["predicted"] == [2]
    assert wrong["unchanged"]
    assert "GPUs 0, 1, 2 and 3" in wrong["error"]
    assert after == [None, None]


def test_a_gpu_that_is_named_is_taken_though_another_claims_it(tmp_path):
    """Who names a GPU gets it, and is told which process has it for its own."""
    pid, taken, other = on(
        "four_gpus",
        """
    import subprocess, sys
    HOLD = (
        "from gpumagic.gpu_select import select; select('2'); "
        "print('held', flush=True); input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLD], **pipes) as holder:
        holder.stdout.readline()
        tell([holder.pid, chosen("2"), chosen("1")])
        holder.communicate(b"enough")
    """,
        env={"TMPDIR": str(tmp_path)},
    )
    said = [each for each in taken["remarks"] if "is claimed by" in each]

    assert taken["action"] == "SELECTED"
    assert len(said) == 1
    assert f"pid {pid}" in said[0]
    assert "is claimed by" not in " ".join(other["remarks"])


# ---------------------------------------------------------------- the inherited limit


def test_an_inherited_mask_is_the_outer_limit():
    """What the kernel was given is left only by `force`; `all` means all of it."""
    outside, inside, every, forced = on(
        "four_gpus",
        """
    tell([chosen("0"), chosen("3"), chosen("all"), chosen("0", force=True)])
    """,
        env={"CUDA_VISIBLE_DEVICES": "3,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    )

    assert outside["unchanged"]
    assert "outside of what this kernel was given (GPUs 3 and 1)" in outside["error"]
    assert "--force" in outside["hint"]
    assert inside["predicted"] == [3]
    assert every["predicted"] == [3, 1]
    assert forced["predicted"] == [0]


# ---------------------------------------------------------------- too late


def test_after_the_start_nothing_is_changed_and_the_way_out_is_told():
    """What is visible already is confirmed; for another GPU there is a restart."""
    same, other, visible = on(
        "four_gpus",
        """
    chosen("2,0")
    started()
    tell([chosen("2,0"), chosen("1"), chosen("0")])
    """,
    )

    assert same["action"] == "SELECTED"
    assert same["evidence"] == "CONFIRMED"
    assert other["unchanged"]
    assert other["verdict"] == "FIXED"
    assert "CUDA has started" in other["error"]
    assert "--restart" in other["hint"]
    assert "set_device(1)" in visible["hint"]


def test_a_forked_child_of_a_process_with_cuda_is_told_so():
    """In the child nothing can be chosen, and no environment is touched."""
    code = """
    from gpumagic.devices.nvidia import open_driver
    driver = open_driver()
    started()
    status(driver)
    if os.fork() == 0:
        tell(chosen("0", driver=driver))
        os._exit(0)
    os.wait()
    """
    refused = on("four_gpus", code)

    assert refused["verdict"] == "LOST"
    assert refused["unchanged"]
    assert "forked" in refused["error"]


VAIN_TORCH = """
    import sys, types
    torch = types.ModuleType("torch")
    torch._C = types.ModuleType("torch._C")
    torch._C._cuda_getDeviceCount = lambda: 0
    torch.cuda = types.ModuleType("torch.cuda")
    torch.cuda.is_available = lambda: torch._C._cuda_getDeviceCount() > 0
    torch.cuda.is_initialized = lambda: False
    sys.modules.update({"torch": torch, "torch._C": torch._C, "torch.cuda": torch.cuda})

    from IPython.core.interactiveshell import InteractiveShell
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "gpumagic")
    witness = shell.magics_manager.registry["SelectMagics"].notebook.watcher
"""


def test_after_a_vain_look_of_torchs_no_success_is_promised():
    """Torch keeps the answer of a failed look, so that choosing is refused."""
    code = (
        VAIN_TORCH
        + """
    shell.run_cell("import torch\\ntorch.cuda.is_available()", store_history=True)
    before = environment()
    said = shell.run_cell("%gpu_select 0 -q", store_history=True)
    forced = shell.run_cell("report = %gpu_select 0 --force -o -q", store_history=True)
    now, error = told(status(witness=witness)), str(said.error_in_exec)
    tell([now, error, before, environment()])
    """
    )
    now, error, before, after = on("four_gpus", code)

    assert now["verdict"] == "FIXED_FOR_TORCH"
    assert "torch has looked for GPUs in In[1], line 2" in error
    assert before == [None, None]
    assert after == ["0", "PCI_BUS_ID"]


# ---------------------------------------------------------------- no driver


@pytest.mark.parametrize(
    ("scenario", "options", "said"),
    [
        ("no_gpus", {}, "no NVIDIA GPU"),
        ("driver_not_loaded", {}, "driver"),
        ("mismatch", {}, "different versions"),
        ("four_gpus", {"load": (), "install": ()}, "no NVIDIA driver"),
        ("four_gpus", {"load": (), "install": ("libcuda",)}, "no NVIDIA driver"),
    ],
)
def test_where_there_is_nothing_to_choose_from_it_is_an_error(scenario, options, said):
    """Without a GPU that answers, a choice is refused with the reason."""
    refused, looked = on(scenario, 'tell([chosen("0"), told(status())])', **options)

    assert refused["unchanged"]
    assert said in refused["error"]
    assert refused["hint"]
    assert looked["predicted"] == []


def test_asking_how_things_stand_imports_nothing_that_chooses():
    """The first answer in a notebook does not wait for what it does not need."""
    run = run_python(
        """
        import sys
        from gpumagic.gpu_select import status
        status()
        print([name for name in ("apply", "claims", "request")
               if f"gpumagic.gpu_select.{name}" in sys.modules])
        print("gpumagic.report.events" in sys.modules)
        """
    )

    assert run.stdout == "[]\nFalse\n"
