"""Work on several simulated devices, held against what they can do together."""

from __future__ import annotations

import pytest
import torch

import gpumagic
from gpumagic.cuda_sync_time.flops import count_flops


@pytest.mark.parametrize("count", [1, 3])
def test_it_is_counted_on_how_many_devices_the_work_was(count):
    """Devices that only stand by are not among them."""
    with gpumagic.simulate("4xh100"):
        xs = [torch.ones(8, 8, device=f"sim:{n}") for n in range(4)]

        counted = count_flops(lambda: [x @ x for x in xs[:count]], torch)

    assert counted.devices == count
    assert counted.flops == count * 2 * 8**3
