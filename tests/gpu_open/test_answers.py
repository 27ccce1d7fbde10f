"""What golden files do not hold: first lines at their borders, hints, rare states."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.gpu_open.answer_changes import compare
from gpumagic.gpu_open.records import (
    Difference,
    Idle,
    KernelSum,
    LineMemory,
    RankTrace,
    Step,
)
from gpumagic.gpu_open.report import SnapshotReport, TraceReport
from gpumagic.report.places import CodeLine
from tests.gpu_open.samples_snapshots import (
    AS_RECORDED,
    EXPANDABLE,
    OUT_OF_MEMORY,
    TRAINING,
    UNLIMITED,
    replayed,
    replays_of,
)
from tests.gpu_open.samples_traces import GPU_BOUND, HOST_BOUND, SLOWER, STRAGGLER, file

NOBODYS = LineMemory(None, False, 1 << 30, 1 << 30, 3, 0)
LEAST = LineMemory(CodeLine("a.py, line 1"), False, 1, 1, 1, 0)
ALONE = RankTrace(file(), host_length_s=0.1)


def drawn(rank):
    """The screen of one rank."""
    return TraceReport((rank,)).drawing()


def ranks_drawn(**changes):
    """The screen of many ranks, where something of them is otherwise."""
    together = replace(STRAGGLER.together, **changes)
    return replace(STRAGGLER, together=together).drawing()


def hints(drawing):
    """What is said to be done, of all notes."""
    return " ".join(note.hint for note in drawing.notes)


@pytest.mark.parametrize(
    ("idle", "title"),
    [
        (Idle(0.0, 0.1, 0.0), "; 100 ms idle between two streams"),
        (Idle(0.0, 0.0, 0.1, between_s=0.1), "100 ms idle from one kernel to the next"),
        (Idle(0.03, 0.0, 0.1), "late for 30.0 ms, 100 ms idle for unknown reasons"),
        (Idle(0.0, 0.0, 0.1), "; why it was idle for 100 ms is unknown"),
    ],
)
def test_title_says_what_held_it_back(idle, title):
    """Nothing unexplained is put on the host."""
    assert title in drawn(replace(GPU_BOUND, idle=idle)).title


@pytest.mark.parametrize(
    ("launches", "hint"), [(9, "another"), (0, "works on"), (None, "first profile")]
)
def test_why_there_is_no_gpu_work_is_said_as_far_as_the_file_tells(launches, hint):
    """With what to do about it."""
    drawing = drawn(replace(ALONE, launches=launches))
    assert drawing.title.startswith("no GPU work is in this trace")
    assert hint in hints(drawing)
    assert drawing.whole().text()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("enumerate(DataLoader)#_Iter.__next__", "%pin_loader"),
        ("aten::item", "--syncs"),
        ("save_checkpoint", "less often"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "torch.compile"),
        ("", "with_stack=True"),
    ],
)
def test_hint_fits_what_the_host_was_in(name, hint):
    """By its name; an operator is launched too often, or its first call loads code."""
    idle = Idle(0.3, 0.0, 0.0, ((name, 0.29),))
    assert hint in hints(drawn(replace(HOST_BOUND, idle=idle)))
    few = replace(HOST_BOUND, idle=idle, launches=100)
    assert ("load kernels" in hints(drawn(few))) == (hint == "torch.compile")


# -------------------------------------------------------------- many ranks, two runs


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"idle_s": 0.5, "waits_s": 0.0}, "leave their GPUs idle"),
        ({"waits_s": 0.2, "idle_s": 0.0}, "wait for each other"),
        ({"moves_s": 0.3, "waits_s": 0.0, "idle_s": 0.0}, "do nothing but move data"),
        ({"waits_s": 0.0, "moves_s": 0.0, "idle_s": None}, "compute"),
    ],
)
def test_what_costs_equal_ranks_most_is_said_first(changes, words):
    """Where none stands out."""
    ranks = STRAGGLER.together.ranks
    shares = tuple(replace(e, own_s=0.6, length_s=0.7, **changes) for e in ranks)
    title = ranks_drawn(ranks=shares, slowest=None, differences=()).title
    assert title.startswith(f"no rank stands out: 8 ranks {words}")


@pytest.mark.parametrize(
    ("what", "title", "hint"),
    [
        ("host late", "as its host was late", "other processes"),
        ("embedding", "in embedding", "--compare"),
    ],
)
def test_where_the_slow_rank_is_slow(what, title, hint):
    """What it spent more on; what is only a little more is not named."""
    drawing = ranks_drawn(differences=(Difference(what, 0.3, 0.1),))
    said = "rank 3 took 1.57x the median for its own work"
    assert drawing.title.startswith(f"{said}, {title}")
    assert hint in hints(drawing)
    drawing = ranks_drawn(differences=(Difference(what, 0.11, 0.1),), ratio=4e6)
    said = "rank 3 took longest for its own work"
    assert drawing.title.startswith(f"{said}; others waited 117 ms for it")
    assert "nvidia-smi" in hints(drawing)


def test_ranks_that_are_not_here_or_did_nothing_together_are_told():
    """The missing ones may be the slow ones, and two files may be two runs."""
    assert "8 of 128 ranks are here" in ranks_drawn(world_size=128).text()
    for unmatched in (48, 0):
        alone = ranks_drawn(matched=0, unmatched=unmatched, slowest=None)
        assert alone.title.endswith("nothing they did together could be matched")
        assert "open the files of all ranks" in hints(alone)


def test_which_run_is_slower_and_what_made_it_so():
    """One recording of each tells no small difference; a new kernel is named."""

    def changed(**changes):
        return replace(SLOWER, comparison=replace(SLOWER.comparison, **changes))

    def title(before_s, after_s):
        runs = {"length_before_s": before_s, "length_after_s": after_s}
        return changed(**runs).drawing().title

    assert title(0.1, 0.102) == "both take the same time (100 -> 102 ms)"
    assert title(0.2, 0.1).startswith("the second is 2.00x faster (200 -> 100 ms)")
    new = replace(SLOWER.comparison.kernels[0], count_before=0, before_s=0.0)
    assert "is new and took 181 ms" in changed(kernels=(new,)).drawing().title
    for counts, runs in (((1, 1), "1 run"), ((2, 0), "2 to 0 runs")):
        both = dict(zip(("count_before", "count_after"), counts, strict=True))
        some = replace(SLOWER.comparison.kernels[0], **both)
        assert changed(kernels=(some,)).drawing().title.endswith(f"more ({runs})")
    drawing = changed(busy_after_s=0.3, kernels=()).drawing()
    assert drawing.title.endswith("the GPU was idle for 77.0 ms more")
    assert "tells what it waited for" in hints(drawing)


# ------------------------------------------------------------------------- snapshots


@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ({"events": 0}, "reserved, and no history of how it came about"),
        ({"lines": (NOBODYS, LEAST)}, "of it from no known line"),
        ({"lines": (replace(NOBODYS, before=True),)}, "from before the recording"),
        ({"failure": OUT_OF_MEMORY.devices[0].failure, "lines": ()}, "GiB in use"),
    ],
)
def test_whose_the_peak_is_is_said_as_far_as_lines_are_known(changes, title):
    """Without stacks no line is; of several devices, the first is named."""
    full = replace(TRAINING.devices[0], course_bytes=())

    def drawn(*devices):
        return SnapshotReport((file(),), devices).drawing()

    assert "_dump_snapshot" in hints(drawn())
    without = drawn(replace(full, lines=(NOBODYS,)))
    assert without.title.endswith(f"{full.peak_event:,}")
    of = replace(full, **changes)
    assert title in drawn(of).title
    drawing = drawn(replace(of, device=5), full)
    assert drawing.title.startswith("cuda:5: ")
    assert "cuda:0              " in drawing.whole().text()


HELPS, FAILS = replayed(EXPANDABLE, 6.52, 2), replayed(EXPANDABLE, 6.5, 2, 18_211)
SAVES, SHORT = replayed(EXPANDABLE, 4.8, 2), replayed("", 6.0, 9, 77)


@pytest.mark.parametrize(
    ("replays", "title"),
    [
        ((AS_RECORDED, FAILS), "no setting of these would have gone through"),
        ((UNLIMITED, SAVES), "would have reserved less: 4.80 GiB instead of 5.90"),
        ((UNLIMITED, replace(UNLIMITED, setting="x:1")), "would have saved much"),
        ((AS_RECORDED, replayed("", 7.3, 260)), "6.55 GiB would have been enough"),
        ((AS_RECORDED, SHORT, FAILS), "enough: memory runs out at event 77"),
        ((AS_RECORDED, SHORT, HELPS), "but with expandable_segments"),
    ],
)
def test_what_would_have_helped(replays, title):
    """The setting that goes through with the least, or the memory asked about."""
    report = replace(OUT_OF_MEMORY, replays=(replays_of(*replays),))
    assert title in report.drawing().title


def test_a_replay_that_differs_from_the_recording_judges_nothing():
    """Where the rules go through under the recorded setting as well."""
    again = replays_of(AS_RECORDED, HELPS, again=replayed("", 5.2, 200))
    drawing = replace(OUT_OF_MEMORY, replays=(again,)).drawing()
    assert drawing.title.startswith("unknown whether expandable_segments:True would")
    assert "take these figures as estimates" in hints(drawing)


# ----------------------------------------------------------------- what got slower


modest = settings(deadline=None, max_examples=60)

SUMS = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.tuples(st.integers(1, 9), st.integers(1, 1000)),
    max_size=6,
)


def _run(kernels=None, steps=0, length_s=1.0, **more):
    return RankTrace(
        file(),
        length_s=length_s,
        kernels=tuple(
            KernelSum(name, "elementwise", count, total / 1e6)
            for name, (count, total) in (kernels or {}).items()
        ),
        steps=tuple(Step(number, 0.1 + number / 100, 0.05) for number in range(steps)),
        **more,
    )


@modest
@given(SUMS, SUMS)
def test_every_name_of_either_run_has_one_row(before, after):
    """Its counts and seconds are those of the runs, the largest differences first."""
    rows = compare(_run(before), _run(after)).kernels
    away = [abs(row.after_s - row.before_s) for row in rows]
    assert away == sorted(away, reverse=True)

    assert sorted(row.name for row in rows) == sorted(before.keys() | after.keys())
    for row in rows:
        for its, count, seconds in (
            (before.get(row.name), row.count_before, row.before_s),
            (after.get(row.name), row.count_after, row.after_s),
        ):
            assert (count, seconds) == ((its[0], its[1] / 1e6) if its else (0, 0.0))


OLDER = "void at::native::(anonymous namespace)::k<4ul>(int)"


@pytest.mark.parametrize(
    ("one", "other"),
    [(OLDER, "at::native::k<4>(int)"), ("triton_add_3", "triton_add_12")],
)
def test_types_and_numbers_make_no_other_kernel(one, other):
    """Nor what a compiler's version changes in a name."""
    (row,) = compare(_run({one: (2, 20)}), _run({other: (2, 30)})).kernels

    assert (row.count_before, row.count_after) == (2, 2)


def test_three_steps_compare_with_five():
    """Where the numbers of steps differ all is of one step; seldom is not never."""
    before = _run({"a": (6, 60), "once": (1, 3)}, steps=3)
    after = _run({"a": (10, 200), "once": (1, 5)}, steps=5)

    found = compare(before, after)

    assert found.per_step
    assert (found.length_before_s, found.length_after_s) == pytest.approx((0.11, 0.12))
    assert (found.busy_before_s, found.busy_after_s) == (0.05, 0.05)
    assert [(e.count_before, e.count_after) for e in found.kernels] == [(2, 2), (1, 1)]
    kernel = found.kernels[0]
    assert (kernel.before_s, kernel.after_s) == pytest.approx((20e-6, 40e-6))
    # Of a trace without steps nobody knows how many it holds.
    whole = [compare(before, _run(steps=n, length_s=2.0)) for n in (0, 3)]
    assert [(e.per_step, e.length_after_s) for e in whole] == [(False, 2.0)] * 2
