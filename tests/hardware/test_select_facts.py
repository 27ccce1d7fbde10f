"""How the real driver reads CUDA_VISIBLE_DEVICES, and what it says of its start.

Every question is put in a fork of a process that has only loaded the driver.
"""

from __future__ import annotations

import pytest

from gpumagic.devices.visibility import BY_PCI_ADDRESS
from tests.hardware import machines

# {uuid} is that of the GPU with the lowest address, {digits} what follows "GPU-".
_MASKS = (
    *("0,0", "0,99,0", "0,99,99", "GPU-{digits},GPU-{start}"),  # repetitions
    *("{uuid}", "GPU-{start}", "GPU-", "gpu-{digits}", "GPU-{capitals}", " {uuid}"),
    *("{uuid} ", "{uuid},0", "0,{uuid}", "99,{uuid}", "GPU-ffffffff,{uuid}"),
    *("0", "00", "+0", "-0", " 0 ", "0x0", "0 1", "0-3", "0,", ",0", "0.5"),
    *("4294967296", "-4294967296", "99", "0,99", "0,-1", "\N{ARABIC-INDIC DIGIT ZERO}"),
    *("", " ", "-1", "none", "NoDevFiles", '"0"', "MIG-0", "MIG-{uuid}/0/0"),
)
_PROGRAM = f"""
import ctypes, threading
from gpumagic.devices.nvidia import NvidiaDriver, identities
from gpumagic.devices.nvml import read_inventory, same_uuid
from gpumagic.devices.visibility import visible

MASK = "CUDA_VISIBLE_DEVICES"
cuda = ctypes.CDLL("libcuda.so.1")
driver = NvidiaDriver()
gpus = [gpu for gpu in read_inventory().gpus if gpu.problem is None]
gpus.sort(key=lambda gpu: gpu.pci_address)
uuid = gpus[0].uuid
digits = uuid.removeprefix("GPU-")
forms = dict(uuid=uuid, digits=digits, start=digits[:8], capitals=digits.upper())
masks = [None, *(mask.format(**forms) for mask in {_MASKS!r})]

def count():
    number = ctypes.c_int(-1)
    return [cuda.cuDeviceGetCount(ctypes.byref(number)), number.value]

def seen(mask):
    if mask is not None:
        os.environ[MASK] = mask
    return dict(code=cuda.cuInit(0), uuids=[each["uuid"] for each in identities(cuda)])

def misread(mask, found):
    expected = visible(mask, gpus)
    same = len(expected.uuids) == len(found["uuids"]) and all(
        same_uuid(*pair) for pair in zip(expected.uuids, found["uuids"])
    )
    return expected.certain and not same

def second_try():
    os.environ[MASK] = "-1"
    first, after = cuda.cuInit(0), count()
    os.environ[MASK] = "0"
    return dict(first=first, after=after, state=driver.cuda_state().state.name)

def in_a_child():
    cuda.cuInit(0)
    state = lambda: [driver.cuda_started(), driver.cuda_state().state.name]
    return [state(), forked(lambda: [*state(), driver.visible_devices()])]

def meanwhile():
    codes, begun = set(), threading.Event()
    thread = threading.Thread(target=lambda: (begun.set(), cuda.cuInit(0)))
    thread.start()
    begun.wait()
    while thread.is_alive():
        codes.add(count()[0])
    return dict(codes=sorted(codes), at_last=count()[0])

def first_device():
    cuda.cuInit(0)
    return driver.visible_devices()[0].to_dict()

readings = {{mask: forked(lambda: seen(mask)) for mask in masks}}
show(
    read=len(readings),
    misread=[mask for mask, found in readings.items() if misread(mask, found)],
    hidden=[readings["-1"], readings[""]],
    second_try=forked(second_try),
    in_a_child=forked(in_a_child),
    meanwhile=forked(meanwhile),
    first=forked(first_device),
    same=same_uuid(uuid, forked(first_device)["uuid"]),
    address=gpus[0].pci_address,
)
"""
_VAIN = """
del os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"]  # which keeps torch from looking
import torch
first = torch.cuda.is_available()
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
show(looks=[first, torch.cuda.is_available()])
"""


@pytest.fixture(scope="module")
def facts():
    """All that the driver has answered."""
    return machines.run(_PROGRAM, CUDA_DEVICE_ORDER=BY_PCI_ADDRESS)


def test_what_is_called_certain_is_what_the_driver_does(facts):
    """No value that we claim to understand is read otherwise by the real driver."""
    assert facts["read"] == len(_MASKS) + 1
    assert facts["misread"] == []
    assert facts["hidden"] == [{"code": 100, "uuids": []}] * 2


def test_a_vain_start_is_told_apart_from_one_that_succeeds(facts):
    """After cuInit has failed for want of a GPU the driver does not say "started"."""
    assert facts["second_try"]["first"] == 100
    assert facts["second_try"]["after"][0] != 0
    assert machines.run(_VAIN, CUDA_VISIBLE_DEVICES="-1") == {"looks": [False, False]}


def test_a_forked_child_is_recognised(facts):
    """CUDA that the parent had is lost in the child, and the driver says so there."""
    assert facts["in_a_child"] == [
        [True, "INITIALISED"],
        [False, "FORKED_CHILD", []],
    ]


def test_asking_while_another_thread_starts_cuda_does_no_harm(facts):
    """The answer is "no" or "yes" at any moment of the start, and "yes" after it."""
    assert set(facts["meanwhile"]["codes"]) <= {0, 3}
    assert facts["meanwhile"]["at_last"] == 0


def test_a_gpu_has_one_identity_in_both_libraries(facts):
    """UUID and address that CUDA tells are those of the inventory."""
    assert facts["same"]
    assert facts["first"]["pci_address"] == facts["address"]
