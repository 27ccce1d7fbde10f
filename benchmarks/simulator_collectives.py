"""The times of simulated collectives beside published ones of real machines.

`python -m benchmarks.simulator_collectives` prints how well they agree and keeps it; it
measures nothing on this machine.
"""

from __future__ import annotations

import statistics

from benchmarks.runner import RESULTS, write_measurement
from tests.simulator.published_collectives import PUBLISHED
from tests.simulator.test_collective_times import errors, told_us


def main() -> None:
    """Print the agreement and keep it."""
    found = {}
    for series in PUBLISHED:
        fitted = errors(series, series.fitted)
        foretold = errors(series, series.foretold)
        found[series.name] = {
            "source": series.source,
            "median_error_fitted": statistics.median(fitted) if fitted else None,
            "median_error_foretold": statistics.median(foretold),
            "worst_error_foretold": max(foretold),
            "rows_foretold": len(foretold),
            "measured_and_modelled_us": {
                str(size): [round(measured, 1), round(told_us(series, size), 1)]
                for size, measured in sorted(series.measured_us.items())
            },
        }
        print(
            f"{series.name:42} {len(foretold):3} rows foretold, median error "
            f"{statistics.median(foretold):5.1%}, worst {max(foretold):5.1%}"
        )
    unseen = [each for series in PUBLISHED for each in errors(series, series.foretold)]
    print(f"all: {len(unseen)} rows, median error {statistics.median(unseen):.1%}")
    results = {"median_error_foretold": statistics.median(unseen), "series": found}
    path = write_measurement(RESULTS, "simulator_collectives", results)
    print(f"  -> {path}")


if __name__ == "__main__":
    main()
