"""A simulated GPU that is full, and a machine that cannot hold what it simulates."""

from __future__ import annotations

import pytest
import torch

import gpumagic
from gpumagic.simulator.backend import call
from gpumagic.simulator.backend.call import HostMemoryFull

MIB = 1 << 20


@pytest.fixture
def small_card():
    """A GPU with little memory."""
    with gpumagic.simulate("h100", memory="2GiB") as box:
        yield box


def test_a_full_card_says_so_in_the_words_of_torch(small_card):
    """Too much raises torch.OutOfMemoryError with torch's text; the rest goes on."""
    kept = torch.ones(300 * MIB // 4, device="sim")

    with pytest.raises(
        torch.OutOfMemoryError,
        match=r"CUDA out of memory\. Tried to allocate 1\.9\d GiB\. GPU 0 has a total "
        r"capacity of 2\.00 GiB of which .* is free\..*\[simulated H100 SXM\]",
    ):
        torch.empty(2000 * MIB, dtype=torch.uint8, device="sim")

    assert torch.sim.memory_allocated() == 300 * MIB
    assert (kept[:3] + 1).tolist() == [2.0] * 3
    del kept
    assert torch.empty(600 * MIB, dtype=torch.uint8, device="sim").device.index == 0


TOO_MUCH = {
    "empty": lambda _: torch.empty(1 << 36, dtype=torch.uint8, device="sim"),
    "broadcast": lambda x: x[:8192, None] + x[None, :8192],
    "matmul": lambda x: x[:8192, None] @ x[None, :8192],
    "concatenation": lambda x: torch.cat([x] * 9),
    "range": lambda _: torch.arange(1 << 28, device="sim"),
    "repetition": lambda x: x[:2].repeat(1 << 27),
    "copy of an expanded one": lambda x: x[:1].expand(1 << 25).clone(),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_a_machine_with_too_little_memory_of_its_own(name, box, monkeypatch):
    """What the GPU could hold and this machine cannot is refused before it is made."""
    monkeypatch.setattr(call, "available_bytes", lambda: 600 * MIB)
    x = torch.ones(4 * MIB, device="sim")

    with pytest.raises(HostMemoryFull, match=r"RAM, of which .* is left") as caught:
        TOO_MUCH[name](x)

    assert "memory=" in caught.value.hint
    assert (x[:2] + 1).tolist() == [2.0, 2.0]


def test_a_backward_pass_frees_what_it_has_used(box):
    """Saved tensors live until backward, gradients as long as their parameters."""
    x = torch.ones(1000, device="sim", requires_grad=True)
    own = torch.sim.memory_allocated()

    out = x.exp().sin().sum()
    forward = torch.sim.memory_allocated() - own
    out.backward()
    after = torch.sim.memory_allocated() - own
    del out
    x.grad = None

    assert forward == 8 * 512 + 512  # exp's result, which sin needs too; the sum
    assert after == 8 * 512 + 512  # the gradient; the sum
    assert torch.sim.memory_allocated() == own
