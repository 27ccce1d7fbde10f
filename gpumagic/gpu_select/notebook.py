"""Holds one notebook's choice of GPUs: who watches, what is kept, what is undone.

It is made by `%load_ext`, so it imports what works only when that is asked for.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.display import display

from gpumagic.devices.mapped_library import mapped_library
from gpumagic.gpu_select.watch import GuardSwitch, Watcher

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from gpumagic.gpu_select.options import How
    from gpumagic.gpu_select.report import SelectReport
    from gpumagic.gpu_select.request import Request
    from gpumagic.notebook.session import Session


class Notebook:
    """What was chosen in a shell, with what has watched since the loading."""

    def __init__(self, shell: Any, session: Session) -> None:
        self.guard = GuardSwitch(session)
        self.watcher = Watcher(
            self._has_started,
            on_start=self._compare,
            may_have_started=lambda: mapped_library() is not None,
        )
        self._shell = shell
        self._session = session
        self._asking = False
        self._chosen = False
        self._at_load = self._before_simulation = _variables()

    def install(self, undo: ExitStack, read: Callable[[str], Request]) -> None:
        """Watch from now on, and take up a request that has outlived a restart.

        `read` tells what a line means that was typed before.
        """
        self.guard.install()
        self.watcher.install(self._shell, undo)
        if something_is_kept():
            self._take_up(read)

    def status(self) -> SelectReport:
        """How things stand."""
        from gpumagic.gpu_select.api import status

        return status(self._session.driver, witness=self.watcher, shell=self._shell)

    def choose(
        self, request: Request, waiting: Callable[[float, str], object] | None = None
    ) -> SelectReport:
        """Carry out a request; a wait is told as `How` says."""
        from gpumagic.gpu_select.apply import apply

        report = apply(request, self._session.driver, self._how(waiting))
        self._chosen = self._chosen or not request.dry_run
        return report

    def reset(self) -> SelectReport:
        """Go back to what the kernel was started with."""
        from gpumagic.gpu_select.api import reset

        report = reset(self._session.driver, before=self._at_load, how=self._how())
        self._chosen = False
        return report

    # ---------------------------------------------------------------- simulated ones

    def simulate(self, machine: str, **options: Any) -> None:
        """Switch a simulated machine on, or with "off" off.

        What was chosen among simulated GPUs means nothing to others, so the
        variables are put back to what they were before the first of them. A machine
        that cannot be had leaves the one that is on, and what was chosen there.
        """
        from gpumagic.devices.simulated import simulated_box
        from gpumagic.gpu_select.variables import changed
        from gpumagic.simulator import simulate

        box = simulated_box()
        if box is None:
            self._before_simulation = _variables()
        with changed(self._before_simulation):
            if machine != "off":
                simulate(machine, **options)
            elif box is not None:
                box.off()

    # ---------------------------------------------------------------- over a restart

    def restart(self, request: Request) -> SelectReport:
        """Keep what a request means now, and restart with it."""
        import dataclasses

        from gpumagic.gpu_select import restart
        from gpumagic.gpu_select.apply import apply
        from gpumagic.gpu_select.reporting import mapped
        from gpumagic.notebook.magics import show_text

        self._require_real_gpus(request)
        key = restart.key(self._shell)
        kept = key is not None and not request.dry_run
        trial = dataclasses.replace(request, dry_run=True, restarting=kept)
        report = apply(trial, self._session.driver, self._how())
        chosen = mapped(report.rows, "predicted")
        if key is None:
            show_text(restart.without_keeping(report))
        elif not request.dry_run:
            _keep(request, [row.uuid for row in chosen], key)
            numbers = " and ".join(str(row.physical) for row in chosen)
            what = f"GPU {numbers}" if numbers else "your choice"
            show_text(restart.restart(self._shell, what=what))
        return report

    def _require_real_gpus(self, request: Request) -> None:
        from gpumagic.errors import GpuMagicError
        from gpumagic.gpu_select.situation import simulated_anew

        if self._session.driver.simulated:
            raise GpuMagicError(
                "a simulated machine needs no restart",
                f"have it anew: {simulated_anew(request.text)}",
            )

    def _take_up(self, read: Callable[[str], Request]) -> None:
        """Choose again what was chosen before a restart of this kernel, and say so."""
        from gpumagic.errors import GpuMagicError
        from gpumagic.gpu_select import restart
        from gpumagic.gpu_select.apply import take_up
        from gpumagic.notebook.magics import show_text

        key = restart.key(self._shell)
        kept = restart.take(kept_folder(), key) if key is not None else None
        if kept is None:
            return
        try:
            display(take_up(kept, read, self._session.driver, self._how()))
            self._chosen = True
        except GpuMagicError as error:
            show_text(f"%gpu_select {kept.text} was not taken up again: {error}")

    def _how(self, waiting: Callable[[float, str], object] | None = None) -> How:
        from gpumagic.gpu_select.options import How

        return How(waiting, self.watcher, self._shell)

    # ---------------------------------------------------------------- what is watched

    def _has_started(self) -> bool | None:
        """The driver's answer, which is not yet to be had while ctypes is imported.

        The watcher asks around imports, and so around that of ctypes itself, which
        the question needs.
        """
        if self._asking or _is_half_imported("ctypes"):
            return False
        self._asking = True
        try:
            return self._session.driver_of_this_machine.cuda_started()
        finally:
            self._asking = False

    def _compare(self) -> None:
        """After the start: show it if the driver has not done as predicted."""
        if self._chosen and (report := self.status()).confirmed is False:
            display(report)


def _is_half_imported(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def _variables() -> dict[str, str | None]:
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    return {name: os.environ.get(name) for name in names}


def something_is_kept() -> bool:
    """Whether any kernel of this user has been restarted with a choice."""
    try:
        return any(kept_folder().iterdir())
    except OSError:
        return False


def kept_folder() -> Path:
    """The folder of what one user keeps over restarts, which may not be there yet."""
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    if named.is_absolute():
        return named / "gpumagic"
    try:
        return Path.home() / ".local" / "state" / "gpumagic"
    except RuntimeError as error:
        raise FileNotFoundError(2, "There is no home directory") from error


def _keep(request: Request, uuids: list[str | None], key: str) -> None:
    from gpumagic.errors import GpuMagicError
    from gpumagic.gpu_select import restart

    known = [uuid for uuid in uuids if uuid]
    try:
        # Without all of the UUIDs the words have to do.
        uuids_or_none = known if len(known) == len(uuids) else []
        restart.keep(
            kept_folder(),
            request.text,
            uuids_or_none,
            key,
            form=request.form,
            force=request.force,
        )
    except OSError as error:
        raise GpuMagicError(
            f"the choice cannot be kept over a restart: {error}",
            f"restart the kernel, then type %gpu_select {request.text} first",
        ) from None
