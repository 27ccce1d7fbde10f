"""`%%cuda_sync_time` runs a cell and says how long it really took on the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.magic import magics_class
from IPython.core.magic_arguments import magic_arguments

from gpumagic.notebook import arguments
from gpumagic.notebook.arguments import argument, examples, word
from gpumagic.notebook.magics import GpuMagics, gpu_magic, output_options, typed_name

if TYPE_CHECKING:
    from contextlib import ExitStack

    from gpumagic.cuda_sync_time.notebook import Notebook
    from gpumagic.notebook.session import Session


_HOW = r"(?:latency|throughput|\d+|\d+(?:\.\d+)?(?:ms|s|min|m|h))"


def kept_names(magics: TimeMagics, _: str) -> list[str]:
    """The names under which the notebook has kept code."""
    notebook = magics._notebook  # noqa: SLF001 - of the same file
    return [] if notebook is None else list(notebook.kept)


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
        "--repeat",
        nargs="?",
        const="",
        takes=rf"{_HOW}(?:,{_HOW})*",
        metavar="HOW",
        offers=("latency", "throughput"),
        help="Run again and again, with statistics: 100 samples, about 5s (1s), "
        "latency (wait after each call), throughput (once after many), or latency,5s.",
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
        "code", nargs="?", metavar="CODE", help="In line form: the expression to time."
    )
    @word("on", "Time every cell from now on.")
    @word("off", "Stop that.")
    @output_options
    def cuda_sync_time(self, line: str, cell: str | None = None) -> Any:
        """Say how long a cell really took: from all devices idle to all idle again.

        The cell runs exactly as without this line, once, and its value is shown as
        ever. In line form an expression stands behind the options, or one of the
        words.
        """
        __tracebackhide__ = True
        from gpumagic.cuda_sync_time.notebook import Notebook

        method = self.cuda_sync_time
        options, code = arguments.split_code(
            method.parser, typed_name(method, cell), line
        )
        if self._notebook is None:
            self._notebook = Notebook(self)
        return self._notebook.answer(
            options, code.removesuffix(";") if cell is None else code, line, cell
        )

    def _close(self) -> None:
        if self._notebook is not None:
            self._notebook.stop()
