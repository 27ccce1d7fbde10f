"""What every drawing of a choice keeps to, whatever was found."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.gpu_select.answer_gpus import gpus_table
from gpumagic.gpu_select.report import Evidence, Row, TorchLook, Verdict
from tests.gpu_select.samples import DIFFERING, OPEN

RANKS = st.none() | st.integers(0, 7)
SIZES = st.none() | st.integers(0, 2**40)
ROWS = st.builds(
    Row,
    physical=st.integers(0, 15),
    label=st.text(max_size=12),
    name=st.none() | st.text(max_size=12),
    uuid=st.none() | st.text(max_size=40),
    pci_address=st.none() | st.text(max_size=16),
    is_slice=st.booleans(),
    memory_free_bytes=SIZES,
    memory_total_bytes=SIZES,
    utilisation_share=st.none() | st.floats(0, 1),
    process_count=st.none() | st.integers(0, 9),
    predicted=RANKS,
    actual=RANKS,
    why=st.text(max_size=12),
)


def test_what_the_driver_shows_goes_before_what_was_predicted():
    """After the start the driver's own order counts, and differences stand out."""
    table = gpus_table(DIFFERING)
    words = [getattr(first, "word", first) for first, *_ in table.rows]

    assert table.columns[0].heading == "Actual"
    assert words == [
        "cuda:0 (variables: cuda:1)",
        "cuda:1 (variables: not visible)",
        "not visible (variables: cuda:0)",
        "not visible",
    ]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(ROWS, max_size=5),
    st.sampled_from(Verdict),
    st.sampled_from(TorchLook),
    st.sampled_from(Evidence),
)
def test_anything_can_be_drawn(rows, verdict, look, evidence):
    """No report is beyond drawing, as text and as HTML."""
    drawing = replace(
        OPEN, rows=tuple(rows), verdict=verdict, torch=look, evidence=evidence
    ).drawing()

    assert drawing.text(80)
    assert drawing.html()
