"""Small things that CUDA does, each of which some program relies on."""

from __future__ import annotations

import io

import pytest
import torch

import gpumagic
from gpumagic.devices.torch_build import read_torch_build
from gpumagic.errors import DeviceError


@pytest.fixture(scope="module")
def machine():
    """Two H100 that stand in for CUDA."""
    return {"machine": "2xh100", "as_cuda": True}


# ------------------------------------------------------------------------ devices


@pytest.mark.parametrize("device", [None, "cuda", torch.device("cuda")])
@pytest.mark.usefixtures("kept_box")
def test_a_device_is_set_by_its_number(device):
    """set_device wants a number; blocks and questions take the current one."""
    with pytest.raises(ValueError, match="with a specified index"):
        torch.cuda.set_device(device)
    torch.cuda.synchronize(device)
    with torch.cuda.device(device), torch.cuda.device(1):
        assert torch.cuda.current_device() == 1
        torch.cuda.set_device(-1)
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0


@pytest.mark.usefixtures("kept_box")
def test_gpus_are_told_apart():
    """Each has its own UUID, the one that the driver tells."""
    first, second = (torch.cuda.get_device_properties(each).uuid for each in (0, 1))

    assert len(str(first)) == 36
    assert len(first.bytes) == 16
    assert first != second
    assert torch.cuda.get_device_properties(None) == torch.cuda.get_device_properties(0)
    assert f"uuid={first}" in repr(torch.cuda.get_device_properties(0))


def test_the_version_of_cuda_is_a_number_while_it_is_there():
    """Programs that read it run; what torch was built for is told as it is."""
    before = torch.version.cuda
    with gpumagic.simulate("h100", as_cuda=True):
        assert int(torch.version.cuda.split(".")[0]) >= 12
        assert read_torch_build().cuda == before
    assert torch.version.cuda == before


# ----------------------------------------------------------------- streams, events


@pytest.mark.usefixtures("kept_box")
def test_a_stream_sleeps_for_cycles():
    """`_sleep` keeps a stream busy for as long as so many cycles of an H100 take."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    torch.cuda._sleep(10_000_000)
    ended.record()
    assert not ended.query()
    torch.cuda.synchronize()

    assert began.elapsed_time(ended) == pytest.approx(10_000_000 / 1.98e6, rel=0.01)


# ----------------------------------------------------------------------- storages


def test_storages_are_fenced_under_either_name():
    """What would crash torch is refused while the device answers to "cuda" as well."""
    for as_cuda in (False, True):
        with gpumagic.simulate("h100", as_cuda=as_cuda):
            storage = torch.ones(2, device="sim").untyped_storage()
            with pytest.raises(DeviceError):
                storage.new()
            with pytest.raises(DeviceError):
                storage.resize_(100)


# ---------------------------------------------------------------------- operators


@pytest.mark.parametrize(
    ("shape", "order"),
    [((1, 2, 3, 4), torch.channels_last), ((1, 2, 3, 4, 5), torch.channels_last_3d)],
)
def test_a_tensor_is_resized_in_an_order_of_memory(shape, order, kept_box):
    """`resize_(memory_format=)` gives the strides that it gives on the CPU."""
    del kept_box
    here, there = torch.empty(1), torch.empty(1, device="cuda")
    for each in (here, there):
        each.resize_(*shape, memory_format=order)

    assert there.stride() == here.stride()
    assert there.fill_(2.0).sum().item() == 2.0 * there.numel()
    with pytest.raises(RuntimeError, match="required rank"):
        there.resize_(2, memory_format=order)


# ---------------------------------------------------------------- texts, loading


def saved_on_the_second_gpu():
    """A file with a tensor that was on cuda:1."""
    file = io.BytesIO()
    with gpumagic.simulate("2xh100", as_cuda=True):
        torch.save(torch.ones(2, device="cuda:1"), file)
    return file


def test_a_file_of_a_gpu_that_is_not_there_says_so():
    """torch.load names map_location, as with CUDA, and takes it."""
    file = saved_on_the_second_gpu()
    with gpumagic.simulate("h100", as_cuda=True):
        file.seek(0)
        with pytest.raises(RuntimeError, match=r"CUDA device 1 but .* is 1\. Please"):
            torch.load(file)
        file.seek(0)
        loaded = torch.load(file, map_location={"cuda:1": "cuda:0"})
        assert loaded.device == torch.device("cuda:0")


# ------------------------------------------------------------- without as_cuda=True


@pytest.mark.filterwarnings("ignore")  # torch's own: scripts are of old
def test_files_for_cuda_are_loaded_to_the_simulated_gpu():
    """torch.load and torch.jit.load say which map_location there is."""
    file = saved_on_the_second_gpu()
    with gpumagic.simulate("h100"):
        for load in (torch.load, torch.jit.load):
            file.seek(0)
            with pytest.raises(RuntimeError, match='map_location="sim"'):
                load(file, map_location="cuda")
        file.seek(0)
        assert torch.load(file, map_location="sim").device.type == "sim"
