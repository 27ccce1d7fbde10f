"""What is gathered, and how two moments are compared, on any driver."""

from __future__ import annotations

import dataclasses
import os
from types import SimpleNamespace

import pytest

from gpumagic.devices import now
from gpumagic.devices.protocols import Inventory, MigSlice, VisibleDevice
from gpumagic.gpu_doctor import api, examine, watch
from gpumagic.gpu_doctor.api import compare
from tests.devices.standin_runtime import StandinDevice
from tests.gpu_doctor.samples import FAILED, H100, NOT_STARTED

LETTERS = "abcd"
UUIDS = [f"{each * 8}-2222-4333-8444-555566667777" for each in LETTERS]
GPUS = tuple(
    dataclasses.replace(
        H100, index=number, uuid=f"GPU-{uuid}", pci_address=f"0000:{number:02x}:00.0"
    )
    for number, uuid in enumerate(UUIDS)
)
OLD_SLICE = f"MIG-GPU-{UUIDS[0]}/1/0"
SPLIT = (
    dataclasses.replace(
        GPUS[0], mig_enabled=True, mig=(MigSlice(OLD_SLICE, 1, 0, None),)
    ),
)
OF_TWO_MODELS = (dataclasses.replace(GPUS[0], name="Tesla T4"), *GPUS[1:])


@dataclasses.dataclass
class Driver:
    """A driver that shows a process some of its GPUs."""

    shown: tuple[str | None, ...] = ()
    gpus: tuple = GPUS
    simulated: bool = False

    def inventory(self):
        """The machine."""
        return Inventory("580.65.06", "13.0", gpus=self.gpus)

    def cuda_state(self):
        """CUDA's word is what it shows."""
        return NOT_STARTED

    def visible_devices(self):
        """Those that CUDA has taken at its start."""
        return tuple(VisibleDevice("x", uuid, None) for uuid in self.shown) or None

    def overlooks(self, mask):
        """Real CUDA overlooks no value."""
        return mask is None


@pytest.fixture(autouse=True)
def _a_bare_environment(monkeypatch):
    for name in [each for each in os.environ if each.startswith("CUDA_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("mask", "driver", "is_too_late"),
    [
        ("0", Driver((UUIDS[0],)), False),
        ("1", Driver((UUIDS[0],)), True),
        ("1,0", Driver((UUIDS[0], UUIDS[1])), True),  # the same in another order
        ("0", Driver((UUIDS[0], UUIDS[1])), True),
        (None, Driver((UUIDS[0],)), False),  # unset again: nothing is asked for
        ("1", Driver(), False),  # CUDA is yet to read it
        ("1", Driver((None,)), False),  # what it shows is not known
        ("1", Driver((UUIDS[0],), OF_TWO_MODELS), False),  # nor which of them is 1
        (OLD_SLICE, Driver((UUIDS[1],), SPLIT), False),  # nor a slice's own UUID
    ],
)
def test_a_choice_is_too_late_where_cuda_shows_other_gpus(
    monkeypatch, mask, driver, is_too_late
):
    """It is said only where both are known: what is asked for and what CUDA shows."""
    if mask is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)

    assert examine(driver).facts.mask_too_late == is_too_late


def test_numbers_are_of_the_order_that_was_asked_for(monkeypatch):
    """With the models sorted by address it is known which one is GPU 1."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    driver = Driver((UUIDS[0],), OF_TWO_MODELS)

    assert examine(driver).facts.mask_too_late
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/mps")  # which has its own
    assert not examine(driver).facts.mask_too_late


class FailedDevice(StandinDevice):
    """One whose streams answer nothing but the error of a kernel."""

    def current_stream(self, device):  # noqa: ARG002
        """It may be asked."""
        return SimpleNamespace(query=self.synchronize)


def test_a_device_that_has_failed_is_asked_only_once_cuda_has_started(monkeypatch):
    """Its own words are the first line; before the start nobody asks it anything."""
    device = FailedDevice(error=RuntimeError("CUDA error: device-side assert\nmore"))
    monkeypatch.setattr(api, "runtime_now", lambda: device)
    monkeypatch.setattr(now, "is_capturing", lambda _: False)  # asks torch itself
    driver = Driver((UUIDS[0],))
    before = examine(driver)
    driver.cuda_state = lambda: FAILED.cuda
    after = examine(driver)

    assert before.facts.failure is None
    (said,) = [each for each in after.findings if each.topic == "CUDA in this process"]
    assert said.found == "broken: CUDA error: device-side assert"
    assert said.verdict.value == "problem"
    changed = compare(dataclasses.replace(after.facts, failure=None), after.facts)
    assert "CUDA in this process went from started to broken" in changed.headline


def test_what_failed_code_has_changed_is_told_all_the_same(monkeypatch):
    """The report of a `with` block is there, whichever way the block was left."""
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")

    def change():
        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
        raise RuntimeError

    with pytest.raises(RuntimeError), watch(Driver()) as watched:
        change()

    said = "CUDA_LAUNCH_BLOCKING went from '0' to '1'"
    assert watched.report.headline == f"Changed: {said}."
