"""The cost model of the simulated GPU beside published and recorded times of real ones.

`python -m benchmarks.simulator_model` prints how well they agree and keeps it; it
measures nothing on this machine.
"""

from __future__ import annotations

import dataclasses

from benchmarks.runner import RESULTS, write_measurement
from tests.simulator.agreement import EXCEPTIONS, by_kind, found, summary


def main() -> None:
    """Print the agreement and keep it."""
    results = {
        "agreement": {name: dataclasses.asdict(each) for name, each in found().items()},
        "by_kind, not used for fitting": {
            kind: dataclasses.asdict(each) for kind, each in by_kind().items()
        },
        "off_by_more_than_twice": {
            f"{device}: {workload}": reason
            for (device, workload), reason in EXCEPTIONS.items()
        },
    }
    print(summary())
    print(f"  -> {write_measurement(RESULTS, 'simulator_published', results)}")


if __name__ == "__main__":
    main()
