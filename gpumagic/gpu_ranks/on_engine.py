"""What an engine does when it is asked: it answers as data, through its own outputs."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

from IPython import get_ipython

from gpumagic.devices.driver import open_driver
from gpumagic.gpu_ranks import joining, on_rank
from gpumagic.gpu_ranks.lookout import Lookout

if TYPE_CHECKING:
    from collections.abc import Callable

MIME = "application/vnd.gpumagic.rank+json"


def answer(request: str) -> None:
    """Do what was asked, and say what came of it.

    Args:
        request: A dictionary as JSON: `kind`, `engine`, and what belongs to the kind.
    """
    asked = json.loads(request)
    kinds: dict[str, Callable[[dict[str, Any]], None]] = {
        "seat": lambda asked: _say(on_rank.seat(asked["engine"])),
        "run": _run,
        "meet": lambda asked: _say(joining.meet(asked)),
        "join": lambda asked: _say(joining.join(asked)),
        "choose": lambda asked: _say(joining.choose(asked)),
    }
    kinds[asked["kind"]](asked)


def _say(said: dict[str, Any]) -> None:
    """Publish it under a kind of our own: no front end shows it."""
    get_ipython().display_pub.publish({MIME: said, "text/plain": ""})


def _run(asked: dict[str, Any]) -> None:
    """Run a cell here as if it had been typed here, and say what it did."""
    shell, engine = get_ipython(), asked["engine"]
    outcome = None
    rank, _, _ = on_rank.group()
    measured = on_rank.Measured()
    try:
        with (
            Lookout(
                _say,
                rank=rank,
                engine=engine,
                every_s=asked["every_s"],
                driver=open_driver,
            ),
            on_rank.measuring(engine=engine, names=asked["names"]) as measured,
        ):
            outcome = shell.run_cell(asked["cell"], store_history=False)
            _raise(outcome)
    except Exception:
        if outcome is None:
            raise  # not the cell's: ours, or the device's
    finally:
        if measured.said is not None:
            _say(measured.said)


def _raise(outcome: Any) -> None:
    """Let the measurement know of an error, which the shell has shown already."""
    error = outcome.error_before_exec or outcome.error_in_exec
    if isinstance(error, KeyboardInterrupt):
        raise InterruptedError(signal.SIGINT) from error
    if error is not None:
        raise error
