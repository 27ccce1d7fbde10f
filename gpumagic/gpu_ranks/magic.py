"""`%gpu_ranks` asks many ranks at once: who sits where, who is slow, who is missing."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from IPython.core.magic import magics_class
from IPython.core.magic_arguments import magic_arguments

from gpumagic.notebook.arguments import argument, examples, word
from gpumagic.notebook.magics import GpuMagics, gpu_magic, output_options

if TYPE_CHECKING:
    from gpumagic.gpu_ranks.notebook import Notebook


@magics_class
class RanksMagics(GpuMagics):
    """The magic of this room, with what still runs on engines."""

    @gpu_magic
    @magic_arguments()
    @examples(
        {
            "%gpu_ranks": "which rank sits on which GPU?",
            "%gpu_ranks group": "begin torch.distributed among the engines",
            "%%gpu_ranks": "run the cell below on all: who is slow, who waits?",
        }
    )
    @argument(
        "what",
        nargs="*",
        metavar="WORD",
        help="One of the words. Nothing: where ranks sit.",
    )
    @word("select", "Give each engine a GPU of its own, before CUDA starts.")
    @word("group", "Begin torch.distributed on the engines, or anew.")
    @word("where", "Who waits for whom in what still runs.")
    @argument("--mem", action="store_true", help="Of a cell: the memory of each rank.")
    @argument(
        "--on",
        metavar="ENGINES",
        default="",
        help="Only on these, as in --on 0,2 or 0-3.",
    )
    @output_options
    def gpu_ranks(self, line: str, cell: str | None = None) -> Any:
        """Ask all ranks of a job at once, on the engines of an ipyparallel cluster.

        Own work is told apart from waiting, so the slow rank has a name though all
        take equally long. In front of a cell, the cell runs on every engine; what it
        prints is shown by engine. Nothing is killed or aborted; Ctrl-C interrupts the
        engines that are used, and a second one stops waiting for them.
        """
        __tracebackhide__ = True
        options = self.read(self.gpu_ranks, line, cell)
        return self._notebook.answer(options, cell)

    @cached_property
    def _notebook(self) -> Notebook:
        from gpumagic.gpu_ranks.notebook import Notebook

        return Notebook(self)
