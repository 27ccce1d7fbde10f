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

    from gpumagic.gpu_select.report import SelectReport
    from gpumagic.gpu_select.request import Request
    from gpumagic.notebook.session import Session


def choices(magics: SelectMagics, begun: str) -> list[str]:
    """What can be chosen: a word alone, or GPUs."""
    return ["all", "free", "none", *gpus(magics, begun)]


def gpus(magics: SelectMagics, begun: str) -> list[str]:
    """Numbers and UUIDs, behind the commas that are there already."""
    before, comma, last = begun.rpartition(",")
    known = magics.session.driver.inventory().gpus
    uuids = [each.uuid for each in known if each.uuid and last]  # long: when begun
    names = [*(str(each.index) for each in known), *uuids]
    said = before.split(",")
    return [f"{before}{comma}{name}" for name in names if name not in said]


def machines(_: SelectMagics, begun: str) -> list[str]:
    """What can be simulated, behind the number of them if there is one."""
    from gpumagic.simulator.models import known_models

    count = re.match(r"\d+x|", begun)
    names = [f"{count and count[0]}{model.key}" for model in known_models()]
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
        "(GPU-1a2b, MIG-...), a PCI address (pci:3b:00.0), none, all, or free. "
        "Nothing: how things stand.",
    )
    @argument("-n", type=int, metavar="N", help="With free: how many.")
    @argument(
        "--min-free", metavar="SIZE", help="With free: memory needed, such as 20GiB."
    )
    @argument(
        "--max-util",
        more=True,
        type=float,
        metavar="PERCENT",
        help="With free: busy at most.",
    )
    @argument(
        "--name",
        more=True,
        metavar="TEXT",
        help="With free: a part of the model's name.",
    )
    @argument(
        "--exclude",
        more=True,
        metavar="GPUS",
        offers=gpus,
        help="With free: what is not to be taken.",
    )
    @argument(
        "--mine-ok",
        more=True,
        action="store_true",
        help="With free: memory of your own processes counts as free.",
    )
    @argument(
        "--wait", metavar="TIME", help="With free: how long to wait for it, as in 10m."
    )
    @argument(
        "--as",
        more=True,
        dest="as_",
        choices=("index", "uuid"),
        help="How CUDA_VISIBLE_DEVICES names the GPUs.",
    )
    @argument(
        "--dry-run", more=True, action="store_true", help="Say what would be set."
    )
    @argument(
        "--verify",
        more=True,
        action="store_true",
        help="Let a child process start CUDA first, to see that it finds the same.",
    )
    @argument(
        "--force",
        more=True,
        action="store_true",
        help="Leave the limit that the kernel was started with.",
    )
    @argument(
        "--reset",
        more=True,
        action="store_true",
        help="As it was when the kernel was started.",
    )
    @argument(
        "--restart",
        action="store_true",
        help="Keep the choice over a restart of the kernel.",
    )
    @argument(
        "--guard",
        more=True,
        action="store_true",
        default=None,
        help="Let torch.cuda.is_available() ask without starting CUDA (default).",
    )
    @argument(
        "--no-guard",
        more=True,
        dest="guard",
        action="store_false",
        help="Leave torch.cuda.is_available() as torch has it.",
    )
    @argument(
        "--simulate",
        metavar="MACHINE",
        offers=machines,
        help="Switch a simulated machine on, such as h100 or 4xh100; off: switch it "
        "off.",
    )
    @argument(
        "--memory", more=True, metavar="SIZE", help="Of each simulated GPU, as in 2GiB."
    )
    @argument(
        "--hazards",
        more=True,
        choices=("report", "poison", "off"),
        help="What races on the simulated GPU come to.",
    )
    @argument(
        "--as-cuda",
        more=True,
        action="store_true",
        help='Let code that says "cuda" run on the simulated GPU.',
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
        from gpumagic.gpu_select.options import Options
        from gpumagic.gpu_select.request import read

        words = self.read(self.gpu_select, line)
        return read(words.what, Options.typed(words))

    def _answer(self, options: argparse.Namespace) -> SelectReport:
        if options.simulate is not None:
            self.notebook.simulate(
                options.simulate,
                as_cuda=options.as_cuda,
                memory=options.memory,
                hazards=options.hazards or "report",
            )
        if options.guard is not None:
            self.notebook.guard.turn(on=options.guard)
        if options.reset:
            _require_no_words(options)
            return self.notebook.reset()
        request = _request(options)
        if request is None:
            return self.notebook.status()
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


def _require_no_words(options: argparse.Namespace) -> None:
    if options.what:
        from gpumagic.errors import UsageProblem

        words = " ".join(options.what)
        raise UsageProblem(
            f"%gpu_select: --reset goes back to the start, and {words} goes elsewhere",
            f"type %gpu_select --reset, or %gpu_select {words}",
        )


def _request(options: argparse.Namespace) -> Request | None:
    """What is asked for; None if nothing is."""
    from gpumagic.errors import UsageProblem
    from gpumagic.gpu_select.options import Options
    from gpumagic.gpu_select.request import read

    said = Options.typed(options)
    if options.what:
        return read(options.what, said)
    if said.any_said or options.restart:
        raise UsageProblem(
            "%gpu_select: these options need to be told which GPUs",
            "say which, as in %gpu_select free -n 2",
        )
    return None
