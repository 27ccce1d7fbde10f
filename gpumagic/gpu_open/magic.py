"""`%gpu_open` reads what came home as a file: traces of ranks, memory snapshots."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import Any

from IPython.core.magic import magics_class
from IPython.core.magic_arguments import magic_arguments
from IPython.utils.text import DollarFormatter

from gpumagic.notebook.arguments import argument, examples
from gpumagic.notebook.magics import GpuMagics, gpu_magic, output_options


def files(_: OpenMagics, begun: str) -> list[str]:
    """Recordings and folders whose path begins like that."""
    from gpumagic.gpu_open.files import ENDINGS

    path = os.path.expanduser(begun)  # noqa: PTH111 -- keeps `./` and the last `/`
    offered = []
    for each in glob.iglob(f"{glob.escape(path)}*"):  # noqa: PTH207 -- likewise
        typed = begun + each[len(path) :]
        if Path(each).is_dir():
            offered.append(f"{typed}/")
        elif each.endswith(ENDINGS) and " " not in each:
            offered.append(typed)
    return offered


@magics_class
class OpenMagics(GpuMagics):
    """The magic of this room."""

    @gpu_magic
    @magic_arguments()
    @examples(
        {
            "%gpu_open trace.json.gz": "what held this process back?",
            "%gpu_open traces/*.json.gz": "which rank is slow, who waits for it?",
            "%gpu_open oom.pickle --replay": "would another setting have helped?",
        }
    )
    @argument(
        "files",
        nargs="*",
        metavar="FILES",
        offers=files,
        help="Traces of torch.profiler, or one or two snapshots of torch.cuda.memory; "
        "packed or not, also folders and patterns.",
    )
    @argument(
        "--compare",
        action="store_true",
        help="Two traces are two runs of the same code: what got slower?",
    )
    @argument(
        "--replay",
        nargs="?",
        const="",
        metavar="WITH",
        help="A snapshot: would other settings have needed less memory? With one, as "
        "PYTORCH_CUDA_ALLOC_CONF would say it, or a size of the GPU, as in 24GiB.",
    )
    @output_options
    def gpu_open(self, line: str, cell: str | None = None) -> Any:
        """Say what a recording tells: of one process, of all ranks, or of its memory.

        A trace of torch.profiler, or a snapshot of torch.cuda.memory; no GPU is
        needed, and nothing of the file is run. In front of a cell, each line of the
        cell is one more file.
        """
        __tracebackhide__ = True
        from gpumagic.gpu_open import api

        options = self.read(self.gpu_open, line, cell)
        wanted = api.options_of(options)
        lines = filter(None, map(str.strip, (cell or "").splitlines()))
        names = self.shell.user_ns
        paths = [_filled_in(each, names) for each in (*options.files, *lines)]
        with self.progress(None, "Reading", quiet=options.quiet) as steps:
            report = api.read(*paths, **wanted, progress=steps.reach)
        return self.show(report, options)


def _filled_in(name: str, names: dict[str, Any]) -> str:
    """A name of a file, with `{folder}` and `$folder` as in IPython's own magics."""
    if not re.search(r"[{$]", name) or Path(name).exists():
        return name
    try:
        return str(DollarFormatter().vformat(name, (), names))
    except Exception:  # noqa: BLE001 -- no variable: then it is the name of a file
        return name
