"""Torch's private words for CUDA are answered or refused, and never end the process."""

from __future__ import annotations

import pytest
import torch

import gpumagic
from gpumagic.simulator.backend.refusals import NotSimulated

pytestmark = pytest.mark.skipif(
    not hasattr(torch._C, "_cuda_setStream"), reason="this torch is for the CPU alone"
)


@pytest.fixture(autouse=True)
def machine():
    """Two simulated GPUs that stand in for CUDA."""
    with gpumagic.simulate("2xh100", as_cuda=True) as box:
        yield box


def test_streams_are_set_and_asked_for_by_number():
    """As torch's own tests put each test on a side stream."""
    side = torch.cuda.Stream(device=1)
    kind = int(torch._C._autograd.DeviceType.CUDA)
    torch._C._cuda_setStream(
        stream_id=side.stream_id, device_index=side.device_index, device_type=kind
    )
    assert torch.cuda.current_device() == torch._C._cuda_getDevice() == 1
    assert torch.cuda.current_stream() == side
    assert torch._C._cuda_getCurrentStream(1) == (side.stream_id, 1, kind)
    assert torch._C._cuda_getCurrentRawStream(1) == side.cuda_stream


def test_a_gpu_is_exchanged_for_another():
    """It answers with the one before; a negative number changes nothing."""
    assert torch._C._cuda_exchangeDevice(1) == 0
    assert torch._C._cuda_maybeExchangeDevice(-1) == 1
    assert torch.cuda.current_device() == 1


@pytest.mark.parametrize(
    "word", ["_cuda_beginAllocateCurrentThreadToPool", "_cuda_getCheckpointState"]
)
def test_what_would_end_the_process_is_refused_by_name(word):
    """They reach for an allocator that is not there."""
    with pytest.raises(NotSimulated, match=word):
        getattr(torch._C, word)(0, (0, 1))


@pytest.mark.filterwarnings("ignore")
def test_every_private_function_can_be_called_and_the_process_lives():
    """Whatever it then says."""
    for name in dir(torch._C):
        if name.startswith("_cuda_") and "tunableop" not in name:
            for arguments in ((), (0,), (0, (0, 1))):
                try:
                    getattr(torch._C, name)(*arguments)
                except (TypeError, RuntimeError, ValueError, NotImplementedError):
                    continue


def test_switched_off_they_are_torchs_own_again(machine):
    """Nothing of ours is left."""
    ours = torch._C._cuda_setStream
    machine.off()
    assert torch._C._cuda_setStream is not ours
