"""How devices and lists of names are called in sentences about memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.report.units import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumagic.gpu_mem.records.setting import Setting

_HOST = "cpu"
_LONGEST_NAME = 48
_LONGEST_ERROR = 200
_MOST_LISTED = 6


def of_host(setting: Setting) -> bool:
    """Whether the figures are of host memory that names hold, as no device is used."""
    return setting.kind == _HOST


def device_name(setting: Setting, device: int | None) -> str:
    """The device as torch calls it; of the CPU, which memory is meant."""
    if of_host(setting):
        return "host memory"
    return "the device" if device is None else f"{setting.kind}:{device}"


def on_device(setting: Setting, device: int | None) -> str:
    """Where bytes are, to be put behind them."""
    if of_host(setting):
        return "of host memory held by names"
    return f"on {device_name(setting, device)}"


def short_name(name: str) -> str:
    """A name that fits into a sentence."""
    return _shortened(name, _LONGEST_NAME)


def short_error(error: str) -> str:
    """The line of an error that fits into a title."""
    return _shortened(error, _LONGEST_ERROR)


def listed(names: Sequence[str]) -> str:
    """Names in a row, the first few of many."""
    shown = ", ".join(map(short_name, names[:_MOST_LISTED]))
    more = len(names) - _MOST_LISTED
    return f"{shown} and {more} more" if more > 0 else shown


def times_text(times: int | None) -> str:
    """How often something happened."""
    if times is None:
        return f"an {UNKNOWN} number of times"
    return "once" if times == 1 else f"{times:,} times"


def known_sum(amounts: Sequence[int | None]) -> int | None:
    """All together, or unknown where one of them is."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
