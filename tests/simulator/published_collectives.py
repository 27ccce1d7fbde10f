"""Times of NCCL's all_reduce on real machines that others published, as data.

Sizes are bytes of the tensor; what is given is the bus bandwidth in GB/s or the time
in microseconds, as the source has it. Every second row of a series is fitted on, the
others are foretold; a series that is `held_out` was fitted on nowhere.

Left out: 73 to 166 GB/s on two nodes in NVIDIA/nccl-tests#290, which the maintainers
took for a wrong configuration (46 to 48 GB/s for each adapter is what they expect).
"""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True)
class Series:
    """One machine, measured over many sizes.

    Attributes:
        nodes: How many of them, with `gpus` in each.

        network: A key of `collective_times.NETWORKS`; empty for the model's own.

        algorithm: The only one that was allowed; empty for NCCL's choice.

        beyond_us: What such a timing holds beside the collective itself: calls that
            nothing hides, or eight GPUs launched one after another by one process.
            It is fitted with the rest, and no part of the model.
    """

    name: str
    source: str
    model: str
    gpus: int
    measured_us: dict[int, float]
    nodes: int = 1
    network: str = ""
    algorithm: str = ""
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
    Series(
        "2 x 8 H100, InfiniBand NDR",
        "skypilot-org/skypilot@179881e, examples/nebius_infiniband",
        "h100",
        8,
        by_size(512 * MIB, "2432.7 4523.3 8785.8 17404 34468"),
        nodes=2,
    ),
    Series(
        "2 x 8 H100, InfiniBand NDR, torch",
        "drmysore/nebius-h100-16gpu-benchmark, README.md",
        "h100",
        8,
        {10**6: 88.0, 10**7: 157.0, 10**8: 647.0, 2**30: 4520.0},
        nodes=2,
        held_out=True,
    ),
    Series(
        "2 x 8 H100, GPUDirect-TCPXO",
        "lessizzmore/create-a3mega-ztan-fork@346b825",
        "h100",
        8,
        by_size(
            8,
            "135.8 123.2 123.3 123.4 123.0 123.6 126.6 147.1 125.8 126.9 131.6 138.6 "
            "155.2 159.4 159.3 167.1 174.2 203.2 254.0 364.6 571.9 977.6 1059.9 "
            "1261.6 1652.2 2360.9 3817.5 6759.0 12646 24361 47535",
        ),
        nodes=2,
        network="tcpxo-200",
    ),
    Series(
        "4 x 8 B200, 400 Gb/s for each GPU",
        f"{_ENGINEERING}@0cc3de5, network/benchmarks/README.md",
        "h100",  # of the GPU nothing shows: the network is the narrow place
        8,
        from_bus(
            32,
            32 * KIB,
            "0.65 1.27 2.35 4.06 6.99 12.47 20.79 31.63 50.61 71.80 142.90 197.77 "
            "260.50 283.23 309.91 365.99 371.26 374.66 376.14 376.71",
        ),
        nodes=4,
    ),
    Series(
        "2 x 4 H100, InfiniBand HDR, rings alone",
        "NVIDIA/nccl-tests#252",
        "h100",
        4,
        by_size(512 * MIB, "10052 20079 39871 77194 158070"),
        nodes=2,
        network="hdr-200",
        algorithm="ring",
        held_out=True,
    ),
)
