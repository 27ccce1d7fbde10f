"""Small things that CUDA does, each of which some program relies on."""

from __future__ import annotations

import io

import pytest
import torch

import gpumagic


@pytest.fixture(scope="module")
def machine():
    """Two H100 that stand in for CUDA."""
    return {"machine": "2xh100", "as_cuda": True}


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


def test_files_for_cuda_are_loaded_to_the_simulated_gpu():
    """What was saved on CUDA is loaded with map_location="sim"."""
    file = saved_on_the_second_gpu()
    with gpumagic.simulate("h100"):
        file.seek(0)
        assert torch.load(file, map_location="sim").device.type == "sim"
