"""Why copies ahead ran beside no kernel, where a trace has shown that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.pin_loader.sections.phrases import median_of, time_text

if TYPE_CHECKING:
    from gpumagic.pin_loader.records.proof import EndToEnd
    from gpumagic.pin_loader.report import LoaderReport

_HARDLY_ANY = 0.05
_MOSTLY = 0.5
_SHORT_S = 100e-6  # about what the host takes to launch the beginning of a step


def why_nothing_is_hidden(report: LoaderReport, found: EndToEnd) -> str:
    """The reason in a sentence or two; "" where copies were hidden, or not traced."""
    hidden = found.overlap[1]
    if hidden is None or hidden >= _HARDLY_ANY:
        return ""
    built = report.rebuilding
    if built is not None and not built.depth:
        return "Nothing is copied ahead, so that no kernel runs beside a copy."
    which = "Hardly a kernel" if hidden else "No kernel"
    said = (
        f"{which} was running while batches were copied ahead: the step before was "
        "done, and the next one was not launched yet."
    )
    return f"{said} {_what_delays(report, found)}".rstrip()


def _what_delays(report: LoaderReport, found: EndToEnd) -> str:
    pageable = found.pageable_share[1]
    if pageable is not None and pageable >= _MOSTLY:
        return (
            "A copy from pageable memory holds the host, which launches nothing "
            "meanwhile."
        )
    mode = report.rates.copy(pinned=True, blocking=False)
    took_s = None if mode is None else median_of(mode.device)
    if took_s is None or took_s > _SHORT_S:
        return ""
    return (
        f"A copy takes {time_text(took_s)} here, and is over before the host has "
        "launched the first kernel of a step."
    )
