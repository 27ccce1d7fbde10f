"""Names with what they hold on simulated GPUs, against their allocators."""

from __future__ import annotations

import gc
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gpumagic
from gpumagic.devices.opening import open_runtime
from gpumagic.gpu_mem.balance import find_holdings
from gpumagic.gpu_mem.names import Sources
from gpumagic.gpu_mem.records import HolderKind
from gpumagic.gpu_mem.walk import Budget

PATIENT = Budget(objects=10_000_000, seconds=60)
ROWS_OF_A_NAME = (HolderKind.VARIABLE, HolderKind.GRAPH)


@pytest.fixture(scope="module", autouse=True)
def machine():
    """Two GPUs for all tests of this file."""
    with gpumagic.simulate("2xh100") as box:
        yield box


def allocated():
    """What the allocators say, by device."""
    runtime = open_runtime("sim")
    return {
        device: runtime.memory_stats(device)["allocated_bytes.all.current"]
        for device in runtime.devices_in_use()
    }


def find(namespace, *, with_snapshot=False, **sources):
    """Who holds the memory of the simulated GPUs."""
    snapshot = open_runtime("sim").memory_snapshot() if with_snapshot else ()
    where = Sources(namespace, "sim", modules=False, **sources)
    return find_holdings(where, allocated(), budget=PATIENT, snapshot=snapshot)


def alone(holdings, name):
    """What would come back with a name, by device: its own, and its graph's."""
    names = (name, f"{name}.grad_fn", f"graphs in {name}")
    found = dict.fromkeys(dict(holdings.allocated_bytes), 0)
    for each in holdings.holders:
        if each.kind in ROWS_OF_A_NAME and each.name in names:
            found[each.device] += each.own_bytes
    return found


def sums_by_device(holdings):
    """What the kinds come to, by device."""
    found = dict.fromkeys(dict(holdings.allocated_bytes), 0)
    for device, _, nbytes in holdings.sums:
        found[device] += nbytes
    return found


class Notebook:
    """A namespace that random cells fill."""

    def __init__(self, seed):
        self.names = {}
        self._random = random.Random(seed)  # noqa: S311 -- nothing is kept secret

    def run(self, cells):
        """Run so many random cells."""
        for _ in range(cells):
            self._random.choice(self._cells())()

    def drop(self):
        """Delete a name; return which."""
        name = self._random.choice(sorted(self.names))
        del self.names[name]
        return name

    def _cells(self):
        return (
            self._tensor,
            self._tensor,
            self._leaf,
            self._view,
            self._container,
            self._closure,
            self._generator,
            self._graph,
            self._graph,
            self._backward,
            self._delete,
            self._cycle,
            self._attribute,
        )

    def _put(self, value):
        self.names[f"n{self._random.randrange(12)}"] = value

    def _some(self):
        if not self.names:
            return None
        return self.names[self._random.choice(sorted(self.names))]

    def _some_tensor(self):
        found = [each for each in self.names.values() if isinstance(each, torch.Tensor)]
        return self._random.choice(found) if found else None

    def _tensor(self):
        size = self._random.choice((1, 100, 128, 129, 5000, 300_000, 3_000_000))
        device = self._random.choice(("sim:0", "sim:1"))
        self._put(torch.empty(size, device=device))

    def _leaf(self):
        self._put(torch.ones(1000, device="sim:0", requires_grad=True))

    def _view(self):
        tensor = self._some_tensor()
        if tensor is not None:
            self._put(self._random.choice((tensor.detach(), tensor.reshape(-1)[:1])))

    def _container(self):
        one, other = self._some(), self._some()
        kinds = ([one, other], (one,), {"a": one, 3: {"b": other}})
        self._put(self._random.choice(kinds))

    def _closure(self):
        held = self._some()
        self._put(lambda: held)

    def _generator(self):
        def generate(held):
            yield held
            yield None

        generator = generate(self._some())
        next(generator)
        self._put(generator)

    def _graph(self):
        tensor = self._some_tensor()
        if tensor is not None and tensor.requires_grad:
            ways = (torch.exp, torch.sin, torch.relu, torch.sum, torch.neg)
            self._put(self._random.choice(ways)(tensor))

    def _backward(self):
        tensor = self._some_tensor()
        if tensor is not None and tensor.requires_grad and not tensor.is_leaf:
            try:
                tensor.sum().backward()
            except RuntimeError as freed:
                assert "second time" in str(freed)  # noqa: PT017 -- it may not raise

    def _delete(self):
        if self.names:
            self.drop()

    def _cycle(self):
        one, other = [self._some()], [self._some()]
        one.append(other)
        other.append(one)
        self._put((one, self._some()))
        one.pop()  # broken again: counting references has to do

    def _attribute(self):
        tensor = self._some_tensor()
        if tensor is not None and self._some() is not tensor:
            tensor.note = torch.zeros(64, device="sim:0")


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 1 << 32), with_snapshot=st.booleans())
def test_what_a_name_holds_alone_comes_back_with_it(seed, with_snapshot):
    """On random programs the rows add up, and each own share is what `del` frees."""
    before = allocated()
    notebook = Notebook(seed)
    notebook.run(25)

    while notebook.names:
        found = find(notebook.names, with_snapshot=with_snapshot)
        full = allocated()
        assert sums_by_device(found) == full
        assert not found.partial
        rest = {
            device: nbytes
            for device, kind, nbytes in found.sums
            if kind is HolderKind.UNATTRIBUTED
        }
        assert all(rest.get(each, 0) == before.get(each, 0) for each in full)
        name = notebook.drop()
        freed = {each: full[each] - nbytes for each, nbytes in allocated().items()}
        assert freed == alone(found, name)
    assert sum(allocated().values()) == sum(before.values())


def test_a_training_adds_up_to_the_last_byte():
    """Model, optimizer, batch, graph, generator, result, error and cuBLAS: no rest."""
    model = torch.nn.Sequential(
        *(
            torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())
            for _ in "x" * 50
        )
    ).to("sim")
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(16, 64, device="sim")
    model(x).sum().backward()
    optimizer.step()

    def batches():
        batch = torch.zeros(1 << 18, device="sim:1")
        yield 1
        del batch

    stream = batches()
    next(stream)
    names = {
        "model": model,
        "optimizer": optimizer,
        "x": x,
        "view": x[3:],
        "loss": model(x).sum(),
        "stream": stream,
    }
    names["_4"] = names["_"] = torch.zeros(5000, device="sim")

    def train_step():
        logits = torch.zeros(1 << 18, device="sim")
        raise ValueError(len(logits))

    with pytest.raises(ValueError, match="262144") as caught:
        train_step()

    found = find(names, errors=(caught.value,), outputs={"Out[4]": names["_"]})

    weights = 50 * (64 * 64 * 4 + 512)
    sums = {(device, kind): nbytes for device, kind, nbytes in found.sums}
    assert sums[0, HolderKind.VARIABLE] == 4 * weights + 16 * 64 * 4 + 512
    assert sums[0, HolderKind.GRAPH] == 50 * 16 * 64 * 4
    assert sums[0, HolderKind.OUTPUT] == 20_480
    assert sums[0, HolderKind.ERROR] == 1 << 20
    assert sums[0, HolderKind.LIBRARY] == 32 << 20
    assert sums[1, HolderKind.VARIABLE] == 1 << 20
    assert not any(kind is HolderKind.UNATTRIBUTED for _, kind in sums)
    assert sums_by_device(found) == allocated()


def test_looking_runs_nothing_on_the_device(machine):
    """No kernel, no wait and no allocation comes of looking."""
    gc.collect()  # what earlier tests have left would go at any moment
    leaf = torch.ones(1000, device="sim", requires_grad=True)
    names = {"leaf": leaf, "loss": leaf.exp().sum()}
    runtime = open_runtime("sim")
    stats = allocated(), runtime.memory_stats(0)["allocation.all.allocated"]
    clock = machine.machine.scheduler.now_ns
    counted = allocated()

    find_holdings(Sources(names, "sim"), counted, budget=PATIENT)

    assert machine.machine.scheduler.now_ns == clock
    after = allocated(), runtime.memory_stats(0)["allocation.all.allocated"]
    assert after == stats
