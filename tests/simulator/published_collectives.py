"""Times of NCCL's all_reduce on real machines that others published, as data.

Sizes are bytes of the tensor; what is given is the bus bandwidth in GB/s or the time
in microseconds, as the source has it. Every second row of a series is fitted on, the
others are foretold; a series that is `held_out` was fitted on nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True)
class Series:
    """One machine, measured over many sizes."""

    name: str
    source: str
    model: str
    gpus: int
    measured_us: dict[int, float]
    # what such a timing holds beside the collective itself: calls that nothing hides,
    # or eight GPUs launched by one process; it is fitted, and no part of the model
    beyond_us: float = 0.0
    held_out: bool = False

    @property
    def fitted(self) -> dict[int, float]:
        """The rows that the model was fitted on."""
        rows = sorted(self.measured_us.items())
        return {} if self.held_out else dict(rows[::2])

    @property
    def foretold(self) -> dict[int, float]:
        """The rows that it had not seen."""
        rows = sorted(self.measured_us.items())
        return dict(rows) if self.held_out else dict(rows[1::2])


def by_size(first, measured_us):
    """Times of sizes that double."""
    times = map(float, measured_us.split())
    return {first << step: each for step, each in enumerate(times)}


def from_bus(ranks, first, gb_per_s):
    """Times from bus bandwidths of sizes that double."""
    factor = 2 * (ranks - 1) / ranks
    rates = by_size(first, gb_per_s)
    return {size: size * factor / rate / 1e3 for size, rate in rates.items()}


_ENGINEERING = "stas00/ml-engineering"

PUBLISHED = (
    Series(
        "8 x H200, nccl-tests",
        f"{_ENGINEERING}@0cc3de5, network/benchmarks/README.md, NCCL 2.30.7",
        "h200",
        8,
        from_bus(
            8,
            32 * KIB,
            "3.20 6.26 12.40 24.63 48.30 72.45 91.48 139.97 182.03 242.45 298.44 "
            "369.82 411.21 442.27 455.82 464.00 468.31 473.10 475.16 480.70",
        ),
    ),
    Series(
        "8 x H200, torch, calls hidden",
        f"{_ENGINEERING}@0cc3de5, network/benchmarks/README.md, NCCL 2.30.7",
        "h200",
        8,
        from_bus(
            8,
            32 * KIB,
            "3.15 6.16 12.46 24.68 48.15 74.57 96.26 145.14 196.56 255.90 301.25 "
            "368.86 414.54 441.87 456.23 465.91 471.06 474.13 478.24 482.25",
        ),
        held_out=True,
    ),
    Series(
        "8 x H200, torch, one call at a time",
        f"{_ENGINEERING}@c53741b, all-reduce-8xH200.md, torch 2.9.1, NCCL 2.27.7",
        "h200",
        8,
        from_bus(
            8,
            32 * KIB,
            "1.44 2.93 5.73 11.74 23.94 39.93 64.53 107.16 155.53 219.89 275.84 "
            "346.51 401.93 436.15 450.29 463.58 469.17 473.10 477.45 482.26",
        ),
        beyond_us=20.5,  # of 20 to 30, says the source
        held_out=True,
    ),
    Series(
        "8 x H100",
        "NVIDIA/nccl-tests#290, the smallest and the largest of its sizes",
        "h100",
        8,
        {128 * MIB: 613.0, 4 * GIB: 15_870.0},
        held_out=True,
    ),
    Series(
        "8 x A100",
        f"{_ENGINEERING}@0030e63, network/README.md",
        "a100",
        8,
        by_size(
            32 * KIB,
            "43.83 46.80 51.76 61.38 80.40 101.9 101.4 101.5 133.5 276.6 424.0 684.6 "
            "1327.6 2420.6 4218.4 8203.9 16240 32136 64074 127997",
        ),
        beyond_us=26.0,  # all eight from one process
    ),
)
