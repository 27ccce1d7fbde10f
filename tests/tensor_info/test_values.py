from __future__ import annotations

import pytest

from gpumagic.tensor_info import describe
from gpumagic.tensor_info.values import summarise

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")


def test_values_are_read_only_on_request():
    """Minimum, mean and the odd numbers are there when they are asked for."""
    x = torch.tensor([[0.0, float("nan")], [float("-inf"), 4.0]])

    found = describe(x, values=True).values

    assert describe(x).values is None
    assert (found.nan_count, found.inf_count, found.zero_count) == (1, 1, 1)
    assert (found.maximum, found.minimum) == (4.0, float("-inf"))
    assert found.sampled is None
    assert found.first == ("0", "nan")


@pytest.mark.parametrize("of", [torch.full, np.full])
def test_many_values_are_sampled_and_counted(of):
    """Beyond a million elements a sample is read, and its size is said."""
    found = describe(of((1500, 2000), 3.0), values=True).values

    assert 0 < found.sampled <= 1_000_000
    assert (found.minimum, found.mean) == (3.0, 3.0)


def test_values_that_cannot_be_read_cost_one_remark():
    """A meta tensor has no values: one line says so, the rest is there."""
    found = describe(torch.empty(3, device="meta"), values=True)

    assert found.values is None
    assert any("values cannot be read" in line for line in found.remarks)
    assert found.size == (3,)


@pytest.mark.parametrize("on_accelerator", [True, False])
def test_reading_values_of_a_device_is_owned_up_to(on_accelerator):
    """The one look that runs operations there, and waits, says so; on the CPU not."""
    summary, remarks = summarise(torch.arange(4.0), on_accelerator=on_accelerator)

    assert summary.maximum == 3.0
    assert bool(remarks) is on_accelerator
    assert all("waited for it and copied" in each for each in remarks)
