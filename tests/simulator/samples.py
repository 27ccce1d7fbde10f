"""Reports written by hand: what a simulated machine looks like."""

from __future__ import annotations

from gpumagic.report.events import SeenRace
from gpumagic.report.places import CodeLine
from gpumagic.simulator.answer_box import GpuState, RacesReport, SimulationReport

GIB = 2**30


def _gpu(number, index, allocated=0, *, guessed=()):
    reserved = (allocated + 2 * GIB) // (2 * GIB) * 2 * GIB if allocated else 0
    return GpuState(
        number=number,
        index=index,
        memory_bytes=84_942_979_072,
        used_bytes=reserved + (415_236_096 if index is not None else 0),
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        streams=1 + (number == 0),
        guessed=guessed,
    )


def _report(gpus, **changed):
    fields = {
        "label": "simulated H100 SXM",
        "on": True,
        "device_type": "sim",
        "visible": len(gpus),
        "time_s": 0.1832,
        "races": 0,
    }
    return SimulationReport(gpus=gpus, **{**fields, **changed})


def _race(later, earlier):
    return SeenRace(
        f"In [5], line {later} reads 39.1 KiB on side that In [5], line {earlier} "
        "writes on torch.sim.default_stream(), and nothing makes it wait",
        f"side.wait_stream(torch.sim.default_stream()) before In [5], line {later}",
        CodeLine(f"In [5], line {earlier}", "x.mul_(2)"),
        CodeLine(f"In [5], line {later}", "total = x.sum()"),
    )


SAMPLES = (
    (
        "four-at-work",
        _report(
            (
                _gpu(0, 1, 17 * GIB, guessed=("aten::sort", "aten::linalg_svd")),
                _gpu(1, None),
                _gpu(2, 0, 70 * GIB),
                _gpu(3, 2),
            ),
            visible=3,
            races=2,
        ),
    ),
    (
        "races",
        RacesReport("simulated H100 SXM", (_race(4, 2), _race(4, 2), _race(9, 7))),
    ),
    ("switched-off", _report((_gpu(0, 0),), on=False)),
)
