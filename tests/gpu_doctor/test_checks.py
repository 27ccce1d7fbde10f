"""Each fact leads to the right verdict, and to what to do about it."""

from __future__ import annotations

import dataclasses

import pytest

from gpumagic.devices.protocols import CudaState, Gpu, Initialisation, Inventory
from gpumagic.gpu_doctor.api import compare
from gpumagic.gpu_doctor.checks import Verdict
from tests.gpu_doctor.samples import (
    H100,
    LAPTOP,
    ONE_GPU,
    SAMPLES,
    TORCH,
    on,
    report,
    with_gpus,
)

TOPIC_OF_CUDA = "CUDA in this process"
READY = "Ready: 1 GPU (NVIDIA H100 80GB HBM3)."
MASK, BLOCKING = "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING"


def finding(facts, topic):
    """The one finding on a topic."""
    (found,) = [each for each in report(facts).findings if each.topic == topic]
    return found


def torch_is(facts, **changes):
    """The same machine with another torch."""
    return on(facts, torch=dataclasses.replace(TORCH, **changes))


def variable(name, value, facts=LAPTOP):
    """The same machine with a variable of the environment."""
    return on(facts, environment={name: value})


V100 = Gpu(0, name="V100", compute_capability=(7, 0))
LOST = Gpu(1, problem="lost", hint="reboot")
T4 = dataclasses.replace(H100, index=1, name="T4")
SECOND = dataclasses.replace(H100, index=1)
OLD = "no kernels for 1 GPU"
UNASKED = Inventory(unasked=True, problem="no pynvml", hint="x")
UNLISTED = dataclasses.replace(H100, processes=None)
SPLIT = dataclasses.replace(H100, mig_enabled=True)
FACTS = [
    (ONE_GPU, "torch", "ok", "built for CUDA 13.0", ""),
    (torch_is(LAPTOP, version=""), "torch", "warning", "not installed", "pytorch.org"),
    (with_gpus(ONE_GPU, V100), "torch", "problem", OLD, "built for CUDA 12.6"),
    (with_gpus(ONE_GPU, H100, V100), "torch", "warning", OLD, "built for CUDA 12.6"),
    (torch_is(with_gpus(ONE_GPU, V100), cuda="12.6"), "torch", "ok", "CUDA 12.6", ""),
    (torch_is(LAPTOP, hidden_by="/me/torch.py"), "torch", "problem", "/me", "rename"),
    (torch_is(LAPTOP, version="2.3.1"), "torch", "warning", "2.3.1", "2.4 and newer"),
    (on(LAPTOP, inventory=UNASKED), "NVIDIA driver", "warning", "no pynvml", "x"),
    (ONE_GPU, "NVIDIA driver", "ok", "580.65.06, runs CUDA up to 13.0", ""),
    (with_gpus(ONE_GPU, UNLISTED), "GPU processes", "note", "not listed", "memory in"),
    (with_gpus(ONE_GPU, H100, T4), "GPU numbers", "note", "need not be", "PCI_BUS_ID"),
    (with_gpus(ONE_GPU, SPLIT), "GPU 0", "note", "MIG, with no slices", "by its UUID"),
    (with_gpus(ONE_GPU), "GPUs", "note", "none, though", "passed on"),
    (with_gpus(ONE_GPU, LOST), "GPU 1", "problem", "lost", "reboot"),
    (with_gpus(ONE_GPU, H100, LOST), "GPU 1", "warning", "lost", "reboot"),
    (variable(MASK, " "), MASK, "warning", "hides every GPU", "unset"),
    (variable(BLOCKING, "1"), BLOCKING, "warning", "1", "every launch"),
]


@pytest.mark.parametrize(("facts", "topic", "verdict", "says", "hint"), FACTS)
def test_a_fact_and_its_verdict(facts, topic, verdict, says, hint):
    """What is wrong is said with its weight and with the next step."""
    found = finding(facts, topic)
    assert found.verdict.value == verdict
    assert says in found.found
    assert hint in found.next_step
    assert bool(hint) == bool(found.next_step)


@pytest.mark.parametrize(
    ("built_for", "driver_runs", "verdict"),
    [
        ("13.0", "12.4", Verdict.PROBLEM),
        ("12.8", "12.4", Verdict.OK),  # any 12.x runs on a driver for 12.0
        ("12.4", "13.0", Verdict.OK),
        ("13.0", None, Verdict.OK),  # unknown is no evidence against it
    ],
)
def test_torch_needs_a_driver_of_its_major_version(built_for, driver_runs, verdict):
    """A newer major CUDA in torch than in the driver is the problem, a minor is not."""
    torch = dataclasses.replace(TORCH, cuda=built_for)
    inventory = Inventory("1", driver_runs, "1", (H100,))
    facts = on(ONE_GPU, torch=torch, inventory=inventory)
    assert finding(facts, "torch").verdict is verdict


@pytest.mark.parametrize(
    ("state", "verdict", "says"),
    [
        (Initialisation.NOT_LOADED, "ok", "not started (driver library not loaded)"),
        (Initialisation.UNTOUCHED, "ok", "not started (driver library loaded"),
        (Initialisation.INITIALISED, "note", "started, 1 GPU visible"),
        (Initialisation.FORKED_CHILD, "problem", "forked"),
        (Initialisation.FAILED, "problem", "failed (code 3)"),
        (Initialisation.UNKNOWN, "unknown", "cannot be asked"),
    ],
)
def test_every_state_of_cuda_has_its_words(state, verdict, says):
    """How far CUDA has come is told, and whether that matters."""
    facts = on(ONE_GPU, cuda=CudaState(state, code=3, device_count=1))
    found = finding(facts, "CUDA in this process")
    assert found.verdict.value == verdict
    assert says in found.found


def started(facts, count=1):
    """The same machine, where CUDA has started with so many GPUs."""
    return on(facts, cuda=CudaState(Initialisation.INITIALISED, 0, count))


OPEN, FIXED = "you can still choose.", "the choice of GPUs is fixed."
WILL_SEE = "it will see those that CUDA_VISIBLE_DEVICES='7' allows."
HIDDEN = "1 GPU (NVIDIA H100 80GB HBM3), all hidden by CUDA_VISIBLE_DEVICES=''."
TWO = with_gpus(ONE_GPU, H100, SECOND)
MPS = torch_is(LAPTOP, imported=True, accelerator="mps")
APPLE = on(LAPTOP, torch=TORCH, platform="darwin arm64")
HEADLINES = [
    (LAPTOP, "No GPU here: work runs on the CPU."),
    (ONE_GPU, f"{READY} CUDA has not started: {OPEN}"),
    (started(ONE_GPU), f"{READY} CUDA has started: {FIXED}"),
    (started(TWO), f"Ready: 1 of 2 GPUs{READY[12:]} CUDA has started: {FIXED}"),
    (with_gpus(ONE_GPU, H100, LOST), f"{READY} CUDA has not started: {OPEN}"),
    (MPS, "Ready: torch can use the accelerator 'mps'."),
    (APPLE, "Ready: the Apple GPU, which torch calls 'mps'."),
    (
        torch_is(LAPTOP, cuda=None, hip="6.2"),
        "No NVIDIA GPU here; of others only torch can tell, once it is started.",
    ),
    (
        started(LAPTOP, 4),
        "Ready: CUDA has started with 4 GPUs, of which NVML tells nothing.",
    ),
    (variable(MASK, "", ONE_GPU), HIDDEN),
    (variable(MASK, "7", ONE_GPU), f"{READY} CUDA has not started: {WILL_SEE}"),
]


@pytest.mark.parametrize(("facts", "headline"), HEADLINES)
def test_the_first_line_is_the_answer(facts, headline):
    """Whether a GPU can be used, or the problem that prevents it."""
    assert report(facts).headline == headline


def test_a_start_of_cuda_is_the_first_that_is_said_of_a_cell():
    """What can still be chosen depends on it; the rest is named, and in a table."""
    before = on(ONE_GPU, environment={"CUDA_VISIBLE_DEVICES": "0"})
    after = on(
        ONE_GPU,
        torch=dataclasses.replace(TORCH, imported=True),
        cuda=CudaState(Initialisation.INITIALISED, 0, 1),
    )
    found = compare(before, after)
    changes = [(each.topic, each.before, each.after) for each in found.changes]
    assert changes == [
        ("torch", "not imported", "imported"),
        ("CUDA in this process", "not started", "started"),
        ("CUDA_VISIBLE_DEVICES", "'0'", "unset"),
    ]
    assert found.headline == (
        "CUDA was started: the choice of GPUs is fixed from here on. "
        "Changed: torch went from not imported to imported and CUDA_VISIBLE_DEVICES "
        "went from '0' to unset."
    )
    after = variable("PYTORCH_CUDA_ALLOC_CONF", "x", started(ONE_GPU))
    assert "Too late to count" in compare(started(ONE_GPU), after).headline


def test_what_is_fine_is_folded_and_counted():
    """Eyes are for what is not; a note is no table row besides."""
    laptop = dict(SAMPLES)["laptop"]
    fine = [each for each in laptop.findings if each.verdict is Verdict.OK]

    assert laptop.parts["fine"] == f"{len(fine)} checks are fine"
    assert not any(each.topic in str(laptop) for each in fine)
    assert all(each.topic in str(laptop.show("fine")) for each in fine)
    assert str(laptop).count("there is no NVIDIA driver here") == 1


def test_the_worst_is_told_first_and_the_rest_is_kept():
    """Three things to do are in sight, problems before warnings; all can be asked."""
    wrong = dict(SAMPLES)["everything-wrong"]
    notes = wrong.drawing().notes
    steps = [each.next_step for each in wrong.findings if each.next_step]

    assert [each.kind for each in notes] == ["problem", "problem", "warning"]
    whole = " ".join(str(wrong.show()).split())
    assert [step for step in steps if step not in whole] == []


def test_every_problem_says_what_to_do():
    """No sample report leaves its reader alone with a problem or a warning."""
    for _, each in SAMPLES:
        for found in getattr(each, "findings", ()):
            if found.verdict in (Verdict.PROBLEM, Verdict.WARNING):
                assert found.next_step, found


def test_an_empty_variable_is_a_change_and_a_driver_library_is_none():
    """Set to nothing is not unset; `import torch` maps libcuda, and starts nothing."""
    nowhere = CudaState(Initialisation.NOT_LOADED)
    before = on(ONE_GPU, environment={"CUDA_VISIBLE_DEVICES": ""}, cuda=nowhere)
    (change,) = compare(before, ONE_GPU).changes
    assert (change.before, change.after) == ("''", "unset")


@pytest.mark.parametrize(
    ("simulated", "way"), [(True, "--simulate"), (False, "--restart")]
)
def test_the_way_to_other_gpus_is_one_that_this_machine_has(simulated, way):
    """A simulated machine is switched on anew, a real one needs a restart."""
    started = CudaState(Initialisation.INITIALISED, code=0, device_count=1)

    anew = "%gpu_select 0 --simulate 2xh100" if simulated else ""
    (first,) = ONE_GPU.inventory.gpus
    two = with_gpus(ONE_GPU, first, dataclasses.replace(first, index=1))
    facts = on(two, cuda=started, simulated=simulated, anew=anew)
    found = finding(facts, TOPIC_OF_CUDA)

    assert way in found.next_step
    assert found.next_step.endswith(anew)


def test_where_there_is_one_gpu_no_other_is_offered():
    """A number that this machine does not have would be refused."""
    started = CudaState(Initialisation.INITIALISED, code=0, device_count=1)

    assert finding(on(ONE_GPU, cuda=started), TOPIC_OF_CUDA).next_step == ""
