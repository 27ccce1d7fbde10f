"""What is said about a tensor, in which order, and how large it becomes."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.drawing import Details
from gpumagic.tensor_info.figure import Figure
from gpumagic.tensor_info.lane_bars import LaneBars
from gpumagic.tensor_info.report import CompareReport, TensorReport
from gpumagic.tensor_info.sentences import contiguity, headline
from gpumagic.tensor_info.view import draw
from gpumagic.tensor_info.view_warp import Fetch, Sectors
from tests.drawing.survives import assert_numbers_agree, assert_survives
from tests.tensor_info import samples
from tests.tensor_info.samples import SAMPLES, compared, tensor

TIMES = "\N{MULTIPLICATION SIGN}"
BY_NAME = dict(SAMPLES)


def flat(text):
    """The text without its line breaks."""
    return " ".join(text.split())


def whole(report, width=2000):
    """All that is in sight, and all that is folded, without line breaks."""
    return flat(draw(report).whole().text(width))


def all_parts(parts):
    """The parts, and those that are folded."""
    for part in parts:
        yield part
        yield from all_parts(part.parts) if isinstance(part, Details) else ()


def test_nothing_is_claimed_that_is_unknown():
    """Where contiguity could not be told, the title does not mention it."""
    report = dataclasses.replace(samples.X, is_contiguous=None)

    assert not contiguity(report)
    assert headline(report) == "x: 4 x 6 float32 on cpu, a tensor of 96 B"


def test_what_is_folded_has_the_same_words_for_every_tensor():
    """Memory, views, bytes, facts, on a device what a warp fetches; how comes last."""
    drawing = draw(samples.SIMULATED)

    assert list(drawing.folded) == ["memory", "views", "bytes", "facts", "warp", "how"]
    assert "[simulated GPU]" in drawing.text()


def test_of_more_than_three_dims_the_steps_are_the_picture():
    """Each dim is a bar from one step to all its steps: dense ones meet end to end."""
    (bars,) = [part for part in draw(samples.NHWC).parts if isinstance(part, LaneBars)]

    by_start = sorted(bars.lanes, key=lambda lane: lane.start)
    assert [lane.name for lane in by_start] == ["dim 1", "dim 3", "dim 2", "dim 0"]
    ends = [lane.stop for lane in by_start]
    assert [lane.start for lane in by_start] == pytest.approx([0.0, *ends[:-1]])
    assert "4 x 15 = 60" in draw(samples.NHWC).text()
    assert "memory" in draw(samples.NHWC).folded


def test_a_dim_that_does_not_step_has_no_bar():
    """Stride 0 and size 1 reach nothing, and no negative bar is drawn."""
    report = tensor((2, 1, 3, 4), (0, 99, 4, 1))

    (bars,) = [part for part in draw(report).parts if isinstance(part, LaneBars)]

    assert [lane.stop > lane.start for lane in bars.lanes] == [False, False, True, True]


def test_failing_view_names_both_dims_the_strides_and_the_place():
    """The reader learns which old dims, what is needed, what is there, and where."""
    text = whole(BY_NAME["view-fails"])

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
        ("expanded", "an expanded view; 16 B in memory, read as 80 B"),
        ("expanded", "Each element in memory is read 5 times"),
        ("expanded", "writing in place is unsafe"),
        ("expanded", "y = row.expand(5, 4).clone()"),
        ("windows", "writing in place is unsafe"),
        ("2-d", "writing in place safe: each index has its own element"),
        ("small-of-big", "keeps 3.81 MiB alive and uses 40 B"),
        ("small-of-big", ".contiguous() would not, it is contiguous"),
        ("offset", "6 el = 24 B"),
        ("offset", "8 B past a multiple of 16 B"),
        ("size-1-odd-stride", "x[:, :1].clone(memory_format=torch.contiguous_format)"),
        ("one-channel", "mask.to(memory_format=torch.channels_last)"),
        ("conjugated", "z.mH.resolve_conj() writes them out"),
        ("resized-to-0", "needs 96 B and its storage is empty"),
        ("images-channels-last", "dims 0, 2, 3, 1 (N H W C, if these are images)"),
        ("nested", "x.values(): 5 x 3 float32"),
        ("empty", "no elements"),
        ("compared", "differs: (1, 6)"),
        ("compared-large", "nope: name 'nope' is not defined"),
        ("aliases", "at least 1 more hold the memory of small"),
        ("aliases", "held by the notebook's outputs"),
        ("aliases", "small = small.clone() frees 3.81 MiB"),
        ("aliases", "there may be more names"),
    ],
)
def test_what_must_be_said_is_said(name, said):
    """Each special case has its sentence, with the figures and the code to type."""
    assert said in whole(BY_NAME[name])


def test_geometry_beyond_its_storage_is_a_problem():
    """A tensor that reaches past its storage is called out with both sizes."""
    report = tensor((4, 6), stored_bytes=80)

    drawing = draw(report)

    assert "reaches beyond its storage" in drawing.title
    assert drawing.notes[0].kind == "problem"
    assert "it needs 96 B, and its storage has 80 B" in drawing.notes[0].text


def test_empty_tensor_has_no_diagram():
    """Without an element there is no place to draw."""
    assert not any(isinstance(part, Figure) for part in draw(samples.EMPTY).parts)


def test_warp_view_is_drawn_on_request_or_on_an_accelerator():
    """Asked for it is the picture; of a tensor on a GPU it can be asked for."""
    host = tensor((64, 64))
    asked = draw(CompareReport((host,), (), warp=True))

    assert "warp" not in draw(host).folded
    assert "warp" in draw(samples.SIMULATED).folded
    assert any(isinstance(part, Sectors) for part in asked.parts)
    assert "it uses 12.5 % along dim 0 and 100 % along dim 1" in asked.title


def test_warp_views_of_several_tensors_say_whose_each_is_and_explain_once():
    """Beside each other, every warp view has a name, and what it means stands once."""
    text = whole(BY_NAME["compared-simulated"])

    assert "reads along one dim of x " in text
    assert "reads along one dim of x.t() " in text
    assert text.count("This is the cost for a kernel whose lanes walk that dim") == 1


def test_what_failed_does_not_hide_the_tensor_beside_it():
    """A tensor and a name that is not there: the picture, and a line on the name."""
    report = CompareReport((samples.X,), (), remarks=("nope: NameError",))

    drawing = draw(report)

    assert [note.text for note in drawing.notes] == ["nope: NameError"]
    assert any(isinstance(part, Figure) for part in drawing.parts)
    assert drawing.title == draw(samples.X).title


def test_an_assumed_address_is_told_of_the_tensor_that_it_was_assumed_for():
    """Among several tensors, only the one without a known address is named."""
    text = whole(compared(samples.HUGE, tensor((4, 6)), warp=True))

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

    assert bars.total == 2**22
    assert [(lane.start, lane.stop, lane.dense) for lane in bars.lanes] == [
        (0, 2**22, True),
        (2048, 2**22, False),
    ]


def test_tensors_of_two_storages_are_placed_by_address():
    """A NumPy view of the same memory lies in the same lanes."""
    first = tensor((6,), expression="t")
    part = tensor((2,), expression="a", kind="numpy array", address=samples.ADDRESS + 8)
    pair = dataclasses.replace(samples.pair((first, part), 0, 1), same_storage=False)

    text = draw(CompareReport((first, part), (pair,))).whole().text(2000)

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


@settings(max_examples=25, deadline=None)
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
    told = drawing.whole().text(400)
    figures = [part for part in all_parts(drawing.parts) if isinstance(part, Figure)]

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
