"""Work for a GPU, written once for the real one and for the simulated one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Action = Callable[[], object]

EVENTS, HOST = "events", "host"
MIB = 1 << 20


@dataclass(frozen=True)
class Workload:
    """Something for a GPU to do."""

    name: str  # what it is called in the results
    # makes its tensors on a device and gives what is to be timed
    prepare: Callable[[Any, str], Action]
    # by which of the two clocks it is judged: the device's own between two events, or
    # the host's until the device is idle
    clock: str = EVENTS
    times: int = 5  # how often the action is repeated between two readings of the clock


def workloads(shrunk: int = 1) -> tuple[Workload, ...]:
    """All of them; every long side is divided, for a quick look."""
    return (*_copies(shrunk), *_loops())


# ----------------------------------------------------------------------- copies


def _copies(shrunk: int) -> Iterator[Workload]:
    for mebibytes in (1, 16, 256):
        for pinned in (True, False):
            for outwards in (True, False):
                name = (
                    f"{mebibytes} MiB "
                    f"{'to' if outwards else 'from'} the device, "
                    f"{'pinned' if pinned else 'pageable'}"
                )
                prepare = functools.partial(
                    _copy,
                    nbytes=mebibytes * MIB // shrunk,
                    pinned=pinned,
                    outwards=outwards,
                )
                # A pageable copy is the host's work; events see a part of it only.
                yield Workload(name, prepare, EVENTS if pinned else HOST)


def _copy(
    torch: Any, device: str, nbytes: int, *, pinned: bool, outwards: bool
) -> Action:
    on_host = torch.full((nbytes // 4,), 0.5)
    if pinned:
        on_host = on_host.pin_memory()
    there = torch.zeros(nbytes // 4, device=device)
    target, source = (there, on_host) if outwards else (on_host, there)
    return lambda: target.copy_(source, non_blocking=pinned)


# ------------------------------------------------------------- bound by the host


def _loops() -> Iterator[Workload]:
    yield Workload("one small operation, launched", _launching, HOST, times=500)
    yield Workload("a small model forward", _small_model, HOST, times=100)
    yield Workload("a small training step", _small_step, HOST, times=50)
    yield Workload("item of a number", _reading, HOST, times=200)
    yield Workload("an operation, then its item", _working_and_reading, HOST, times=200)


def _launching(torch: Any, device: str) -> Action:
    x = torch.zeros(1024, device=device)
    return lambda: x.add_(1)


def _small_model(torch: Any, device: str) -> Action:
    model, x = _model(torch, device), torch.zeros(16, 64, device=device)

    def forward() -> None:
        with torch.no_grad():
            model(x)

    return forward


def _small_step(torch: Any, device: str) -> Action:
    model, x = _model(torch, device), torch.zeros(16, 64, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    return step


def _model(torch: Any, device: str) -> Any:
    layers = [torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)]
    return torch.nn.Sequential(*layers).to(device)


def _reading(torch: Any, device: str) -> Action:
    return torch.zeros((), device=device).item


def _working_and_reading(torch: Any, device: str) -> Action:
    x = torch.zeros(1024, device=device)
    return lambda: x.add_(1).sum().item()
