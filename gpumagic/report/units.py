"""Bytes, seconds, shares and nouns as text, and back. Pure; `None` is "unknown"."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, TypeVar

from gpumagic.errors import GpuMagicError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_Number = TypeVar("_Number", int, float)

UNKNOWN = "unknown"
NOT_MEASURED = "not measured"

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_SCALES = "kmgtp"  # by powers of 1000, or with an i of 1024
_BASES = {"": 1000, "b": 1000, "i": 1024, "ib": 1024}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_LONG_SECONDS = {"m": 60.0, "min": 60.0, "h": 3600.0}
_LEAST_BARE_BYTES = 1024  # who types 20 for a size means no 20 bytes
_WORTH_A_ROW = 3  # devices; two are named both
_MANY_TIMES = 10  # from here on nobody thinks in percent
_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([a-zµ]*)\s*", re.IGNORECASE)


def bytes_text(count: float | None) -> str:
    """A number of bytes in binary units.

    >>> bytes_text(1536), bytes_text(85899345920), bytes_text(None)
    ('1.50 KiB', '80.0 GiB', 'unknown')
    """
    if count is None:
        return UNKNOWN
    size, sign = abs(count), "-" if count < 0 else ""
    for unit in _BINARY:
        # Compare what will be printed: 1023.9996 KiB reads better as 1.00 MiB.
        if float(three_digits(size)) < 1024 or unit == _BINARY[-1]:
            break
        size /= 1024
    number = str(int(size)) if unit == "B" else three_digits(size)
    return f"{sign}{number} {unit}"


def change_text(count: float | None) -> str:
    """A difference in bytes, always with its sign.

    >>> change_text(2048), change_text(-1), change_text(0)
    ('+2.00 KiB', '-1 B', '0 B')
    """
    text = bytes_text(count)
    return f"+{text}" if count is not None and count > 0 else text


def part_text(part: float | None, whole: float | None) -> str:
    """A size out of another, with the unit said once where it is the same.

    >>> part_text(2 * 1024**3, 80 * 1024**3), part_text(1024, 1024**2)
    ('2.00 of 80.0 GiB', '1.00 KiB of 1.00 MiB')
    """
    return _out_of(bytes_text(part), bytes_text(whole))


def range_text(low: str, high: str, between: str = " to ") -> str:
    """From one figure to another, with the unit said once where it is the same.

    >>> range_text("380 ms", "391 ms"), range_text("980 us", "1.02 ms")
    ('380 to 391 ms', '980 us to 1.02 ms')
    >>> range_text("0 s", "0 s")
    '0 s'
    """
    number, _, unit = low.rpartition(" ")
    if low == high:
        return low
    return f"{number if high.endswith(f' {unit}') else low}{between}{high}"


def seconds_text(seconds: float | None) -> str:
    """A duration in the unit that keeps three digits readable.

    >>> seconds_text(0.0000123), seconds_text(75), seconds_text(0)
    ('12.3 us', '1 min 15 s', '0 s')
    """
    if seconds is None:
        return UNKNOWN
    size, sign = abs(seconds), "-" if seconds < 0 else ""
    if size == 0:
        return "0 s"
    if size >= 59.5:
        return sign + _clock_text(round(size))
    for unit, scale in (("ns", 1e9), ("us", 1e6), ("ms", 1e3), ("s", 1.0)):
        if unit == "s" or float(three_digits(size * scale)) < 1000:
            break
    return f"{sign}{three_digits(size * scale)} {unit}"


def time_text(seconds: float | None) -> str:
    """A time, or that there is none.

    >>> time_text(0.0123), time_text(None)
    ('12.3 ms', 'not measured')
    """
    if seconds is None or not math.isfinite(seconds):
        return NOT_MEASURED
    return seconds_text(seconds)


def time_of_text(part_s: float, whole_s: float) -> str:
    """A time out of another, with the unit said once where it is the same.

    >>> time_of_text(0.0121, 0.0123), time_of_text(5e-6, 0.0123)
    ('12.1 of 12.3 ms', '5.00 us of 12.3 ms')
    """
    return _out_of(time_text(part_s), time_text(whole_s))


def rate_text(rate: float | None, unit: str, largest: str = "") -> str:
    """A rate in decimal units, with three digits.

    `largest` is the prefix of the largest unit that is usual; "" is any.

    >>> rate_text(312e12, "FLOP/s"), rate_text(2.9e12, "B/s"), rate_text(None, "B/s")
    ('312 TFLOP/s', '2.90 TB/s', 'unknown')
    >>> rate_text(5.6e6, "B/s", "G"), rate_text(2.9e12, "B/s", "G")
    ('5.60 MB/s', '2,900 GB/s')
    """
    if rate is None or not math.isfinite(rate):
        return UNKNOWN
    size = rate
    for prefix in _DECIMAL:
        if float(three_digits(size)) < 1000 or prefix == (largest or _DECIMAL[-1]):
            break
        size /= 1000
    return f"{three_digits(size, group=',' if largest else '')} {prefix}{unit}"


def share_text(share: float | None) -> str:
    """A share of one as a percentage; what is many times the whole, as that.

    >>> share_text(0.1234), share_text(1.0), share_text(0.0004), share_text(221.04)
    ('12.3 %', '100 %', '0.04 %', '221 times')
    """
    if share is None:
        return UNKNOWN
    sign = "-" if share < 0 else ""
    if abs(share) >= _MANY_TIMES:
        return f"{sign}{float(three_digits(abs(share))):,.0f} times"
    percent = abs(share) * 100
    if percent == 0:
        return "0 %"
    if percent < 0.01:
        return f"{sign}<0.01 %"
    return f"{sign}{three_digits(percent, decimals=2 if percent < 0.1 else 1)} %"


def share_of(share: float | None) -> str:
    """A share, to be put in front of what it is a share of.

    >>> share_of(0.25), share_of(221.04)
    ('25.0 % of', '221 times')
    """
    text = share_text(share)
    return text if text.endswith(" times") else f"{text} of"


def count_text(count: int | None, noun: str, plural: str = "") -> str:
    """A number with its noun.

    >>> count_text(1, "GPU"), count_text(0, "process", "processes")
    ('1 GPU', 'no processes')
    """
    if count is None:
        return f"unknown number of {plural or noun + 's'}"
    if count == 1:
        return f"1 {noun}"
    return f"{count or 'no'} {plural or noun + 's'}"


def how_often(times: float | None) -> str:
    """How many times something happened.

    >>> how_often(1), how_often(2000), how_often(None)
    ('once', '2,000 times', 'an unknown number of times')
    """
    if times is None:
        return f"an {UNKNOWN} number of times"
    return "once" if times == 1 else f"{times:,.0f} times"


def ratio_text(ratio: float) -> str:
    """How many times as much, to three digits.

    >>> ratio_text(1.5689), ratio_text(38)
    ('1.57x', '38.0x')
    """
    return f"{three_digits(ratio)}x"


def times_text(times: float | None) -> str:
    """How many times as fast; thousands are set off.

    >>> times_text(1.838), times_text(12.34), times_text(4212.4), times_text(None)
    ('1.84x', '12.3x', '4,212x', 'unknown')
    """
    if times is None or not math.isfinite(times):
        return UNKNOWN
    return f"{three_digits(times, group=',')}x"


def three_digits(number: float, decimals: int = 2, *, group: str = "") -> str:
    """Three significant digits, never in scientific notation.

    >>> three_digits(1.838), three_digits(99.96), three_digits(48231.4, group=",")
    ('1.84', '100', '48,231')
    """
    for places, limit in ((min(decimals, 2), 10), (1, 100)):
        text = f"{number:.{places}f}"
        if float(text) < limit:
            return text
    return f"{number:{group}.0f}"


def on_each(
    said: Callable[[float | None], str], amounts: Sequence[float | None]
) -> str:
    """An amount for each device where it is the same, else for all of them.

    >>> on_each(how_often, [2]), on_each(how_often, [2, 2]), on_each(how_often, [1, 2])
    ('2 times', '2 times on each', '3 times in all')
    """
    if len(amounts) == 1:
        return said(amounts[0])
    if len(set(amounts)) == 1:
        return f"{said(amounts[0])} on each"
    return f"{said(known_sum(amounts))} in all"


def known_sum(amounts: Sequence[_Number | None]) -> _Number | None:
    """All together, or unknown where one of them is."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def devices_text(kind: str, numbers: Iterable[int]) -> str:
    """Devices as torch calls them; of many in a row, the first and the last.

    >>> devices_text("cuda", [0, 1, 2, 3, 6]), devices_text("cuda", [1, 2])
    ('cuda:0 to cuda:3, cuda:6', 'cuda:1, cuda:2')
    """
    rows: list[list[int]] = []
    for number in sorted(set(numbers)):
        if rows and rows[-1][-1] == number - 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    return ", ".join(_row_text(kind, row) for row in rows)


def listed(words: Sequence[str], last: str = " and ", most: int | None = None) -> str:
    """Words in a row as in a sentence; of many the first few.

    >>> listed(["a"]), listed(["a", "b", "c"]), listed(["a", "b", "c", "d"], most=2)
    ('a', 'a, b and c', 'a, b and 2 more')
    """
    if most is not None and len(words) > most:
        return f"{', '.join(words[:most])} and {len(words) - most:,} more"
    *first, final = words or ("",)
    return f"{', '.join(first)}{last}{final}" if first else final


def shortened(text: str, most: int) -> str:
    """A text of so many characters at most; where it was cut, dots say so.

    >>> shortened("encoder", 7), shortened("encoder", 6)
    ('encoder', 'enc...')
    """
    return text if len(text) <= most else f"{text[: most - 3]}..."


def printable(text: str, most: int) -> str:
    r"""A text of somebody else's in so many characters at most, as an error shows it.

    >>> printable("a\x1b[31m\n", 9)
    'a?[31m?'
    """
    return shortened(
        "".join(c if c.isprintable() else "?" for c in text[: 2 * most]), most
    )


def with_article(noun: str) -> str:
    """A noun with "a" or "an".

    >>> with_article("view"), with_article("int")
    ('a view', 'an int')
    """
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def parse_bytes(text: str) -> int:
    """The bytes that "20GiB", "512 MB" or "1024" mean.

    >>> parse_bytes("20GiB") == 20 * 1024**3, parse_bytes("2kB")
    (True, 2000)
    """
    number, unit = _split(text, "a size", "20GiB, 512MiB or 1000000")
    if not unit and 0 < number < _LEAST_BARE_BYTES:
        bare = text.strip()
        raise GpuMagicError(
            f"{bare!r} has no unit", f"write {bare}GiB or {bare}MiB, as one word"
        )
    if unit in ("", "b") and number < float("inf"):
        return round(number)
    power, base = 1 + _SCALES.find(unit[0]), _BASES.get(unit[1:], 0)
    if power and base and number < float("inf"):
        return round(number * float(base**power))
    raise _malformed(text, "a size", "20GiB, 512MiB or 1000000")


def parse_seconds(text: str) -> float:
    """The seconds that "10m", "1.5s", "300ms" or "2" mean.

    >>> parse_seconds("10m"), parse_seconds("300ms"), parse_seconds("2")
    (600.0, 0.3, 2.0)
    """
    number, unit = _split(text, "a duration", "2s, 300ms or 10m")
    scale = {"": 1.0, **_SECONDS, **_LONG_SECONDS}.get(unit)
    if scale is None:
        raise _malformed(text, "a duration", "2s, 300ms or 10m")
    return number * scale


def _row_text(kind: str, row: list[int]) -> str:
    if len(row) < _WORTH_A_ROW:
        return ", ".join(f"{kind}:{number}" for number in row)
    return f"{kind}:{row[0]} to {kind}:{row[-1]}"


def _out_of(part: str, whole: str) -> str:
    number, _, unit = part.partition(" ")
    return f"{number if whole.endswith(f' {unit}') else part} of {whole}"


def _clock_text(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "min"), (rest, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number)


def _split(text: str, kind: str, examples: str) -> tuple[float, str]:
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if match is None:
        raise _malformed(text, kind, examples)
    return float(match[1]), match[2].lower()


def _malformed(text: str, kind: str, examples: str) -> GpuMagicError:
    return GpuMagicError(f"{text!r} is not {kind}", f"write {examples}")
