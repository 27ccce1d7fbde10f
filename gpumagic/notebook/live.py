"""One place on the screen that is drawn again and again.

In a notebook that is one output with one `display_id`: it lands in the right cell
even from a thread, and what it showed last, or nothing, is in the saved file. In a
terminal it is one line. Where output goes to a file, only what is to stay is written.
"""

from __future__ import annotations

import contextlib
import contextvars
import shutil
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from IPython.display import DisplayHandle, display

from gpumagic.devices.now import Looking
from gpumagic.devices.simulated import simulated_box
from gpumagic.drawing import Drawing, Grid, Meter
from gpumagic.drawing.progress import SHOWN_AFTER_S, Progress
from gpumagic.notebook.faults import CellEvents, Hook
from gpumagic.report.frontend import is_terminal
from gpumagic.report.units import bytes_text, part_text, seconds_text, share_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.devices.now import DeviceNow, LoopNow
    from gpumagic.devices.protocols import Driver
    from gpumagic.drawing import Cell
    from gpumagic.drawing.progress import Place

# Whoever reads the saved notebook can tell how far something came from its answer.
_RAW: dict[str, Any] = {"raw": True, "metadata": {"gpumagic": "progress"}}
# An output cannot be taken away without those beside it, but one of nothing takes no
# room; and nbconvert warns of one that has no form at all.
_NOTHING = {"text/plain": "", "text/html": ""}

# Sending what was drawn takes another thread about as long again.
_FEWEST_S_BETWEEN, _MOST_OF_A_CORE = 0.25, 0.005
THREAD = "gpumagic-live"
_RATE_OVER_S = 3.0
_PATIENCE_S = 2.0  # for a last picture; without it the thread ends all the same
_BACK_AND_CLEAR = "\r\x1b[K"


def progress(
    shell: Any,
    total: int | None,
    label: str,
    *,
    begins_after_s: float = SHOWN_AFTER_S,
) -> Progress:
    """Count steps in one place of this shell; only Ctrl-C and errors leave a trace.

    with progress(shell, len(batches), "Measuring") as steps:
        for batch in batches:
            ...
            steps.advance()
    """
    return Progress(total, label, place_in(shell), begins_after_s=begins_after_s)


def place_in(shell: Any) -> Place:
    """Where this shell, or without one the terminal, draws again and again."""
    return _Line() if shell is None or is_terminal(shell) else _Output()


class _Output:
    """An output of a notebook cell."""

    def __init__(self) -> None:
        self._handle: DisplayHandle | None = None

    def show(self, drawing: Drawing, *, is_last: bool = False) -> None:
        if is_last:
            self._put(drawing.mimebundle())
            return
        # Laid out as text it would take ten times as long, and be seen by nobody.
        self._put({"text/plain": drawing.title, "text/html": drawing.html()})

    def clear(self) -> None:
        if self._handle is not None:
            self._put(_NOTHING)

    def become(self, answer: object) -> bool:
        if self._handle is None:
            return False
        self._handle.update(answer)
        return True

    def _put(self, shown: dict[str, str]) -> None:
        if self._handle is None:
            self._handle = DisplayHandle()
            display(shown, display_id=self._handle.display_id, **_RAW)
        else:
            self._handle.update(shown, **_RAW)


class _Line:
    """A line of a terminal."""

    def show(self, drawing: Drawing, *, is_last: bool = False) -> None:
        if sys.stdout.isatty():
            # A line that wraps could not be taken back.
            room = shutil.get_terminal_size().columns - 1
            sys.stdout.write(_BACK_AND_CLEAR + drawing.title[:room])
        elif is_last:
            sys.stdout.write(drawing.title)
        if is_last:
            sys.stdout.write("\n")
        sys.stdout.flush()

    def clear(self) -> None:
        if sys.stdout.isatty():
            sys.stdout.write(_BACK_AND_CLEAR)
            sys.stdout.flush()

    def become(self, answer: object) -> bool:
        del answer
        self.clear()
        return False


# ------------------------------------------------------------------ a cell that runs


class _Rates:
    """How fast loops have counted in the last seconds."""

    def __init__(self) -> None:
        self._counted: dict[int, deque[tuple[float, int]]] = {}

    def of(self, loop: LoopNow, now_s: float) -> float:
        """Steps a second; 0 while there are none."""
        its = self._counted.setdefault(loop.key, deque())
        if its and its[-1][1] > loop.done:  # another loop has the same place
            its.clear()
        its.append((now_s, loop.done))
        while now_s - its[0][0] > _RATE_OVER_S:
            its.popleft()
        (began_s, before), (ended_s, after) = its[0], its[-1]
        return (after - before) / (ended_s - began_s) if ended_s > began_s else 0.0


class Panel:
    """What a running cell does, drawn in one place until the cell has ended.

    A thread looks and draws, and draws the last picture as well: so Ctrl-C, which
    Python raises in the main thread, leaves neither a thread nor half a panel. It asks
    less than a hundredth of a core, however long it takes to look.
    """

    def __init__(
        self, shell: Any, driver: Callable[[], Driver], *, keeps: bool
    ) -> None:
        self._shell, self._cell = shell, shell.execution_count
        self._looking = Looking(driver)
        self._place = place_in(shell)
        self._keeps = keeps
        self._over = threading.Event()
        self._outcome = "ran for"
        self._hook = CellEvents(shell, "the live panel", after=self._cell_ended)
        self._undo = contextlib.ExitStack()
        self._began_s = time.monotonic()
        self._rates = _Rates()
        # A notebook finds out by the context which cell an output belongs to.
        self._thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(Hook(self._draw_until_over, "the live panel"),),
            name=THREAD,
            daemon=True,
        )

    def begin(self) -> None:
        """Draw from now on until the cell that is running has ended."""
        self._hook.put_in()
        self._undo.enter_context(self._looking.watching_loaders())
        self._thread.start()

    def _cell_ended(self, result: Any) -> None:
        if getattr(result, "error_in_exec", None) is not None:
            self._outcome = "stopped after"
        self._over.set()
        self._hook.take_out()
        try:
            self._thread.join(_PATIENCE_S)
        except KeyboardInterrupt:
            self._thread.join(_PATIENCE_S)  # the last picture belongs to this cell
            raise

    def _draw_until_over(self) -> None:
        pause_s, is_shown = _FEWEST_S_BETWEEN, False
        while not self._over.wait(pause_s) and self._is_this_cell():
            began_s = time.thread_time()
            self._place.show(self._drawing(is_last=False))
            is_shown = True
            spent_s = time.thread_time() - began_s
            pause_s = max(_FEWEST_S_BETWEEN, spent_s / _MOST_OF_A_CORE)
        if is_shown and self._keeps:
            self._place.show(self._drawing(is_last=True), is_last=True)
        elif is_shown:
            self._place.clear()
        self._undo.close()

    def _is_this_cell(self) -> bool:
        """Ctrl-C may have come in the moment in which its end was to be noted."""
        return bool(self._shell.execution_count == self._cell)

    def _drawing(self, *, is_last: bool) -> Drawing:
        now_s = time.monotonic()
        took = seconds_text(now_s - self._began_s)
        devices, loops = self._looking.devices(), self._looking.loops()
        told = [f"{self._outcome} {took}" if is_last else took]
        told += self._loops_told(loops, now_s)
        rows = [row for device in devices for row in _rows_of(device)]
        if isinstance(self._place, _Line):  # which has no room for a table
            told += (f"{name} {getattr(cell, 'text', cell)}" for name, cell in rows)
        parts = (Grid("", tuple(rows)),) if rows else ()
        return Drawing(f"Live: {', '.join(told)}", parts, _label())

    def _loops_told(self, loops: tuple[LoopNow, ...], now_s: float) -> Iterator[str]:
        """The loop that counts fastest: an outer one waits for it."""
        rates = [(self._rates.of(loop, now_s), loop) for loop in loops]
        rate, loop = max(rates, default=(0.0, None))
        if loop is None or not rate:
            return
        of = "" if loop.total is None else f" of {loop.total:,}"
        yield f"step {loop.done:,}{of}"
        yield f"{rate:.3g} steps/s"
        if loop.total is not None and loop.done < loop.total:
            yield f"an estimated {seconds_text((loop.total - loop.done) / rate)} left"


def _rows_of(device: DeviceNow) -> Iterator[tuple[str, Cell]]:
    if device.allocated_bytes is not None:
        yield f"{device.where}, tensors", bytes_text(device.allocated_bytes)
    used, total = device.used_bytes, device.total_bytes
    if used is not None and total:
        yield f"{device.where}, in use", Meter(used / total, part_text(used, total))
    elif used is not None:
        yield f"{device.where}, in use", bytes_text(used)
    if device.busy_share is not None:
        busy = Meter(device.busy_share, share_text(device.busy_share))
        yield f"{device.where}, busy", busy


def _label() -> str:
    return str(getattr(simulated_box(), "label", ""))
