"""Chooses GPUs from a script, tells how things stand, and puts the choice back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.devices.driver import open_driver
from gpumagic.gpu_select import variables, vendors
from gpumagic.gpu_select.report import Action, Verdict
from gpumagic.gpu_select.reporting import report_of
from gpumagic.gpu_select.situation import look
from gpumagic.gpu_select.variables import ORDER, VISIBLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpumagic.devices.protocols import Driver
    from gpumagic.gpu_select.options import How
    from gpumagic.gpu_select.report import SelectReport
    from gpumagic.gpu_select.situation import Witness


def select(  # noqa: PLR0913 -- each one is an option of the magic
    what: str | int | Iterable[str | int],
    *,
    n: int | None = None,
    min_free: str | int | None = None,
    max_util: float | None = None,
    name: str | None = None,
    exclude: str | int | Iterable[str | int] = (),
    mine_ok: bool = False,
    wait: str | float = 0.0,
    as_: str | None = None,
    dry_run: bool = False,
    verify: bool = False,
    force: bool = False,
    driver: Driver | None = None,
) -> SelectReport:
    """Choose the GPUs that this process will see.

        gpumagic.gpu_select.select("free", n=2, min_free="20GiB")

    Args:
        what: Numbers as nvidia-smi shows them, UUIDs or their beginnings, PCI
            addresses (`"pci:3b:00.0"`), `"none"`, `"all"`, or `"free"`.

        n: With "free": how many.

        min_free: With "free": the memory that is needed, such as "20GiB".

        max_util: With "free": the highest utilisation, in percent.

        name: With "free": a part of the model's name.

        exclude: With "free": what is not to be taken.

        mine_ok: With "free": whether memory used by your own processes counts as
            free.

        wait: With "free": how long to wait until there are enough, such as "10m".

        as_: "index" or "uuid": how the variable names the GPUs.

        dry_run: Whether only to say what would be set.

        verify: Whether to let a child process start CUDA first, to see that it
            finds what is predicted.

        force: Whether to leave the limit that the process was started with, and to
            set the variable although torch has looked in vain.

        driver: What the machine has; found by itself if not given.

    Raises:
        NotSelected: Nothing was changed; the error's `report` shows what was found.

        GpuMagicError: The request cannot be understood, or names what is not there.
    """
    # Who only asks how things stand waits for nothing that chooses.
    from gpumagic.gpu_select.apply import apply
    from gpumagic.gpu_select.options import Options
    from gpumagic.gpu_select.request import read

    options = Options(
        n=n,
        min_free=min_free,
        max_util=max_util,
        name=name,
        exclude=exclude,
        mine_ok=mine_ok,
        wait=wait,
        as_=as_,
        dry_run=dry_run,
        verify=verify,
        force=force,
    )
    return apply(read(what, options), driver or open_driver())


def status(
    driver: Driver | None = None, *, witness: Witness | None = None, shell: Any = None
) -> SelectReport:
    """Say which GPUs this process sees or will see, and whether it can still choose.

    Asking starts nothing.

    Args:
        driver: What the machine has; the simulated machine if one is on, else this
            machine's own driver.

        witness: Who has watched since the extension was loaded, if anybody.

        shell: The IPython shell that asks; by default the one that runs, if any.
    """
    situation = look(driver or open_driver(), witness)
    if (other := vendors.other_vendor(situation.inventory)) is not None:
        return vendors.status(other)
    return report_of(situation, Action.STATUS, shell=shell)


def reset(
    driver: Driver | None = None,
    *,
    before: Mapping[str, str | None] | None = None,
    how: How | None = None,
) -> SelectReport:
    """Put both variables back to what they were when the process was started.

    Args:
        driver: What the machine has; found by itself if not given.

        before: Their values as far as the caller knows, for systems that do not
            tell what a process was started with.

        how: Who has watched, and which shell asks.

    Raises:
        NotSelected: CUDA has started, so that nothing would come of it.
    """
    from gpumagic.gpu_select import claims
    from gpumagic.gpu_select.apply import NotSelected, why_too_late
    from gpumagic.gpu_select.options import How

    manner = how or How()
    situation = look(driver or open_driver(), manner.witness)
    values: dict[str, str | None] = {}
    for name in (VISIBLE, ORDER):
        known, value = variables.at_start(name)
        values[name] = value if known else (before or {}).get(name)
    if situation.verdict in (Verdict.FIXED, Verdict.LOST):
        report = report_of(situation, Action.REFUSED, shell=manner.shell)
        raise NotSelected(*why_too_late(situation, "--reset"), report)
    with variables.changed(values):
        after = look(situation.driver, manner.witness)
        report = report_of(after, Action.RESET, shell=manner.shell)
    claims.release()
    return report
