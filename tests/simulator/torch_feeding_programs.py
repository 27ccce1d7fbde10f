"""Programs that feed a GPU and read it back: each is judged as it deserves."""

from __future__ import annotations

import types
import warnings

import pytest
import torch

import gpumagic
from gpumagic.simulator.backend.simulation import DataRace
from tests.simulator.right_feeding import RIGHT
from tests.simulator.wrong_feeding import WRONG


@pytest.fixture(scope="module", params=["sim", "cuda"])
def word(request):
    """What the programs call the device."""
    return request.param


@pytest.fixture(scope="module", params=["poison", "report"])
def gpu(request, word):
    """A simulated machine as the programs know it."""
    cuda = word == "cuda"
    with gpumagic.simulate("h100", as_cuda=cuda, hazards=request.param) as box:
        api = torch.cuda if cuda else torch.sim
        yield types.SimpleNamespace(box=box, device=word, word=word, api=api)


@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
def test_a_right_program_is_not_blamed(gpu, program):
    """Its numbers are right, and no race is told, in either way of looking."""
    gpu.api.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataRace)
        program(gpu)
        gpu.api.synchronize()


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_a_wrong_program_is_found(gpu, program):
    """At least one race is told, at the latest when the host waits."""
    gpu.api.synchronize()
    before = gpu.box.report().races  # not in words, which are hundreds by then
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataRace)
        program(gpu)
        gpu.api.synchronize()

    assert gpu.box.report().races > before
