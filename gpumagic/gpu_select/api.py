"""Chooses GPUs from a script, and tells how things stand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.devices.nvidia import open_driver
from gpumagic.gpu_select.report import Action
from gpumagic.gpu_select.situation import look, report_of
from gpumagic.gpu_select.watch import NOBODY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumagic.devices.protocols import Driver
    from gpumagic.gpu_select.answer_gpus import SelectReport
    from gpumagic.gpu_select.watch import Witness


def select(  # noqa: PLR0913 -- each one is an option of the magic
    what: str | int | Iterable[str | int],
    *,
    n: int | None = None,
    min_free: str | int | None = None,
    wait: str | float | None = None,
    dry_run: bool = False,
    force: bool = False,
    driver: Driver | None = None,
) -> SelectReport:
    """Choose the GPUs that this process will see.

        gpumagic.gpu_select.select("free", n=2, min_free="20GiB")

    Args:
        what: Numbers as nvidia-smi shows them, UUIDs or their beginnings, `"none"`,
            `"all"`, or `"free"`.

        n: With "free": how many.

        min_free: With "free": the memory that is needed, such as "20GiB".

        wait: With "free": how long to wait until there are enough, such as "10m".

        dry_run: Whether only to say what would be set.

        force: Whether to leave the limit that the process was started with, and to
            set the variable although torch has looked in vain.

        driver: What the machine has; found by itself if not given.

    Raises:
        NotSelected: Nothing was changed; the error's `report` shows what was found.

        GpuMagicError: The request cannot be understood, or names what is not there.
    """
    # Who only asks how things stand waits for nothing that chooses.
    from gpumagic.gpu_select.apply import apply
    from gpumagic.gpu_select.request import read

    request = read(
        what, n=n, min_free=min_free, wait=wait, dry_run=dry_run, force=force
    )
    return apply(request, driver or open_driver())


def status(driver: Driver | None = None, *, witness: Witness = NOBODY) -> SelectReport:
    """Say which GPUs this process sees or will see, and whether it can still choose.

    Asking starts nothing.

    Args:
        driver: What the machine has; the simulated machine if one is on, else this
            machine's own driver.

        witness: Who has watched since the extension was loaded.
    """
    return report_of(look(driver or open_driver(), witness), Action.STATUS)
