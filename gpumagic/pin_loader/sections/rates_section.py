"""How fast each part is on its own: loading, copies in four ways, the link."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Details, Paragraph, Table
from gpumagic.pin_loader.sections.phrases import (
    NOT_MEASURED,
    device_text,
    median_of,
    rate_of,
    rate_text,
    time_text,
)
from gpumagic.report.units import UNKNOWN, bytes_text, count_text, share_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Cell, Part
    from gpumagic.pin_loader.records.rates import CopyMode, Link, Loading, Rates, Step
    from gpumagic.pin_loader.records.samples import Samples
    from gpumagic.pin_loader.records.setting import Setting

_BOTH_TIMES = (
    "Host held: until the call returned. Done after: from before the copy to its end, "
    "by events on the device; from pageable memory, the host's part is in it."
)
_BOTH_RATES = (
    " The ceiling is the rate of one large pinned copy, theory that of the link's "
    "standard."
)


def copies_parts(rates: Rates, setting: Setting) -> Iterator[Part]:
    """The table of four ways to copy a batch to the device."""
    if rates.copies:
        yield _copies(rates, setting)
        if any(each.device is not None for each in rates.copies):
            yield Paragraph(_BOTH_TIMES + ("" if rates.link is None else _BOTH_RATES))


def each_part_parts(rates: Rates, setting: Setting) -> Iterator[Part]:
    """Each rate beside the copies to the device, in a line."""
    said = [f"{name}: {what}" for name, what in _facts(rates, _how(setting))]
    if said:
        yield Details("How fast each part is on its own", (Paragraph("\n".join(said)),))


def ranges_parts(rates: Rates) -> Iterator[Part]:
    """Every time with its range; for those who want to know how sure it is."""
    said = [_range(what, each) for what, each in _samples(rates) if each.seconds]
    if said:
        yield Details("All times with their range", (Paragraph("\n".join(said)),))


def _copies(rates: Rates, setting: Setting) -> Table:
    size = "" if rates.nbytes is None else f" of {bytes_text(rates.nbytes)}"
    return Table(
        f"Copying a batch{size} to {device_text(setting)} ({_how(setting)})",
        (
            Column("From"),
            Column("Call"),
            Column("Host held", number=True),
            Column("Done after", number=True),
            Column("Rate", number=True),
            Column("Of the ceiling", number=True),
            Column("Of theory", number=True),
        ),
        tuple(_copy_row(each, rates) for each in rates.copies),
    )


def _how(setting: Setting) -> str:
    """How well copies to the device, and compute on it, are known."""
    return "as the model has it" if setting.label else "measured"


def _copy_row(mode: CopyMode, rates: Rates) -> tuple[Cell, ...]:
    device_s = median_of(mode.device)
    rate, link = rate_of(rates.nbytes, device_s), rates.link
    return (
        "pinned" if mode.pinned else "pageable",
        "blocking" if mode.blocking else "non_blocking",
        time_text(median_of(mode.host)),
        time_text(device_s),
        NOT_MEASURED if rate is None else rate_text(rate),
        _share(rate, None if link is None else link.ceiling_bytes_per_s),
        _share(rate, None if link is None else link.theory_bytes_per_s),
    )


def _share(rate: float | None, whole: float | None) -> str:
    return share_text(rate / whole) if rate is not None and whole else UNKNOWN


def _facts(rates: Rates, how: str) -> Iterator[tuple[str, str]]:
    if rates.load is not None:
        yield "loading", _loading(rates.load)
    if rates.pin_copy is not None:
        yield "copy into pinned memory", _host_copy(rates, rates.pin_copy, "reused")
    if rates.fresh_pin is not None:
        said = _host_copy(rates, rates.fresh_pin, "newly pinned")
        yield "the same, the first time", said
    if rates.link is not None:
        yield "link", _link(rates.link)
        yield "its ceiling", _ceiling(rates.link, how)
    if rates.step is not None:
        yield "compute", _step(rates.step, how)


def _loading(load: Loading) -> str:
    batch_s = median_of(load.between)
    rate = rate_of(load.nbytes, batch_s)
    said = [
        f"{time_text(batch_s)} a batch with {count_text(load.workers, 'worker')}",
        *(() if rate is None else (rate_text(rate),)),
        "measured on this machine",
    ]
    if load.start_s is not None:
        said.append(f"the first batch after {time_text(load.start_s)}")
    if load.ended_early:
        said.append("its epochs are short")
    return "; ".join(said)


def _host_copy(rates: Rates, samples: Samples, memory: str) -> str:
    median_s = median_of(samples)
    rate = rate_of(rates.nbytes, median_s)
    said = (
        time_text(median_s)
        if rate is None
        else f"{time_text(median_s)}; {rate_text(rate)}"
    )
    return f"{said}; one thread, {memory} memory, measured"


def _link(link: Link) -> str:
    """What the link is, and what it could be."""
    said = [link.name or "of unknown kind"]
    now, most = (link.generation, link.width), (link.most_generation, link.most_width)
    if None not in most and now != most and None not in now:
        said.append(f"the device could have Gen{most[0]} x{most[1]}")
    if link.theory_bytes_per_s is not None:
        said.append(f"{rate_text(link.theory_bytes_per_s)} one way in theory")
    if link.numa_node is not None:
        said.append(f"at memory node {link.numa_node}")
    return "; ".join(said)


def _ceiling(link: Link, how: str) -> str:
    if link.ceiling_bytes_per_s is None:
        return NOT_MEASURED
    said = f"{rate_text(link.ceiling_bytes_per_s)} in one large pinned copy, {how}"
    if link.theory_bytes_per_s:
        share = share_text(link.ceiling_bytes_per_s / link.theory_bytes_per_s)
        return f"{said}; {share} of theory"
    return said


def _step(step: Step, how: str) -> str:
    """How long compute takes, and whether it is the user's."""
    said = f"{time_text(median_of(step.samples))} a batch in {step.name}"
    return f"{said}, synthetic" if step.synthetic else f"{said}, {how}"


def _samples(rates: Rates) -> Iterator[tuple[str, Samples]]:
    if rates.load is not None:
        yield "loading", rates.load.between
    if rates.pin_copy is not None:
        yield "copy into pinned memory", rates.pin_copy
    if rates.fresh_pin is not None:
        yield "copy into newly pinned memory", rates.fresh_pin
    for mode in rates.copies:
        way = (
            f"{'pinned' if mode.pinned else 'pageable'}, "
            f"{'blocking' if mode.blocking else 'non_blocking'}"
        )
        yield f"{way}, host held", mode.host
        if mode.device is not None:
            yield f"{way}, done after", mode.device
    if rates.step is not None:
        yield "compute", rates.step.samples


def _range(what: str, samples: Samples) -> str:
    shortest, longest = map(time_text, samples.range_s)
    spread = "" if shortest == longest else f", from {shortest} to {longest}"
    count = count_text(len(samples.seconds), "sample")
    return f"{what}: {time_text(samples.median_s)}{spread} ({count})"
