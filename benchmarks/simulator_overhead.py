"""What an operation on the simulated GPU really takes, beside plain CPU torch.

Everything runs on one core, by the clock of this machine; the simulated one does not
come into it. Beside both stands FakeTensorMode, torch's own way to run code without
a GPU, which computes nothing.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import FakeTensorMode

import gpumagic
from benchmarks.runner import Comparison, Subject, side_by_side, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Make = Callable[[str], Callable[[], object]]

_ROOT = Path(__file__).parents[1]
_TOGETHER = 200  # calls between two readings of the clock
_STEP = "training step"
_OFF, _ON = "simulator off", "simulator on"
_OPERATION_GOAL_S = 15e-6
_CPU_GOAL_S = 0.2e-6
_SWITCHING_GOAL_S = 0.1
_SWITCH_ON = """
import time, torch, gpumagic
def seconds():
    start = time.perf_counter()
    gpumagic.simulate("h100")
    return time.perf_counter() - start
print(seconds(), seconds())
"""


def run(rounds: int = 40) -> Comparison:
    """Time operations on three kinds of tensors, CPU tensors, and switching on."""
    torch.set_num_threads(1)
    with gpumagic.simulate("h100"):
        samples = dict(side_by_side("", _operations(), rounds=rounds).samples_s)
    samples |= side_by_side("", _cpu_tensors(), rounds=rounds).samples_s
    samples |= _switching_on(max(3, rounds // 8))
    medians = Comparison("", samples).medians_s
    return Comparison("simulator_overhead", samples, _notes(medians))


# ------------------------------------------------------------------ what is timed


def _add(device: str) -> Callable[[], object]:
    a, b = torch.ones(16, 16, device=device), torch.ones(16, 16, device=device)
    return lambda: a + b


def _relu(device: str) -> Callable[[], object]:
    return torch.ones(16, 16, device=device).relu


def _exponential(device: str) -> Callable[[], object]:
    return torch.ones(16, 16, device=device).exp


def _sum(device: str) -> Callable[[], object]:
    return torch.ones(16, 16, device=device).sum


def _row(device: str) -> Callable[[], object]:
    return functools.partial(torch.ones(16, 16, device=device).__getitem__, 0)


def _transposed(device: str) -> Callable[[], object]:
    return torch.ones(16, 16, device=device).t


def _add_in_place(device: str) -> Callable[[], object]:
    return functools.partial(torch.ones(16, 16, device=device).add_, 1)


def _product(device: str) -> Callable[[], object]:
    a = torch.ones(16, 16, device=device)
    return lambda: a.mm(a)


def _linear(device: str) -> Callable[[], object]:
    layer = torch.nn.Linear(16, 16, device=device)
    return functools.partial(layer, torch.ones(16, 16, device=device))


def _training_step(device: str) -> Callable[[], object]:
    linear = functools.partial(torch.nn.Linear, device=device)
    layers = [linear(32, 64), torch.nn.ReLU(), linear(64, 8)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.ones(16, 32, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def _polynomial(device: str) -> Callable[[], object]:
    """PyTorch's tutorial on autograd: a third-order polynomial through a sine."""
    x = torch.linspace(-math.pi, math.pi, 2000, device=device)
    y = torch.sin(x)
    factors = [torch.ones((), device=device, requires_grad=True) for _ in range(4)]
    a, b, c, d = factors

    def step() -> None:
        (a + b * x + c * x**2 + d * x**3 - y).pow(2).sum().backward()
        with torch.no_grad():
            for each in factors:
                each.sub_(1e-6 * each.grad)
                each.grad = None

    return step


def _attention(device: str) -> Callable[[], object]:
    layer = torch.nn.TransformerEncoderLayer(
        32, 2, 64, dropout=0, batch_first=True, device=device
    )
    x = torch.ones(1, 8, 32, device=device, requires_grad=True)
    return functools.partial(layer, x)


def _factory(device: str) -> Callable[[], object]:
    return functools.partial(torch.zeros, 16, 16, device=device)


# One operator each: that is what the goal is for.
_SINGLE: Mapping[str, Make] = {
    "a + b": _add,
    "relu": _relu,
    "exp": _exponential,
    "sum": _sum,
    "t()": _transposed,
    "a[0]": _row,
    "add_": _add_in_place,
    "mm": _product,
}
_SEVERAL: Mapping[str, Make] = {
    "Linear": _linear,
    "attention layer": _attention,
    "polynomial": _polynomial,
    _STEP: _training_step,
}
_SLOW = ("attention layer", "polynomial", _STEP)
_CPU: Mapping[str, Make] = {"CPU a + b": _add, "CPU zeros": _factory}


# ----------------------------------------------------------------- how it is timed


def _operations() -> dict[str, Subject]:
    """Each operation on the CPU, on the simulated GPU, and on fake tensors."""
    subjects = {}
    for name, make in {**_SINGLE, **_SEVERAL}.items():
        calls = _TOGETHER // 20 if name in _SLOW else _TOGETHER
        subjects[f"{name}, CPU"] = _per_call(make("cpu"), calls)
        subjects[f"{name}, simulated"] = _per_call(make("sim"), calls)
        fake = FakeTensorMode()
        with fake:
            action = make("cpu")
        subjects[f"{name}, fake"] = _per_call(action, calls, fake)
    return subjects


def _cpu_tensors() -> dict[str, Subject]:
    """Work on CPU tensors, with the simulator off and on in turn."""
    return {
        f"{name}, {state}": functools.partial(_in_state, state, _per_call(make("cpu")))
        for name, make in _CPU.items()
        for state in (_OFF, _ON)
    }


def _in_state(state: str, subject: Subject) -> float:
    if state == _OFF:
        return subject()
    with gpumagic.simulate("h100"):
        torch.ones(1, device="sim")  # it is in use, not only on
        return subject()


def _per_call(
    action: Callable[[], object],
    calls: int = _TOGETHER,
    around: contextlib.AbstractContextManager[Any] | None = None,
) -> Subject:
    def together() -> None:
        for _ in range(calls):
            action()

    def seconds() -> float:
        with around or contextlib.nullcontext():
            action()  # the one that is slow because others ran before
            return timed(together)() / calls

    return seconds


def _switching_on(rounds: int) -> dict[str, list[float]]:
    """Switching on in fresh processes that have loaded torch: first, and again."""
    both = [
        [float(each) for each in _output(_SWITCH_ON).split()] for _ in range(rounds)
    ]
    first, again = zip(*both, strict=True)
    return {"switching on, first": [*first], "switching on, again": [*again]}


def _output(script: str) -> str:
    # Whoever has installed a package has its compiled files as well.
    ours = {**os.environ}
    ours.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", script]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=_ROOT, env=ours
    ).stdout


# ------------------------------------------------------------------ what it comes to


def _notes(medians: Mapping[str, float]) -> dict[str, Any]:
    """Each ratio to its own counterpart, and whether the goals are met."""
    notes: dict[str, Any] = {}
    for name in (*_SINGLE, *_SEVERAL):
        for kind in ("simulated", "fake"):
            ratio = medians[f"{name}, {kind}"] / medians[f"{name}, CPU"]
            notes[f"{name}, {kind}"] = f"{ratio:.1f} times the CPU's"
    for name in _CPU:
        more_s = medians[f"{name}, {_ON}"] - medians[f"{name}, {_OFF}"]
        notes[f"{name}, {_ON}"] = f"{more_s * 1e6:+.2f} us"
    operation_s = statistics.median(medians[f"{name}, simulated"] for name in _SINGLE)
    more_s = medians[f"CPU a + b, {_ON}"] - medians[f"CPU a + b, {_OFF}"]
    first_s = medians["switching on, first"]
    return {
        **notes,
        "goal, an operation": _goal(operation_s, _OPERATION_GOAL_S, 1e6, "us"),
        "goal, on CPU tensors": _goal(more_s, _CPU_GOAL_S, 1e6, "us more"),
        "goal, switching on": _goal(first_s, _SWITCHING_GOAL_S, 1e3, "ms"),
    }


def _goal(found: float, goal: float, scale: float, unit: str) -> str:
    verdict = "met" if found <= goal else "missed"
    return f"{verdict}: {found * scale:.2f} {unit}, at most {goal * scale:g}"
