"""`python -m tests.torches [OPTION ...]`: tests this torch, and keeps what came of it.

What depends on torch most is run: the simulator's, the timing's and the memory's
tests. `make torches` does so with each torch that the README names. Options are handed
on to pytest. Tests that switch the simulator on count as one for each process.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "torches.json"
FOLDERS = ("tests/simulator", "tests/cuda_sync_time", "tests/gpu_mem")


def main() -> None:
    """Run the tests here, write the result beside those of other versions, and fail."""
    import torch

    version = torch.__version__.partition("+")[0]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}"]
        ended = subprocess.run(
            [*command, *sys.argv[1:], *FOLDERS], cwd=ROOT, check=False
        )
        found = counted(report)
    keep(
        version,
        {
            "date": datetime.now(UTC).date().isoformat(),
            "build": torch.__version__,
            "python": platform.python_version(),
            **found,
        },
    )
    raise SystemExit(ended.returncode)


def counted(report: Path) -> dict[str, object]:
    """How many tests passed, failed and were skipped, and those why."""
    suite = ET.parse(report).getroot().find("testsuite")  # noqa: S314 -- our own
    total, skipped = int(suite.get("tests")), int(suite.get("skipped"))
    failed = int(suite.get("failures")) + int(suite.get("errors"))
    reasons = Counter(each.get("message") for each in suite.iter("skipped"))
    return {
        "passed": total - failed - skipped,
        "failed": failed,
        "skipped": skipped,
        "because": dict(reasons.most_common()),
    }


def keep(version: str, result: dict[str, object]) -> None:
    """Put a result in the place of the one before, oldest torch first."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[version] = result
    in_order = sorted(results, key=lambda each: [int(part) for part in each.split(".")])
    text = json.dumps({each: results[each] for each in in_order}, indent=2)
    RESULTS.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
