"""What `%%gpu_ranks` costs a cell on four engines, beside ipyparallel's own `%%px`.

Both run an empty cell in one shell on one cluster, in turns; each is held to the one
beside it. On a machine that is busy the time tells more of others than of us: so there
is also the time of the processor, of the notebook and of the engine that took most,
one after the other as if nothing of it went on at the same time.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import time
from typing import TYPE_CHECKING, Any

from benchmarks.runner import Comparison, verdict
from gpumagic.report.units import seconds_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENGINES, LIMIT_S = 4, 0.06
PX, RANKS = "%%px", "%%gpu_ranks"
_WARM_UPS = 3


def run(rounds: int = 40) -> Comparison:
    """Time an empty cell under both, in turns."""
    import ipyparallel as ipp
    from IPython.core.interactiveshell import InteractiveShell

    shell, dice = InteractiveShell.instance(), random.Random(0)  # noqa: S311
    took: dict[str, list[tuple[float, float]]] = {PX: [], RANKS: []}
    with ipp.Cluster(n=ENGINES, log_level=40) as client, _quiet():
        view = client[:]
        view.activate()
        shell.run_line_magic("load_ext", "gpumagic")
        shell.user_ns["rc"] = client
        for number in range(_WARM_UPS + rounds):
            for name in dice.sample([*took], len(took)):
                each = _cell(shell, name, lambda: view.apply_sync(_processor_s))
                if number >= _WARM_UPS:
                    took[name].append(each)
    pairs = [*zip(took[PX], took[RANKS], strict=True)]
    notes = {
        "engines": ENGINES,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "time that is added to a cell": _verdict(ours[0] - px[0] for px, ours in pairs),
        "time of the processor that is added": _verdict(
            ours[1] - px[1] for px, ours in pairs
        ),
    }
    samples_s = {name: [each[0] for each in its] for name, its in took.items()}
    return Comparison("ranks_cell", samples_s, notes)


def _verdict(more_s: Iterator[float]) -> str:
    return verdict([*more_s], LIMIT_S, seconds_text)


def _cell(
    shell: Any, magic: str, engines_s: Callable[[], list[float]]
) -> tuple[float, float]:
    """How long a cell took, and how much of the processor."""
    engines_before_s = engines_s()
    processor_s, began_s = time.process_time(), time.perf_counter()
    shell.run_cell(f"{magic}\npass").raise_error()
    took_s, here_s = time.perf_counter() - began_s, time.process_time() - processor_s
    there_s = zip(engines_before_s, engines_s(), strict=True)
    return took_s, here_s + max(after - before for before, after in there_s)


def _processor_s() -> float:
    """Runs on the engines, which import nothing for it."""
    import time

    return time.process_time()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Nothing of what cells show is shown."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
