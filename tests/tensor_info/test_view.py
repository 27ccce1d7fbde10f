"""What is said about a tensor, in which order, and how large it becomes."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.drawing.tiles import Figure
from gpumagic.tensor_info.report import TensorReport
from tests.drawing.survives import assert_numbers_agree, assert_survives
from tests.tensor_info import samples
from tests.tensor_info.samples import HUGE, tensor, viewed


def test_failing_view_marks_the_jump_in_memory():
    """The strip shows where the walk was and where it has to go on."""
    report = viewed(HUGE, (2**30,))

    strips = [part for part in report.drawing().parts if isinstance(part, Figure)]
    heads, words = strips[-1].heads, strips[-1].rows[-1].tiles

    walk = {
        head: word.text for head, word in zip(heads, words, strict=True) if word.text
    }
    assert walk == {"1": "next", "1073709056": "last"}


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
        sectors = [count for line in read.used for count in line]
        drawn.append(sectors)
        assert (len(sectors), len(read.used)) == (read.sectors, read.lines)
        assert sum(sectors) == read.unique_bytes
    assert drawn == expected


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

    assert_numbers_agree(missing.drawing())


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

    drawing = tensor(size, stride, offset, itemsize=itemsize).drawing()

    assert len(drawing.html().encode()) <= 40_000
    assert_survives(drawing.html())
    assert_numbers_agree(drawing)
    assert max(map(len, drawing.text(40).splitlines())) <= 40
