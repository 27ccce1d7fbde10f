"""`%%cuda_sync_time` runs a cell and says how long it really took on the GPU."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from IPython.core.magic import magics_class
from IPython.core.magic_arguments import magic_arguments

from gpumagic.errors import UsageProblem
from gpumagic.notebook import arguments
from gpumagic.notebook.arguments import argument, examples, word
from gpumagic.notebook.magics import GpuMagics, gpu_magic, output_options, typed_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack

    from gpumagic.cuda_sync_time.notebook import Notebook
    from gpumagic.notebook.session import Session


_WAYS = ("latency", "throughput")
_TIME = r"\d+(?:\.\d+)?(?:ms|s|min|m|h)"
_HOW = rf"(?:latency|throughput|\d+|{_TIME})"


def kept_names(magics: TimeMagics, _: str) -> list[str]:
    """The names under which the notebook has kept code."""
    notebook = magics._notebook  # noqa: SLF001 - of the same file
    return [] if notebook is None else notebook.kept_names


class OneWayToWait(argparse.Action):
    """Stores which way was asked for, and refuses a second one."""

    def __init__(self, option_strings: Sequence[str], dest: str, **more: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **more)

    def __call__(self, _: Any, namespace: argparse.Namespace, *__: Any) -> None:
        """Take the option; argparse calls this for each that was typed."""
        _wait(namespace, str(self.const))


class Repeat(argparse.Action):
    """Stores how to repeat: how to wait, how many samples, how long; or just that."""

    def __call__(
        self, _: Any, namespace: argparse.Namespace, values: Any, *__: Any
    ) -> None:
        """Take the option; argparse calls this for each that was typed."""
        namespace.repeat = True
        for how in (values or "").split(","):
            if how in _WAYS:
                _wait(namespace, how)
            elif how.isdecimal():
                namespace.samples = int(how)
            elif re.fullmatch(_TIME, how):
                namespace.budget = how
            elif how:
                raise UsageProblem(
                    f"--repeat={how} is no way to repeat",
                    "say --repeat=latency, --repeat=throughput, --repeat=100 or "
                    "--repeat=5s",
                )


def _wait(namespace: argparse.Namespace, way: str) -> None:
    if namespace.mode not in (None, way):
        raise UsageProblem(
            "--latency waits after each call, and --throughput once after many",
            "leave one of them away",
        )
    namespace.mode = way


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
    @examples(
        {
            "%%cuda_sync_time": "how long did the cell below take?",
            "%cuda_sync_time --repeat f(x)": "the median of many runs of f(x)",
            "%%cuda_sync_time --syncs": "which lines make the host wait?",
        }
    )
    @argument(
        "-n",
        more=True,
        dest="calls",
        type=int,
        metavar="N",
        help="Repeat: calls in each sample (default: more where one is short).",
    )
    @argument(
        "-r",
        more=True,
        dest="samples",
        type=int,
        metavar="R",
        help="As --repeat R: samples (default: until the interval is narrow).",
    )
    @argument(
        "--repeat",
        action=Repeat,
        nargs="?",
        takes=rf"{_HOW}(?:,{_HOW})*",
        default=False,
        metavar="HOW",
        offers=_WAYS,
        help="Run again and again, with statistics: latency (wait after each call), "
        "throughput (once after many), 100 samples, about 5s, or latency,5s.",
    )
    @argument(
        "--budget",
        more=True,
        metavar="TIME",
        help="As --repeat 2s (1s); longer where a run alone is, or "
        "where this machine computes simulated values slowly.",
    )
    @argument(
        "--latency",
        more=True,
        dest="mode",
        action=OneWayToWait,
        const="latency",
        help="As --repeat latency.",
    )
    @argument(
        "--throughput",
        more=True,
        dest="mode",
        action=OneWayToWait,
        const="throughput",
        help="As --repeat throughput.",
    )
    @argument(
        "--setup", more=True, metavar="CODE", help="Run this first, once, untimed."
    )
    @argument(
        "--before",
        more=True,
        metavar="CODE",
        help="Repeat: run this before each sample, untimed.",
    )
    @argument(
        "--cold",
        more=True,
        action="store_true",
        help="Repeat: flush the caches between samples.",
    )
    @argument(
        "--syncs", action="store_true", help="List what made the host wait, by line."
    )
    @argument(
        "--profile", action="store_true", help="Draw what ran when; busy and idle."
    )
    @argument(
        "--trace",
        more=True,
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
        more=True,
        action="store_true",
        help="Count operations in one more run; show them against the device's peak.",
    )
    @argument(
        "--bytes",
        more=True,
        dest="nbytes",
        metavar="SIZE",
        help="What one run moves, as in 512MiB; shown against the device's peak.",
    )
    @argument("--live", action="store_true", help="Draw a panel while the cell runs.")
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
        more=True,
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
        words.
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
