"""Cells on the simulated machine: what is told of one agrees with its engine."""

from __future__ import annotations

import functools
import gc
import random
import weakref

import pytest
import torch

import gpumagic
from gpumagic import gpu_mem
from gpumagic.devices.opening import open_runtime
from gpumagic.gpu_mem.cell import CellRun
from gpumagic.gpu_mem.records import Peak, PeakKind
from gpumagic.report.units import bytes_text

PROGRAMS = 1000
RESETS = ("reset_peak_memory_stats", "reset_accumulated_memory_stats")


@pytest.fixture
def run(box, as_cell):
    """Runs a function as a cell on the simulated machine, and hands the run back."""
    return functools.partial(as_cell, lambda: open_runtime(torch=torch))


def by_offset(run, function, device=0):
    """The rows of a run by the line of the function, on one device."""
    start = function.__code__.co_firstlineno
    return {
        row.number - start: row
        for row in run.lines()
        if row.number is not None and row.device == device
    }


def peaks(box):
    """All that the user could see fall if somebody reset it."""
    return [
        {
            key: value
            for key, value in torch.sim.memory_stats(n).items()
            if "peak" in key
        }
        for n in range(len(box.machine.gpus))
    ]


class Program:
    """A cell of random steps, with the engine's own highest figure beside it."""

    def __init__(self, box, draw):
        self.box, self.draw = box, draw
        self.kept: list[torch.Tensor] = []
        self.highest = self.taken = 0
        self.streams = [torch.sim.Stream() for _ in range(2)]
        self.allocator.observe(self.note)

    def note(self, action, block):
        """Told by the allocator of each action."""
        self.taken += block.size if action == "alloc" else 0

    @property
    def allocator(self):
        """That of the first device."""
        return self.box.machine.gpus[0].allocator

    def look(self):
        """See how much is allocated now."""
        self.highest = max(self.highest, self.allocator.allocated_bytes)

    def settle(self):
        """Begin a cell: what has died is given back, as any look does."""
        torch.sim.memory_allocated()
        self.highest = self.allocator.allocated_bytes
        self.taken = 0

    def step(self, *, resets):
        """Take or give back memory, on this stream or another."""
        what = self.draw.random()
        if what < 0.5 or not self.kept:
            self.kept.append(torch.empty(self.draw.randrange(1, 1 << 20), device="sim"))
            self.look()
        elif what < 0.8:
            self.kept.pop(self.draw.randrange(len(self.kept)))
        elif what < 0.9:
            tensor = self.draw.choice(self.kept)
            stream = self.draw.choice(self.streams)
            with torch.sim.stream(stream):
                tensor.record_stream(stream)
                self.kept.append(torch.empty(500_000, device="sim"))
                self.look()
        elif what < 0.97:
            self.kept.append(self.draw.choice(self.kept)[:1] + 1)
            self.look()
        elif resets:
            module = self.draw.choice((torch.sim, torch.accelerator))
            getattr(module, self.draw.choice(RESETS))()


@pytest.mark.parametrize("lines", [False, True])
def test_the_peak_of_random_cells(box, lines):
    """Every peak is the engine's, to the byte, however a cell resets the counters.

    Of recorded ones, which reset none, lines add up.
    """
    draw = random.Random(7)  # noqa: S311 -- the same cells each time
    program = Program(box, draw)
    torch.ones(1, device="sim")
    for _ in range(PROGRAMS // 4 if lines else PROGRAMS):
        program.settle()
        run = CellRun(lambda: open_runtime(torch=torch), lines=lines)
        run.begin()
        for _ in range(draw.randrange(12)):
            program.step(resets=not lines)
        before = peaks(box)
        run.end()

        (change,) = run.changes()
        rise = program.highest - (change.before.allocated_bytes or 0)
        rows = run.lines() or ()
        assert peaks(box) == before
        assert change.peak == Peak(PeakKind.EXACT, program.highest, program.highest)
        assert change.gross_bytes in (None, program.taken)
        if lines:
            assert net(rows) == change.allocated_delta
            assert sum(row.at_peak_bytes for row in rows) >= rise


def net(rows):
    """What lines took, less what they gave back."""
    return sum(row.allocated_bytes - row.freed_bytes for row in rows)


def test_the_lines_of_a_training_step(run):
    """Each line has its own part, and the backward pass is of the line that calls."""
    kept = {}

    def cell():
        kept["x"] = torch.ones(1000, 1000, device="sim")
        kept["w"] = torch.ones(1000, 1000, device="sim", requires_grad=True)
        loss = (kept["x"] @ kept["w"]).relu().sum()
        loss.backward()
        del kept["x"]

    torch.ones(4, 4, device="sim") @ torch.ones(4, 4, device="sim")  # cuBLAS's own
    result = run(cell, lines=True)

    (change,) = result.changes()
    lines = by_offset(result, cell)
    assert [lines[n].allocated_bytes for n in (1, 2)] == [4_000_256, 4_000_256]
    assert lines[4].backward
    assert not any(lines[n].backward for n in (1, 2, 3))
    assert net([lines[4]]) < 4_000_256 < lines[4].allocated_bytes
    assert lines[5].freed_bytes >= 4_000_256
    assert net(result.lines()) == change.allocated_delta
    assert change.allocated_delta == 2 * 4_000_256  # the weight and its gradient


def test_nothing_is_left_behind(run, box):
    """After a recorded cell nobody listens, and what it had can go."""
    gone = []

    def cell():
        tensor = torch.ones(1000, device="sim")
        gone.append(weakref.ref(tensor))
        gone.append(weakref.ref(tensor.untyped_storage()))

    result = run(cell, lines=True)
    gc.collect()

    assert [each() for each in gone] == [None, None]
    assert result.lines()
    assert box._simulation.births == []
    assert all(not gpu.allocator._history.recording for gpu in box.machine.all_gpus)


def test_a_machine_that_the_cell_switches_on():
    """Its figures began at zero; what was recorded was of no device."""
    run = CellRun(lambda: open_runtime(torch=torch), lines=True)
    run.begin()
    with gpumagic.simulate("h100"):
        kept = torch.ones(1 << 18, device="sim")
        run.end()

        (change,) = run.changes()
        assert change.allocated_delta == kept.nbytes
        assert run.lines() == ()
        assert "run the cell again" in run.remarks[-1]
        assert run.setting.label


def test_names_at_the_peak_are_those_that_hold_it_then(box):
    """What was there has its name, what is gone its line, and all come to the peak."""
    model = torch.nn.Linear(512, 512, bias=False).to("sim")
    kept = []

    with gpu_mem.watch(namespace={"model": model, "kept": kept}, lines=True) as cell:
        gone = torch.empty(1 << 20, device="sim")
        kept.append(torch.empty(1 << 19, device="sim"))
        del gone
        torch.sim.memory_allocated()

    (course,) = cell.report.courses
    owners = dict(course.at_peak)
    (line,) = (each for each in owners if each.startswith("from "))

    assert owners["in model"] == 1 << 20
    assert owners["in kept"] == 2 << 20
    assert owners[line] == 4 << 20
    assert sum(owners.values()) == course.peak_bytes
    assert f"{bytes_text(4 << 20)} from" in str(cell.report)
