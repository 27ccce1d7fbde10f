"""Operators that torch has for CUDA alone give what those of the CPU give together."""

from __future__ import annotations

import pytest
import torch

import gpumagic


@pytest.fixture(autouse=True, scope="module")
def machine():
    """A simulated GPU."""
    with gpumagic.simulate("h100") as box:
        yield box


def batch(*shape, dtype=torch.float32):
    """Numbers on the GPU, the same in every run."""
    dice = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=dice).to("sim", dtype)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mm", [(3, 4), (4, 5)]),
        ("bmm", [(2, 3, 4), (2, 4, 5)]),
        ("addmm", [(3, 5), (3, 4), (4, 5)]),
        ("baddbmm", [(2, 3, 5), (2, 3, 4), (2, 4, 5)]),
    ],
)
def test_a_product_of_halves_gives_single_precision_if_asked_to(name, shapes):
    """As attention and optimisers in bfloat16 ask of CUDA."""
    given = [batch(*shape, dtype=torch.bfloat16) for shape in shapes]
    found = getattr(torch, name)(*given, out_dtype=torch.float32)
    wanted = getattr(torch, name)(*(each.cpu().float() for each in given))
    assert found.dtype == torch.float32
    assert found.device.type == "sim"
    torch.testing.assert_close(found.cpu(), wanted)
    into = torch.empty_like(found)
    getattr(torch, name)(*given, out_dtype=torch.float32, out=into)
    torch.testing.assert_close(into, found)
