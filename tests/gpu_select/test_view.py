"""What every drawing of a choice keeps to, whatever was found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.drawing import Table
from gpumagic.gpu_select.report import Action, Guard, Row, Start, TorchLatch, Verdict
from gpumagic.gpu_select.reporting import headline_of, started_by
from gpumagic.gpu_select.view import (
    address_table,
    differing,
    draw,
    reasons_table,
    remap_table,
)
from gpumagic.gpu_select.view_deciding import truth_panel
from tests.gpu_select.samples import (
    DIFFERING,
    FIXED,
    GUESSED,
    IN_VAIN,
    LATE,
    OPEN,
    REFUSED,
    SELECTED,
    SIMULATED_TOO_LATE,
    TRIED_TOO_LATE,
    gpu,
    variables,
)

RANKS = st.none() | st.integers(0, 7)
SIZES = st.none() | st.integers(0, 2**40)
ROWS = st.builds(
    Row,
    physical=st.integers(0, 15),
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


def column(report, heading):
    """The cells of one column of the remap table."""
    table = remap_table(report)
    place = [each.heading for each in table.columns].index(heading)
    return [row[place] for row in table.rows]


def decides(report):
    """What decides: each topic with its state, as a word, and what was found."""
    return {
        topic: (getattr(state, "word", state), found)
        for topic, state, found in truth_panel(report).rows
    }


# ---------------------------------------------------------------- the table


def test_visible_gpus_come_first_as_torch_counts_them():
    """cuda:0 is the first row; those that are not visible follow by number."""
    assert column(SELECTED, "GPU") == ["2", "0", "1", "3", "4", "5", "6", "7"]
    assert column(SELECTED, "Predicted")[:3] == ["cuda:0", "cuda:1", "not visible"]


def test_what_the_driver_shows_goes_before_what_was_predicted():
    """After the start the driver's own order counts, and differences stand out."""
    words = [getattr(each, "word", each) for each in column(DIFFERING, "Actual")]

    assert words == [
        "cuda:0, not cuda:1",
        "cuda:1, not hidden",
        "hidden, not cuda:0",
        "not visible",
    ]


def test_a_dry_run_after_the_start_shows_what_would_be_beside_what_is():
    """What is only tried is no claim about now, so the driver contradicts nothing."""
    assert column(TRIED_TOO_LATE, "Predicted")[:2] == ["cuda:0", "not visible"]
    assert column(TRIED_TOO_LATE, "GPU") == ["3", "0", "1", "2"]
    assert column(TRIED_TOO_LATE, "Now") == [
        "not visible",
        "cuda:1",
        "not visible",
        "cuda:0",
    ]
    assert "otherwise" not in draw(TRIED_TOO_LATE).text()
    assert headline_of(TRIED_TOO_LATE) == TRIED_TOO_LATE.headline


def test_a_dry_run_of_what_is_so_already_is_confirmed():
    """Where the driver shows what was asked for, there is nothing to restart for."""
    agreeing = replace(FIXED, action=Action.DRY_RUN)

    assert headline_of(agreeing).endswith("GPU 0 (confirmed by the driver).")
    assert "Confirmed" in [each.heading for each in remap_table(agreeing).columns]


def test_a_dry_run_after_a_vain_look_says_that_torch_needs_a_restart():
    """Torch keeps its answer: the choice would be one for after a restart."""
    said = headline_of(replace(IN_VAIN, action=Action.DRY_RUN))

    assert "Torch has looked in vain; after a restart it would be: cuda:0" in said
    assert "Now" not in said


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (
            Start(cell=4, line=2, by="import kornia"),
            "in In[4], line 2, by import kornia",
        ),
        (Start(cell=4), "in In[4]"),
        (Start(line=2), ""),
        (Start(by="torch.cuda.init()"), "by torch.cuda.init()"),
        (Start(cell=4, guess=True), "in In[4] (a guess from the history)"),
        (None, ""),
    ],
)
def test_of_a_start_so_much_is_said_as_is_known(start, said):
    """A line without its cell says nothing, and a guess says that it is one."""
    assert started_by(start) == said


def test_a_simulated_start_is_told_like_a_real_one():
    """Who has started CUDA is shown, and no file is claimed for its driver."""
    said = decides(SIMULATED_TOO_LATE)

    assert said["Who started CUDA"] == (
        "seen",
        "In[4], line 2: x = torch.ones(8, device='sim')",
    )
    assert said["Driver library"][1].endswith("it is part of the simulation, no file")


def test_an_agreeing_driver_confirms_every_row():
    """No row differs where each GPU is what it was predicted to be."""
    assert not any(differing(row, FIXED) for row in FIXED.rows)
    assert column(FIXED, "Confirmed")[0] == "cuda:0"


def test_the_bar_of_free_memory_is_as_long_as_what_is_free():
    """Its heading and its figure say free: a GPU that is empty has a whole bar."""
    rows = tuple(
        replace(
            gpu(place, predicted=place), memory_free_bytes=free, memory_total_bytes=80
        )
        for place, free in enumerate((80, 20, 0))
    )

    cells = column(replace(OPEN, rows=rows), "Memory free")

    assert [cell.share for cell in cells] == [1.0, 0.25, 0.0]


def test_what_is_unknown_is_not_zero():
    """A GPU that says nothing of itself has no figure at all."""
    silent = replace(OPEN, rows=(Row(0, predicted=0),))

    for heading in ("Memory free", "Busy", "Processes"):
        assert column(silent, heading) == [None]
    assert address_table(silent).rows == (("0", None, None),)


def test_slices_are_counted_on_their_gpu():
    """Slices are told apart by their place, and named so where there is but one."""
    slices = tuple(gpu(2, uuid=f"MIG-{name}", is_slice=True) for name in "cab")

    assert column(replace(OPEN, rows=slices), "GPU") == [
        "2 slice 0",
        "2 slice 1",
        "2 slice 2",
    ]
    assert column(replace(OPEN, rows=slices[:1]), "GPU") == ["2 slice"]


def test_the_other_names_of_a_gpu_are_there_when_asked_for():
    """Address and UUID, whole and in the order of the GPUs in sight."""
    told = str(SELECTED.show("addresses"))

    assert all(row.uuid in told and row.pci_address in told for row in SELECTED.rows)
    assert [row[0] for row in address_table(SELECTED).rows] == column(SELECTED, "GPU")
    assert SELECTED.rows[0].uuid not in str(SELECTED)


def test_reasons_have_a_table_of_their_own():
    """Each GPU that something is said of is named beside it; without any, no table."""
    rows = (gpu(0, why="1 process on it"), gpu(1), gpu(2, predicted=0, why="idle"))
    table = reasons_table(replace(OPEN, rows=rows))

    assert table.rows == (("2", "idle"), ("0", "1 process on it"))
    assert "Why" not in OPEN.drawing().text()


# ---------------------------------------------------------------- what decides


def test_what_decides_can_be_asked_for_where_somebody_only_looks():
    """The status explains itself; a choice is short, and so is a refusal."""
    explained = {
        (action, verdict)
        for action in Action
        for verdict, report in ((Verdict.OPEN, OPEN), (Verdict.FIXED, FIXED))
        if "state" in replace(report, action=action).parts
    }

    assert explained == {
        (Action.STATUS, Verdict.OPEN),
        (Action.STATUS, Verdict.FIXED),
    }
    assert "Guard" not in str(OPEN)
    assert "Guard" in str(OPEN.show("state"))


def test_a_refusal_shows_why_and_a_choice_shows_the_gpus():
    """One table is in sight, the one that the next step needs; the other is folded."""
    tables = {
        report.headline: [
            part.caption for part in report.drawing().parts if isinstance(part, Table)
        ]
        for report in (LATE, REFUSED, SELECTED)
    }

    assert tables[LATE.headline] == []
    assert tables[REFUSED.headline] == ["Why"]
    assert tables[SELECTED.headline][0].startswith("8 GPUs")
    assert "gpus" in REFUSED.parts


def test_the_way_to_another_choice_is_told_where_it_is_too_late():
    """Who looks after CUDA has started is told what to type for another choice."""
    late = replace(FIXED, way_out="%gpu_select 2,0 --restart")

    assert "%gpu_select 2,0 --restart" in str(late)
    assert "another choice" not in str(replace(OPEN, way_out="%gpu_select 1"))


def test_a_guess_is_called_a_guess():
    """What was seen is told from what the history suggests."""
    assert decides(GUESSED)["Who started CUDA"] == (
        "guess from the history",
        "In[2], by import bitsandbytes",
    )
    assert decides(FIXED)["Who started CUDA"][0] == "seen"


def test_who_started_cuda_counts_where_torch_failed_after_it():
    """With CUDA started, a look in vain is called what it was for the choice."""
    start = replace(FIXED.start, in_vain=True)
    assert "Who started CUDA" in decides(replace(FIXED, start=start))


def test_who_started_is_unknown_where_nobody_has_watched():
    """A start without a witness is unknown, and none at all is not spoken of."""
    unwatched = replace(FIXED, start=None)

    assert decides(unwatched)["Who started CUDA"][0] is None
    assert "Who started CUDA" not in decides(OPEN)


def test_a_value_is_told_once_with_all_the_places_that_have_it():
    """One line for each variable, whether all places agree or differ."""
    agreed = decides(replace(OPEN, variables=variables("2", start="2")))
    differing = decides(replace(OPEN, variables=variables("0", python="2")))

    name = "CUDA_VISIBLE_DEVICES"
    assert agreed[name] == ("set", "'2' in Python and C, and at the start")
    assert differing[name] == (
        "Python and C differ",
        "'2' in Python; '0' in C; not set at the start",
    )


def test_a_guard_that_does_not_help_says_why():
    """On, off, or on to no avail."""
    defeated = replace(OPEN, guard=Guard(on=True, defeated_by="NVML is silent"))

    assert decides(OPEN)["Guard"][0] == "on"
    assert decides(replace(OPEN, guard=Guard(on=False)))["Guard"][0] == "off"
    assert decides(defeated)["Guard"] == ("does not help here", "NVML is silent")


@settings(deadline=None, max_examples=60)
@given(
    st.lists(ROWS, max_size=5),
    st.sampled_from(Verdict),
    st.sampled_from(TorchLatch),
    st.none() | st.booleans(),
)
def test_anything_can_be_drawn(rows, verdict, latch, confirmed):
    """No report is beyond drawing, as text and as HTML."""
    drawing = replace(
        OPEN, rows=tuple(rows), verdict=verdict, torch=latch, confirmed=confirmed
    ).drawing()

    assert drawing.text(80)
    assert drawing.html()
