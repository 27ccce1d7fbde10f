"""What `%gpu_select` predicts is what torch's own CUDA then shows.

Each machine is one process; each choice is made in a fork of it, which starts CUDA.
"""

from __future__ import annotations

import pytest

from tests.gpu_select.kernels import kernel, run
from tests.hardware import machines

_CHOICES = """
import torch

def by_rank(report, attribute):
    rows = [row for row in report.rows if getattr(row, attribute) is not None]
    rows.sort(key=lambda row: getattr(row, attribute))
    return [row.uuid for row in rows]

def of_torch():
    if not torch.cuda.device_count():
        return []
    for number in range(torch.cuda.device_count()):
        torch.ones(2, device=f"cuda:{number}").sum().item()
    all_of_them = range(torch.cuda.device_count())
    return [str(torch.cuda.get_device_properties(each).uuid) for each in all_of_them]

def ask(words=""):
    return shell.run_line_magic("gpu_select", f"-q -o {words}")

def choice(words):
    def made():
        chosen = ask(words)
        seen = of_torch()
        after = ask()
        too_late = typed("%gpu_select 0")
        return dict(
            predicted=by_rank(chosen, "predicted"), before=chosen.evidence.name,
            seen=seen, shown=by_rank(after, "actual"), verdict=after.verdict.name,
            evidence=after.evidence.name, late=too_late, title=typed("%gpu_select"),
            doctor=typed("%gpu_doctor"), mask=os.environ.get("CUDA_VISIBLE_DEVICES"),
        )
    return made
"""


def made(choices, scenario=None, **variables):
    """What came of each choice, by its words."""
    code = f"{_CHOICES}\nshow(**{{each: forked(choice(each)) for each in {choices!r}}})"
    return machines.run(code, scenario, **variables)


def assert_true(of):
    """What was predicted is what torch sees, in its order, and what is then shown."""
    bare = [each.removeprefix("GPU-").removeprefix("MIG-") for each in of["predicted"]]
    assert of["before"] == "PREDICTED"
    assert of["seen"] == bare
    if bare:
        assert of["shown"] == of["predicted"]
        assert (of["verdict"], of["evidence"]) == ("FIXED", "CONFIRMED")
        assert_doctor_agrees(of)


def assert_doctor_agrees(of):
    """`%gpu_doctor` has the same count, and no quarrel with the variables."""
    said = " ".join(of["doctor"].split())
    assert said.startswith(f"Ready: {len(of['seen'])} ")
    assert "CUDA has started: the choice of GPUs is fixed." in said


def test_on_this_machine_the_first_gpu_is_predicted_and_shown():
    """`%gpu_select 0` before CUDA; after it nothing can be chosen, and why is told."""
    of = made(["0"])["0"]

    assert len(of["seen"]) == 1
    assert_true(of)
    assert "CUDA has started" in of["title"]


@pytest.mark.parametrize(
    ("count", "choices"),
    [
        (1, {"0": 1, "none": 0, "all": 1}),
        (
            4,
            {"2,0": 2, "3 1-2": 3, "GPU-00000002": 1, "free -n 2": 2},
        ),
        (8, {"7,0,3": 3, "all": 8, "GPU-00000007,0": 2}),
    ],
)
def test_on_machines_of_many_sizes(count, choices, tmp_path):
    """Numbers, ranges, UUIDs and the freest: each is what torch sees."""
    found = made([*choices], machines.h100s(count, tmp_path))

    for words, visible in choices.items():
        of = found[words]
        assert len(of["predicted"]) == visible, words
        assert_true(of)


def test_slices_of_a_gpu_are_chosen_by_their_uuid():
    """With MIG: a slice by the beginning of its UUID, and whole GPUs beside it."""
    found = made(["MIG-bbbb", "3,0"], "mig_with_holes")

    assert len(found["MIG-bbbb"]["predicted"]) == 1
    assert found["MIG-bbbb"]["predicted"][0].startswith("MIG-bbbb")
    for of in found.values():
        assert_true(of)


def test_in_a_job_of_slurms_both_gpus_are_numbered_as_the_job_sees_them():
    """NVML counts eight; the cgroup gives the third and the sixth, as 0 and 1."""
    found = made(["", "all"], "slurm_cgroup", CUDA_VISIBLE_DEVICES="0,1")

    for of in found.values():
        assert [each[:8] for each in of["seen"]] == ["33333333", "66666666"]
        assert of["shown"] == [f"GPU-{each}" for each in of["seen"]]
        assert of["verdict"] == "FIXED"
        assert_doctor_agrees(of)


def test_a_mask_that_the_kernel_was_given_is_the_limit(tmp_path):
    """Nothing beyond it is chosen without --force; within it all is as predicted."""
    machine = machines.h100s(4, tmp_path)
    limit = "GPU-00000003,GPU-00000001"
    found = made(["", "1", "all", "3 --force"], machine, CUDA_VISIBLE_DEVICES=limit)

    visible = {words: [each[:8] for each in of["seen"]] for words, of in found.items()}
    assert visible == {
        "": ["00000003", "00000001"],
        "1": ["00000001"],
        "all": ["00000003", "00000001"],
        "3 --force": ["00000003"],
    }
    for of in found.values():
        assert_true(of)


_TOO_LATE = """
typed("import torch; x = torch.ones(2, device='cuda')")
late = typed("%gpu_select 2,0")
restart = typed("%gpu_select 2,0 --restart")
show(late=late, restart=restart, mask=os.environ.get("CUDA_VISIBLE_DEVICES"))
"""


def test_the_line_for_a_terminal_gives_the_gpus_that_were_asked_for(tmp_path):
    """Too late, `--restart` says what to type; with its variables CUDA shows them."""
    machine = machines.h100s(4, tmp_path)
    found = machines.run(_TOO_LATE, machine)
    words = " ".join(found["restart"].split()).partition("start again with ")[2]
    *variables, program = words.split()[:3]
    of = made([""], machine, **dict(each.split("=", 1) for each in variables))[""]

    assert "Too late to choose: CUDA has started in In[1], line 1" in found["late"]
    assert found["mask"] is None
    assert program == "ipython"
    assert [each[:8] for each in of["seen"]] == ["00000002", "00000000"]


@pytest.mark.kernel
def test_a_choice_that_comes_too_late_outlives_the_restart_of_a_kernel(tmp_path):
    """The kernel that comes up again shows what was chosen, by torch's own word."""
    machine = str(machines.h100s(4, tmp_path))
    machines.only_on_the_stand_in()
    use = "import torch; torch.ones(2, device='cuda')"
    look = "[str(torch.cuda.get_device_properties(k).uuid)[:8] for k in range(2)]"
    with kernel(tmp_path, GPUMAGIC_FAKE_SCENARIO=machine) as manager:
        *_, before, said = run(
            manager, "%load_ext gpumagic", use, look, "%gpu_select 2,0 --restart"
        )
        manager.restart_kernel()
        taken, _, after = run(manager, "%load_ext gpumagic", use, look)

    assert before == "['00000000', '00000001']"
    assert "After the restart: cuda:0 is GPU 2, cuda:1 is GPU 0." in said
    assert "GPU 2" in taken
    assert after == "['00000002', '00000000']"


_BROKEN = """
typed("import time, torch; x = torch.ones(4, device='cuda')")
typed("x[torch.tensor([9], device='cuda')]; time.sleep(0.2)")
show(title=typed("%gpu_select"), late=typed("%gpu_select 0"),
     again=typed("%gpu_select 0 --restart"))
"""


def test_after_a_failed_kernel_the_choice_is_still_told():
    """What CUDA shows is asked of the driver, which a failed kernel leaves alone."""
    found = machines.run(_BROKEN)

    assert "CUDA has started in In[1], line 1" in found["title"]
    assert "Now cuda:0 is GPU 0." in " ".join(found["title"].split())
    assert all("Traceback" not in each for each in found.values())
