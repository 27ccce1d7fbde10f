"""Random numbers on the simulated GPU: one stream for each GPU, and reproducible."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("kept_box")

SAMPLERS = {
    "randn": lambda generator: torch.randn(50, device="sim", generator=generator),
    "bernoulli": lambda generator: torch.bernoulli(
        torch.full((50,), 0.5, device="sim"), generator=generator
    ),
    "multinomial": lambda generator: torch.multinomial(
        torch.ones(50, device="sim"), 9, generator=generator
    ),
    "normal_": lambda given: torch.empty(50, device="sim").normal_(generator=given),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_same_seed_gives_the_same_numbers(name):
    """Each sampler follows the seed, and leaves the CPU's numbers alone."""
    sample = SAMPLERS[name]
    torch.manual_seed(3)
    host_before = torch.get_rng_state()
    first, second = sample(None).tolist(), sample(None).tolist()
    host_after = torch.get_rng_state()

    torch.manual_seed(3)
    again = sample(None).tolist()

    assert first == again
    assert first != second
    assert host_before.equal(host_after)
