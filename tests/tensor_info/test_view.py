"""What is said about a tensor, in which order, and how large it becomes."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.tensor_info.figure import Figure
from gpumagic.tensor_info.report import CompareReport, TensorReport
from gpumagic.tensor_info.sentences import contiguity, headline
from gpumagic.tensor_info.view import draw
from gpumagic.tensor_info.view_compare import LaneBars
from gpumagic.tensor_info.view_warp import Fetch, Sectors
from tests.drawing.survives import assert_numbers_agree, assert_survives
from tests.tensor_info import samples
from tests.tensor_info.samples import SAMPLES, compared, tensor

TIMES = "\N{MULTIPLICATION SIGN}"
BY_NAME = dict(SAMPLES)


def flat(text):
    """The text without its line breaks."""
    return " ".join(text.split())


def test_nothing_is_claimed_that_is_unknown():
    """Where contiguity could not be told, the title does not mention it."""
    report = dataclasses.replace(samples.X, is_contiguous=None)

    assert not contiguity(report)
    assert headline(report) == "x: 4 x 6 float32, a tensor"


def test_parts_come_in_the_order_in_which_they_are_asked_for():
    """Diagram, facts, steps, views, bytes, safety, warp view, values."""
    report = dataclasses.replace(samples.SIMULATED, values=samples.VALUES.values)

    text = draw(report).text()

    order = [
        "By index",
        "In memory",
        "Facts",
        "One step along each dim",
        "Views:",
        "\nBytes\n",
        "in-place is",
        "What a warp",
        "Values",
    ]
    found = [text.index(heading) for heading in order]
    assert found == sorted(found)
    assert "[simulated GPU]" in text


def test_failing_view_names_both_dims_the_strides_and_the_place():
    """The reader learns which old dims, what is needed, what is there, and where."""
    text = flat(draw(BY_NAME["view-fails"]).text())

    assert "new dim 0 (of 24) must walk old dims 0 and 1 together" in text
    assert "dim 0 would need stride 24 and has 1" in text
    assert "After [0, 3] at place 18 the next element lies at 1, not at 24." in text
    assert ".reshape(24) allocates 96 B" in text
    assert "x.t().permute(1, 0).view(-1) a view" in text


def test_failing_view_marks_the_jump_in_memory():
    """The strip shows where the walk was and where it has to go on."""
    report = BY_NAME["view-fails-huge"]

    strips = [part for part in draw(report).parts if isinstance(part, Figure)]
    ((matrix,),) = strips[-1].bands

    walk = {
        head: tile.text
        for head, tile in zip(matrix.heads, matrix.rows[-1].tiles, strict=True)
        if tile.text
    }
    assert walk == {"1": "next", "1073709056": "last"}


def test_working_view_says_that_nothing_is_copied():
    """A slice with gaps can be viewable, and the strides of the view are shown."""
    text = flat(draw(BY_NAME["view-works"]).text())

    assert "x[:, ::2].view(12) works, and copies nothing" in text
    assert "The strides of the view are (2)" in text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("expanded", "inflated 5 times: 16 B in memory, read as 80 B"),
        ("expanded", "in-place is unsafe"),
        ("expanded", "y = row.expand(5, 4).clone()"),
        ("windows", "in-place is unsafe"),
        ("2-d", "in-place is safe"),
        ("small-of-big", "40 B keep 3.81 MiB of storage alive"),
        ("small-of-big", ".contiguous() would not, it is contiguous"),
        ("offset", "6 el = 24 B"),
        ("offset", "8 B past a multiple of 16 B"),
        ("size-1-odd-stride", "x[:, :1].clone(memory_format=torch.contiguous_format)"),
        ("one-channel", "mask.to(memory_format=torch.channels_last)"),
        ("conjugated", "z.mH.resolve_conj() writes them out"),
        ("resized-to-0", "the storage is empty"),
        ("images-channels-last", "dims 0, 2, 3, 1 (N H W C, if these are images)"),
        ("nested", "x.values(): 5 x 3 float32"),
        ("empty", "no elements"),
        ("compared", "differs: (1, 6)"),
        ("compared-large", "nope: name 'nope' is not defined"),
        ("aliases", "at least 1 more hold this memory"),
        ("aliases", "held by the notebook's outputs"),
        ("aliases", "small = small.clone() frees 3.81 MiB"),
        ("aliases", "there may be more names"),
    ],
)
def test_what_must_be_said_is_said(name, said):
    """Each special case has its sentence, with the figures and the code to type."""
    assert said in flat(draw(BY_NAME[name]).text(2000))


def test_geometry_beyond_its_storage_is_a_problem():
    """A tensor that reaches past its storage is called out with both sizes."""
    report = tensor((4, 6), stored_bytes=80)

    text = flat(draw(report).text())

    assert "the geometry exceeds the storage: it needs 96 B and there are 80 B" in text


def test_empty_tensor_has_no_diagram():
    """Without an element there is no place to draw."""
    assert not any(isinstance(part, Figure) for part in draw(samples.EMPTY).parts)


def test_warp_view_is_drawn_on_request_or_on_an_accelerator():
    """A tensor of the host has it only where it was asked for."""
    host = tensor((64, 64))
    asked = CompareReport((host,), (), warp=True)

    assert not any(isinstance(part, Sectors) for part in draw(host).parts)
    assert any(isinstance(part, Sectors) for part in draw(asked).parts)
    assert any(isinstance(part, Sectors) for part in draw(samples.SIMULATED).parts)


def test_warp_views_of_several_tensors_say_whose_each_is_and_explain_once():
    """Beside each other, every warp view has a name, and what it means stands once."""
    text = flat(draw(BY_NAME["compared-simulated"]).text())

    assert "reads along one dim of x " in text
    assert "reads along one dim of x.t() " in text
    assert text.count("This is the cost for a kernel whose lanes walk that dim") == 1


def test_an_assumed_address_is_told_of_the_tensor_that_it_was_assumed_for():
    """Among several tensors, only the one without a known address is named."""
    text = flat(draw(compared(samples.HUGE, tensor((4, 6)), warp=True)).text())

    assert "The address of the storage of x.t() is unknown and was taken" in text


def test_names_that_share_simulated_memory_are_labelled():
    """Like every other view, this one says where its GPU is a simulated one."""
    simulated = dataclasses.replace(samples.GROUPS, simulated=True)

    assert "[simulated GPU]" in draw(simulated).text()
    assert "[simulated GPU]" not in draw(samples.GROUPS).text()


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (tensor((64, 64)), [[4] * 32, [32] * 4]),
        (tensor((64,), (1,), 1), [[28, 32, 32, 32, 4]]),
        (tensor((64,), (2,)), [[16] * 8]),
        (tensor((64,), (0,)), [[4]]),
    ],
)
def test_drawn_sectors_are_the_figures(report, expected):
    """What is drawn of each sector adds up to the bytes, sectors and lines told."""
    drawn = []
    for read in report.warp_along_dim:
        step_bytes = report.stride[read.dim] * 4
        used = Fetch(read, report.address, step_bytes, 4).used_bytes()
        drawn.append([count for _, count in used])
        assert len(used) == read.sectors
        assert len({sector // 4 for sector, _ in used}) == read.lines
        assert sum(count for _, count in used) == read.unique_bytes
    assert drawn == expected


def test_large_neighbours_are_bars_to_one_scale():
    """Where places cannot be drawn one by one, a bar shows the stretch."""
    parts = draw(BY_NAME["compared-large"]).parts
    (bars,) = [part for part in parts if isinstance(part, LaneBars)]

    assert bars.total_bytes == 2**22
    assert [(lane.first_byte, lane.last_byte, lane.dense) for lane in bars.lanes] == [
        (0, 2**22, True),
        (2048, 2**22, False),
    ]


def test_tensors_of_two_storages_are_placed_by_address():
    """A NumPy view of the same memory lies in the same lanes."""
    whole = tensor((6,), expression="t")
    part = tensor((2,), expression="a", kind="numpy array", address=samples.ADDRESS + 8)
    pair = dataclasses.replace(samples.pair((whole, part), 0, 1), same_storage=False)

    text = draw(CompareReport((whole, part), (pair,))).text(2000)

    rows = [line.split() for line in text.splitlines()]
    assert ["a", "0", "1"] in rows
    assert ["shared", f"{TIMES}2", f"{TIMES}2"] in rows
    assert "two objects over the same addresses" in flat(text)


def test_a_report_of_nothing_but_a_kind_is_drawn():
    """Every other field may be unknown."""
    text = draw(TensorReport("x", "number", None, None)).text()

    assert "x: a number" in text


@pytest.mark.parametrize(
    "field", [each.name for each in dataclasses.fields(TensorReport)]
)
@pytest.mark.parametrize("report", [samples.NHWC, samples.EXPANDED])
def test_any_figure_may_be_unknown(report, field):
    """A look-up that failed costs its own line and not the report."""
    default = next(
        each.default for each in dataclasses.fields(TensorReport) if each.name == field
    )
    if default is dataclasses.MISSING:
        return
    missing = dataclasses.replace(report, **{field: default})

    assert_numbers_agree(draw(missing))


SHAPES = st.lists(
    st.tuples(
        st.sampled_from((1, 2, 3, 7, 40, 2**12)),
        st.sampled_from((0, 1, 2, 5, 40, 1000, 2**21)),
    ),
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.integers(0, 100), st.sampled_from((1, 2, 8)))
def test_any_geometry_is_drawn_small(axes, offset, itemsize):
    """Whatever sizes and strides there are: 40 kB, one truth, no line too wide."""
    size, stride = (tuple(axis[at] for axis in axes) for at in (0, 1))

    drawing = draw(tensor(size, stride, offset, itemsize=itemsize))

    assert len(drawing.html().encode()) <= 40_000
    assert_survives(drawing.html())
    assert_numbers_agree(drawing)
    assert max(map(len, drawing.text(40).splitlines())) <= 40


@pytest.mark.parametrize(("name", "report"), SAMPLES)
def test_a_legend_names_only_what_its_form_shows(name, report):
    """Text has no hatching and no borders, and a picture no dots for a gap."""
    drawing = draw(report)
    told = drawing.text(400)
    figures = [part for part in drawing.parts if isinstance(part, Figure)]

    assert not re.search("hatched|dashed|double border|wide tiles", told), name
    assert all("\N{MIDDLE DOT}:" not in figure.legend for figure in figures)
    for figure in figures:
        looks = {
            tile.look
            for band in figure.bands
            for matrix in band
            for row in matrix.rows
            for tile in row.tiles
        }
        assert "double border" not in figure.legend or "shared" in looks
        assert ("hatched" in figure.legend) == bool(looks & {"unused", "gap"})
