"""Old and new loader at the pace that was measured, on a simulated machine's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.devices.simulated import simulated_box
from gpumagic.pin_loader.feeding.prefetcher import DevicePrefetcher
from gpumagic.pin_loader.pace.loops import no_batches
from gpumagic.pin_loader.pace.pace import Pace, PacedLoader
from gpumagic.pin_loader.trials.trial import batches_of

if TYPE_CHECKING:
    from gpumagic.pin_loader.records.rates import Loading, Rates

_REAL_BATCHES = 2  # that a modelled loop goes round with
_EPOCH = 1 << 20  # batches of a modelled loader: it never ends


def paced(
    old: Any, new: DevicePrefetcher, rates: Rates, new_load: Loading | None, place: Any
) -> tuple[PacedLoader, DevicePrefetcher]:
    """Loaders that give some real batches at the pace that was measured."""
    box = simulated_box()
    assert box is not None  # noqa: S101 -- there is no simulated runtime without one
    clock = {"now_s": lambda: box.time_s, "pass_time": box.pass_time, "length": _EPOCH}
    load_s = 0.0 if rates.load is None else rates.load.batch_s
    before = PacedLoader(_some(old), _pace(old, load_s, 0.0), **clock)
    pinned = bool(getattr(old, "pin_memory", False))
    pin_s = 0.0 if pinned or rates.pin_copy is None else rates.pin_copy.median_s
    new_s = load_s if new_load is None else new_load.batch_s
    after = PacedLoader(_some(new.loader), _pace(new.loader, new_s, pin_s), **clock)
    ahead = DevicePrefetcher(after, place, depth=new.depth)
    ahead.several_streams = new.several_streams
    return before, ahead


def _pace(loader: Any, load_s: float, pin_s: float) -> Pace:
    return Pace(
        load_s,
        pin_s,
        workers=getattr(loader, "num_workers", 0) or 0,
        prefetch_factor=getattr(loader, "prefetch_factor", None) or 2,
    )


def _some(loader: Any) -> list[Any]:
    with batches_of(loader) as batches:
        found = [batch for batch, _ in zip(batches, range(_REAL_BATCHES), strict=False)]
    if not found:
        raise no_batches()
    return found
