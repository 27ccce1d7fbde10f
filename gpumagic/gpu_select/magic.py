"""`%gpu_select` chooses the GPUs of this notebook, and says when it is too late."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from IPython.core.magic import magics_class
from IPython.core.magic_arguments import magic_arguments

from gpumagic.gpu_select.notebook import Notebook
from gpumagic.notebook.arguments import argument, examples
from gpumagic.notebook.magics import GpuMagics, gpu_magic, output_options

if TYPE_CHECKING:
    import argparse
    from contextlib import ExitStack

    from gpumagic.gpu_select.answer_gpus import SelectReport
    from gpumagic.gpu_select.request import Request
    from gpumagic.notebook.session import Session


def choices(magics: SelectMagics, begun: str) -> list[str]:
    """A word alone, or numbers and UUIDs behind the commas that are there already."""
    before, comma, last = begun.rpartition(",")
    known = magics.session.driver.inventory().gpus
    uuids = [each.uuid for each in known if each.uuid and last]  # long: when begun
    names = [*(str(each.index) for each in known), *uuids]
    said = before.split(",")
    offered = [f"{before}{comma}{name}" for name in names if name not in said]
    return ["all", "free", "none", *offered]


def machines(_: SelectMagics, begun: str) -> list[str]:
    """What can be simulated, behind the number of them if there is one."""
    from gpumagic.simulator.models import CATALOGUE

    count = re.match(r"\d+x|", begun)
    names = [f"{count and count[0]}{model.key}" for model in CATALOGUE]
    return [*names, "off"]


@magics_class
class SelectMagics(GpuMagics):
    """The magic of this room, with what has watched since it was loaded."""

    keeps_last = False  # a look is cheap, and what it saw may have changed

    def __init__(self, shell: Any, session: Session) -> None:
        super().__init__(shell, session)
        self.notebook = Notebook(shell, session)

    def install(self, undo: ExitStack) -> None:
        """Watch from now on, and take up a request that has outlived a restart."""
        self.notebook.install(undo, self._read)

    @gpu_magic
    @magic_arguments()
    @examples(
        {
            "%gpu_select": "which GPU is cuda:0, and can I still choose?",
            "%gpu_select 2,0": "use these, as nvidia-smi numbers them",
            "%gpu_select free -n 2": "use the two with the most free memory",
        }
    )
    @argument(
        "what",
        nargs="*",
        metavar="GPUS",
        offers=choices,
        help="Numbers as nvidia-smi shows them (2,0), the beginning of a UUID "
        "(GPU-1a2b, MIG-...), none, all, or free. Nothing: how things stand.",
    )
    @argument("-n", type=int, metavar="N", help="With free: how many.")
    @argument(
        "--min-free", metavar="SIZE", help="With free: memory needed, such as 20GiB."
    )
    @argument(
        "--wait", metavar="TIME", help="With free: how long to wait for it, as in 10m."
    )
    @argument(
        "--dry-run", more=True, action="store_true", help="Say what would be set."
    )
    @argument(
        "--force",
        more=True,
        action="store_true",
        help="Leave the limit that the kernel was started with.",
    )
    @argument(
        "--restart",
        action="store_true",
        help="Keep the choice over a restart of the kernel.",
    )
    @argument(
        "--simulate",
        metavar="MACHINE",
        offers=machines,
        help="Switch a simulated machine on, such as h100 or 4xh100; off: switch it "
        "off.",
    )
    @output_options
    def gpu_select(self, line: str, cell: str | None = None) -> Any:
        """Choose which GPUs this notebook uses, before CUDA starts.

        Shows which physical GPU is cuda:0, and says when it is too late to choose,
        since which cell, and what can still be done. Choosing never starts CUDA. In
        front of a cell, the choice is made before the cell runs.
        """
        __tracebackhide__ = True
        from gpumagic.gpu_select.apply import NotSelected

        options = self.read(self.gpu_select, line, cell)
        try:
            shown = self.show(self._answer(options), options)
        except NotSelected as error:
            self.show(error.report, options)
            raise
        if cell is None:
            return shown
        return self.run_body(f"%%gpu_select {line}", cell)

    def _read(self, line: str) -> Request:
        return _request(self.read(self.gpu_select, line))

    def _answer(self, options: argparse.Namespace) -> SelectReport:
        __tracebackhide__ = True
        if options.simulate:
            self.notebook.simulate(options.simulate)
        if not options.what:
            _require_nothing_else(options)
            return self.notebook.status()
        request = _request(options)
        if options.restart:
            return self.notebook.restart(request)
        if not request.wait_s:
            return self.notebook.choose(request)
        whole_s = round(request.wait_s)
        label = "Waiting for a free GPU (s)"
        with self.progress(whole_s, label, at_once=True) as steps:
            return self.notebook.choose(
                request, lambda passed_s, why: steps.advance(round(passed_s), why)
            )


def _require_nothing_else(options: argparse.Namespace) -> None:
    names = ("n", "min_free", "wait", "dry_run", "force", "restart")
    if any(getattr(options, name) for name in names):
        from gpumagic.errors import UsageProblem

        raise UsageProblem(
            "%gpu_select: these options need to be told which GPUs",
            "say which, as in %gpu_select free -n 2",
        )


def _request(options: argparse.Namespace) -> Request:
    from gpumagic.gpu_select.request import read

    return read(
        options.what,
        n=options.n,
        min_free=options.min_free,
        wait=options.wait,
        dry_run=options.dry_run,
        force=options.force,
    )
