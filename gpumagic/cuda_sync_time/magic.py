"""`%%cuda_sync_time` runs a cell and says how long it really took on the GPU."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from IPython.core.magic import magics_class
from IPython.core.magic_arguments import magic_arguments

from gpumagic.errors import UsageProblem
from gpumagic.notebook import arguments
from gpumagic.notebook.arguments import argument, word
from gpumagic.notebook.magics import GpuMagics, gpu_magic, output_options, typed_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack

    from gpumagic.cuda_sync_time.notebook import Notebook
    from gpumagic.notebook.session import Session


def kept_names(magics: TimeMagics, _: str) -> list[str]:
    """The names under which the notebook has kept code."""
    notebook = magics._notebook  # noqa: SLF001 - of the same file
    return [] if notebook is None else notebook.kept_names


class OneWayToWait(argparse.Action):
    """Stores which way was asked for, and refuses a second one."""

    def __init__(self, option_strings: Sequence[str], dest: str, **more: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **more)

    def __call__(self, _: Any, namespace: argparse.Namespace, *__: Any) -> None:
        """Take the option; argparse calls this for each that was typed.

        Raises:
            UsageProblem: The other way was asked for as well.
        """
        if getattr(namespace, self.dest) not in (None, self.const):
            raise UsageProblem(
                "--latency waits after each call, and --throughput once after many",
                "leave one of them away",
            )
        setattr(namespace, self.dest, self.const)


@magics_class
class TimeMagics(GpuMagics):
    """The magic of this room, with what the notebook has timed so far."""

    def __init__(self, shell: Any, session: Session) -> None:
        super().__init__(shell, session)
        self._notebook: Notebook | None = None

    def install(self, undo: ExitStack) -> None:
        """Time no more cells after an unload."""
        undo.callback(self._close)

    @gpu_magic
    @magic_arguments()
    @argument(
        "-n",
        dest="calls",
        type=int,
        metavar="N",
        help="Repeat: calls in each sample (default: more where one is short).",
    )
    @argument(
        "-r",
        dest="samples",
        type=int,
        metavar="R",
        help="Repeat: samples (default: until the interval is narrow).",
    )
    @argument(
        "--repeat", action="store_true", help="Run again and again, with statistics."
    )
    @argument(
        "--budget",
        metavar="TIME",
        help="Repeat: about so long, as in 2s (1s); longer where a run alone is, or "
        "where this machine computes simulated values slowly.",
    )
    @argument(
        "--latency",
        dest="mode",
        action=OneWayToWait,
        const="latency",
        help="Repeat: wait for the device after each call.",
    )
    @argument(
        "--throughput",
        dest="mode",
        action=OneWayToWait,
        const="throughput",
        help="Repeat: wait once after many calls.",
    )
    @argument("--setup", metavar="CODE", help="Run this first, once, untimed.")
    @argument(
        "--before", metavar="CODE", help="Repeat: run this before each sample, untimed."
    )
    @argument(
        "--cold", action="store_true", help="Repeat: flush the caches between samples."
    )
    @argument(
        "--syncs", action="store_true", help="List what made the host wait, by line."
    )
    @argument(
        "--profile", action="store_true", help="Draw what ran when; busy and idle."
    )
    @argument(
        "--trace",
        metavar="FILE",
        help="Profile, and save the trace for Perfetto or chrome://tracing.",
    )
    @argument(
        "--lines",
        action="store_true",
        help="Time each line: the host's part, and what it launched on the GPU.",
    )
    @argument(
        "--races",
        action="store_true",
        help="Look for missing waits between streams; claims no time.",
    )
    @argument(
        "--flops",
        action="store_true",
        help="Count operations in one more run; show them against the device's peak.",
    )
    @argument(
        "--bytes",
        dest="nbytes",
        metavar="SIZE",
        help="What one run moves, as in 512MiB; shown against the device's peak.",
    )
    @argument(
        "--name",
        metavar="NAME",
        offers=kept_names,
        help="Keep this code as NAME, for --vs.",
    )
    @argument(
        "--vs",
        metavar="NAME",
        offers=kept_names,
        help="Compare with the code kept as NAME, in turn.",
    )
    @argument(
        "--calibrate",
        action="store_true",
        help="With --vs: also NAME against itself, the noise of this machine.",
    )
    @argument(
        "code", nargs="?", metavar="CODE", help="In line form: the expression to time."
    )
    @word("on", "Time every cell from now on.")
    @word("off", "Stop that.")
    @word("log [FILE]", "All timed cells; saved as .csv or .json.")
    @output_options
    def cuda_sync_time(self, line: str, cell: str | None = None) -> Any:
        """Say how long a cell really took: from all devices idle to all idle again.

        The cell runs exactly as without this line, once, and its value is shown as
        ever. In line form an expression stands behind the options, or one of the
        words below.
        """
        __tracebackhide__ = True
        method = self.cuda_sync_time
        options, code = arguments.split_code(
            method.parser, typed_name(method, cell), line
        )
        return self._notebook_here().answer(
            options, code.removesuffix(";") if cell is None else code, line, cell
        )

    def _notebook_here(self) -> Notebook:
        from gpumagic.cuda_sync_time.notebook import Notebook

        if self._notebook is None:
            self._notebook = Notebook(self)
        return self._notebook

    def _close(self) -> None:
        if self._notebook is not None:
            self._notebook.stop()
