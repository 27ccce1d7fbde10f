"""The wait at the end of a run, and all the ways in which it can fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.records.flags import Flag, FlagKind
from gpumagic.cuda_sync_time.waiting import NotInTime
from gpumagic.devices import torch_private
from gpumagic.devices.simulated import simulated_box
from gpumagic.devices.torch_private import loaded_torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.cuda_sync_time.waiting import Waited
    from gpumagic.cuda_sync_time.window import Window
    from gpumagic.devices.protocols import Runtime

# Whoever sees an error, or has pressed Ctrl-C, wants the prompt back.
_LONGEST_AFTER_ERROR_S = 2.0
_REPORTED_LATE = "reported at the end of the cell; the failing launch was earlier"


@dataclass(frozen=True)
class LastWait:
    """What came of the wait.

    Attributes:
        waited: When what had ended; None if that could not be seen.

        flag: Why not.

        late_error: What the caller has to raise: nobody else has told of it.
    """

    waited: Waited | None = None
    flag: Flag | None = None
    late_error: BaseException | None = None


def last_wait(
    window: Window,
    error: BaseException | None,
    before_waiting: Callable[[], object],
) -> LastWait:
    """Wait until all devices are idle; never raises.

    After an error of the code the wait is short, and an error of its own is told
    only: it would hide the one that matters.

    Args:
        window: What is to be closed.

        error: What the code has raised.

        before_waiting: Called when the end is marked, before the first wait.
    """
    try:
        if is_capturing(window.runtime):
            return LastWait(flag=Flag(FlagKind.CAPTURING))
        window.mark_end()
        before_waiting()
        return LastWait(window.close(None if error is None else _LONGEST_AFTER_ERROR_S))
    except NotInTime:
        reason = f"it was still at work {_LONGEST_AFTER_ERROR_S:.0f} s later"
        return LastWait(flag=Flag(FlagKind.NOT_DRAINED, names=(reason,)))
    except KeyboardInterrupt as interrupt:
        late = interrupt if error is None else None
        return LastWait(flag=Flag(FlagKind.INTERRUPTED), late_error=late)
    except Exception as failure:  # noqa: BLE001 - it is handed out, or told
        names = (first_line(failure),)
        if error is not None:
            return LastWait(flag=Flag(FlagKind.NOT_DRAINED, names=names))
        failure.add_note(_REPORTED_LATE)
        flag = Flag(FlagKind.ERROR_AT_END, names=names)
        return LastWait(flag=flag, late_error=failure)


def is_capturing(runtime: Runtime) -> bool:
    """Whether a graph is being captured, so that nothing may be waited for."""
    torch = loaded_torch()
    if torch is None or runtime.kind == "cpu" or not runtime.started():
        return False
    # Graphs of the simulated GPU are there for code that says "cuda".
    box = simulated_box() if runtime.simulated else None
    stands_in = box is not None and box.as_cuda
    return torch_private.is_capturing(torch, "cuda" if stands_in else runtime.kind)


def error_line(error: BaseException | None) -> str | None:
    """An error as one line, "ValueError: text"; None if there is none."""
    if error is None:
        return None
    text, name = first_line(error), type(error).__name__
    return name if text == name else f"{name}: {text}"


def first_line(error: BaseException) -> str:
    """What an error says first, or its name if it says nothing."""
    lines = (line for line in str(error).splitlines() if line.strip())
    return next(lines, type(error).__name__)
