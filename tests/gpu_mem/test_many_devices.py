"""Views of memory on a machine with many devices: sums are of all of them."""

from __future__ import annotations

import dataclasses

import pytest

from gpumagic.drawing import Paragraph
from gpumagic.gpu_mem.holdings import of_devices
from gpumagic.gpu_mem.records import (
    BadgeKind,
    CellBadge,
    Counters,
    DeviceChange,
    DeviceMemory,
    Holder,
    HolderKind,
    Holdings,
    LineUse,
    Part,
    Peak,
    PeakKind,
    Setting,
)
from gpumagic.gpu_mem.report import BriefReport, CellReport, FreeReport, MemoryReport
from gpumagic.gpu_mem.view_cells import brief, headline
from gpumagic.gpu_mem.view_leaks import free_headline, free_parts
from gpumagic.gpu_mem.view_lines import lines_parts
from gpumagic.gpu_mem.view_memory import memory_headline
from gpumagic.gpu_mem.view_names import names_headline, names_parts, names_table
from gpumagic.gpu_mem.view_terms import notes
from gpumagic.report.places import Code, CodeLine

CUDA = Setting("cuda")
MIB = 1 << 20
EVERY = range(8)


def variable(name, device, mib, **more):
    """A name with so much on one device, nothing of it shared."""
    return Holder(name, HolderKind.VARIABLE, device, mib * MIB, mib * MIB, **more)


def held(*holders):
    """Holdings that add up."""
    devices = sorted({each.device for each in holders})
    allocated = tuple(
        (n, sum(each.own_bytes for each in holders if each.device == n))
        for n in devices
    )
    return Holdings(holders, allocated)


def counters(device, allocated, reserved=None):
    """The allocator's counters of one device, in MiB."""
    return Counters(device, allocated * MIB, (reserved or allocated) * MIB)


def change(device, before, after, peak):
    """What a cell did to one device, in MiB."""
    exact = Peak(PeakKind.EXACT, peak * MIB, peak * MIB)
    return DeviceChange(counters(device, before), counters(device, after), exact)


def rows(table):
    """The cells of a table, by the first of each row."""
    return {row[0]: row for row in table.rows}


# ---------------------------------------------------------------- whose it is


def test_a_name_on_eight_devices_holds_the_sum():
    """The title says what a name holds in all, not what it holds on one device."""
    said = names_headline(held(*(variable("replicas", n, 128) for n in EVERY)))

    assert said == "replicas holds 1.00 GiB"


def test_two_names_on_two_devices_hold_the_sum():
    """Also where each has a row for each device, the title has the sum of all."""
    holders = [variable(name, n, 100) for name in ("a", "b") for n in (0, 1)]

    assert names_headline(held(*holders)) == "a and b hold 400 MiB"


def test_what_a_library_holds_is_told_where_it_is_most():
    """Workspaces of 32 MiB on each stream of each device are no small matter."""
    library = [
        Holder("cuBLAS workspaces", HolderKind.LIBRARY, n, 128 * MIB, 128 * MIB)
        for n in EVERY
    ]

    said = names_headline(held(variable("model", 0, 2), *library))

    assert said == "cuBLAS workspaces hold 1.00 GiB, model 2.00 MiB"


def test_a_name_on_eight_devices_is_one_row():
    """Its bytes are summed, its parts as well, and how much is on each is told."""
    holders = (
        variable("acts", n, 400, parts=(Part(f"[{n}]", 400 * MIB),)) for n in EVERY
    )

    table = names_table(held(*holders, variable("x", 5, 100)), CUDA, 10)

    heads = [column.heading for column in table.columns]
    row = dict(zip(heads, rows(table)["acts"], strict=True))
    assert row["Device"] == "all 8, 400 MiB each"
    assert row["Holds"] == row["Alone"] == "3.12 GiB"
    assert row["Made of"].endswith("and 5 more")
    assert rows(table)["x"][1] == "cuda:5"
    assert sum(name == "acts" for name in (row[0] for row in table.rows)) == 1


def test_the_device_with_most_of_a_name_is_told():
    """Where it does not lie evenly, the row says on which device most of it lies."""
    holders = [variable("acts", n, 900 if n == 2 else 100) for n in (0, 1, 2, 5)]

    table = names_table(held(*holders, variable("x", 7, 1)), CUDA, 10)

    where = rows(table)["acts"][1]
    assert where == "cuda:0 to cuda:2, cuda:5, most on cuda:2: 900 MiB"


def test_names_are_counted_and_not_their_rows():
    """What is not shown is so many names, on however many devices each is."""
    holders = [variable(name, n, 10) for name in "abcd" for n in EVERY]

    table = names_table(held(*holders), CUDA, 2)

    assert "2 more names" in rows(table)
    assert rows(table)["allocated"][-1] == "320 MiB"


def test_two_that_are_called_the_same_stay_two():
    """On one device they are two different locals, whose bytes may be the same."""
    same = [
        Holder("x in forward", HolderKind.ERROR, n, 0, 8 * MIB)
        for n in (0, 0, 1, 1, 2, 2)
    ]

    table = names_table(held(*same), CUDA, 10)

    assert [row[0] for row in table.rows].count("x in forward") == 2


# ------------------------------------------------------------------ of a cell


def test_what_the_cell_has_changed_is_among_the_rows_shown():
    """A small name that the cell has made is seen beside however many large ones."""
    large = [variable(f"m{n}", 0, 1000 - n, delta_bytes=0) for n in range(20)]

    table = names_table(held(*large, variable("y", 0, 1, delta_bytes=MIB)), CUDA, 5)

    shown = [row[0] for row in table.rows][:5]
    assert shown == ["m0", "m1", "m2", "m3", "y"]


def test_only_devices_that_moved_are_of_interest():
    """What other devices hold is left out, and the rest still adds up."""
    holders = [variable("keep", n, 256) for n in EVERY]

    found = of_devices(held(*holders), {5})

    assert [each.device for each in found.holders] == [5]
    assert found.allocated_bytes == ((5, 256 * MIB),)


def test_where_nothing_stays_the_highest_peak_is_told():
    """That no device changed is said once, and not of one of them again."""
    changes = tuple(change(n, 160, 160, 208 if n == 3 else 192) for n in EVERY)
    report = CellReport(Code("step()"), CUDA, changes, (), None)

    assert headline(report) == (
        "no change on 8 devices together; the highest peak on cuda:3: 208 MiB"
    )


def test_in_one_line_each_figure_has_its_device():
    """Of driver calls and waits the line says on which devices they were made."""
    badges = (
        CellBadge(BadgeKind.DRIVER_CALLS, 3, 1),
        CellBadge(BadgeKind.DRIVER_CALLS, 6, 1),
        *(CellBadge(BadgeKind.STREAM_WAITS, n, 1) for n in EVERY),
    )
    changes = (change(3, 0, 4, 4), change(6, 0, 16, 16))
    report = CellReport(Code("x"), CUDA, changes, badges, None)

    said = brief(BriefReport(report))

    assert "1 driver call each on cuda:3, cuda:6" in said
    assert said.endswith("1 stream wait each on cuda:0 to cuda:7")


@pytest.mark.parametrize(
    ("amounts", "said"),
    [((2,) * 8, "2 times on each"), ((1, *(2,) * 7), "15 times in all")],
)
def test_a_badge_of_eight_devices_is_one_note(amounts, said):
    """It names all of them, and its count is of each or of all."""
    badges = [CellBadge(BadgeKind.DRIVER_CALLS, n, amounts[n]) for n in EVERY]

    (note,) = notes(badges, CUDA)

    assert "cuda:0 to cuda:7" in note.text
    assert said in note.text


# ----------------------------------------------------------------- and beside


def test_cache_that_went_to_the_device_is_told():
    """Where no tensor was let go of, giving back 900 MiB of cache was not in vain."""
    before = tuple(counters(n, 656, 1556 if n == 5 else 656) for n in EVERY)
    after = tuple(counters(n, 656) for n in EVERY)
    free = tuple((96 if n == 5 else 996) * MIB for n in EVERY)
    report = FreeReport(
        CUDA, ("the free part of torch's cache",), before, after, free, (996 * MIB,) * 8
    )

    said = free_headline(report)

    assert said == "900 MiB of torch's cache on cuda:5 was given back to the device"
    texts = [getattr(part, "text", "") for part in free_parts(report)]
    assert not any("other names may hold" in str(text) for text in texts)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((160,) * 8, ", 160 MiB on each"),
        ((160, 160, *(1,) * 6), " on 8 devices"),
        ((1, 1, 1, 1, 1, 160, 1, 1), ", most on cuda:5"),
    ],
)
def test_no_device_of_equal_ones_has_most(sizes, said):
    """The title names the device that has most, if one has."""
    devices = tuple(
        DeviceMemory(counters(n, size), "H100", 80 << 30)
        for n, size in enumerate(sizes)
    )

    assert memory_headline(MemoryReport(CUDA, devices)).endswith(said)


def test_a_line_that_works_on_eight_devices_is_one_row():
    """What it took on all of them is summed, and the whole table has the same sum."""
    line = CodeLine("In [4], line 12", "r(x)")
    uses = [LineUse(line, None, n, 20 * MIB, 10 * MIB, 1, 512) for n in EVERY]
    uses.append(LineUse(None, 2, 0, MIB, 0, 1, 0))

    in_sight, folded = lines_parts(uses, CUDA, 8)
    table, _ = folded.parts

    assert in_sight.rows[1][2] == "cuda:0 to cuda:7"
    first, second, last = table.rows
    assert first[2] == "cuda:0"
    assert second[2:5] == ("cuda:0 to cuda:7", "160 MiB", "80.0 MiB")
    assert last[3] == "161 MiB"


def test_equal_sums_of_eight_devices_are_one_sentence():
    """What keeps the memory alive is said once of the devices where it is the same."""
    found = held(*(variable("m", n, 1 if n == 3 else 36) for n in EVERY))
    sums = tuple((n, HolderKind.VARIABLE, size) for n, size in found.allocated_bytes)
    found = dataclasses.replace(found, sums=sums)

    *_, folded = names_parts(found, CUDA, 10)
    (said,) = (part.text for part in folded.parts if isinstance(part, Paragraph))

    assert said.splitlines()[2:] == [
        "36.0 MiB on each of cuda:0 to cuda:2, cuda:4 to cuda:7: variable 36.0 MiB.",
        "1.00 MiB on cuda:3: variable 1.00 MiB.",
    ]
