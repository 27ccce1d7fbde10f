"""Timing on a machine with many devices: one line for what is so of all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumagic.cuda_sync_time.report import (
    DeviceTime,
    Flag,
    FlagKind,
    Peaks,
    Profile,
    Roofline,
    Run,
    Setting,
    TimingReport,
)
from gpumagic.cuda_sync_time.view_flags import notes
from gpumagic.cuda_sync_time.view_profile import timeline
from gpumagic.cuda_sync_time.view_roofline import roof_table
from gpumagic.cuda_sync_time.view_run import run_parts
from gpumagic.drawing import Timeline
from gpumagic.report.events import SpanKind, TraceSpan
from gpumagic.report.places import Code
from gpumagic.report.units import devices_text

EVERY = range(8)
EIGHT = Setting("cuda", devices=tuple((n, "H100") for n in EVERY), floor_s=1e-5)


def timed(done_s):
    """A run of 7 ms with these devices' events."""
    events = tuple(DeviceTime(n, each) for n, each in enumerate(done_s))
    setting = replace(EIGHT, devices=EIGHT.devices[: len(done_s)])
    return TimingReport(Code("step()"), setting, Run(7e-3, 6e-3, events=events))


def lanes(report):
    """The lanes of a report, by their names."""
    (found,) = (each for each in run_parts(report) if isinstance(each, Timeline))
    return [lane.name for lane in found.lanes]


def traced(streams):
    """A profile with a kernel on each stream, one after the other."""
    spans = tuple(
        TraceSpan("mm", SpanKind.KERNEL, n * 1e-3, (n + 1) * 1e-3, device, stream)
        for n, (device, stream) in enumerate(streams)
    )
    length_s = len(spans) * 1e-3
    return Profile(length_s, spans, length_s, 0.0, 0.0, 0.0, len(spans), 1, (), ())


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (range(8), "sim:0 to sim:7"),
        ([3], "sim:3"),
        ([5, 4], "sim:4, sim:5"),
        ([0, 1, 2, 5, 7, 6], "sim:0 to sim:2, sim:5 to sim:7"),
    ],
)
def test_devices_in_a_row_are_told_by_the_first_and_the_last(numbers, said):
    """Two are named both; of more that follow each other the ends are enough."""
    assert devices_text("sim", numbers) == said


def test_a_first_use_on_eight_devices_is_one_note():
    """What differs in nothing but the device is said once, of all of them."""
    flags = [Flag(FlagKind.LIBRARY_STARTED, names=("cuBLAS",), device=n) for n in EVERY]

    (note,) = notes(flags, EIGHT)

    assert "first use of cuBLAS on cuda:0 to cuda:7 in this process" in note.text


@pytest.mark.parametrize(
    ("amounts", "said"),
    [
        (
            [3.0, 3.0, 3.0],
            "cuda:0 to cuda:2 was taken from the driver, 3 times on each",
        ),
        ([1.0, 3.0, 3.0], "cuda:0 to cuda:2 was taken from the driver, 7 times in all"),
        ([3.0], "cuda:0 was taken from the driver, 3 times:"),
    ],
)
def test_a_count_of_several_devices_says_what_it_counts(amounts, said):
    """It is of each device where it is the same, else of all together."""
    flags = [
        Flag(FlagKind.DRIVER_CALLS, amount=amount, device=n)
        for n, amount in enumerate(amounts)
    ]

    (note,) = notes(flags, EIGHT)

    assert said in note.text


def test_clocks_that_moved_differently_keep_their_notes():
    """A figure that does not add up is told of each device."""
    flags = [Flag(FlagKind.CLOCK, amount=n / 10, device=n) for n in (1, 2)]

    assert len(notes(flags, EIGHT)) == 2


def test_devices_that_were_done_at_once_share_a_lane():
    """Eight equal lanes are one, and a device that was done earlier has its own."""
    same = timed([6.5e-3] * 8)
    one_earlier = timed([6.5e-3] * 5 + [2e-3] + [6.5e-3] * 2)

    assert lanes(same) == ["host", "cuda:0 to cuda:7"]
    assert lanes(one_earlier) == [
        "host",
        "cuda:0 to cuda:4, cuda:6, cuda:7",
        "cuda:5",
    ]


def test_two_devices_keep_a_lane_each():
    """Few devices are drawn one by one, whatever their figures are."""
    assert lanes(timed([6.5e-3] * 2)) == ["host", "cuda:0", "cuda:1"]


def test_all_devices_in_use_are_told():
    """None of eight is left out of the facts, and their model is said once."""
    text = str(timed([6.5e-3] * 8).show("how"))

    assert "cuda:0 to cuda:7 H100" in text
    assert "2 more" not in text


@pytest.mark.parametrize("most", [2, 3])
def test_no_device_is_missing_from_what_ran_when(most):
    """Of 8 devices every one has its lane, and where it is of several streams says so.

    All but the first have as many; that one has a single one.
    """
    streams = [(n, stream) for n in EVERY[1:] for stream in range(most)]

    drawn = timeline(traced([(0, 7), *streams]), EIGHT).shown

    of_several = [f"cuda:{n}, {most} streams" for n in EVERY[1:]]
    assert [lane.name for lane in drawn] == ["cuda:0", *of_several]
    assert sum(len(lane.spans) for lane in drawn) == 1 + 7 * most


def test_streams_have_lanes_of_their_own_where_there_is_room():
    """Two devices with two streams each show four lanes."""
    profile = traced([(n % 2, n) for n in range(4)])

    drawn = timeline(profile, EIGHT).shown

    assert [lane.name for lane in drawn] == [
        "cuda:0 stream 0",
        "cuda:0 stream 2",
        "cuda:1 stream 1",
        "cuda:1 stream 3",
    ]


def test_work_of_eight_devices_is_held_against_eight():
    """Eight devices at half of what each can do are at half, and not at 400 %."""
    peaks = Peaks("bfloat16", 700e12, 3e12)
    roofline = Roofline(1.0, peaks, flops=2_800 * 10**12, nbytes=10**12, devices=8)

    table = roof_table(roofline)

    assert "8 GPUs can do together in bfloat16" in table.caption
    assert [row[4].share for row in table.rows] == pytest.approx([0.5, 1 / 24])
    assert roofline.roof_flops_per_s == pytest.approx(5600e12)
