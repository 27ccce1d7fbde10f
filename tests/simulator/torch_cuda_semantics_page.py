"""What PyTorch's notes on CUDA semantics show and claim, section by section.

Each test goes through one example of the notes with the same calls in the same order;
sizes and values are this file's own, small enough for a CPU. Left out are the sections
that need several processes (DistributedDataParallel), a C++ compiler (allocators of
one's own, of which only the refusal is tested) or a cache on disk (jiterator, cuFFT).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gpumagic
from gpumagic.simulator.backend.race_warnings import DataRace
from gpumagic.simulator.backend.refusals import NotSimulated

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


def test_tensors_are_made_on_the_current_device_and_stay_where_they_are():
    """The current device decides where tensors are made, never where they are used."""
    anywhere = torch.device("cuda")
    first, third = torch.device("cuda:0"), torch.device("cuda:2")

    x = torch.tensor([1.0, 2.0], device=first)
    y = torch.tensor([1.0, 2.0]).cuda()
    with torch.cuda.device(1):
        a = torch.tensor([1.0, 2.0], device=anywhere)
        b = torch.tensor([1.0, 2.0]).cuda()
        b2 = torch.tensor([1.0, 2.0]).to(device=anywhere)
        c, z = a + b, x + y
        d = torch.randn(2, device=third)
        e, f = torch.randn(2).to(third), torch.randn(2).cuda(third)

    assert {each.device for each in (x, y, z)} == {first}
    assert {each.device for each in (a, b, b2, c)} == {torch.device("cuda:1")}
    assert {each.device for each in (d, e, f)} == {third}
    assert c.tolist() == z.tolist() == [2, 4]
    with pytest.raises(RuntimeError, match="same device"):
        x + a


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


def test_reduced_precision_reductions_can_be_switched():
    """The flags for fp16 and bf16 keep what they are set to."""
    flags = torch.backends.cuda.matmul
    names = (
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
    )
    before = [getattr(flags, name) for name in names]

    for name in names:
        setattr(flags, name, False)
    during = [getattr(flags, name) for name in names]
    for name, value in zip(names, before, strict=True):
        setattr(flags, name, value)

    assert during == [False, False]


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


def test_freed_memory_stays_with_the_caching_allocator():
    """What tensors free stays reserved until the cache is emptied."""
    x = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
    reserved = torch.cuda.memory_reserved()
    del x

    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.max_memory_allocated() == 32 << 20
    assert torch.cuda.memory_reserved() == reserved > 0
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    assert torch.cuda.max_memory_reserved() == reserved
    assert torch.cuda.memory_stats()["reserved_bytes.all.peak"] == reserved
    assert torch.cuda.memory_snapshot() == []


def test_sizes_can_be_rounded_to_divisions_of_powers_of_two():
    """With four divisions, 1200 of any unit becomes 1280 of it."""
    settings = "roundup_power2_divisions:4"
    with gpumagic.simulate("h100", as_cuda=True, allocator=settings):
        kept = torch.empty(1200 << 10, dtype=torch.uint8, device="cuda")

        assert torch.cuda.memory_allocated() == 1280 << 10
        assert kept.nbytes == 1200 << 10


def test_an_allocator_of_ones_own_is_refused():
    """A shared library cannot allocate what is simulated."""
    with pytest.raises(NotSimulated, match="CUDAPluggableAllocator"):
        torch.cuda.memory.CUDAPluggableAllocator("alloc.so", "my_malloc", "my_free")


def test_workspaces_stay_until_they_are_cleared():
    """A matmul takes a workspace for its stream, which is kept until asked for."""
    a = torch.ones(64, 64, device="cuda")
    before = torch.cuda.memory_allocated()
    product = a @ a
    with_workspace = torch.cuda.memory_allocated()

    torch._C._cuda_clearCublasWorkspaces()

    assert torch.cuda.memory_allocated() == before + product.nbytes < with_workspace


# ----------------------------------------------------------------- best practices


@pytest.mark.parametrize(("typed", "expected"), [([], "cuda"), (["--no-gpu"], "cpu")])
def test_one_program_runs_with_and_without_a_gpu(typed, expected):
    """The device is chosen once, from what is there and what was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--no-gpu", action="store_true")
    args = parser.parse_args(typed)
    wanted = not args.no_gpu and torch.cuda.is_available()
    args.device = torch.device("cuda" if wanted else "cpu")

    x = torch.empty((8, 42), device=args.device)
    net = nn.Linear(42, 3).to(device=args.device)

    assert net(x).device.type == expected


@pytest.mark.parametrize("pinned", [False, True])
def test_batches_of_a_loader_are_moved_one_by_one(pinned):
    """Batches arrive whole, pinned or not, waited for or not."""
    loader = DataLoader(
        TensorDataset(torch.arange(12.0)), batch_size=4, pin_memory=pinned
    )
    device = torch.device("cuda:0")

    moved = [x.to(device, non_blocking=pinned) for (x,) in loader]
    torch.cuda.synchronize()

    assert torch.cat(moved).tolist() == list(range(12))


def test_a_block_changes_the_current_device_for_its_length():
    """Before and after the block the current device is the first."""
    seen = [torch.cuda.current_device()]
    with torch.cuda.device(1):
        seen.append(torch.cuda.current_device())
    seen.append(torch.cuda.current_device())

    assert seen == [0, 1, 0]


def test_new_tensors_are_like_the_old_one():
    """`new_*` and `*_like` keep device and type, and print them."""
    on_host, on_gpu = torch.empty(2), torch.empty(2, device=torch.device("cuda"))
    integers = torch.empty(2, dtype=torch.int64)

    filled = on_gpu.new_full([2, 2], fill_value=-5)

    assert on_host.new_full([2, 2], fill_value=0.5).tolist() == [[0.5, 0.5]] * 2
    assert str(filled) == ("tensor([[-5., -5.],\n        [-5., -5.]], device='cuda:0')")
    assert integers.new_tensor([[1, 2]]).dtype is torch.int64
    assert torch.ones_like(on_host).device.type == "cpu"
    assert torch.zeros_like(on_gpu).is_cuda


def test_copies_from_pinned_memory_are_faster_and_asynchronous(box):
    """Only from pinned memory does a copy go on while the host does."""
    pageable = torch.ones(1 << 22)
    pinned = pageable.pin_memory()
    torch.cuda.init()
    torch.ones(1, device="cuda")
    host_s = {}
    for source in (pageable, pinned):
        torch.cuda.synchronize()
        before = box.time_s
        source.to("cuda", non_blocking=True)
        host_s[source is pinned] = box.time_s - before
    torch.cuda.synchronize()

    assert pinned.is_pinned()
    assert host_s[True] < host_s[False] / 2


def test_data_parallel_works_and_several_processes_need_a_group():
    """The notes advise against the one; the other asks for a group, as torch does."""
    model = nn.Linear(2, 2).cuda()

    assert nn.DataParallel(model)(torch.ones(4, 2)).shape == (4, 2)
    with pytest.raises(ValueError, match="init_process_group"):
        nn.parallel.DistributedDataParallel(model)


# ------------------------------------------------------------------------- graphs


def warm_up(work):
    """Run some work on a side stream a few times, as graphs want it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)


def small_network():
    """A network with dropout, and what trains it."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(32, 16), nn.Dropout(p=0.2), nn.Linear(16, 8), nn.Dropout(p=0.1)
    ).cuda()
    return model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1)


def batches():
    """Ten batches, the same in each run."""
    generator = torch.Generator().manual_seed(3)
    return [
        [torch.rand(6, width, generator=generator).cuda() for width in (32, 8)]
        for _ in range(10)
    ]


def train_whole(graphed):
    """Losses of ten iterations, each plain or a replay of all of it."""
    model, loss_fn, optimizer = small_network()
    static_input, static_target = batches()[0]

    def iteration():
        loss = loss_fn(model(static_input), static_target)
        loss.backward()
        optimizer.step()
        return loss

    def plain():
        optimizer.zero_grad(set_to_none=True)
        return iteration()

    torch.cuda.manual_seed(7)
    warm_up(plain)
    graph, losses = torch.cuda.CUDAGraph(), []
    optimizer.zero_grad(set_to_none=True)
    if graphed:
        with torch.cuda.graph(graph):
            loss = iteration()
    for data, target in batches():
        static_input.copy_(data)
        static_target.copy_(target)
        if graphed:
            graph.replay()
        else:
            loss = plain()
        losses.append(loss.item())
    return losses


def test_a_whole_network_is_captured(box):
    """An iteration with forward, backward and step is replayed on new batches."""
    with ordered():
        assert train_whole(graphed=True) == train_whole(graphed=False)
    assert not box.races


def train_parts(wrap):
    """Losses of a network whose path depends on its data."""
    torch.manual_seed(0)
    first, second, third = (
        nn.Linear(*sizes).cuda() for sizes in ((16, 12), (12, 4), (12, 4))
    )
    parameters = itertools.chain(
        *(each.parameters() for each in (first, second, third))
    )
    optimizer = torch.optim.SGD(list(parameters), lr=0.01)
    x = torch.randn(6, 16, device="cuda")
    h = torch.randn(6, 12, device="cuda", requires_grad=True)
    first, second, third = wrap(first, (x,)), wrap(second, (h,)), wrap(third, (h,))
    paths, losses = set(), []
    base = torch.randn(6, 16).cuda()
    for sign in (3, -3, 3, -3, 3, -3):
        data = base * sign
        optimizer.zero_grad(set_to_none=True)
        hidden = first(data)
        positive = hidden.sum().item() > 0
        output = second(hidden) if positive else third(hidden)
        loss = nn.functional.mse_loss(output, torch.ones_like(output))
        loss.backward()
        optimizer.step()
        paths.add(positive)
        losses.append(loss.item())
    return paths, losses


def test_parts_of_a_network_are_captured():
    """Modules made into graphs run in a loop that looks at its data in between."""
    torch.cuda.manual_seed(1)
    paths, graphed = train_parts(torch.cuda.make_graphed_callables)
    torch.cuda.manual_seed(1)
    _, plain = train_parts(lambda module, _: module)

    assert paths == {True, False}
    assert graphed == pytest.approx(plain)
