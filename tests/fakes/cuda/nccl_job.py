"""What ranks do with NCCL on the machine without a GPU; test_nccl.py starts them.

Each check is a function of a rank, which all ranks run; its name and what was wrong, if
anything, go into a file of the rank. Values are small whole numbers, so that every type
holds sums and products of them exactly, whatever the order.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FLOATS = (torch.float32, torch.float64, torch.half, torch.bfloat16)
WHOLE = (torch.int32, torch.int64, torch.int8, torch.uint8)
EIGHT = (torch.float8_e4m3fn, torch.float8_e5m2)
SUM, PRODUCT, MAX, MIN, AVERAGE = (
    getattr(dist.ReduceOp, name) for name in ("SUM", "PRODUCT", "MAX", "MIN", "AVG")
)
PROGRAMS, STEPS = 30, 12


class Rank:
    """One rank of the job: who it is, and what it compares."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count = rank, count
        self.everybody = range(count)
        self.device = torch.device("cuda", rank)
        self.wrong: list[str] = []

    def put(self, tensor: Any) -> Any:
        """It on this rank's GPU."""
        return tensor.to(self.device)

    def empty(self, count: int, dtype: Any) -> Any:
        """Room for values on this rank's GPU."""
        return torch.empty(count, dtype=dtype, device=self.device)

    def same(self, what: str, got: Any, expected: Any) -> None:
        """Note what is not the same to the last bit."""
        got = got.cpu()
        if got.dtype in EIGHT:
            got, expected = got.float(), expected.float()
        if not torch.equal(got, expected):
            self.wrong.append(f"rank {self.rank}, {what}: {got} is not {expected}")

    def close(self, what: str, got: Any, expected: Any) -> None:
        """Note what differs by more than a few roundings."""
        apart = (got.detach().cpu() - expected).abs().max().item()
        if apart > 1e-5:
            self.wrong.append(f"rank {self.rank}, {what}: {apart} apart")

    def raises(self, words: str, action: Callable[[], object]) -> None:
        """Note what is raised if it does not say so."""
        try:
            action()
        except RuntimeError as error:
            said = str(error)
        else:
            said = "nothing"
        if words not in said:
            self.wrong.append(said)


def values(rank: int, dtype: Any, count: int = 1000) -> Any:
    """What a rank gives; every rank can work out what the others do."""
    low = 0 if dtype == torch.uint8 else -2
    return ((torch.arange(count) * 7 + rank * 3) % 5 + low).to(dtype)


def folded(how: Any, all_values: list[Any]) -> Any:
    """What torch makes of the values of all ranks on the CPU."""
    dtype = all_values[0].dtype
    stack = torch.stack(
        [each.float() if dtype in EIGHT else each for each in all_values]
    )
    if how == PRODUCT:
        result = stack[0].clone()
        for each in stack[1:]:
            result *= each
    elif how == AVERAGE:
        result = stack.sum(0, dtype=stack.dtype) / len(all_values)
    else:
        of = {SUM: lambda s: s.sum(0, dtype=s.dtype), MAX: torch.amax, MIN: torch.amin}
        result = of[how](stack) if how == SUM else of[how](stack, 0)
    return result.to(dtype)


# ------------------------------------------------------------------ values


def reductions(me: Rank) -> None:
    """All operations in all types."""
    for dtype in (*FLOATS, *WHOLE, *EIGHT):
        given = [values(k, dtype) for k in me.everybody]
        averages = () if dtype in WHOLE else (AVERAGE,)
        for how in (SUM, PRODUCT, MAX, MIN, *averages):
            x = me.put(given[me.rank])
            dist.all_reduce(x, op=how)
            me.same(f"{how} of {dtype}", x, folded(how, given))
        if dtype in FLOATS:
            x = me.put(given[me.rank])
            dist.all_reduce(x, op=dist._make_nccl_premul_sum(0.5))
            me.same(f"half the sum of {dtype}", x, folded(SUM, given) / 2)
    x = me.put(values(me.rank, torch.float32))
    halves = me.put(torch.tensor(0.5))
    dist.all_reduce(x, op=dist._make_nccl_premul_sum(halves))
    every = [values(k, torch.float32) for k in me.everybody]
    me.same("scaled by the device", x, folded(SUM, every) / 2)


def roundings(me: Rank) -> None:
    """A sum in half is worked out as float, and rounded once."""
    for dtype in (torch.half, torch.bfloat16):
        rng = torch.Generator().manual_seed(1)
        given = [torch.randn(1000, generator=rng).to(dtype) for _ in me.everybody]
        x = me.put(given[me.rank])
        dist.all_reduce(x)
        total = given[0].float()
        for each in given[1:]:
            total = total + each.float()
        me.same(f"{dtype}", x, total.to(dtype))
    x = me.put(torch.tensor([float("nan"), float("inf"), -1.0]))
    dist.all_reduce(x, op=MAX)
    me.same("a NaN stays", x.isnan(), torch.tensor([True, False, False]))


def roots(me: Rank) -> None:
    """What one rank gives or takes; and parts of a sum."""
    n, r = me.count, me.rank
    given = [values(k, torch.float32) for k in me.everybody]
    total = folded(SUM, given)
    for root in me.everybody:
        x = me.put(given[r])
        dist.reduce(x, dst=root)
        if r == root:
            me.same("reduce", x, total)
        room = [me.empty(1000, torch.float32) for _ in me.everybody]
        dist.gather(me.put(given[r]), room if r == root else None, dst=root)
        if r == root:
            me.same("gather", torch.cat(room), torch.cat(given))
        to_all = [me.put(each + root) for each in given] if r == root else None
        dist.scatter(room[0], to_all, src=root)
        me.same("scatter", room[0], given[r] + root)
    part = me.empty(1000 // n, torch.float32)
    dist.reduce_scatter_tensor(part, me.put(given[r]))
    me.same("reduce_scatter", part, total.view(n, -1)[r])


def uneven(me: Rank) -> None:
    """Parts of different sizes; none at all; more than fits at once."""
    n, r = me.count, me.rank
    gives = [[(k + to) % 3 for to in me.everybody] for k in me.everybody]
    parts = [[torch.full((gives[k][to],), 10.0 * k + to) for to in me.everybody]
             for k in me.everybody]  # fmt: skip
    takes = [gives[k][r] for k in me.everybody]
    x = me.empty(sum(takes), torch.float32)
    dist.all_to_all_single(x, me.put(torch.cat(parts[r])), takes, gives[r])
    me.same("uneven all_to_all", x, torch.cat([parts[k][r] for k in me.everybody]))
    large = 3_000_001
    x = torch.full((large,), float(r), device=me.device)
    y = me.empty(large, torch.float32)
    ring = [
        dist.P2POp(dist.isend, x, (r + 1) % n),
        dist.P2POp(dist.irecv, y, (r - 1) % n),
    ]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    me.same("a large ring", y, torch.full((large,), float((r - 1) % n)))
    dist.all_reduce(x)
    me.same("a large sum", x, torch.full((large,), float(sum(me.everybody))))
    dist.all_reduce(me.empty(0, torch.float32))


def pairs(me: Rank) -> None:
    """Several sends to one rank arrive in their order; also to oneself."""
    r, peer = me.rank, me.rank ^ 1
    sizes = [700_000 + k for k in range(4)]  # each takes several boxfuls
    out = [
        me.put(values(r * 10 + k, torch.int32, size)) for k, size in enumerate(sizes)
    ]
    room = [me.empty(size, torch.int32) for size in sizes]
    both = [dist.P2POp(dist.irecv, each, peer) for each in room]
    both += [dist.P2POp(dist.isend, each, peer) for each in out]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    for k, each in enumerate(room):
        me.same("in their order", each, values(peer * 10 + k, torch.int32, sizes[k]))
    if r % 2:
        dist.recv(room[0], r - 1)
        me.same("recv", room[0], values((r - 1) * 10, torch.int32, sizes[0]))
    else:
        dist.send(out[0], r + 1)


def groups(me: Rank) -> None:
    """Groups of some ranks, each a split of all; objects; a barrier."""
    n, r = me.count, me.rank
    kinds = [dist.new_group([k for k in me.everybody if k % 2 == p]) for p in (0, 1)]
    x = torch.ones(3, device=me.device) * (r + 1)
    dist.all_reduce(x, group=kinds[r % 2])
    mine = float(sum(k + 1 for k in me.everybody if k % 2 == r % 2))
    me.same("of the even or odd", x, torch.full((3,), mine))
    backward = dist.new_group(list(reversed(me.everybody)))
    x = torch.ones(2, device=me.device) * r
    dist.broadcast(x, src=n - 1, group=backward)
    me.same("of all, backward", x, torch.full((2,), n - 1.0))
    told: list[Any] = [None] * n
    dist.all_gather_object(told, {"rank": r})
    if told != [{"rank": k} for k in me.everybody]:
        me.wrong.append(f"objects: {told}")
    dist.barrier()


def times(me: Rank) -> None:
    """By a model's clock a collective takes its time once the last rank has come."""
    x = torch.ones(1000, device=me.device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for late_ms in (10, 30, 0.5):
        dist.barrier()
        torch.cuda.synchronize()
        if me.rank == 1:
            torch.cuda._sleep(int(late_ms * 1_980_000))
        start.record()
        dist.all_reduce(x)
        end.record()
        if end.query():
            me.wrong.append("done before anybody can know")
        end.synchronize()
        took_ms = start.elapsed_time(end)
        least_ms = 0.008 if me.rank == 1 else late_ms
        if not least_ms <= took_ms < least_ms + 0.1:
            me.wrong.append(f"rank {me.rank}: {took_ms} ms beside {late_ms}")


def graphs(me: Rank) -> None:
    """A captured collective runs at each replay, and not when it is captured."""
    x = torch.ones(10, device=me.device)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        dist.all_reduce(x)
    torch.cuda.synchronize()
    me.same("captured", x, torch.ones(10))
    for replays in (1, 2, 3):
        graph.replay()
        torch.cuda.synchronize()
        me.same("replayed", x, torch.full((10,), float(me.count) ** replays))


# ------------------------------------------------------------------ random programs


def _steps(rng: random.Random, count: int) -> Iterator[tuple[Any, ...]]:
    for _ in range(STEPS):
        yield (
            rng.choice(
                ["sum", "max", "broadcast", "gather", "scatter", "turn", "ring"]
            ),
            rng.randrange(3),
            rng.randrange(count),
            rng.random() < 0.5,
        )


def _on_cpu(what: str, tensors: list[Any], root: int) -> list[Any]:
    """What a step makes of the tensor of each rank."""
    n = len(tensors)
    if what in ("sum", "max"):
        return [folded(SUM if what == "sum" else MAX, tensors)] * n
    if what == "broadcast":
        return [tensors[root]] * n
    if what == "gather":
        return [torch.stack(tensors).amin(0)] * n
    if what == "scatter":
        return list(folded(SUM, [each.repeat(n) for each in tensors]).chunk(n))
    if what == "turn":
        parts = [each.chunk(n) for each in tensors]
        return [torch.cat([parts[k][r] for k in range(n)]) for r in range(n)]
    return [tensors[(r - 1) % n] for r in range(n)]


def _on_gpu(me: Rank, what: str, x: Any, root: int, *, later: bool) -> Any:
    n, r = me.count, me.rank
    if what in ("sum", "max"):
        work = dist.all_reduce(x, op=SUM if what == "sum" else MAX, async_op=later)
    elif what == "broadcast":
        work = dist.broadcast(x, src=root, async_op=later)
    elif what == "gather":
        many = x.new_empty(n, x.numel())
        work = dist.all_gather_into_tensor(many.view(-1), x, async_op=later)
        if later:
            work.wait()
        return many.amin(0)
    elif what == "scatter":
        given, x = x.repeat(n), torch.empty_like(x)
        work = dist.reduce_scatter_tensor(x, given, async_op=later)
    elif what == "turn":
        given, x = x, torch.empty_like(x)
        work = dist.all_to_all_single(x, given, async_op=later)
    else:
        given, x = x, torch.empty_like(x)
        ring = [dist.P2POp(dist.isend, given, (r + 1) % n),
                dist.P2POp(dist.irecv, x, (r - 1) % n)]  # fmt: skip
        for each in dist.batch_isend_irecv(ring):
            each.wait()
        return x
    if later:
        work.wait()
    return x


def random_programs(me: Rank) -> None:
    """Collectives by chance, with the devices' own work between them."""
    for seed in range(PROGRAMS):
        rng = random.Random(seed)  # noqa: S311 -- of tests
        dtype = rng.choice([*FLOATS, torch.int32, torch.int64])
        sizes = [rng.choice([1, 3, 100, 5000]) * me.count for _ in range(3)]
        model = [[values(k + i, dtype, s) for k in me.everybody]
                 for i, s in enumerate(sizes)]  # fmt: skip
        mine = [me.put(of[me.rank]) for of in model]
        for what, which, root, later in _steps(rng, me.count):
            model[which] = [
                (each + k) % 5
                for k, each in enumerate(_on_cpu(what, model[which], root))
            ]
            mine[which] = (
                _on_gpu(me, what, mine[which], root, later=later) + me.rank
            ) % 5
        for which, of in enumerate(model):
            me.same(f"program {seed}", mine[which], of[me.rank])


# ------------------------------------------------------------------ training


def _network() -> Any:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def _train(model: Any, x: Any, y: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
    return model


def trainings(me: Rank) -> None:
    """DDP and FSDP2 come to what one process comes to with the whole batch."""
    torch.manual_seed(9)
    x, y = torch.randn(8 * me.count, 16), torch.randn(8 * me.count, 4)
    expected = list(_train(_network(), x, y).parameters())
    part = slice(8 * me.rank, 8 * me.rank + 8)
    x, y = me.put(x[part]), me.put(y[part])
    ddp = _train(nn.parallel.DistributedDataParallel(me.put(_network())), x, y)
    for got, each in zip(ddp.parameters(), expected, strict=True):
        me.close("DDP", got, each)
    sharded = me.put(_network())
    for layer in (sharded[0], sharded[2], sharded):
        dist.fsdp.fully_shard(layer)
    for got, each in zip(_train(sharded, x, y).parameters(), expected, strict=True):
        me.close("FSDP2", got.full_tensor(), each)


def devices(me: Rank) -> None:
    """One process with all GPUs, while the others wait."""
    if me.rank == 0:
        every = range(torch.cuda.device_count())
        parts = [torch.full((5,), k + 1.0, device=f"cuda:{k}") for k in every]
        torch.cuda.nccl.all_reduce(parts)
        total = float(sum(k + 1 for k in every))
        for part in parts:
            me.same("one process", part, torch.full((5,), total))
        torch.manual_seed(9)
        x, network = torch.randn(8, 16), _network()
        expected = network(x)
        me.close("DataParallel", nn.DataParallel(me.put(network))(me.put(x)), expected)
    dist.barrier()


def shrunk(me: Rank) -> None:
    """A group goes on without its last rank."""
    group = dist.new_group(list(me.everybody))
    x = torch.ones(3, device=me.device)
    dist.all_reduce(x, group=group)
    torch.cuda.synchronize()
    if me.rank < me.count - 1:
        smaller = dist.shrink_group([me.count - 1], group=group)
        dist.all_reduce(x, group=smaller)
        me.same("without one", x, torch.full((3,), me.count * (me.count - 1.0)))


# ------------------------------------------------------------------ what goes wrong


def abort(me: Rank) -> None:
    """A collective that nobody comes to ends by abort; a new group begins anew."""
    x = torch.ones(10, device=me.device)
    if me.rank == 0:
        work = dist.all_reduce(x, async_op=True)
        time.sleep(0.5)
        if work.is_completed():
            me.wrong.append("done before the others came")
        dist.distributed_c10d._abort_process_group()
        torch.cuda.synchronize()
        me.same("untouched", x, torch.ones(10))
    else:
        time.sleep(1)
        dist.distributed_c10d._abort_process_group()
    begin(me.rank, me.count, int(os.environ["MASTER_PORT"]) + 1)
    dist.all_reduce(x)
    me.same("anew", x, torch.full((10,), float(me.count)))


def waits(me: Rank) -> None:
    """The timeout of a collective is raised where the host waits for it."""
    if me.rank == 1:
        time.sleep(6)
        return
    x = torch.ones(10, device=me.device)
    me.raises("timeout", lambda: dist.all_reduce(x, async_op=True).wait())
    dist.distributed_c10d._abort_process_group()


def share(me: Rank) -> None:
    """Two ranks on one GPU are refused, as the real NCCL does."""
    torch.cuda.set_device(0)
    x = torch.ones(1, device="cuda:0")
    me.raises("Duplicate GPU detected", lambda: dist.all_reduce(x))


def dies(me: Rank) -> None:
    """Where it is told that a peer's process has gone, operations fail."""
    x = torch.ones(10, device=me.device)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    if me.rank == 1:
        os._exit(0)
    work = dist.all_reduce(x, async_op=True)

    def wait() -> None:
        for _ in range(200):
            time.sleep(0.1)
            work.is_completed()
            work.wait()

    me.raises("remote process exited", wait)


def late(me: Rank) -> None:
    """Rank 1 does not come; the watchdog finds out, and ends the process."""
    x = torch.ones(10, device=me.device)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    if me.rank == 1:
        time.sleep(60)
    dist.all_reduce(x)
    torch.cuda.synchronize()


# ------------------------------------------------------------------ the job


def begin(rank: int, count: int, port: int) -> None:
    """Meet the other ranks, each on its GPU."""
    seconds = float(os.environ.get("TIMEOUT_S", "60"))
    shared = "SHARE" in os.environ
    torch.cuda.set_device(0 if shared else rank)
    dist.init_process_group(
        "nccl",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=count,
        timeout=dt.timedelta(seconds=seconds),
        device_id=None if shared else torch.device("cuda", rank),
    )


def main(rank: int, count: int, folder: str, *checks: str) -> None:
    """Run checks by their names, and write down what each has found."""
    begin(rank, count, int(os.environ["MASTER_PORT"]))
    me = Rank(rank, count)
    for name in checks:
        check: Callable[[Rank], None] = globals()[name]
        me.wrong = []
        check(me)
        torch.cuda.synchronize()
        (Path(folder) / f"{name}.{rank}.json").write_text(json.dumps(me.wrong))
    if dist.is_initialized() and "dies" not in checks:
        dist.destroy_process_group()
