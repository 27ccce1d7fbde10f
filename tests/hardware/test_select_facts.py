"""How the real driver reads CUDA_VISIBLE_DEVICES, and what asking it costs.

Every question is put in a fresh process with its own value of the variable. All
answers are kept in one measurement; asserted is only what our code relies on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpumagic.devices.nvml import read_inventory, same_uuid
from gpumagic.devices.visibility import BY_PCI_ADDRESS, visible

_ROOT = Path(__file__).parents[2]
_VARIABLE = "CUDA_VISIBLE_DEVICES"

# {uuid} is that of the GPU with the lowest address, {digits} what follows "GPU-".
_MASKS = (
    *("0,0", "0,99,0", "0,99,99", "GPU-{digits},GPU-{start}"),  # repetitions
    *("{uuid}", "GPU-{start}", "GPU-", "gpu-{digits}", "GPU-{capitals}", " {uuid}"),
    *("{uuid} ", "{uuid},0", "0,{uuid}", "99,{uuid}", "GPU-ffffffff,{uuid}"),
    *("0", "00", "+0", "-0", " 0 ", "0x0", "0 1", "0-3", "0,", ",0", "0.5"),
    *("4294967296", "-4294967296", "99", "0,99", "0,-1", "\N{ARABIC-INDIC DIGIT ZERO}"),
    *("", " ", "-1", "none", "NoDevFiles", '"0"', "MIG-0", "MIG-{uuid}/0/0"),
)

_PRELUDE = """
import ctypes, json, os, sys, threading, time
from gpumagic.devices.nvidia import identities

cuda = ctypes.CDLL("libcuda.so.1")

def count():
    number = ctypes.c_int(-1)
    return [cuda.cuDeviceGetCount(ctypes.byref(number)), number.value]

def show(**found):
    print(json.dumps(found), flush=True)
"""

_SEEN = """
code = cuda.cuInit(0)
show(code=code, count=count(), uuids=[each["uuid"] for each in identities(cuda)])
"""

_SECOND_TRY = """
first = cuda.cuInit(0)
after = count()
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
show(first=first, count_after=after, second=cuda.cuInit(0), count_at_last=count())
"""

_TORCH_AFTER_A_VAIN_LOOK = """
import torch
first = torch.cuda.is_available()
after = count()
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
show(first=first, count_after=after, second=torch.cuda.is_available(),
     torch_count=torch.cuda.device_count(), count_at_last=count())
"""


_FORK = """
from gpumagic.devices.nvidia import NvidiaDriver
driver = NvidiaDriver()
cuda.cuInit(0)
before = [driver.cuda_started(), driver.cuda_state().state.name]
child = os.fork()
if child == 0:
    show(before=before, started=driver.cuda_started(),
         state=driver.cuda_state().state.name, count=count(), cuinit=cuda.cuInit(0),
         shown=driver.visible_devices())
    os._exit(0)
os.waitpid(child, 0)
"""

_MEANWHILE = """
seen = []
start = threading.Event()
def initialise():
    start.set()
    seen.append(["cuInit", time.perf_counter(), cuda.cuInit(0), time.perf_counter()])
thread = threading.Thread(target=initialise)
begin = time.perf_counter()
thread.start()
start.wait()
while thread.is_alive():
    asked = time.perf_counter()
    seen.append(["probe", asked, count()[0], time.perf_counter()])
thread.join()
probes = [each for each in seen if each[0] == "probe"]
(init,) = [each for each in seen if each[0] == "cuInit"]
show(codes=sorted({each[2] for each in probes}), probes=len(probes),
     longest_probe_s=max((each[3] - each[1] for each in probes), default=None),
     cuinit_s=init[3] - init[1], at_last=count()[0])
"""

_COSTS = """
import timeit
from gpumagic.devices.nvidia import NvidiaDriver
driver = NvidiaDriver()
def median_s(question):
    times = timeit.repeat(question, number=1000, repeat=15)
    return sorted(times)[7] / 1000
def all_of_them():
    return {"cuda_started_s": median_s(driver.cuda_started),
            "cuda_state_s": median_s(driver.cuda_state)}
loaded = all_of_them()
cuda.cuInit(0)
initialised = all_of_them()
start = time.perf_counter()
shown = driver.visible_devices()
show(loaded=loaded, initialised=initialised,
     visible_devices_s=time.perf_counter() - start,
     first=shown[0].to_dict())
"""

_ADDRESS = """
cuda.cuInit(0)
text = ctypes.create_string_buffer(64)
cuda.cuDeviceGetPCIBusId(text, 64, 0)
show(address=text.value.decode())
"""


def environment(mask):
    """This process's, with another value of the variable (None: not set)."""
    inherited = {k: v for k, v in os.environ.items() if k != _VARIABLE}
    changed = {} if mask is None else {_VARIABLE: mask}
    return inherited | {"CUDA_DEVICE_ORDER": BY_PCI_ADDRESS} | changed


def ask(question, mask=None):
    """What a fresh process with that mask answers."""
    run = subprocess.run(
        [sys.executable, "-c", _PRELUDE + question],
        capture_output=True,
        text=True,
        check=False,
        cwd=_ROOT,
        env=environment(mask),
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def gpus():
    """The machine's GPUs by ascending PCI address, as NVML has them."""
    found = [gpu for gpu in read_inventory().gpus if gpu.problem is None]
    assert found, "NVML sees no GPU"
    return sorted(found, key=lambda gpu: gpu.pci_address)


@pytest.fixture(scope="module")
def readings(gpus):
    """What the driver makes of each value, by the value itself."""
    uuid = gpus[0].uuid
    digits = uuid.removeprefix("GPU-")
    forms = {
        "uuid": uuid,
        "digits": digits,
        "start": digits[:8],
        "capitals": digits.upper(),
    }
    masks = [None, *(mask.format(**forms) for mask in _MASKS)]
    return {mask: ask(_SEEN, mask) for mask in masks}


@pytest.fixture(scope="module")
def answers():
    """All that has been found so far, by the question."""
    return {}


@pytest.fixture
def keep(answers, record_measurement):
    """Adds an answer to the measurement."""

    def add(question, answer):
        answers[question] = answer
        record_measurement("select_facts", answers)

    return add


def agrees(read, expected):
    """Whether the driver shows just the GPUs that were expected, in their order."""
    if len(read["uuids"]) != len(expected.uuids):
        return False
    pairs = zip(expected.uuids, read["uuids"], strict=True)
    return all(same_uuid(nvml_uuid, bare) for nvml_uuid, bare in pairs)


def test_what_is_called_certain_is_what_the_driver_does(gpus, readings, keep):
    """No value that we claim to understand is read otherwise by the real driver."""
    rows = []
    for mask, read in readings.items():
        expected = visible(mask, gpus)
        rows.append(
            {
                "mask": mask,
                "code": read["code"],
                "count_after": read["count"],
                "shown": len(read["uuids"]),
                "expected": len(expected.physical),
                "certain": expected.certain,
                "agrees": agrees(read, expected),
            }
        )
    keep("masks", rows)

    assert [row for row in rows if row["certain"] and not row["agrees"]] == []


def test_minus_one_hides_every_gpu(readings):
    """The value that is written for "none" leaves nothing, as the empty one does."""
    assert readings["-1"]["code"] == readings[""]["code"] == 100
    assert readings["-1"]["uuids"] == []


def test_a_vain_start_is_told_apart_from_one_that_succeeds(keep):
    """After cuInit has failed for want of a GPU the driver does not say "started"."""
    by_driver = ask(_SECOND_TRY, "-1")
    by_torch = ask(_TORCH_AFTER_A_VAIN_LOOK, "-1")
    keep("after a vain start", {"cuInit": by_driver, "torch": by_torch})

    assert by_driver["first"] == 100
    assert by_driver["count_after"][0] != 0
    assert by_torch["first"] is by_torch["second"] is False


def test_a_forked_child_is_recognised(keep):
    """CUDA that the parent had is lost in the child, and the driver says so there."""
    found = ask(_FORK)
    keep("in a forked child", found)

    assert found["before"] == [True, "INITIALISED"]
    assert found["started"] is False
    assert found["state"] == "FORKED_CHILD"
    assert found["shown"] is None


def test_asking_while_another_thread_starts_cuda_does_no_harm(keep):
    """The answer is "no" or "yes" at any moment of the start, and "yes" after it."""
    found = ask(_MEANWHILE)
    keep("while another thread is in cuInit", found)

    assert set(found["codes"]) <= {0, 3}
    assert found["at_last"] == 0


def test_a_gpu_has_one_identity_in_both_libraries(gpus, keep):
    """UUID and address that CUDA tells are those of the inventory."""
    found = ask(_COSTS, "0")
    keep("costs and identity", found | ask(_ADDRESS, "0"))

    assert same_uuid(gpus[0].uuid, found["first"]["uuid"])
    assert found["first"]["pci_address"] == gpus[0].pci_address
