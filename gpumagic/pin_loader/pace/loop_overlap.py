"""How much of its copying a loop hides: by a trace of some steps, and estimated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.errors import DeviceError
from gpumagic.pin_loader.pace import overlap
from gpumagic.pin_loader.records.remark import Remark
from gpumagic.report import robust

if TYPE_CHECKING:
    from gpumagic.devices.protocols import Runtime
    from gpumagic.pin_loader.pace.loops import Loop
    from gpumagic.pin_loader.pace.overlap import Copying
    from gpumagic.pin_loader.records.rates import CopyMode, Rates, Step

_TRACED_STEPS = 10


def traced(
    loop: Loop, runtime: Runtime, device: int | None, remarks: list[Remark]
) -> Copying | None:
    """What a trace says of some steps; it is taken apart, since it costs time."""
    if device is None:
        return None
    try:
        with runtime.trace() as tracing:
            loop.run(_TRACED_STEPS, begin=tracing.begin, end=tracing.end)
        seen = tracing.trace()
    except DeviceError as error:
        remarks.append(
            Remark(f"the overlap was not traced: {error.problem}", error.hint)
        )
        return None
    if seen.problem is not None:
        remarks.append(
            Remark(f"the overlap was not traced: {seen.problem}", seen.hint or "")
        )
        return None
    return overlap.copying_of(seen, device)


def estimates(
    rates: Rates,
    pairs: list[tuple[float, float]],
    waits_s: list[float],
    *,
    pinned: bool,
) -> tuple[float | None, float | None]:
    """The overlap without a trace, from the times alone.

    Args:
        rates: How long copy and compute take on their own.

        pairs: Seconds for a step, old and new.

        waits_s: How long a step waited for its batch, old and new.

        pinned: Whether batches of the old loader are pinned.
    """
    modes = (
        rates.copy(pinned=pinned, blocking=True),
        rates.copy(pinned=True, blocking=False),
    )
    steps_s = (robust.median(seconds) for seconds in zip(*pairs, strict=True))
    old, new = map(_estimate, (rates.step,) * 2, modes, waits_s, steps_s)
    return old, new


def _estimate(
    step: Step | None, mode: CopyMode | None, wait_s: float, step_s: float
) -> float | None:
    if step is None or mode is None:
        return None
    # What a blocking copy takes is what the host sees; else only the device knows.
    copy = mode.host if mode.blocking or mode.device is None else mode.device
    return overlap.estimated(wait_s, copy.median_s, step.samples.median_s, step_s)
