"""Tensors of the simulated GPU: what torch's own tensors do, they do."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("kept_box")

DTYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
    torch.uint16, torch.uint32, torch.uint64,
    torch.complex32, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
)  # fmt: skip


# ----------------------------------------------------------------- several devices


def test_devices_do_not_mix():
    """Tensors of two devices are refused in CUDA's words, both of them named."""
    zero, one = (torch.ones(2, device=f"sim:{index}") for index in (0, 1))
    host = torch.ones(2)

    for mixture in (
        lambda: zero + host,
        lambda: host + zero,
        lambda: torch.cat([zero, host]),
        lambda: zero.add_(host),
        lambda: torch.add(host, host, out=zero),
        lambda: torch.where(zero > 0, zero, host),
        lambda: nn.Linear(2, 2)(zero),
    ):
        with pytest.raises(RuntimeError, match=r"same device.*(sim:0.*cpu|cpu.*sim:0)"):
            mixture()
    with pytest.raises(RuntimeError, match=r"same device.*sim:0.*sim:1"):
        zero + one
    with pytest.raises(RuntimeError, match="cpu"):
        host[torch.tensor([0], device="sim")]


def test_what_may_mix():
    """Numbers, 0-dim CPU tensors, CPU indices and copies cross devices."""
    x = torch.arange(4.0, device="sim")

    assert (x * torch.tensor(2.0)).tolist() == [0.0, 2.0, 4.0, 6.0]
    assert x[torch.tensor([3, 0])].tolist() == [3.0, 0.0]
    assert x[torch.tensor([True, False, False, True])].tolist() == [0.0, 3.0]
    x[torch.tensor([1])] = torch.tensor(9.0)
    other = torch.empty(4, device="sim:1").copy_(x)
    assert str(other.device) == "sim:1"
    assert torch.empty(4).copy_(other).tolist() == [0.0, 9.0, 2.0, 3.0]


def test_gradients_cross_devices():
    """A backward pass goes back over every crossing to where the leaf lies."""
    on_first = torch.ones(2, device="sim:0", requires_grad=True)
    on_second = torch.ones(2, device="sim:1", requires_grad=True)

    (on_second * 2).sum().backward()
    (on_first.to("sim:1") * 3).cpu().sum().backward()

    assert str(on_second.grad.device) == "sim:1"
    assert (on_first.grad.tolist(), str(on_first.grad.device)) == ([3.0, 3.0], "sim:0")


def test_a_tensor_made_after_another_lies_beside_it():
    """new_tensor puts data on the GPU of its tensor, whichever is the current one."""
    like = torch.ones(2, device="sim:1")

    assert str(like.new_tensor([1.0]).device) == "sim:1"


# ------------------------------------------------------------------------- types


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


def test_a_nested_tensor():
    """A jagged nested tensor lies on the device, and computes there."""
    rows = [torch.ones(2, device="sim"), torch.ones(3, device="sim")]

    nested = torch.nested.nested_tensor(rows, layout=torch.jagged)

    assert nested.device.type == "sim"
    assert (nested * 2).values().tolist() == [2.0] * 5


# ------------------------------------------------------------- leaving the device


def test_printing_and_numbers():
    """Tensors print as on CUDA, and turn into Python's numbers."""
    x = torch.tensor([[1.5, -2.0]], device="sim:1")

    assert repr(x) == "tensor([[ 1.5000, -2.0000]], device='sim:1')"
    assert f"{x.sum():.1f}" == "-0.5"
    assert (float(x[0, 0]), int(x[0, 1]), bool(x[0, 0])) == (1.5, -2, True)
    assert [each.item() for each in x[0]] == x[0].tolist() == [1.5, -2.0]
    assert (-2.0 in x, len(x)) == (True, 1)


def test_numpy_wants_the_cpu():
    """NumPy cannot look at the device, and says what to do."""
    x = torch.ones(2, device="sim")

    with pytest.raises(TypeError, match=r"sim:0.*\.cpu\(\)"):
        x.numpy()
    with pytest.raises(TypeError, match=r"\.cpu\(\)"):
        np.asarray(x)
    assert x.cpu().numpy().tolist() == [1.0, 1.0]


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

    assert [str(each["view"].device) for each in (there, host, moved)] == [
        "sim:1",
        "cpu",
        "sim:0",
    ]
    assert there["base"].tolist() == [0.0, 1.0, 9.0, 9.0]
    assert host["fp8"].float().tolist() == base.tolist()
    assert (moved["base"] + 1).tolist() == [1.0, 2.0, 3.0, 4.0]
    file.seek(0)
    mapped = torch.load(file, map_location={"sim:1": "sim:0"})
    assert str(mapped["base"].device) == "sim:0"


def test_pickling_and_copying():
    """Pickle, copy and deepcopy make equal tensors on the same device."""
    x = torch.arange(3.0, device="sim:1", requires_grad=True)
    view = x.detach()[1:]

    for made in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x), copy.copy(x)):  # noqa: S301
        assert (made.tolist(), str(made.device)) == ([0.0, 1.0, 2.0], "sim:1")
        assert made.requires_grad
    both = copy.deepcopy([view, view])
    assert both[0] is both[1]
    assert both[0].add_(1).tolist() == [2.0, 3.0]
    assert x.tolist() == [0.0, 1.0, 2.0]


def test_a_mixture_of_devices_is_all_that_is_told(kept_box):
    """The error has no other one behind it that is of our own making."""
    with pytest.raises(RuntimeError, match="same device") as caught:
        torch.ones(2, device="sim") + torch.ones(2)

    assert caught.value.__context__ is None
