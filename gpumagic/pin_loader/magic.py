"""`%pin_loader` finds out whether a DataLoader keeps the GPU busy, and mends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.magic import magics_class
from IPython.core.magic_arguments import magic_arguments

from gpumagic.notebook.arguments import argument, examples
from gpumagic.notebook.magics import GpuMagics, gpu_magic, output_options, typed_name

if TYPE_CHECKING:
    from gpumagic.notebook.session import Session
    from gpumagic.pin_loader.notebook import Notebook


def loaders(magics: LoaderMagics, _: str) -> list[str]:
    """The names of what iterates and is called a loader; no code of theirs runs."""
    names = list(magics.shell.user_ns.items())
    return [name for name, value in names if _is_loader(type(value))]


def functions(magics: LoaderMagics, _: str) -> list[str]:
    """The names of what can be called, classes apart."""
    names = list(magics.shell.user_ns.items())
    hidden = magics.shell.user_ns_hidden
    return [
        name
        for name, value in names
        if name not in hidden and callable(value) and type(value) is not type
    ]


def _is_loader(kind: type) -> bool:
    called_so = any(
        each.__name__.endswith(("Loader", "Prefetcher")) for each in kind.__mro__
    )
    return called_so and any("__iter__" in vars(each) for each in kind.__mro__)


@magics_class
class LoaderMagics(GpuMagics):
    """The magic of this room."""

    def __init__(self, shell: Any, session: Session) -> None:
        super().__init__(shell, session)
        self._notebook: Notebook | None = None

    @gpu_magic
    @magic_arguments()
    @examples(
        {
            "%pin_loader train_dl": "does it feed the GPU fast enough?",
            "%pin_loader train_dl --workers auto": "with as many workers as pay",
            "%%pin_loader --watch": "which lines wait for data?",
        }
    )
    @argument("name", nargs="?", metavar="NAME", offers=loaders, help="The DataLoader.")
    @argument(
        "--device",
        more=True,
        metavar="DEVICE",
        help="Where batches go (the current one).",
    )
    @argument(
        "--workers",
        metavar="N",
        offers=("auto",),
        help="So many worker processes; auto takes as many as pay.",
    )
    @argument(
        "--step",
        metavar="NAME",
        offers=functions,
        help="The function that your loop calls with a batch; it is really called.",
    )
    @argument(
        "--budget",
        more=True,
        default="10s",
        metavar="TIME",
        help="About so long (10s): longer where batches are large, or load slowly, "
        "since each part is done once at least.",
    )
    @argument("--diagnose", action="store_true", help="Look and predict, no more.")
    @argument(
        "--force",
        more=True,
        action="store_true",
        help="Go on where it is refused or not worth it.",
    )
    @argument(
        "--watch",
        action="store_true",
        help="In front of a training cell: its copies and its waits for data, by line.",
    )
    @output_options
    def pin_loader(self, line: str, cell: str | None = None) -> Any:
        """Find out whether a DataLoader feeds the GPU as fast as it can; mend it.

        Looks at a real batch, measures each part, loading with fewer and more workers
        too, and says what can be gained at most. Where that is worth it, NAME_pinned is
        made: the same batches, pinned, copied ahead, on the device. It is compared with
        the old one in value and in time. NAME itself stays as it is, and so do random
        numbers and samplers.

        The next batch is fetched before the one at hand is given out: a first batch
        comes after two loads, and without workers random transforms of the dataset
        draw before your step does. CUDA graphs want fixed addresses: copy into them.
        """
        __tracebackhide__ = True
        options = self.read(self.pin_loader, line, cell)
        typed = typed_name(self.pin_loader, cell)
        return self._notebook_here().answer(options, f"{typed} {line}", cell)

    def _notebook_here(self) -> Notebook:
        from gpumagic.pin_loader.notebook import Notebook

        if self._notebook is None:
            self._notebook = Notebook(self)
        return self._notebook
