"""`python -m benchmarks [NAME ...]`: runs the comparisons and keeps their results."""

from __future__ import annotations

import argparse
import importlib

from benchmarks.runner import table, write

# Each is a module of this package with a function `run() -> Comparison`.
BENCHMARKS = (
    "load_time",  # what %load_ext costs, and what it brings along
    "cell_floor",  # what is left of an empty cell, beside %%time
    "select_status",  # what looking at the choice of GPUs costs
    "tensor_picture",  # what a user waits for, and how large it is
    "cell_timing",  # our times beside those of the tools for the same
    "memory_line",  # what watching every cell's memory costs
    "prefetching",  # what copying ahead costs the host, beside a plain loop
    "reading_traces",  # what %gpu_open costs, beside HolisticTraceAnalysis
    "ranks_watch",  # what watch() costs a training on several ranks
    "ranks_cell",  # what a cell on engines costs, beside %%px
    "simulator_overhead",  # what operations on the simulated GPU cost this machine
)


def main() -> None:
    """Run those named on the command line, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    for name in parser.parse_args().names or BENCHMARKS:
        comparison = importlib.import_module(f"benchmarks.{name}").run()
        print(table(comparison))
        print(f"  -> {write(comparison)}\n")


if __name__ == "__main__":
    main()
