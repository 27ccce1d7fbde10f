"""Tensors of the simulated GPU: what torch's own tensors do, they do."""

from __future__ import annotations

import io

import pytest
import torch

pytestmark = pytest.mark.usefixtures("kept_box")

DTYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
    torch.uint16, torch.uint32, torch.uint64,
    torch.complex32, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
)  # fmt: skip


def test_devices_do_not_mix():
    """Tensors of two devices are refused in CUDA's words, both of them named."""
    zero, one = (torch.ones(2, device=f"sim:{index}") for index in (0, 1))
    host = torch.ones(2)

    for mixture in (
        lambda: zero + host,
        lambda: torch.cat([zero, host]),
        lambda: torch.add(host, host, out=zero),
    ):
        with pytest.raises(RuntimeError, match=r"same device.*(sim:0.*cpu|cpu.*sim:0)"):
            mixture()
    with pytest.raises(RuntimeError, match=r"same device.*sim:0.*sim:1"):
        zero + one
    with pytest.raises(RuntimeError, match="cpu"):
        host[torch.tensor([0], device="sim")]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_goes_there_and_back(dtype):
    """A tensor of any type keeps its bits on the way, also as a view with an offset."""
    host = torch.tensor([0.0, 1.0, 2.0, 1.0]).to(dtype)

    there = host.to("sim")

    assert there.dtype is dtype
    assert there.cpu().view(torch.uint8).tolist() == host.view(torch.uint8).tolist()
    assert there[2:].clone().to(torch.complex64).cpu().real.tolist() == (
        [1.0, 1.0] if dtype is torch.bool else [2.0, 1.0]
    )


@pytest.mark.parametrize("weights_only", [True, False])
def test_saving_and_loading(weights_only):
    """What was saved is loaded where it was or is wanted, and shared as it was."""
    base = torch.arange(4.0, device="sim:1")
    file = io.BytesIO()
    torch.save({"base": base, "view": base[2:], "fp8": base.to(DTYPES[-1])}, file)

    def load(**options):
        file.seek(0)
        return torch.load(file, weights_only=weights_only, **options)

    there, host, moved = load(), load(map_location="cpu"), load(map_location="sim:0")
    there["view"].fill_(9)

    devices = [str(each["view"].device) for each in (there, host, moved)]
    assert devices == ["sim:1", "cpu", "sim:0"]
    assert there["base"].tolist() == [0.0, 1.0, 9.0, 9.0]
    assert host["fp8"].float().tolist() == base.tolist()
    assert (moved["base"] + 1).tolist() == [1.0, 2.0, 3.0, 4.0]
