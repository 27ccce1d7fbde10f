"""What the first screen says of many ranks, and that what was measured is drawn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumagic.gpu_ranks import analysis
from gpumagic.gpu_ranks.records import (
    Misplaced,
    RankMemory,
    SeatFinding,
    Unfinished,
    Waiting,
)
from gpumagic.gpu_ranks.report import RanksReport, SeatsReport, WhereReport
from gpumagic.gpu_ranks.view import draw
from gpumagic.gpu_ranks.view_where import Names, numbers_text, waiting_text
from gpumagic.report.places import CodeLine
from tests.gpu_ranks.samples import GIB, SAMPLES, STRAGGLER, rank_time, seat, seats

REPORTS = dict(SAMPLES)
NS = 1_000_000_000


def test_engines_that_have_other_numbers_are_named():
    """`--on` takes numbers of engines, so they stand beside ranks that differ."""
    swapped = [0, 2, 1, 3]
    few = [seat(rank, engine=engine) for rank, engine in enumerate(swapped)]
    many = [seat(rank, engine=15 - rank) for rank in range(16)]

    assert "Engine" not in text(SeatsReport(seats(4)))
    assert "Rank Engine" in text(SeatsReport(tuple(few)))
    assert "Engines" in text(SeatsReport(tuple(many)))


def test_of_several_that_died_it_is_said_how_to_go_on():
    """Where mpiexec ends all with one nobody is left, and others have to be started."""
    gone = tuple(Unfinished(each, "died", "its engine is gone") for each in range(4))
    shown = text(RanksReport((), unfinished=gone, ranks=4))

    assert "ranks 0 to 3 died: their engines are gone" in shown
    assert "rc.cluster.start_engines_sync(n=4) starts others" in shown
    assert "among those that are left" not in shown


def test_who_has_ended_works_no_more():
    """A rank at the end of its cell is not said to work there."""
    shown = text(WhereReport((), lines=((0, "the end of the cell"),)))

    assert "has ended" in shown
    assert "works" not in shown


def done(rank, own_ms, *, slow_ms, offset_ns=0, host="node0", **more):
    """What a rank sends that works, waits for the slowest, and sends for 8 ms."""
    began = 5 * NS + offset_ns
    came, left = (began + round(ms * 1e6) for ms in (own_ms, slow_ms + 8))
    place = {"host": host, "local_rank": rank, "pid": 100 + rank}
    return {
        "version": 1,
        "kind": "done",
        "seat": {"version": 1, "kind": "seat", "rank": rank, "world_size": 4} | place,
        "clock": "host",
        "began_ns": began,
        "ended_ns": left,
        "collectives": [["0", 1, "all_reduce", 4096, came, left, "backward"]],
    } | more


def text(report, width=80):
    """What is in sight, on one line."""
    return " ".join(draw(report).text(width).split())


# --------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([3], "rank 3"),
        ([3, 1], "ranks 1 and 3"),
        ([0, 1, 3], "ranks 0, 1, 3"),
        ([0, 1, 2, 3, 5], "ranks 0 to 3, 5"),
        (range(1024), "ranks 0 to 1023"),
        ([*range(20), 40], "21 ranks"),
    ],
)
def test_ranks_are_named_in_few_words(names, told):
    """One by one where they are few, as a row or by their number where many."""
    assert Names().several(names) == told


def test_of_very_many_rows_the_first_are_told():
    """Every tenth of a thousand ranks fills no page."""
    assert numbers_text(range(0, 1000, 10)) == "0, 10, 20, 30 and 96 more"


def test_a_host_is_named_only_where_there_are_several():
    """On one machine its name says nothing."""
    assert Names(seats(4)).at(3) == "rank 3"
    assert Names(seats(8)).at(5) == "rank 5 (node1)"


def test_who_has_no_group_is_an_engine():
    """Nobody has a rank before there is a group."""
    assert Names(seats(2, rank=False)).several([0, 1]) == "engines 0 and 1"


# ----------------------------------------------------------------------- who waits


def test_a_wait_is_one_sentence():
    """Who waits, since when, in what; who has not come; and at which line."""
    line = CodeLine("line 3", "time.sleep(12)")
    waiting = Waiting("all_reduce", 2, (0, 1, 3), 12.0, (2,), ((2, line),))

    assert waiting_text(waiting) == (
        "ranks 0, 1, 3 have waited 12.0 s in all_reduce no. 2; rank 2 has not called "
        "it: line 3, time.sleep(12)"
    )


def test_a_wait_is_told_with_as_much_as_is_known():
    """No number, no time, no line, several missing at different lines."""
    lines = tuple((name, CodeLine(f"line {name}")) for name in (1, 2))

    assert waiting_text(Waiting(None, None, (0,), None, (1, 2), lines)) == (
        "rank 0 waits in a collective; ranks 1 and 2 have not called it"
    )


def test_what_ranks_call_differently_is_told_instead():
    """All came, but not to the same: nobody is missing."""
    waiting = Waiting("all_reduce", 7, (0, 1), 5.0, (), mismatch="rank 1 calls barrier")

    assert waiting_text(waiting).endswith("no. 7; calls differ: rank 1 calls barrier")


def test_ranks_at_one_place_are_one_row():
    """A thousand that wait at one line are not a thousand rows."""
    table = draw(REPORTS["where-1024"]).parts[0]

    assert len(table.rows) == 4
    assert text(WhereReport((), told_by="")).startswith("nothing runs on the engines")
    text_of_none = text(WhereReport((), told_by="simulated GPUs"))
    assert text_of_none.startswith("no rank waits in a collective")


# ----------------------------------------------------------------------- who sits where


def test_seats_say_what_is_certain():
    """Confirmed, predicted, and started on some."""
    some = (seat(0), replace(seat(1), confirmed=False))

    assert "(confirmed by the driver)" in text(SeatsReport(seats(2)))
    assert "CUDA has started on 1 of 2" in text(SeatsReport(some))


@pytest.mark.parametrize("kind", Misplaced)
def test_whatever_is_wrong_stands_first_with_what_to_type(kind):
    """The title names the ranks or versions, and a note has a next step."""
    finding = SeatFinding(kind, (1, 3), "GPU-x" if kind is Misplaced.ON_GPU_0 else "")
    drawing = draw(SeatsReport(seats(4), (finding,)))

    assert "each on a GPU of its own" not in drawing.title
    assert [bool(note.hint) for note in drawing.notes] == [True]


def test_who_shares_a_gpu_is_told_to_restart_only_where_cuda_has_started():
    """Before that, `select` alone is enough."""
    finding = SeatFinding(Misplaced.SHARED_GPU, (0, 1), seat(0).gpu)
    late = SeatsReport(seats(2), (finding,))
    early = SeatsReport(seats(2, confirmed=False), (finding,))

    assert "restart the engines, then `%gpu_ranks select`" in text(late)
    assert "restart" not in text(early)


# ------------------------------------------------------------------------------- times


def test_the_time_of_a_cell_is_answered_from_what_ranks_send():
    """Dictionaries in, one sentence out, and lanes, as one host has one clock."""
    own = {0: 205, 1: 206, 2: 207, 3: 322}
    sent = [done(rank, ms, slow_ms=322) for rank, ms in own.items()]

    drawing = draw(analysis.analyse(sent))

    assert drawing.title.startswith("330 ms; rank 3 took 1.56x the median")
    assert "the others waited 117 ms for it (35.5 %)" in drawing.title
    assert "when it worked, and when it waited" in drawing.parts[0].caption


def test_lanes_are_own_work_waits_and_moves_and_nothing_else():
    """Side by side they fill the time of each rank, once."""
    picture = draw(STRAGGLER).parts[0]
    of_name = {f"rank {each.name}": each for each in STRAGGLER.times}

    for lane in picture.lanes:
        each = of_name[lane.name]
        for kind, seconds in (
            ("own work", each.own_s),
            ("waits for others", each.waits_s),
            ("communication", each.moves_s),
        ):
            spans = [span for span in lane.spans if span.kind == kind]
            length_s = sum(span.end_s - span.start_s for span in spans)
            assert length_s == pytest.approx(seconds, abs=2e-3), (lane.name, kind)


def test_without_a_common_clock_there_are_bars():
    """Lanes that nobody could put together are not drawn side by side."""
    apart = replace(
        STRAGGLER, times=tuple(replace(each, began_s=None) for each in STRAGGLER.times)
    )

    assert "how it waited" in draw(apart).parts[0].caption


def test_what_all_ranks_have_is_not_why_one_is_slow():
    """Of its flags only those count that most others do not have."""
    told = text(REPORTS["times-flags"])

    assert "on rank 3 alone: something held the clock of the GPU down" in told
    assert "the profiler was running" not in told


def test_a_flag_that_a_newer_rank_sends_does_no_harm():
    """It stands in the table by its name, and is no reason."""
    times = tuple(replace(each, flags=("NEWER",)) for each in STRAGGLER.times)
    report = replace(STRAGGLER, times=times, differently=("NEWER",))

    assert "NEWER" not in text(report)
    assert "NEWER" in str(report.show("ranks"))


def test_who_did_not_finish_stands_first_and_the_rest_says_it_is_a_part():
    """Partial answers are labelled."""
    told = text(REPORTS["times-raised"])

    assert told.startswith("3 of 4 ranks finished; rank 2 raised ValueError: x")
    assert "(of those that finished)" in told


def test_after_a_dead_group_the_line_that_rebuilds_it():
    """Also where only the engine's death tells of it."""
    lone = RanksReport((), unfinished=(Unfinished(2, "died"),), ranks=4)

    assert "`%gpu_ranks group` begins it anew" in text(REPORTS["times-died"])
    assert "`%gpu_ranks group` begins it anew" in text(lone)


def test_outside_a_notebook_the_line_that_helps_there():
    """A job that a launcher has started has no magic to type."""
    died = Unfinished(1, "died", "it was killed")
    told = text(RanksReport((), unfinished=(died,), told_by="flight recorder"))

    assert "torchrun --max-restarts" in told
    assert "%gpu_ranks group" not in told


def test_each_of_many_failures_can_be_looked_up():
    """The first line names the gravest; all are folded."""
    shown = str(REPORTS["times-died"].show("unfinished"))

    assert "Connection closed by peer" in shown
    assert "its engine is gone" in shown


@pytest.mark.parametrize("name", ["times-1024", "memory-1024"])
def test_a_thousand_ranks_are_a_dozen_lines_and_a_picture(name):
    """All are in the distribution, and the odd one in words."""
    drawing = draw(REPORTS[name])
    beside = replace(drawing, parts=drawing.parts[1:])
    lines = [line for line in beside.text(88).splitlines() if line.strip()]

    assert len(drawing.parts[0].values) == 1024
    assert len(lines) <= 12


def test_what_analysis_makes_of_a_thousand_sums_is_drawn():
    """From what ranks send to one screen, whether one of them is odd or none."""
    times = {"waits_s": 0.1, "moves_s": 0.03, "blamed_s": 0.0, "elapsed_s": 0.4}

    def sums(rank, own_s):
        said = {"version": 1, "kind": "sums", "rank": rank, "own_s": own_s, "last": 0}
        return said | times

    alike = analysis.analyse([sums(rank, 0.25) for rank in range(1024)])
    odd = analysis.analyse([sums(r, 0.25 + 0.13 * (r == 9)) for r in range(1024)])

    assert "no rank stands out: own work took 250 ms" in draw(alike).title
    assert "rank 9 took 1.52x the median" in draw(odd).title
    assert len(draw(odd).text(80).splitlines()) <= 20


def test_of_very_many_whose_sums_are_not_there_only_the_odd_are_told():
    """No row claims to be about the others, and no share of waits is made up."""
    odd = replace(REPORTS["times-1024"], every=())

    assert "others" not in text(odd).replace("the others waited", "").replace(
        "Others waited", ""
    )


def test_who_has_no_gpu_is_not_sent_to_its_clock():
    """On a laptop a slow rank has a slow processor, or neighbours on it."""
    here = tuple(replace(each, gpu=None) for each in STRAGGLER.seats)
    report = replace(STRAGGLER, during=None, phases_told=True, seats=here)

    assert "nvidia-smi" not in text(report)
    assert "compare its CPU" in text(report)


def test_no_more_is_said_of_a_slow_rank_than_is_known():
    """What it does longer is known where parts are told apart, and how often it was."""
    again = replace(STRAGGLER, during=None)
    once = replace(again, matched=1, unmatched=0)
    times = tuple(replace(each, blamed_s=0.0) for each in again.times)
    unwaited = replace(again, times=times)
    in_script = replace(
        again, seats=tuple(replace(s, engine=None) for s in again.seats)
    )

    assert "rank 3 came late again and again" in text(again)
    assert "`%px %load_ext gpumagic` once" in text(again)
    assert "`watch(profile=True)`" in text(in_script)
    assert "late to the only collective" in text(once)
    assert "for its own work; nobody waited for it" in text(unwaited)
    assert "came late" not in text(unwaited)


def test_a_cell_that_is_known_in_part_says_of_how_much():
    """All else is a share of the time in front; what that is a part of follows."""
    report = replace(STRAGGLER, told_s=0.412, took_s=412.0)

    assert text(report).splitlines()[0].startswith("412 ms known of 6 min 52 s; ")


def test_two_ranks_that_did_nothing_together_are_told_so():
    """Nobody is slow where nobody waits."""
    alone = RanksReport(
        tuple(rank_time(name, 10.0, slow_ms=10.0, moves_ms=0.0) for name in (0, 1)),
        ranks=2,
    )

    assert "they did nothing together, so none waited" in text(alone)


def test_what_hosts_of_simulated_gpus_do_together_is_not_denied():
    """Collectives of CPU tensors leave no mark there, so nothing is said of them."""
    seats = tuple(seat(name, simulated=True) for name in (0, 1))
    alone = RanksReport(
        tuple(rank_time(name, 10.0, slow_ms=10.0, moves_ms=0.0) for name in (0, 1)),
        ranks=2,
        seats=seats,
    )

    assert "nothing together" not in text(alone)
    assert "their GPUs called no collective" in text(alone)


def test_who_only_sends_is_not_said_to_wait_for_nobody():
    """Where nothing tells of what two ranks send each other, that is said."""
    rows = tuple(rank_time(name, 10.0, slow_ms=10.0, moves_ms=0.0) for name in (0, 1))
    sent = RanksReport(rows, ranks=2, told_by="flight recorder")
    moved = RanksReport(tuple(replace(each, moves_s=0.01) for each in rows), ranks=2)

    for report in (sent, moved):
        assert "they called no collective, so nothing tells who waited" in text(report)
    assert "watch(profile=True)" in text(sent)
    assert "rank 1 took 9.00x as long" in text(
        replace(moved, slowest=1, ratio=9.0, matched=0)
    )


def test_memory_that_no_rank_tells_hides_no_times():
    """Who asked for memory where none is told sees the times, and why."""
    asked = replace(STRAGGLER, memory=(), with_memory=True)

    assert text(asked).startswith(text(STRAGGLER).split(";")[0])
    assert "none has used a GPU" in text(asked)


# ------------------------------------------------------------------------------ memory


def test_memory_is_the_sentence_of_the_one_that_runs_out_first():
    """The peak in the middle, the odd one, and how far it stays below its limit."""
    memory = tuple(
        RankMemory(name, None, None, (71 if name == 5 else 60) * GIB, 80 * GIB)
        for name in range(8)
    )
    report = RanksReport((), memory=memory, with_memory=True, ranks=8)
    told = text(replace(report, odd_in_memory=(5,), runs_out_first=5))

    assert told.startswith(
        "peak 60.0 GiB in the middle; rank 5 has 71.0 GiB, 9.00 GiB below its limit"
    )


def test_memory_that_nobody_knows_is_not_zero():
    """A rank that has used no GPU has no bar."""
    memory = (RankMemory(0, None, None, None, None),)
    drawing = draw(RanksReport((), memory=memory, with_memory=True, ranks=1))

    assert "no rank tells of memory" in drawing.title
    assert "0 B" not in drawing.whole().text()


# -------------------------------------------------------------------------------- how


@pytest.mark.parametrize(
    ("error_s", "told"),
    [(None, "its own"), (0.0, "one clock"), (12e-6, "to within 12.0 us")],
)
def test_how_good_the_clock_is_can_be_looked_up(error_s, told):
    """Lanes stand on it."""
    assert told in str(replace(STRAGGLER, clock_error_s=error_s).show("how"))


def test_beside_a_rank_stands_the_share_of_its_own_work():
    """Not how busy it was, which nobody knows of a rank."""
    html = draw(STRAGGLER).html()

    assert ">own work</th>" in html
    assert ">busy</th>" not in html
