"""GPUs of other makers: the same words, as far as their variables allow it."""

from __future__ import annotations

import os
import sys
from types import ModuleType

import pytest

from gpumagic.devices.protocols import Gpu, Inventory
from gpumagic.devices.torch_build import TorchBuild
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select import vendors
from gpumagic.gpu_select.options import Options
from gpumagic.gpu_select.report import Action, Verdict
from gpumagic.gpu_select.request import read
from gpumagic.gpu_select.vendors import AMD, APPLE, INTEL

NOTHING = Inventory(absent=True, problem="there is no NVIDIA driver here")


@pytest.fixture(autouse=True)
def _variables(monkeypatch):
    """No such variable is set before, none is left after."""
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
        monkeypatch.setenv(name, "unset below")
        monkeypatch.delenv(name)


@pytest.fixture
def built_for(monkeypatch):
    """Makes the installed torch one that is built for something else."""

    def build(**what: str) -> None:
        made = TorchBuild("2.13.0", **{"cuda": None, "hip": None, "xpu": None} | what)
        monkeypatch.setattr(vendors, "read_torch_build", lambda: made)

    return build


def test_the_maker_is_told_by_what_torch_was_built_for(built_for, monkeypatch):
    """ROCm is AMD's, XPU is Intel's, and a Mac with its own chip is Apple's."""
    found = []
    for what in ({"hip": "7.0"}, {"xpu": "2025.3"}, {"cuda": "13.0"}):
        built_for(**what)
        found.append(vendors.other_vendor(NOTHING))
    assert found == [AMD, INTEL, None]

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "uname", lambda: type("Mac", (), {"machine": "arm64"}))
    assert vendors.other_vendor(NOTHING) is APPLE


def test_nvidias_gpus_go_before_those_that_torch_could_use_too(built_for):
    """Where NVIDIA's driver lists a GPU, it is NVIDIA's variable that counts."""
    built_for(hip="7.0")
    assert vendors.other_vendor(Inventory(gpus=(Gpu(0),))) is None


@pytest.mark.parametrize(
    ("vendor", "words", "value"),
    [
        (AMD, "2,0", "2,0"),
        (AMD, "none", "-1"),
        (INTEL, "1", "1"),
        (INTEL, "all", None),
    ],
)
def test_numbers_none_and_all_are_written(vendor, words, value):
    """What the variable can say is said, and called a prediction of torch's alone."""
    tried = vendors.select(vendor, read(words, Options(dry_run=True)))
    assert vendor.variable not in os.environ
    done = vendors.select(vendor, read(words))

    assert os.environ.get(vendor.variable) == value
    assert tried.action is Action.DRY_RUN
    assert done.verdict is Verdict.OPEN
    assert not done.certain
    assert done.headline in str(done)
    if value:
        assert f"{vendor.variable}={value}" in tried.headline
        assert f"{vendor.variable}={value}" in done.headline


@pytest.mark.parametrize("words", ["free", "GPU-1a2b", "pci:3b:00.0"])
def test_what_needs_nvidias_driver_is_refused_by_name(words):
    """Nothing can be ranked or looked up there, so numbers are asked for."""
    with pytest.raises(GpuMagicError, match="AMD's") as refused:
        vendors.select(AMD, read(words))

    assert "rocm-smi" in refused.value.hint
    assert "HIP_VISIBLE_DEVICES" not in os.environ


def test_after_torchs_start_it_is_too_late(monkeypatch):
    """The only witness there is torch, which is believed."""
    started = ModuleType("torch.xpu")
    started.is_initialized = lambda: True
    monkeypatch.setitem(sys.modules, "torch.xpu", started)

    assert vendors.status(INTEL).verdict is Verdict.FIXED
    with pytest.raises(GpuMagicError, match="torch has started Intel's GPUs"):
        vendors.select(INTEL, read("1"))
    assert "ZE_AFFINITY_MASK" not in os.environ


def test_a_limit_that_comes_first_is_said(monkeypatch):
    """ROCR_VISIBLE_DEVICES renumbers what HIP_VISIBLE_DEVICES then counts."""
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "3,1")
    said = [each.text for each in vendors.status(AMD).remarks]

    assert any("ROCR_VISIBLE_DEVICES=3,1 comes first" in text for text in said)


def test_on_apple_there_is_nothing_to_choose():
    """One GPU is no choice, and the word for it is told."""
    assert vendors.status(APPLE).verdict is Verdict.NOTHING
    with pytest.raises(GpuMagicError, match="nothing to choose") as refused:
        vendors.select(APPLE, read("0"))
    assert 'device="mps"' in refused.value.hint


def test_no_value_is_made_up():
    """For Intel's GPUs no value is known that hides all, so none is written."""
    with pytest.raises(GpuMagicError, match="no value of ZE_AFFINITY_MASK"):
        vendors.select(INTEL, read("none"))
    assert "ZE_AFFINITY_MASK" not in os.environ
