"""What waits for a real GPU is found by its line, and races by both of theirs."""

from __future__ import annotations

import sys
import warnings

import pytest


def test_implicit_waits_are_found_by_their_line(torch, runtime):
    """Each operation that is known to wait is noted, as its author would call it."""
    x = torch.ones(64, device="cuda")

    with runtime.watch_syncs() as seen:
        x.sum().item()
        x.cpu()
        x[:2].tolist()
        x.nonzero()
        if x.sum():
            pass
        x.copy_(torch.ones(64))

    assert [(each.what, each.line.source) for each in seen] == [
        (".item()", "x.sum().item()"),
        (".cpu()", "x.cpu()"),
        (".tolist()", "x[:2].tolist()"),
        (".nonzero()", "x.nonzero()"),
        ("a tensor as a condition", "if x.sum():"),
        (".copy_()", "x.copy_(torch.ones(64))"),
    ]
    assert all(each.waited_s is None for each in seen)


def test_what_does_not_wait_is_not_noted(torch, runtime):
    """Kernels, and copies from and to pinned memory, leave the list empty."""
    x = torch.ones(1 << 20, device="cuda")
    pinned = torch.ones(1 << 20).pin_memory()

    def work():
        (x * 2).relu().sum()
        x.copy_(pinned, non_blocking=True)
        pinned.copy_(x, non_blocking=True)

    work()  # whatever the first one waits for
    runtime.synchronize()

    with runtime.watch_syncs() as seen:
        work()

    assert seen == []


def test_explicit_waits_are_noted_once_with_their_cost(torch, runtime, spin):
    """A wait that is asked for takes as long as the work before it."""
    stream = torch.cuda.current_stream()

    with runtime.watch_syncs() as seen:
        for wait in (
            torch.cuda.synchronize,
            stream.synchronize,
            lambda: stream.record_event().synchronize(),
        ):
            spin(20)
            wait()

    assert [each.what for each in seen] == [
        "torch.cuda.synchronize()",
        "stream.synchronize()",
        "event.synchronize()",
    ]
    assert all(each.waited_s > 0.010 for each in seen)


def test_everything_is_as_before(torch, runtime):
    """The debug mode, the filters and the hook are those of before."""

    def state():
        return (
            torch.cuda.get_sync_debug_mode(),
            list(warnings.filters),
            warnings.showwarning,
            torch._C._cuda_synchronize,
            torch.cuda.Stream.synchronize,
        )

    before = state()

    with runtime.watch_syncs():
        torch.ones(1, device="cuda").item()

    assert state() == before


def test_a_backward_pass_is_noted_by_the_line_that_calls_it(torch, runtime):
    """What waits in autograd's own thread is told with the user's line, or without."""

    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(_context, value):
            return value * 2

        @staticmethod
        def backward(_context, gradient):
            gradient.sum().item()
            return gradient * 2

    x = torch.ones(4, device="cuda", requires_grad=True)
    y = Waits.apply(x).sum()

    with runtime.watch_syncs() as seen:
        y.backward()

    assert [each.what for each in seen] == [".item()"]


def test_the_wrong_example_of_pytorch_is_found(torch, runtime, monkeypatch):
    """The side stream that sums too early is found with both lines; no value lost."""
    side = torch.cuda.Stream()
    monkeypatch.setattr(sys.modules["__main__"], "side", side, raising=False)

    with runtime.watch_races() as races:
        numbers = torch.empty((100, 100), device="cuda").normal_(0.0, 1.0)
        with torch.cuda.stream(side):
            total = torch.sum(numbers)

    assert total.shape == ()
    assert [each.later.source for each in races] == ["total = torch.sum(numbers)"]
    assert "numbers = " in races[0].earlier.source
    assert races[0].hint.startswith(
        "side.wait_stream(torch.cuda.default_stream()) before "
    )


def test_the_corrected_example_is_not_found(torch, runtime):
    """What waits as the page has it is no race."""
    side = torch.cuda.Stream()

    with runtime.watch_races() as races:
        numbers = torch.empty((100, 100), device="cuda").normal_(0.0, 1.0)
        side.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(side):
            torch.sum(numbers)
        numbers.record_stream(side)
        torch.cuda.default_stream().wait_stream(side)
        numbers.add_(1)

    assert races == []


def test_a_backward_pass_has_no_races(torch, runtime):
    """A plain training step is ordered by torch itself, also in autograd's thread."""
    layer = torch.nn.Linear(8, 8, device="cuda")

    with runtime.watch_races() as races:
        for _ in range(3):
            layer(torch.ones(4, 8, device="cuda")).sum().backward()

    assert races == []


def test_an_error_beside_a_tensor_that_goes_stays_itself(torch, runtime):
    """For each tensor that is freed Python is called, by which errors were lost."""

    def none_of_torch(nothing=0):
        return torch.ones(8, device="cuda") * 2, 1 // nothing

    def of_torch():
        made = torch.ones(8, device="cuda")
        return made * 2, made + torch.ones(3, device="cuda")

    for error, fails in ((ArithmeticError, none_of_torch), (RuntimeError, of_torch)):
        with runtime.watch_races(), pytest.raises(error):
            fails()
        with pytest.raises(error):
            fails()
