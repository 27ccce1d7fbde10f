"""Watches a training cell: waits for data, and copies to a device, by line.

From all devices idle to all devices idle, in two calls round the user's code: a cell
may be awaited between them, or end in an error. Copies are added up by line, with what
to type to wait for none.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from gpumagic.devices.around_cell import AroundCell, Observer
from gpumagic.devices.copy_watch import copies_watched
from gpumagic.devices.cpu import CpuRuntime
from gpumagic.devices.simulated import simulated_box
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.errors import DeviceError, GpuMagicError
from gpumagic.pin_loader.answer_watch import WatchReport
from gpumagic.pin_loader.load import setting_of
from gpumagic.pin_loader.records import CopyLine, Remark
from gpumagic.pin_loader.waits import loop_waits, name_of, waits_watched
from gpumagic.report.places import code_line
from gpumagic.report.units import bytes_text, seconds_text, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpumagic.devices.around_cell import Ended
    from gpumagic.devices.copy_watch import SeenCopy
    from gpumagic.devices.protocols import Runtime
    from gpumagic.pin_loader.waits import SeenLoader
    from gpumagic.report.events import SeenRace
    from gpumagic.report.places import Code, CodeLine, PlaceMark

_ANEW = "run the cell again: by then it is there"
_LEAST_SHARE = 0.05  # of all bytes; what is less is not worth a change
_NOT_BLOCKING = "`.to(device, non_blocking=True)`"
_LONGEST = 80


class WatchRun:
    """Watches what runs between `begin` and `end`.

    What the wait at the end has raised, if the code itself has not, is `late_error`: an
    error of the device, or KeyboardInterrupt. The caller raises it.

    Args:
        open_runtime: The best runtime that there is at the moment.

        names: What the notebook calls its objects.
    """

    def __init__(
        self,
        open_runtime: Callable[[], Runtime],
        names: Callable[[], Mapping[str, object]],
    ) -> None:
        self.late_error: BaseException | None = None
        self._names = names
        self._seen = Watchers()
        self._around = AroundCell(
            open_runtime,
            [self._seen],
            # The tensors of a machine that was switched off are gone.
            after_swap=lambda: open_runtime() if simulated_box() else CpuRuntime(),
            waits_after_error=False,
        )
        self._ended: Ended | None = None

    def begin(self) -> None:
        """Wait until all devices are idle, and look on from now on."""
        self._around.begin()

    def end(self, error: BaseException | None = None) -> None:
        """Wait until all devices are idle again, and look on no more."""
        self._ended = self._around.end(error=error)
        self.late_error = self._ended.late_error

    def report(self, code: Code) -> WatchReport:
        """What was seen, once it has ended."""
        ended, seen, names = self._ended, self._seen, self._names()
        if ended is None:
            raise RuntimeError("this run has not ended")
        loaders = [each for each in seen.loaders if each.waits]
        device = None
        with suppress(RuntimeError):  # a device in error answers nothing any more
            device = ended.found.current_device()
        return WatchReport(
            code=code,
            setting=setting_of(ended.found, device),
            elapsed_s=ended.elapsed_s,
            host_s=ended.host_s,
            copies=copy_lines(seen.copies),
            waits=loop_waits(loaders, names),
            races=tuple(seen.races),
            failed=ended.failed,
            remarks=(
                *copy_remarks(seen.copies, loaders, names),
                *seen.remarks,
            ),
        )


class Watchers(Observer):
    """Looks at copies, waits for data, and races."""

    def __init__(self) -> None:
        self.copies: list[SeenCopy] = []
        self.loaders: list[SeenLoader] = []
        self.races: list[SeenRace] = []
        self.remarks: list[Remark] = []  # what could not be looked at
        self._watching = ExitStack()
        self._saw_torch = False

    def start(self, runtime: Runtime) -> None:
        """Look on from now on."""
        torch = loaded_torch()
        if torch is None:
            return
        self._saw_torch = True
        enter = self._watching.enter_context
        try:
            self.loaders = enter(waits_watched(torch))
            if runtime.kind != CpuRuntime.kind:
                self.copies = enter(copies_watched(torch, runtime.kind))
        except GpuMagicError as error:
            self.remarks.append(Remark(error.problem, error.hint or ""))
        if runtime.simulated:  # torch's own search for races makes each call slow
            with suppress(DeviceError):  # the user has said that none are looked for
                self.races = enter(runtime.watch_races())

    def all_idle(self, unwaited: str | None) -> None:  # noqa: ARG002 -- as far as it got
        """Look on no more: what follows is ours."""
        self._watching.close()

    def look_after(self, runtime: Runtime, *, idle: bool) -> None:  # noqa: ARG002
        """Note a torch that was there too late to be watched."""
        if not self._saw_torch and loaded_torch() is not None:
            self.remarks.append(
                Remark("this cell itself has imported torch: nobody looked on", _ANEW)
            )

    def close(self) -> None:
        """Look on no more."""
        self._watching.close()


# ----------------------------------------------------------------- copies, by line


def copy_lines(copies: Iterable[SeenCopy]) -> tuple[CopyLine, ...]:
    """The lines that copied, those with most bytes first."""
    # Copies are many and places are few: each place is looked up once.
    by_mark: dict[PlaceMark | None, list[SeenCopy]] = defaultdict(list)
    for each in copies:
        by_mark[each.mark].append(each)
    by_line: dict[CodeLine | None, list[SeenCopy]] = defaultdict(list)
    for mark, found in by_mark.items():
        by_line[code_line(mark)] += found
    lines = (
        CopyLine(
            line=line,
            times=len(found),
            nbytes=sum(each.nbytes for each in found),
            pageable_bytes=sum(each.nbytes for each in found if not each.pinned),
            blocking=sum(not each.non_blocking for each in found),
            held_s=sum(each.held_s for each in found),
        )
        for line, found in by_line.items()
    )
    return tuple(sorted(lines, key=lambda line: -line.nbytes))


def copy_remarks(
    copies: Sequence[SeenCopy],
    loaders: Sequence[SeenLoader],
    names: Mapping[str, object],
) -> list[Remark]:
    """The three lines whose copies could be better, and how; the most bytes first.

    What is copied before the first batch is copied once, like parameters.
    """
    began_ns = min((each.waits[0].ended_ns for each in loaders), default=0)
    in_loop = [each for each in copies if each.at_ns >= began_ns]
    least = sum(each.nbytes for each in in_loop) * _LEAST_SHARE
    slow = [each for each in in_loop if not (each.pinned and each.non_blocking)]
    lines = [line for line in copy_lines(slow) if line.nbytes >= least]
    return [_remark(line, loaders, names) for line in lines[:3]]


def _remark(
    line: CopyLine, loaders: Sequence[SeenLoader], names: Mapping[str, object]
) -> Remark:
    where = "a thread without any code of yours"
    if line.line is not None:
        source = line.line.source
        where = line.line.where
        where += "" if source is None else f", `{shortened(source, _LONGEST)}`,"
    held = f"which held the host for {seconds_text(line.held_s)}"
    said = f"{where} copies {bytes_text(line.nbytes)} from"
    if not line.pageable_bytes:
        text = f"{said} pinned memory and waits all the same, {held}"
        return Remark(text, f"write {_NOT_BLOCKING}")
    pins = _pinning(loaders, names)
    if not line.blocking:
        text = f"{said} pageable memory, {held}: non_blocking=True gains nothing there"
        return Remark(text, pins)
    text = f"{said} pageable memory and waits for it, {held}"
    return Remark(text, f"{pins}; then write {_NOT_BLOCKING}")


def _pinning(loaders: Sequence[SeenLoader], names: Mapping[str, object]) -> str:
    if not loaders:
        return "pin it where it is made: pin_memory=True, or x.pin_memory() once"
    name = (name_of(loaders[0], names) if len(loaders) == 1 else None) or "NAME"
    if all(each.pin_memory for each in loaders):
        return (
            f"%pin_loader {name} --diagnose says which tensors are not pinned, and why"
        )
    return f"let the loader pin: pin_memory=True, or %pin_loader {name}"
