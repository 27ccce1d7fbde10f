"""What random programs have shown to be otherwise on torch's own CUDA.

`tests/hardware/test_two_machines.py` runs them on both; these are the single cases.
"""

from __future__ import annotations

import pytest
import torch

KIB = 1 << 10


@pytest.fixture(scope="module")
def machine():
    """One H100 that stands in for CUDA."""
    return {"machine": "h100", "as_cuda": True}


@pytest.fixture
def waits(kept_box):
    """Tells whether the host waits for a busy stream during a call."""

    def waits(action):
        torch.cuda.synchronize()
        torch.cuda._sleep(10**12)
        began_s = kept_box.time_s
        action()
        waited_s = kept_box.time_s - began_s
        torch.cuda.synchronize()
        return waited_s > 100

    return waits


def allocations():
    """How many blocks the allocator has handed out so far."""
    return torch.cuda.memory_stats()["allocation.all.allocated"]


def grid():
    """Six numbers in two rows."""
    return torch.arange(6.0, device="cuda").view(2, 3).clone()


# ------------------------------------------------------------------------- out=

pytestmark = [
    pytest.mark.usefixtures("kept_box"),
    pytest.mark.filterwarnings("ignore:An output with one or more elements"),
    pytest.mark.filterwarnings("ignore:The number of elements in the out tensor"),
]


def test_what_is_written_into_keeps_its_memory():
    """An output that fits into its storage stays there, and its views see it."""
    out = torch.zeros(2, 3, device="cuda")
    view, address = out.view(-1), out.data_ptr()

    torch.arange(6, out=out)

    assert out.shape == (2, 3)
    assert view.tolist() == [0, 1, 2, 3, 4, 5]
    torch.full((4,), 7.0, out=out)
    assert out.shape == (4,)
    assert out.data_ptr() == address
    assert view.tolist() == [7, 7, 7, 7, 4, 5]


def test_a_part_of_a_buffer_is_written_into():
    """`out=buffer[0]` changes the buffer."""
    buffer = torch.zeros(2, 3, device="cuda")

    torch.arange(6.0, 9.0, out=buffer[0])

    assert buffer.tolist() == [[6, 7, 8], [0, 0, 0]]


def test_an_output_that_is_too_small_gets_other_memory_before_the_kernel_runs():
    """The larger storage is taken once, and the smaller one goes."""
    out, before = torch.zeros(2, device="cuda"), torch.cuda.memory_allocated()

    torch.add(torch.ones(1000, device="cuda"), 1, out=out)

    assert out.tolist() == [2.0] * 1000
    assert torch.cuda.memory_allocated() == before - 512 + 4096


def test_an_output_that_names_an_element_twice_is_refused():
    """As on CUDA, instead of some number being the last one written."""
    out = torch.zeros(1, 3, device="cuda").expand(2, 3)

    with pytest.raises(RuntimeError, match="single memory location"):
        torch.add(grid(), 1, out=out)


# ---------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    "name",
    ["add", "sub", "mul", "div", "subtract", "multiply", "divide", "true_divide"],
)
def test_a_number_may_come_first(name):
    """`torch.add(1., x)` is as good as the other way round."""
    function, x = getattr(torch, name), grid() + 1

    assert function(6.0, x).cpu().equal(function(6.0, x.cpu()))


def test_a_number_may_be_copied():
    """`x.copy_(3.0)` fills a tensor, also a parameter's."""
    weight = torch.nn.Linear(2, 2, device="cuda").weight
    weight.data.copy_(0.5)

    assert weight.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_a_number_that_is_assigned_comes_from_the_host(waits):
    """`x[0] = 5` waits where one element is copied, not where several are filled."""
    x, row = grid(), torch.zeros(3, device="cuda")

    assert waits(lambda: row.__setitem__(0, 5))
    assert not waits(lambda: x.__setitem__(0, 5))
    assert not waits(lambda: x.__setitem__((slice(None), 1), 6))
    assert row.tolist() == [5, 0, 0]
    assert x.tolist() == [[5, 6, 5], [3, 6, 5]]


def test_a_number_where_a_mask_says_so_is_no_wait(waits):
    """`x[x > 2] = 1` is one kernel; by indices the number is sent first."""
    x, places = grid(), torch.tensor([0], device="cuda")

    assert not waits(lambda: x.__setitem__(x > 2, 1))
    assert x.tolist() == [[0, 1, 2], [1, 1, 1]]
    assert not waits(lambda: x.__setitem__(places.bool().expand(2), 7))
    assert waits(lambda: x.__setitem__(places, 9))
    assert x.tolist() == [[9, 9, 9], [1, 1, 1]]


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_matrices_of_whole_numbers_are_not_multiplied(dtype):
    """CUDA has no kernel for that, and says so; what has no elements needs none."""
    x = grid().to(dtype)
    before = torch.cuda.memory_allocated()

    with pytest.raises(NotImplementedError, match='"addmm_cuda" not implemented'):
        x @ x.t()
    with pytest.raises(NotImplementedError, match='"baddbmm_cuda" not implemented'):
        torch.bmm(x[None], x.t()[None])

    assert torch.cuda.memory_allocated() == before  # no error keeps a tensor
    assert (x[:0] @ x.t()).shape == (0, 2)


# ----------------------------------------------------------------------- copies


def test_another_type_is_made_on_the_device_if_nobody_waits():
    """Then the device has a tensor on the way; one that is waited for has none."""
    host, x = torch.ones(2, 3, dtype=torch.int32), grid()
    before = allocations()

    x.copy_(host)
    assert allocations() == before
    x.copy_(host, non_blocking=True)
    assert allocations() == before + 1
    host.copy_(x + 1)
    assert allocations() == before + 2  # of the sum
    assert host.tolist() == [[2, 2, 2], [2, 2, 2]]


def test_what_has_gaps_is_packed_on_the_device_before_it_leaves():
    """A strided tensor is copied within the device first."""
    x = grid()
    before = allocations()

    assert x[:, :2].cpu().tolist() == [[0, 1], [3, 4]]
    assert allocations() == before + 1


def test_a_little_pageable_memory_is_sent_at_once(waits):
    """Up to 64 KiB the driver takes it without waiting, if nobody asked to."""
    little = torch.ones(64 * KIB, dtype=torch.uint8)
    much = torch.ones(64 * KIB + 1, dtype=torch.uint8)

    assert not waits(lambda: little.to("cuda", non_blocking=True))
    assert waits(lambda: much.to("cuda", non_blocking=True))
    assert waits(lambda: little.to("cuda"))


def test_a_copy_that_does_not_fit_is_refused_before_it_begins(waits):
    """Nothing is sent, nothing waited for, and no memory taken."""
    x = grid()
    before = allocations()

    def copy():
        with pytest.raises(RuntimeError, match="must match"):
            x.copy_(torch.ones(4))

    assert not waits(copy)
    assert allocations() == before


def test_lists_are_copied_between_host_and_device():
    """`_foreach_copy_` takes a list on each side."""
    x, host = grid(), torch.zeros(2, 3)

    torch._foreach_copy_([host], [x])
    assert host.tolist() == [[0, 1, 2], [3, 4, 5]]
    torch._foreach_copy_([x], [host + 1])
    assert x.tolist() == [[1, 2, 3], [4, 5, 6]]


# ----------------------------------------------------------------------- errors


def test_errors_of_cuda_have_their_type():
    """A device that is not there, a wait within a capture, sizes beyond any number."""
    with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
        torch.ones(2, device="cuda:7")
    with (
        pytest.raises(torch.AcceleratorError, match="stream is capturing"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match="Storage size calculation overflowed"):
        torch.empty(1 << 62, device="cuda")


def test_a_product_takes_its_result_before_its_workspace():
    """So do the blocks of both lie in memory."""
    x = torch.ones(1000, 1000, device="cuda")
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.memory._record_memory_history(context=None)

    kept = x @ x

    (trace,) = torch.cuda.memory._snapshot()["device_traces"]
    torch.cuda.memory._record_memory_history(None)
    sizes = [each["size"] for each in trace if each["action"] == "alloc"]
    assert sizes == [kept.nbytes, 32 << 20]
