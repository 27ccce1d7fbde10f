"""What the loader is set to do, and where it was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Details, Paragraph
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Part
    from gpumagic.pin_loader.records.loader import LoaderFacts
    from gpumagic.pin_loader.records.setting import Setting


def setting_parts(facts: LoaderFacts, setting: Setting) -> Iterator[Part]:
    """For whoever wants to check that it is the right loader."""
    said = "\n".join((*_loader(facts), *_place(setting)))
    yield Details("The loader, and where it was measured", (Paragraph(said),))


def _loader(facts: LoaderFacts) -> Iterator[str]:
    yield f"{facts.class_name}({', '.join(_arguments(facts))}): {facts.kind.value}"
    batches = count_text(facts.length, "batch", "batches")
    yield f"{batches} in an epoch"
    if facts.start_method is not None:
        yield f"workers start by {facts.start_method}"
    if facts.live_iterator:
        yield "workers of an earlier epoch are still alive"


def _arguments(facts: LoaderFacts) -> Iterator[str]:
    """What is known of the arguments, as one would type them."""
    if facts.dataset is not None:
        yield facts.dataset
    for name, value in (
        ("batch_size", facts.batch_size),
        ("sampler", facts.sampler),
        ("num_workers", facts.workers),
        ("prefetch_factor", facts.prefetch_factor),
        ("pin_memory", facts.pin_memory),
        ("persistent_workers", facts.persistent_workers),
    ):
        if value is not None:
            yield f"{name}={value}"


def _place(setting: Setting) -> Iterator[str]:
    if setting.device_name is not None:
        number = "" if setting.device is None else f"{setting.kind}:{setting.device}, "
        yield f"device: {number}{setting.device_name}"
    versions = (("torch", setting.torch_version), ("driver", setting.driver_version))
    known = [f"{name} {version}" for name, version in versions if version is not None]
    if known:
        yield ", ".join(known)
