"""What PyTorch's notes on CUDA semantics show and claim, section by section.

Each test goes through one example of the notes with the same calls in the same order;
sizes and values are this file's own, small enough for a CPU. Left out are the sections
that need several processes (DistributedDataParallel), a C++ compiler (allocators of
one's own, of which only the refusal is tested) or a cache on disk (jiterator, cuFFT).
"""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch

from gpumagic.simulator.backend.race_warnings import DataRace

pytestmark = pytest.mark.usefixtures("kept_box")


@pytest.fixture(scope="module")
def machine():
    """Four H100 that stand in for CUDA."""
    return {"machine": "4xh100", "as_cuda": True}


@contextlib.contextmanager
def ordered():
    """Within this block there must be no race."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataRace)
        yield


def plain_loss(weight):
    """A loss whose gradient is known."""
    return (weight * weight).sum()


# --------------------------------------------------------------- the first example


# -------------------------------------------------------------------- TF32, fp16


def test_tf32_is_faster_and_can_be_switched_off(box):
    """Matmuls take less time with TF32; the simulated numbers are the CPU's in both."""
    a, b = (torch.randn(1024, 1024, device="cuda") for _ in range(2))
    flags = torch.backends.cuda.matmul
    a @ b
    torch.cuda.synchronize()
    durations, results = {}, {}
    for allowed in (True, False):
        flags.allow_tf32 = allowed
        done = box.record()
        results[allowed] = a @ b
        torch.cuda.synchronize()
        durations[allowed] = max(each.duration_ns for each in done)

    assert durations[True] < durations[False]
    assert torch.equal(results[True], results[False])
    assert torch.allclose(results[True].cpu(), a.cpu() @ b.cpu())


# --------------------------------------------------------- asynchronous execution


def test_the_host_goes_on_and_events_tell_the_time(box):
    """A call returns before its work is done; only events and waiting see how long."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    x = torch.ones(1 << 22, device="cuda")
    torch.cuda.synchronize()

    before = box.time_s
    start.record()
    for _ in range(10):
        x = x * 1.5
    end.record()
    submitted_s = box.time_s - before
    torch.cuda.synchronize()
    elapsed_s = start.elapsed_time(end) / 1e3

    assert submitted_s < elapsed_s
    assert box.time_s - before >= elapsed_s


# ----------------------------------------------------------------------- streams


def test_reading_on_another_stream_too_early_is_a_race(box):
    """The incorrect example: a sum that may start before its input is there."""
    everywhere = torch.device("cuda")
    side = torch.cuda.Stream()
    numbers = torch.empty((100, 100), device=everywhere).normal_(0.0, 1.0)

    with pytest.warns(DataRace, match="wait_stream"), torch.cuda.stream(side):
        torch.sum(numbers)

    assert len(box.races) == 1


def test_waiting_for_the_stream_repairs_it(box):
    """The fixed example: the side stream waits, and the memory is kept for it."""
    everywhere = torch.device("cuda")
    side = torch.cuda.Stream()
    numbers = torch.empty((100, 100), device=everywhere).normal_(0.0, 1.0)

    with ordered():
        side.wait_stream(torch.cuda.default_stream(everywhere))
        with torch.cuda.stream(side):
            total = torch.sum(numbers)
        numbers.record_stream(side)
        torch.cuda.default_stream(everywhere).wait_stream(side)

        assert total.item() == pytest.approx(numbers.cpu().sum().item(), abs=1e-2)
    assert not box.races


@pytest.mark.parametrize("waits", [False, True])
def test_waiting_is_needed_even_where_nothing_is_read(waits, box):
    """Fresh memory may still be in use by the work of its former owner."""
    side = torch.cuda.Stream()
    former = torch.ones((100, 100), device="cuda")
    former.mul_(2)
    address = former.data_ptr()
    del former
    numbers = torch.empty((100, 100), device="cuda")

    if waits:
        side.wait_stream(torch.cuda.default_stream())
    with (
        ordered() if waits else warnings.catch_warnings(),
        torch.cuda.stream(side),
    ):
        if not waits:
            warnings.simplefilter("ignore", DataRace)
        numbers.normal_(0.0, 1.0)
        numbers.record_stream(side)

    assert address
    assert len(box.races) == (0 if waits else 1)


# ------------------------------------------------------ streams of backward passes


def test_each_backward_operation_runs_where_its_forward_ran(box):
    """Two branches on two streams stay on them in the backward pass."""
    side = torch.cuda.Stream()
    weight = torch.ones(1 << 10, device="cuda", requires_grad=True)

    with ordered():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            branch = plain_loss(weight)
        torch.cuda.current_stream().wait_stream(side)
        done = box.record()
        branch.backward()
        torch.cuda.synchronize()

    queues = {each.stream for each in done if each.engine is not None}
    assert side._simulated.queue in queues
    assert weight.grad.tolist() == [2.0] * (1 << 10)


def case_same_stream(loss, weight, side):
    """Gradients are used where the backward pass was called."""
    with torch.cuda.stream(side):
        loss.backward()
        weight.grad + 0


def case_other_stream(loss, weight, side):
    """Gradients are used on another stream."""
    with torch.cuda.stream(side):
        loss.backward()
    weight.grad + 0


def case_other_stream_waiting(loss, weight, side):
    """Gradients are used on another stream that has waited."""
    with torch.cuda.stream(side):
        loss.backward()
    torch.cuda.current_stream().wait_stream(side)
    weight.grad + 0


def case_own_gradient(loss, weight, side):
    """The first gradient is made where the backward pass is called."""
    del weight
    with torch.cuda.stream(side):
        loss.backward(gradient=torch.ones_like(loss))


def case_foreign_gradient(loss, weight, side):
    """The first gradient is made on another stream."""
    del weight
    gradient = torch.ones_like(loss)
    with torch.cuda.stream(side):
        loss.backward(gradient=gradient)


def case_foreign_gradient_waiting(loss, weight, side):
    """The first gradient is made on another stream that is waited for."""
    del weight
    gradient = torch.ones_like(loss)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        gradient.record_stream(side)
        loss.backward(gradient=gradient)


SAFE = (
    case_same_stream,
    case_other_stream_waiting,
    case_own_gradient,
    case_foreign_gradient_waiting,
)
UNSAFE = (case_other_stream, case_foreign_gradient)


@pytest.mark.parametrize("forward_on_side", [True, False])
@pytest.mark.parametrize("case", SAFE)
def test_safe_uses_of_a_backward_pass_are_silent(case, forward_on_side, box):
    """The safe cases of the notes are no race, wherever the forward pass ran."""
    run_case(case, forward_on_side=forward_on_side)

    assert not box.races


@pytest.mark.parametrize("case", UNSAFE)
def test_unsafe_uses_of_a_backward_pass_are_reported(case, box):
    """The unsafe cases of the notes are races, with the forward on the side stream."""
    run_case(case, forward_on_side=True)

    assert box.races


def run_case(case, *, forward_on_side):
    """A forward pass on one stream, then a case of the notes."""
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()
    weight = torch.ones(1 << 10, device="cuda", requires_grad=True)
    side.wait_stream(current)
    with torch.cuda.stream(side if forward_on_side else current):
        loss = plain_loss(weight)
    side.wait_stream(current)
    if forward_on_side:
        # Only then is the first gradient, which reads no number, the only question.
        current.wait_stream(side)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataRace)
        case(loss, weight, side)


# ------------------------------------------------------------------------- memory


def test_workspaces_stay_until_they_are_cleared():
    """A matmul takes a workspace for its stream, which is kept until asked for."""
    a = torch.ones(64, 64, device="cuda")
    before = torch.cuda.memory_allocated()
    product = a @ a
    with_workspace = torch.cuda.memory_allocated()

    torch._C._cuda_clearCublasWorkspaces()

    assert torch.cuda.memory_allocated() == before + product.nbytes < with_workspace
