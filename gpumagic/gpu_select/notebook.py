"""Holds one notebook's choice of GPUs: who watches, what is kept, what is undone.

It is made by `%load_ext`, so it imports what works only when that is asked for.
"""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.display import display

from gpumagic.devices.nvidia import mapped_library
from gpumagic.gpu_select.watch import Watcher
from gpumagic.report.frontend import is_terminal

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from gpumagic.gpu_select.answer_gpus import SelectReport
    from gpumagic.gpu_select.request import Request
    from gpumagic.notebook.session import Session

# With it torch asks NVML whether there are GPUs, and not CUDA, where it can.
GUARD = "PYTORCH_NVML_BASED_CUDA_CHECK"


class Notebook:
    """What was chosen in a shell, with what has watched since the loading."""

    def __init__(self, shell: Any, session: Session) -> None:
        self.watcher = Watcher(
            self._has_started,
            on_start=self._compare,
            may_have_started=lambda: mapped_library() is not None,
        )
        self._shell = shell
        self._session = session
        self._chosen = False
        self._before_simulation = _variables()

    def install(self, undo: ExitStack, read: Callable[[str], Request]) -> None:
        """Watch from now on, and take up a request that has outlived a restart.

        `read` tells what a line means that was typed before.
        """
        if GUARD not in os.environ:
            os.environ[GUARD] = "1"
            undo.callback(os.environ.pop, GUARD, None)
        self.watcher.install(self._shell, undo)
        key = key_of(self._shell)
        if key and kept_file(key).exists():
            self._take_up(key, read)

    def status(self) -> SelectReport:
        """How things stand."""
        from gpumagic.gpu_select.api import status

        return status(self._session.driver, witness=self.watcher)

    def choose(
        self, request: Request, waiting: Callable[[float, str], object] | None = None
    ) -> SelectReport:
        """Carry out a request; a wait is told as `apply` says."""
        __tracebackhide__ = True
        from gpumagic.gpu_select.apply import apply
        from gpumagic.gpu_select.report import TRIED

        report = apply(request, self._session.driver, self.watcher, waiting)
        self._chosen = self._chosen or report.action not in TRIED
        return report

    def simulate(self, machine: str) -> None:
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
                simulate(machine)
            elif box:
                box.off()

    # ---------------------------------------------------------------- over a restart

    def restart(self, request: Request) -> SelectReport:
        """Keep what a request means now, for the kernel that is started next."""
        from dataclasses import replace

        from gpumagic.errors import GpuMagicError
        from gpumagic.gpu_select import restart
        from gpumagic.gpu_select.apply import apply
        from gpumagic.gpu_select.report import Action
        from gpumagic.gpu_select.situation import look, way_out
        from gpumagic.notebook.magics import show_text

        if self._session.driver.simulated:
            anew = way_out(look(self._session.driver), request.text)
            raise GpuMagicError(
                "a simulated machine needs no restart", f"switch it on again: {anew}"
            )
        key = key_of(self._shell)
        is_tried = request.action is Action.DRY_RUN
        if not is_tried:
            request = replace(request, action=Action.RESTARTING)
        report = apply(request, self._session.driver, self.watcher)
        if not key:
            show_text(restart.without_keeping(report))
        elif not is_tried:
            restart.keep(kept_file(key), key, request, report)
            show_text(
                "Restart the kernel now (Kernel, Restart); "
                "then %load_ext gpumagic makes this choice again."
            )
        return report

    def _take_up(self, key: str, read: Callable[[str], Request]) -> None:
        """Choose again what was chosen before a restart of this kernel, and say so."""
        from gpumagic.errors import GpuMagicError
        from gpumagic.gpu_select import restart
        from gpumagic.gpu_select.apply import apply
        from gpumagic.notebook.magics import show_text

        request = restart.take(kept_file(key), key, read)
        if request is None:
            return
        try:
            display(apply(request, self._session.driver, self.watcher))
            self._chosen = True
        except GpuMagicError as error:
            show_text(f"%gpu_select {request.text} was not taken up again: {error}")

    # ---------------------------------------------------------------- what is watched

    def _has_started(self) -> bool | None:
        return self._session.driver_of_this_machine.cuda_started()

    def _compare(self) -> None:
        """After the start: show it if the driver has not done as predicted."""
        from gpumagic.gpu_select.report import Evidence

        if self._chosen and (now := self.status()).evidence is Evidence.OTHERWISE:
            display(now)


def _variables() -> dict[str, str | None]:
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    return {name: os.environ.get(name) for name in names}


def key_of(shell: Any) -> str:
    """What stays the same when this kernel is restarted; "" where nothing does.

    In VS Code, which makes a new connection file for each start, it is the path of
    the notebook, elsewhere the name of the connection file, or the session's.
    """
    if is_terminal(shell):
        return ""
    notebook = shell.user_ns.get("__vsc_ipynb_file__")
    if isinstance(notebook, str) and notebook:
        return notebook
    application = getattr(sys.modules.get("ipykernel.kernelapp"), "IPKernelApp", None)
    if application and application.initialized():
        return Path(application.instance().connection_file).name
    return os.environ.get("JPY_SESSION_NAME", "")


def kept_file(key: str) -> Path:
    """Where the choice of one kernel outlives its restart; others cost nothing."""
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    home = named if named.is_absolute() else Path("~/.local/state").expanduser()
    number = zlib.crc32(key.encode(errors="surrogatepass"))
    return home / "gpumagic" / f"restart-{number:08x}.json"
