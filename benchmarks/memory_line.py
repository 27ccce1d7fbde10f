"""What the line of `%gpu_mem on` adds to a cell, beside tools with a line of their own.

Three questions, each interleaved in itself. What does a cell cost with and without
such a line? What of that is the counters? What does the search for names cost, which
is made when a cell is watched and not for the line?

Cells run in a real IPython shell, on the simulated GPU; every time is of this
machine's clock. What would need CUDA is named in the notes.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from IPython.core.interactiveshell import InteractiveShell

import gpumagic
from benchmarks.runner import Comparison, Subject, side_by_side, timed
from gpumagic.devices.opening import open_runtime, runtime_now
from gpumagic.gpu_mem.balance import find_holdings
from gpumagic.gpu_mem.cell import CellRun
from gpumagic.gpu_mem.names import KnownNames
from gpumagic.report.units import seconds_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpumagic.devices.protocols import Runtime
    from gpumagic.gpu_mem.records import Holdings

_LAYERS = 50
_MANY_OBJECTS = 2_000_000
_EMPTY, _KEEPS = "empty cell", "cell that takes 4 MiB"
_OURS, _DRAWN = "%gpu_mem on", "%gpu_mem on, drawn"
_EXPERIMENTS = "ipyexperiments (host only)"
_CELLS = {_EMPTY: "pass", _KEEPS: "kept = torch.empty(1 << 20, device='sim')"}
_NOT_HERE = {
    "ipyexperiments on a GPU": "skipped: it asks NVML and CUDA, and refuses to begin "
    "without them",
    "pytorch_memlab %%mlrun": "skipped: it only counts with CUDA, and returns at once "
    "without",
    "drawing": "text and HTML are made; sending them to a browser is not in it",
}


def run(rounds: int = 25) -> Comparison:
    """Time cells, looks at counters, and searches; the notes say what is added."""
    torch.set_num_threads(1)
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "gpumagic")
    peers, notes = _peers(shell)
    parts = [*_on_cuda(notes, rounds)]
    with gpumagic.simulate("h100"):
        shell.user_ns |= {"torch": torch, "in_use": torch.ones(1, device="sim")}
        cells = side_by_side("", _cells(shell, peers), rounds=rounds)
        parts = [cells, side_by_side("", _reads(), rounds=2 * rounds), *parts]
        parts += [_searches(notes, 2 * rounds), _long_list(notes, max(3, rounds // 5))]
        for name in ("kept", "in_use"):
            del shell.user_ns[name]
    samples = {name: each for part in parts for name, each in part.samples_s.items()}
    notes |= _added(cells) | _NOT_HERE
    return Comparison("memory_line", samples, notes)


# ------------------------------------------------------------------------ cells


@dataclass(frozen=True)
class _Line:
    """What says something after each cell.

    Attributes:
        together: Cells in one sample.

        pause_s: What a user waits before the next cell, which is not counted.
    """

    on: Callable[[], object]
    off: Callable[[], object]
    together: int = 20
    pause_s: float = 0.0


def _cells(shell: InteractiveShell, peers: Mapping[str, _Line]) -> dict[str, Subject]:
    ours = partial(shell.run_line_magic, "gpu_mem")
    lines = {
        "": _Line(lambda: None, lambda: None),
        f", {_OURS}": _Line(lambda: ours("on"), lambda: ours("off")),
    }
    subjects = {
        f"{name}{line}": _not_drawn(partial(_a_cell, shell, code, each))
        for name, code in _CELLS.items()
        for line, each in lines.items()
    }
    drawn = partial(_a_cell, shell, _CELLS[_KEEPS], lines[f", {_OURS}"])
    subjects[f"{_KEEPS}, {_DRAWN}"] = drawn
    for name, each in peers.items():
        subjects[f"{_EMPTY}, {name}"] = partial(_a_cell, shell, "pass", each)
    return subjects


def _a_cell(shell: InteractiveShell, code: str, line: _Line) -> float:
    """Seconds that a cell takes; what it prints goes nowhere."""

    def one() -> float:
        if line.pause_s:
            time.sleep(line.pause_s)
        start = time.perf_counter()
        shell.run_cell(code).raise_error()
        return time.perf_counter() - start

    with contextlib.redirect_stdout(io.StringIO()):
        line.on()
        try:
            shell.run_cell("pass")  # the first after switching on is not as the others
            return sum(one() for _ in range(line.together)) / line.together
        finally:
            line.off()


def _not_drawn(subject: Subject) -> Subject:
    def run() -> float:
        with patch("gpumagic.gpu_mem.magic.display", lambda *_, **__: None):
            return subject()

    return run


def _peers(shell: InteractiveShell) -> tuple[dict[str, _Line], dict[str, Any]]:
    """The tools with a line after each cell that are installed, and what is not."""
    peers: dict[str, _Line] = {}
    notes: dict[str, Any] = {}
    try:
        autotime = importlib.import_module("autotime")
    except ImportError as problem:
        notes["ipython-autotime"] = f"skipped: {problem}"
    else:
        peers["ipython-autotime"] = _Line(
            partial(autotime.load_ipython_extension, shell),
            partial(autotime.unload_ipython_extension, shell),
        )
    try:
        with patch.dict(os.environ):  # it sets how CUDA loads its kernels
            experiments = importlib.import_module("ipyexperiments")
    except ImportError as problem:
        notes[_EXPERIMENTS] = f"skipped: {problem}"
    else:
        peers[_EXPERIMENTS] = _experiment(experiments, collects=True)
        peers[f"{_EXPERIMENTS}, no gc"] = _experiment(experiments, collects=False)
    return peers, notes


def _experiment(package: Any, *, collects: bool) -> _Line:
    with contextlib.redirect_stdout(io.StringIO()):
        experiment = package.IPyExperimentsCPU(
            exp_enable=False, cl_compact=True, cl_gc_collect=collects
        )
        experiment.cl.stop()
    # Without a pause its threads do not see that their cell has ended, and pile up.
    together = 1 if collects else 5
    return _Line(experiment.cl.start, experiment.cl.stop, together, pause_s=0.02)


def _added(cells: Comparison) -> dict[str, str]:
    medians = cells.medians_s
    added = {
        name: medians[name] - medians[cell]
        for cell in _CELLS
        for name in medians
        if name.startswith(f"{cell}, ")
    }
    drawn, silent = (f"{_KEEPS}, {each}" for each in (_DRAWN, _OURS))
    return {
        **{name: f"adds {seconds_text(each)}" for name, each in added.items()},
        "drawing the line": seconds_text(medians[drawn] - medians[silent]),
    }


# --------------------------------------------------------------------- counters


class _Counting:
    """A stand-in for CUDA in use, with as many counters as torch has of it."""

    kind = "cuda"
    simulated = False

    def __init__(self) -> None:
        pools = ("all", "small_pool", "large_pool")
        several = "allocation segment active inactive_split allocated_bytes "
        several += "reserved_bytes active_bytes inactive_split_bytes requested_bytes"
        one = "num_alloc_retries num_ooms max_split_size num_sync_all_streams "
        one += "num_device_alloc num_device_free"
        self.nested: dict[str, Any] = {
            name: {pool: _measures() for pool in pools} for name in several.split()
        }
        for name in ("oversize_allocations", "oversize_segments"):
            self.nested[name] = _measures()
        self.nested |= dict.fromkeys(one.split(), 1)

    def started(self) -> bool:
        return True

    def devices_in_use(self) -> tuple[int, ...]:
        return (0,)

    def memory_stats(self, device: int) -> dict[str, int]:
        """Made anew each time, in sorted order, as torch does."""
        del device
        return dict(sorted(_flat("", self.nested)))


def _measures() -> dict[str, int]:
    return dict.fromkeys(("current", "peak", "allocated", "freed"), 1 << 20)


def _flat(prefix: str, counters: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in counters.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{name}.", value)
        else:
            yield prefix + name, value


def _reads() -> dict[str, Subject]:
    counting = _Counting()
    assert len(counting.memory_stats(0)) == 122  # noqa: S101 -- as torch
    stand_in: Any = counting

    def nested() -> float:
        place = "torch.cuda.memory_stats_as_nested_dict"
        with patch(place, lambda _: counting.nested):
            return _looks(lambda: stand_in)

    return {
        "two looks at the counters, simulated": partial(_looks, runtime_now),
        "two looks, stand-in with 122 flat keys": partial(_looks, lambda: stand_in),
        "two looks, stand-in with them nested": nested,
    }


def _looks(open_one: Callable[[], Runtime], together: int = 100) -> float:
    start = time.perf_counter()
    for _ in range(together):
        run = CellRun(open_one)
        run.begin()
        run.end()
    return (time.perf_counter() - start) / together


def _on_cuda(notes: dict[str, Any], rounds: int) -> Iterator[Comparison]:
    if not torch.cuda.is_available():
        notes["two looks at the counters, CUDA"] = "skipped: there is no GPU here"
        return
    in_use = torch.ones(1, device="cuda")
    runtime = open_runtime("cuda")
    subject = {"two looks at the counters, CUDA": partial(_looks, lambda: runtime)}
    yield side_by_side("", subject, rounds=2 * rounds)
    del in_use


# ------------------------------------------------------------------------ names


def _searches(notes: dict[str, Any], rounds: int) -> Comparison:
    """The same trained model on two devices, and how a peer looks for its tensors."""
    subjects: dict[str, Subject] = {}
    for device, where in (("sim", "simulated"), ("cpu", "CPU")):
        search = partial(_search, _trained(device), device)
        name = f"names of {_LAYERS} layers with Adam, {where}"
        subjects[name] = timed(search)
        notes[name] = _outcome(search())
    name = "pytorch_memlab's MemReporter, both, not printed"
    try:
        memlab = importlib.import_module("pytorch_memlab")
    except ImportError as problem:
        notes[name] = f"skipped: {problem}"
    else:
        subjects[name] = timed(partial(_all_tensors, memlab))
    return side_by_side("", subjects, rounds=rounds)


def _long_list(notes: dict[str, Any], rounds: int) -> Comparison:
    """By itself, since so many objects slow down whatever asks the collector."""
    namespace: dict[str, Any] = {"many": [[] for _ in range(_MANY_OBJECTS)]}
    search = partial(_search, namespace, "sim")
    name = "names, a list of 2 million objects"
    notes[name] = _outcome(search())
    return side_by_side("", {name: timed(search)}, rounds=rounds)


def _trained(device: str) -> dict[str, Any]:
    """The names of a notebook in which one step of training was made."""
    layers = [torch.nn.Linear(64, 64) for _ in range(_LAYERS)]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    batch = torch.ones(16, 64, device=device)
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer, "batch": batch, "loss": loss}


def _search(namespace: Mapping[str, Any], kind: str) -> Holdings:
    return find_holdings(KnownNames(namespace).sources(kind), {})


def _outcome(found: Holdings) -> str:
    ended = "stopped at its budget" if found.partial else "complete"
    return f"{len(found.holders)} names; {ended}"


def _all_tensors(memlab: Any) -> None:
    reporter = memlab.MemReporter()
    reporter.collect_tensor()
    reporter.get_stats()
