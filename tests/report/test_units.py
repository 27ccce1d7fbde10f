"""Bytes, seconds and shares read well, never lie about size, and parse back."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumagic.errors import GpuMagicError
from gpumagic.report import units

SECOND_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def test_the_examples_in_the_docstrings_hold():
    """The module's own examples are true."""
    assert doctest.testmod(units) == (0, doctest.testmod(units).attempted)


@given(st.integers(0, 2**60))
def test_bytes_never_read_as_1024_of_a_unit(count):
    """A full unit is written in the next one: 1.00 MiB, not 1024 KiB."""
    number, unit = units.bytes_text(count).split()
    assert float(number) < 1024 or unit == "PiB"
    assert len(number.replace(".", "")) <= 4


@given(st.integers(0, 2**60), st.integers(0, 2**60))
def test_a_part_of_a_whole_is_the_two_sizes(part, whole):
    """The unit is left out only where the whole repeats it."""
    left, right = units.part_text(part, whole).split(" of ")
    assert right == units.bytes_text(whole)
    unit = "" if " " in left else f" {right.split()[1]}"
    assert left + unit == units.bytes_text(part)


@given(st.integers(0, 2**60))
def test_bytes_parse_back(count):
    """What was written can be typed."""
    text = units.bytes_text(count)
    assert units.parse_bytes(text) == pytest.approx(count, rel=0.0051)


@given(st.floats(1e-9, 59))
def test_seconds_are_within_half_a_percent_and_parse_back(seconds):
    """The text of a duration is the duration to three digits."""
    text = units.seconds_text(seconds)
    number, unit = text.split()
    assert float(number) * SECOND_UNITS[unit] == pytest.approx(seconds, rel=0.0051)
    assert units.parse_seconds(text) == pytest.approx(seconds, rel=0.0051)


@given(st.floats(60, 1e6))
def test_long_durations_are_in_hours_minutes_seconds(seconds):
    """A minute and more is written to the second."""
    scale = {"h": 3600, "min": 60, "s": 1}
    words = units.seconds_text(seconds).split()
    total = sum(
        int(number) * scale[unit]
        for number, unit in zip(words[::2], words[1::2], strict=True)
    )
    assert total == round(seconds)


@given(st.floats(0.0001, 1))
def test_shares_are_within_half_a_tenth(share):
    """A percentage is exact to its last digit."""
    number, sign = units.share_text(share).split()
    assert sign == "%"
    assert abs(float(number) - share * 100) <= 0.0501


@pytest.mark.parametrize(
    "write",
    [units.bytes_text, units.change_text, units.seconds_text, units.share_text],
)
def test_unknown_is_said(write):
    """None is unknown and never zero."""
    assert write(None) == "unknown"
    assert write(0) != "unknown"
    assert write(-1).startswith("-")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("20GiB", 20 * 2**30),
        ("2kB", 2000),
        ("1.5g", 1_500_000_000),
        ("1024", 1024),
        ("0", 0),
        ("7Gi", 7 * 2**30),
    ],
)
def test_sizes_as_people_type_them(text, count):
    """Binary units are binary, decimal ones decimal."""
    assert units.parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "20 GiG", "-3", "1e9", "20GiBs", "2x"])
@pytest.mark.parametrize("parse", [units.parse_bytes, units.parse_seconds])
def test_what_is_no_amount_is_refused_with_examples(parse, text):
    """A malformed value says what to write."""
    with pytest.raises(GpuMagicError) as caught:
        parse(text)
    assert repr(text) in caught.value.problem
    assert caught.value.hint.startswith("write ")


@pytest.mark.parametrize("text", ["20", " 6 ", "1023", "1.5"])
def test_a_small_number_without_a_unit_is_no_size(text):
    """Who types 20 does not mean 20 bytes: both units are offered."""
    with pytest.raises(GpuMagicError) as caught:
        units.parse_bytes(text)

    bare = text.strip()
    assert caught.value.problem == f"{bare!r} has no unit"
    assert caught.value.hint.startswith(f"write {bare}GiB or {bare}MiB")
    assert units.parse_bytes(f"{bare} GiB") == float(bare) * 2**30


@given(st.text(max_size=20))
def test_parsing_raises_nothing_else(text):
    """Any text is an amount or a clear error."""
    for parse in (units.parse_bytes, units.parse_seconds):
        try:
            assert parse(text) >= 0
        except GpuMagicError as error:
            assert error.hint  # noqa: PT017 - both outcomes are right here


@pytest.mark.parametrize(
    ("seconds", "text"), [(59.4, "59.4 s"), (59.97, "1 min"), (3599.6, "1 h")]
)
def test_a_time_that_rounds_to_a_minute_is_written_as_one(seconds, text):
    """There are no 60.0 s and no 60 min."""
    assert units.seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"), [(4e-5, "<0.01 %"), (-4e-5, "-<0.01 %"), (0.0, "0 %")]
)
def test_a_share_that_is_there_is_never_written_as_none(share, text):
    """What is too small for the digits is said to be small, and not to be zero."""
    assert units.share_text(share) == text


@pytest.mark.parametrize(
    ("rate", "largest", "text"),
    [
        (999.9e9, "", "1.00 TB/s"),
        (999.4e9, "", "999 GB/s"),
        (999.9e9, "G", "1,000 GB/s"),
        (999.9e6, "G", "1.00 GB/s"),
    ],
)
def test_a_rate_just_below_a_unit_is_written_in_that_unit(rate, largest, text):
    """What rounds to 1000 of one unit reads as 1.00 of the next, if that is usual."""
    assert units.rate_text(rate, "B/s", largest) == text
