"""What is wrong, or only surprising, about the variables as they are set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.errors import did_you_mean
from gpumagic.gpu_select.environment import ORDER, VISIBLE
from gpumagic.gpu_select.linted_cells import export_that_is_lost, quotes_that_are_kept
from gpumagic.gpu_select.linted_names import meant_to_be
from gpumagic.gpu_select.linted_value import instead, quoted, value_remarks
from gpumagic.gpu_select.report import Remark, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpumagic.devices.protocols import Inventory
    from gpumagic.devices.visibility import Visible
    from gpumagic.gpu_select.report import Variable

_ORDERS = ("PCI_BUS_ID", "FASTEST_FIRST")
_SERVER_OF_PROCESSES = "CUDA_MPS_PIPE_DIRECTORY"
_JOB = "SLURM_JOB_ID"
_BY_NAME = ("GPU-", "MIG-")


def remarks(  # noqa: PLR0913, PLR0917 -- all that a setting consists of
    environment: Mapping[str, str],
    variable: Variable,
    order: Variable,
    inventory: Inventory,
    history: Iterable[tuple[int, str]],
    visible: Visible,
) -> tuple[Remark, ...]:
    """What the user should know about the setting; nothing if it is sound.

    Args:
        environment: All variables, as Python has them.

        variable: What CUDA_VISIBLE_DEVICES is, here and there.

        order: What CUDA_DEVICE_ORDER is, here and there.

        inventory: The machine's GPUs.

        history: The cells that were run, each with its number, as they were typed
            or as IPython has made Python of them.

        visible: What the setting is predicted to make visible.
    """
    value = in_force(variable)
    cells = tuple(history)
    quoting_cell = quotes_that_are_kept(cells) if value else None
    return (
        *value_remarks(value, inventory, visible, quoting_cell),
        *_differing(variable, inventory),
        *_differing(order, inventory),
        *_order(in_force(order)),
        *_misnamed(environment, inventory),
        *_lost_export(variable, cells, inventory),
        *(_renumbered(environment, value, inventory) if visible.physical else ()),
        *_given(environment, variable),
    )


def in_force(variable: Variable) -> str | None:
    """The value that the driver reads, which is C's where that is known."""
    return variable.c if variable.c_known else variable.python


def _differing(variable: Variable, inventory: Inventory) -> Iterator[Remark]:
    if not variable.c_known or variable.python == variable.c:
        return
    choice = instead(variable.c or variable.python or "", inventory, default="all")
    yield Remark(
        Severity.WARNING,
        f"{variable.name} is {_said(variable.python)} to Python and "
        f"{_said(variable.c)} to C, which is what CUDA reads: os.putenv or a library "
        "has changed it for C alone",
        f"type {choice}, which sets both",
    )


def _order(value: str | None) -> Iterator[Remark]:
    if value is None or value in _ORDERS:
        return
    near = did_you_mean(value.strip(" \"'").upper(), _ORDERS)
    yield Remark(
        Severity.WARNING,
        f"{ORDER} is {quoted(value)}, which is none of the two words that CUDA knows: "
        f"it goes by {_ORDERS[1]}{f' ({near})' if near else ''}",
        f"choose with %gpu_select, which sets it to {_ORDERS[0]} as well",
    )


def _misnamed(environment: Mapping[str, str], inventory: Inventory) -> Iterator[Remark]:
    for name in sorted(meant_to_be(VISIBLE, environment)):
        yield Remark(
            Severity.WARNING,
            f"the environment has {quoted(name)}, which CUDA does not read: the "
            f"variable is called {VISIBLE}",
            f"type {instead(environment[name], inventory)}",
        )


def _lost_export(
    variable: Variable, cells: Iterable[tuple[int, str]], inventory: Inventory
) -> Iterator[Remark]:
    # Whoever has set it since, by whatever means, has found out.
    if variable.python != variable.at_start:
        return
    lost = export_that_is_lost(cells)
    if lost is None or lost.value == variable.python:
        return
    yield Remark(
        Severity.WARNING,
        f"In[{lost.cell}] sets {VISIBLE}={lost.value} in a shell of its own, which was "
        "gone at the end of the command: this process has not changed",
        f"type {instead(lost.value, inventory)}",
    )


def _renumbered(
    environment: Mapping[str, str], value: str | None, inventory: Inventory
) -> Iterator[Remark]:
    folder = environment.get(_SERVER_OF_PROCESSES)
    if folder is None or (value or "").strip().startswith(_BY_NAME):
        return
    yield Remark(
        Severity.NOTE if value is None else Severity.WARNING,
        f"{_SERVER_OF_PROCESSES} is {quoted(folder)}: where the MPS daemon runs, it "
        "numbers GPUs on its own, and numbers may mean others",
        f"type {instead(value or '', inventory, default='all')} --as uuid",
    )


def _given(environment: Mapping[str, str], variable: Variable) -> Iterator[Remark]:
    """That the process has inherited a list, which limits what can be chosen."""
    given = variable.at_start
    if given is None or not any(letter.isdigit() for letter in given):
        return
    job = environment.get(_JOB)
    giver = (
        f"by Slurm (job {job})"
        if job
        else "by its kernel.json or whatever has started Jupyter"
    )
    yield Remark(
        Severity.NOTE,
        f"this process was started with {VISIBLE}={given}, {giver}: that is what there "
        "is to choose from",
        "add --force to a choice to go beyond it",
    )


def _said(value: str | None) -> str:
    return "not set" if value is None else quoted(value)
