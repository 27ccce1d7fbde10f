"""Sets which GPUs this process will see, or says why not and changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpumagic.devices.driver import open_driver
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select import claims, environment, late, vendors
from gpumagic.gpu_select.attempt import Attempt, How, NotSelected
from gpumagic.gpu_select.environment import ORDER, VISIBLE
from gpumagic.gpu_select.headline import headline_of
from gpumagic.gpu_select.report import Action, Verdict
from gpumagic.gpu_select.reporting import report_of
from gpumagic.gpu_select.request import Kind, read
from gpumagic.gpu_select.situation import look
from gpumagic.report.units import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpumagic.devices.protocols import Driver
    from gpumagic.gpu_select.keeping import Kept
    from gpumagic.gpu_select.report import SelectReport
    from gpumagic.gpu_select.request import Request


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
    request = read(
        what,
        n=n,
        min_free=min_free,
        max_util=max_util,
        name=name,
        exclude=exclude,
        mine_ok=mine_ok,
    )
    wait_s = parse_seconds(wait) if isinstance(wait, str) else float(wait)
    how = How(as_, dry_run, verify, force, wait_s)
    return apply(request, driver or open_driver(), how)


def apply(request: Request, driver: Driver, how: How) -> SelectReport:
    """Carry out a request that has been read."""
    if how.wait_s and request.kind is not Kind.FREE:
        raise GpuMagicError(
            f"--wait is for free GPUs, and {request.text} says which",
            "type %gpu_select free --wait, with the time",
        )
    situation = look(driver, how.witness)
    if (other := vendors.other_vendor(situation.inventory)) is not None:
        return vendors.select(other, request, dry_run=how.dry_run)
    attempt = Attempt(request, situation, how)
    if how.dry_run:
        return attempt.carry_out()
    if situation.verdict is Verdict.FIXED:
        return late.answer(attempt)
    torch_only = situation.verdict is Verdict.FIXED_FOR_TORCH and not how.force
    if torch_only or situation.verdict is Verdict.LOST:
        raise attempt.refusal(*late.why_late(situation, request.text))
    return attempt.carry_out()


def take_up(kept: Kept, driver: Driver, how: How) -> SelectReport:
    """Choose again what was chosen before a restart.

    Args:
        kept: The request, with the UUIDs that it meant then.

        driver: What the machine has.

        how: Who watches, and in which shell.
    """
    request = read(kept.uuids or kept.text.split())
    report = replace(apply(request, driver, how), action=Action.KEPT)
    return replace(report, request=kept.text, headline=headline_of(report))


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
    manner = how or How()
    situation = look(driver or open_driver(), manner.witness)
    values: dict[str, str | None] = {}
    for name in (VISIBLE, ORDER):
        known, value = environment.at_start(name)
        values[name] = value if known else (before or {}).get(name)
    if situation.verdict in (Verdict.FIXED, Verdict.LOST):
        report = report_of(situation, Action.REFUSED, shell=manner.shell)
        raise NotSelected(*late.why_late(situation, "--reset"), report)
    with environment.changed(values):
        after = look(situation.driver, manner.witness)
        report = report_of(after, Action.RESET, shell=manner.shell)
    claims.release()
    return report
