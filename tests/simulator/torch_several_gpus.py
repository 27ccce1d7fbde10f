"""One program on several GPUs: values, gradients, times and memory of each."""

from __future__ import annotations

import copy
import os
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.cuda import comm
from torch.nn import parallel

import gpumagic
from gpumagic.simulator.backend.refusals import NotSimulated


@pytest.fixture(params=["sim", "cuda"])
def device(request):
    """The name of the device, on a machine with two H100."""
    with gpumagic.simulate("2xh100", as_cuda=request.param == "cuda"):
        yield request.param


@pytest.fixture(scope="module")
def machine():
    """Two H100 that stand in for CUDA."""
    return {"machine": "2xh100", "as_cuda": True}


def on_each(device, value=1.0, size=3):
    """A tensor on each GPU, the second with one more."""
    return [
        torch.full((size,), value + index, device=f"{device}:{index}")
        for index in range(2)
    ]


def network():
    """A small model with parameters, a buffer and a branch for a keyword."""
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)
    return nn.Sequential(*layers).double()


# ------------------------------------------------------------------- DataParallel


def test_replicas_give_the_numbers_of_the_parts(device):
    """Outputs, gradients and buffers are those of each part of the batch by itself."""
    plain, batch = network(), torch.randn(10, 6).double()
    model = nn.DataParallel(copy.deepcopy(plain).to(device))
    second = copy.deepcopy(plain)  # a replica's buffers are its own
    expected = torch.cat([plain(batch[:5]), second(batch[5:])])

    output = model(batch)
    output.square().mean().backward()
    expected.square().mean().backward()

    assert output.device.index == 0
    assert torch.allclose(output.cpu(), expected)
    pairs = zip(plain.parameters(), second.parameters(), strict=True)
    for own, (one, other) in zip(model.module.parameters(), pairs, strict=True):
        assert own.grad.device == own.device
        assert torch.allclose(own.grad.cpu(), one.grad + other.grad)
    for ours, theirs in zip(model.module.buffers(), plain.buffers(), strict=True):
        assert torch.allclose(ours.cpu(), theirs)


def test_a_training_learns_as_on_one_gpu(device):
    """Ten steps with a scheduler end with the parameters of a training on one."""
    results = []
    for ids in ([0, 1], [0]):
        torch.manual_seed(3)
        plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).double()
        model = nn.DataParallel(plain.to(device), device_ids=ids)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        for _ in range(10):
            batch, target = torch.randn(7, 4).double(), torch.randn(7, 2).double()
            loss = nn.functional.mse_loss(model(batch), target.to(device))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        results.append([each.cpu() for each in plain.state_dict().values()])

    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other)


class Telling(nn.Module):
    """Notes where each replica runs."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.seen = []

    def forward(self, x, scale=1.0, words=None):
        """Multiply, and note device, stream and thread."""
        now = torch.accelerator.current_device_index()
        made = torch.ones(1, device=x.device.type)
        stream = torch.accelerator.current_stream().device.index
        where = (x.device.index, self.weight.device.index, now, made.device.index)
        self.seen.append((*where, stream, torch.is_grad_enabled(), words))
        return {"out": x * self.weight * scale, "rest": (x.sum(1),)}


def test_each_replica_has_its_gpu_as_the_current_one(device):
    """Threads have their own device; arguments are split, or given to each."""
    model = Telling().to(device)
    with torch.no_grad():
        output = nn.DataParallel(model)(torch.ones(4, 2), scale=3.0, words="same")

    assert output["out"].tolist() == [[3, 3]] * 4
    assert output["rest"][0].tolist() == [2] * 4
    expected = [(index,) * 5 + (False, "same") for index in range(2)]
    assert sorted(model.seen) == expected
    assert torch.accelerator.current_device_index() == 0


def test_memory_of_other_gpus_is_given_back(device):
    """Between steps the second GPU holds neither replicas nor parts of batches."""
    model = nn.DataParallel(network().to(device))
    memory = getattr(torch, device)

    def step():
        model(torch.randn(1000, 6).double()).sum().backward()
        return memory.memory_allocated(1)

    first, second = step(), step()

    assert first == second
    needed = 1000 // 2 * 6 * 8 + sum(each.nbytes for each in model.parameters())
    assert memory.max_memory_allocated(1) - second > needed


@pytest.mark.usefixtures("kept_box")
def test_an_error_of_a_replica_says_which():
    """What is raised in a thread arrives with its type and its replica."""

    class Failing(nn.Linear):
        def forward(self, x):
            if x.device.index:
                raise ValueError("no good")
            return super().forward(x)

    model = nn.DataParallel(Failing(2, 2).cuda())

    with pytest.raises(ValueError, match="in replica 1 on device 1"):
        model(torch.ones(4, 2))
    assert nn.DataParallel(nn.Linear(2, 2).cuda())(torch.ones(4, 2)).shape == (4, 2)


@pytest.mark.usefixtures("kept_box")
def test_autocast_holds_in_every_replica():
    """Replicas compute in the type of the block around them."""
    model = nn.DataParallel(nn.Linear(2, 2).cuda())

    with torch.autocast("cuda"):
        output = model(torch.ones(4, 2, device="cuda"))

    assert output.dtype is torch.float16
    output.float().sum().backward()
    assert model.module.weight.grad.dtype is torch.float32


def busy_times(done):
    """When each GPU computed for the first and for the last time."""
    found = {}
    for work in done:
        if not work.engine:
            found.setdefault(work.stream.device, []).append(work)
    return {gpu: (works[0].start_ns, works[-1].end_ns) for gpu, works in found.items()}


class Deep(nn.Module):
    """Twenty operations, each of which keeps a GPU busy for longer than the host."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        """Multiply again and again."""
        for _ in range(20):
            x = x * self.weight
        return x.sum(1)


def a_run():
    """What two GPUs do in one warm forward pass, on a fresh machine."""
    with gpumagic.simulate("2xh100", as_cuda=True) as machine, torch.no_grad():
        model, batch = nn.DataParallel(Deep().cuda()), torch.ones(2, 1 << 20).cuda()
        model(batch)
        for index in range(2):
            torch.cuda.synchronize(index)
        done = machine.record()
        model(batch)
        for index in range(2):
            torch.cuda.synchronize(index)
        return machine.time_s, busy_times(done)


def test_replicas_run_at_the_same_time_and_always_alike():
    """Both GPUs compute beside each other, and every run has the same times."""
    time_s, busy = a_run()

    (first_from, first_to), (second_from, second_to) = busy[0], busy[1]
    both = min(first_to, second_to) - max(first_from, second_from)
    assert both > 0.7 * (second_to - second_from)
    assert [a_run() for _ in range(3)] == [(time_s, busy)] * 3


@pytest.mark.usefixtures("kept_box")
def test_replicas_may_wait_for_each_other():
    """A module whose replicas meet in the middle is not held up for good."""
    meeting = threading.Barrier(2)

    class Meeting(nn.Linear):
        def forward(self, x):
            half = super().forward(x)
            meeting.wait(timeout=60)
            return half * 2

    model = nn.DataParallel(Meeting(2, 2).cuda())

    assert model(torch.ones(4, 2)).shape == (4, 2)


# ------------------------------------------------------------------- torch.cuda.comm


def test_tensors_are_spread_and_collected(device):
    """Broadcast, scatter, gather and the sums have the values and devices of CUDA."""
    whole = torch.arange(12.0, device=device).view(6, 2)

    here, there = comm.broadcast(whole, [0, 1])
    parts = comm.scatter(whole, [0, 1], chunk_sizes=[2, 4])
    columns = comm.scatter(whole.cpu(), [1, 0], dim=1)
    ones = on_each(device)

    assert here is whole
    assert (there.device.index, there.tolist()) == (1, whole.tolist())
    assert [each.device.index for each in parts] == [0, 1]
    assert [each.tolist() for each in parts] == [whole.tolist()[:2], whole.tolist()[2:]]
    assert [each.device.index for each in columns] == [1, 0]
    assert columns[0].tolist() == whole[:, :1].tolist()
    assert comm.gather(parts, destination=1).tolist() == whole.tolist()
    assert comm.gather(parts, destination=1).device.index == 1
    assert comm.gather(columns, dim=-1, destination="cpu").tolist() == whole.tolist()
    total = comm.reduce_add(ones, 1)
    assert (total.device.index, total.tolist()) == (1, [3, 3, 3])
    assert [each.tolist() for each in ones] == [[1, 1, 1], [2, 2, 2]]


def test_many_small_tensors_are_sent_together(device):
    """Coalesced, tensors of mixed types keep their order, values and versions."""
    many = [
        torch.full((size,), float(size), dtype=dtype, device=device)
        for size in (1, 5, 3)
        for dtype in (torch.float32, torch.float64)
    ]

    here, there = comm.broadcast_coalesced(many, [0, 1], buffer_size=16)
    added = comm.reduce_add_coalesced([many, there], 0, buffer_size=16)

    assert all(one is other for one, other in zip(here, many, strict=True))
    for one, own, total in zip(many, there, added, strict=True):
        assert (own.device.index, own.dtype) == (1, one.dtype)
        assert own.tolist() == one.tolist()
        assert total.tolist() == (one * 2).tolist()
    there[0].add_(1)
    assert there[2]._version == 0


def test_copies_between_gpus_run_on_the_stream_of_their_source(box):
    """A broadcast is a peer copy from the first GPU, and both are ordered by it."""
    whole = torch.ones(1 << 20, device="cuda")
    comm.broadcast(whole, [0, 1])
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    done = box.record()

    with torch.cuda.stream(side):
        _, there = comm.broadcast(whole, [0, 1])
    total = there + 1
    torch.cuda.synchronize(1)

    copied, added = (each for each in done if each.engine is not None)
    assert str(copied.name) == "Memcpy PtoP (Device -> Device)"
    assert copied.stream is side._simulated.queue
    assert added.start_ns >= copied.end_ns
    assert total.sum().item() == 2 << 20
    assert not box.races


def test_batches_are_scattered_in_the_background(box):
    """A CPU batch goes over on streams of its own, made anew on each machine."""
    batch = {"x": torch.ones(4, 2), "more": [torch.ones(2), 5]}

    targets = parallel.scatter(batch, [0, 1])

    assert [each["x"].device.index for each in targets] == [0, 1]
    assert [each["more"][1] for each in targets] == [5, 5]
    assert all(len(gpu.streams) == 2 for gpu in box.machine.gpus)
    with gpumagic.simulate("2xh100", as_cuda=True):
        assert parallel.scatter(torch.ones(4), [0, 1])[1].sum().item() == 2


def test_gradients_flow_through_scatter_and_gather(device):
    """What was spread and collected gives gradients where it came from."""
    x = torch.arange(4.0, device=device, requires_grad=True)

    parts = parallel.scatter(x, [0, 1])
    scaled = [part * (index + 2) for index, part in enumerate(parts)]
    total = parallel.gather(scaled, 1)
    total.sum().backward()

    assert total.device.index == 1
    assert x.grad.tolist() == [2, 2, 3, 3]


def test_the_parts_of_data_parallel_work_by_themselves(device):
    """Replicate, scatter, apply and gather give what the model gives."""
    model, batch = network().to(device).eval(), torch.randn(6, 6).double().to(device)
    replicas = parallel.replicate(model, [0, 1])

    inputs = [(part,) for part in parallel.scatter(batch, [0, 1])]
    outputs = parallel.parallel_apply(replicas, inputs, devices=[0, 1])
    gathered = parallel.gather(outputs, 0)
    gathered.sum().backward()

    assert torch.allclose(gathered, model(batch))
    assert torch.allclose(parallel.data_parallel(model, batch, [0, 1]), gathered)
    assert all(each.grad is not None for each in model.parameters())


# ------------------------------------------------------------- several processes


@pytest.fixture
def process_group(monkeypatch, tmp_path):
    """A group of this process alone, for the CPU."""
    monkeypatch.setattr(os, "environ", {**os.environ})
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_gloo_refuses_simulated_tensors_by_name(device):
    """What gloo would send says so, in two lines; on the CPU it works as ever."""
    x = torch.ones(3, device=device)

    for wrong in (
        lambda: dist.all_reduce(x),
        lambda: dist.broadcast(x, 0),
        lambda: dist.all_gather([x.clone()], x),
    ):
        with pytest.raises(NotSimulated, match=r"gloo on its GPUs"):
            wrong()
    on_host = torch.ones(3)
    dist.all_reduce(on_host)
    wrapped = parallel.DistributedDataParallel(nn.Linear(3, 2))
    assert wrapped(on_host).shape == (2,)


def test_a_group_of_one_reduces_on_its_gpu(device, tmp_path):
    """`init_process_group("nccl")` works under either name, without a launcher."""
    dist.init_process_group(
        "nccl",
        init_method=f"file://{tmp_path / 'alone'}",
        rank=0,
        world_size=1,
        device_id=torch.device(device, 0),
    )
    try:
        x = torch.ones(3, device=device)
        dist.all_reduce(x)
        dist.barrier()
        with pytest.raises(RuntimeError, match="device type cpu"):
            dist.all_reduce(torch.ones(1))
        assert (x.tolist(), dist.get_backend()) == ([1.0] * 3, "nccl")
        assert dist.is_nccl_available()
    finally:
        dist.destroy_process_group()
