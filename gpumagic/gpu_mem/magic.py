"""`%gpu_mem` says where the GPU memory went, cell by cell, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.magic import magics_class
from IPython.core.magic_arguments import magic_arguments

from gpumagic.devices.torch_private import loaded_torch
from gpumagic.notebook.arguments import argument, examples, word
from gpumagic.notebook.faults import CellEvents
from gpumagic.notebook.magics import GpuMagics, gpu_magic, output_options

if TYPE_CHECKING:
    from contextlib import ExitStack

    from gpumagic.gpu_mem.notebook import Notebook
    from gpumagic.notebook.session import Session


@magics_class
class MemoryMagics(GpuMagics):
    """The magic of this room, with what cells have done so far."""

    def __init__(self, shell: Any, session: Session) -> None:
        super().__init__(shell, session)
        self._notebook: Notebook | None = None

    def install(self, undo: ExitStack) -> None:
        """Know the out-of-memory errors that end cells, until an unload."""
        cells = CellEvents(
            self.shell, "%gpu_mem after each cell", after=self._after_cell
        )
        undo.callback(self._close)
        undo.callback(cells.take_out)
        cells.put_in()

    @gpu_magic
    @magic_arguments()
    @examples(
        {
            "%gpu_mem": "who holds the memory now?",
            "%%gpu_mem --lines": "which lines of the cell below took it?",
            "%gpu_mem leaks": "what is held for nothing?",
        }
    )
    @argument(
        "what",
        nargs="*",
        metavar="WORD",
        help="One of the words. Nothing: how things stand.",
    )
    @word("on", "From now on a line after each cell that moves memory.")
    @word("off", "No more of these lines.")
    @word("log", "All cells watched so far.")
    @word("map", "Segments and blocks of the caching allocator.")
    @word("leaks", "What could be let go of.")
    @word("free", "Let go of it.")
    @word("why", "The last out-of-memory error, explained.")
    @word("live", "A panel while this cell runs.")
    @word("fit SIZE", "Whether that would fit now, as in fit 6GiB.")
    @argument(
        "--lines", action="store_true", help="Of a cell: lines, and its exact peak."
    )
    @argument(
        "--top",
        more=True,
        type=int,
        default=10,
        metavar="N",
        help="How many names to show (10).",
    )
    @argument(
        "--outputs",
        more=True,
        action="store_true",
        help="free: Out, _ and their copies.",
    )
    @argument(
        "--errors",
        more=True,
        action="store_true",
        help="free: the last error, its frames.",
    )
    @argument(
        "--gc",
        more=True,
        action="store_true",
        help="free, leaks: collect cycles as well.",
    )
    @argument(
        "--cache",
        more=True,
        action="store_true",
        help="free: give torch's cache to the driver.",
    )
    @output_options
    def gpu_mem(self, line: str, cell: str | None = None) -> Any:
        """Say where the GPU memory went, by the names of this notebook.

        Looking resets no counter, empties no cache, collects and synchronises nothing,
        and keeps no tensor alive; only free lets go of something. In front of a cell
        it says what the cell did: change, peak, and whose names hold it now.
        """
        __tracebackhide__ = True
        options = self.read(self.gpu_mem, line, cell)
        return self._notebook_here().answer(options, line, cell)

    def _notebook_here(self) -> Notebook:
        from gpumagic.gpu_mem.notebook import Notebook

        if self._notebook is None:
            self._notebook = Notebook(self)
        return self._notebook

    def _after_cell(self, result: Any) -> None:
        """Meet the error of a cell before a later one takes its place."""
        error = getattr(result, "error_in_exec", None)
        if error is None or loaded_torch() is None:
            return
        from gpumagic.gpu_mem.oom import oom_within

        if oom_within(error) is not None:
            self._notebook_here().met(error)

    def _close(self) -> None:
        if self._notebook is not None:
            self._notebook.stop()
