"""Who is slow, who waits, who is missing: against schedules whose truth is known."""

from __future__ import annotations

import json
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumagic.gpu_ranks import analysis, scale
from gpumagic.gpu_ranks.records import Misplaced

NS = 1_000_000_000
MS = 1_000_000


def done(rank, rows, began_ns, ended_ns, **more):
    """What a rank says of a cell."""
    host = more.pop("host", "node0")
    return {
        "version": 1,
        "kind": "done",
        "seat": {"version": 1, "kind": "seat", "rank": rank, "host": host, "pid": rank},
        "elapsed_s": (ended_ns - began_ns) / NS,
        "clock": "host",
        "began_ns": began_ns,
        "ended_ns": ended_ns,
        "collectives": rows,
        **more,
    }


def played(works_ns, moves_ns, *, begins_ns=None, ahead_ns=None, **more):
    """Play a schedule: each works, then all meet, data moves, and all leave at once.

    Args:
        works_ns: For each rank its own work before each collective, and after the last.

        moves_ns: How long data moves in each.

        begins_ns: When each begins.

        ahead_ns: How far each clock is ahead.

        more: What each says beside it, a list for each key.
    """
    ranks = range(len(works_ns))
    now = list(begins_ns or [NS] * len(works_ns))
    ahead = ahead_ns or [0] * len(works_ns)
    began, rows = list(now), [[] for _ in ranks]
    for number, moves in enumerate(moves_ns):
        came = [now[rank] + works_ns[rank][number] for rank in ranks]
        end = max(came) + moves
        for rank in ranks:
            span = came[rank] + ahead[rank], end + ahead[rank]
            rows[rank].append(["0", number, "all_reduce", 8, *span, ""])
        now = [end] * len(works_ns)
    ends = [now[rank] + works_ns[rank][-1] for rank in ranks]
    return [
        done(
            rank,
            rows[rank],
            began[rank] + ahead[rank],
            ends[rank] + ahead[rank],
            **{key: value[rank] for key, value in more.items()},
        )
        for rank in ranks
    ]


@given(data=st.data(), ranks=st.integers(3, 8), collectives=st.integers(1, 12))
def test_own_work_waits_and_moves_add_up(data, ranks, collectives):
    """They are the wall time of each rank, and the planted straggler is named."""
    random_of = data.draw(st.randoms(use_true_random=False))
    works = [
        [random_of.randint(20 * MS, 22 * MS) for _ in range(collectives + 1)]
        for _ in range(ranks)
    ]
    slow = random_of.randrange(ranks)
    works[slow] = [3 * each for each in works[slow]]
    moves = [random_of.randint(MS, 9 * MS) for _ in range(collectives)]
    begins = [random_of.randint(NS, NS + 5 * MS) for _ in range(ranks)]

    report = analysis.analyse(played(works, moves, begins_ns=begins))

    assert report.slowest == slow
    assert report.matched == collectives
    for each in report.times:
        parts = each.own_s + each.waits_s + each.moves_s
        assert parts == pytest.approx(each.elapsed_s, abs=1e-9)
        assert each.own_s == pytest.approx(sum(works[each.name]) / NS, abs=1e-9)
        assert each.moves_s == pytest.approx(sum(moves) / NS, abs=1e-9)


@given(random_of=st.randoms(use_true_random=False))
def test_sums_tell_the_same(random_of):
    """With the least and the most of each collective, a rank alone finds its shares."""
    works = [[random_of.randint(MS, 9 * MS) for _ in range(6)] for _ in range(4)]
    answers = played(works, [MS] * 5)
    took = [scale.durations(each) for each in answers]
    least = [min(each) for each in zip(*took, strict=True)]
    most = [max(each) for each in zip(*took, strict=True)]

    of_sums = [scale.sums_of(each, least, most) for each in answers]

    for said, each in zip(of_sums, analysis.analyse(answers).times, strict=True):
        for what in ("own_s", "waits_s", "moves_s", "elapsed_s"):
            assert said[what] == pytest.approx(getattr(each, what), abs=1e-9)
        assert said["last"] == each.last
        assert len(json.dumps(said)) <= 1000


def test_a_clock_three_seconds_ahead():
    """Clocks of two hosts are put together by what ended at once on both."""
    random_of = random.Random(1)  # noqa: S311
    works = [[random_of.randint(MS, 9 * MS) for _ in range(21)] for _ in range(4)]
    begins = [NS, NS + 2 * MS, NS + 4 * MS, NS + 6 * MS]
    hosts = ["a", "a", "b", "b"]
    ahead = [0, 0, 3 * NS, 3 * NS]

    report = analysis.analyse(
        played(works, [MS] * 20, begins_ns=begins, ahead_ns=ahead, host=hosts)
    )

    assert [each.began_s for each in report.times] == pytest.approx(
        [0, 0.002, 0.004, 0.006], abs=1e-6
    )
    assert report.clock_error_s < 1e-3


def test_what_the_slow_rank_did_differently():
    """It is what its own timing found, and that of most others did not."""
    works = [[20 * MS] * 3, [20 * MS] * 3, [60 * MS] * 3]
    flags = [["SYNCS"], ["SYNCS"], ["SYNCS", "THROTTLED"]]

    assert analysis.analyse(played(works, [MS] * 2, flags=flags)).differently == (
        "THROTTLED",
    )


def test_noise_of_an_empty_cell_blames_nobody():
    """Of milliseconds nobody is called slow, however many times as long it is."""
    works = [[40_000], [30_000], [3 * MS]]

    assert analysis.analyse(played(works, [])).slowest is None


def test_memory_first_to_run_out_and_odd_one():
    """The first to run out is nearest to its own limit; the odd one is another."""
    peaks = [10, 10, 10, 10, 19, 10]
    limits = [80, 80, 12, 80, 80, 80]
    memory = [
        {"peak_bytes": peak << 30, "limit_bytes": limit << 30}
        for peak, limit in zip(peaks, limits, strict=True)
    ]

    report = analysis.analyse(played([[MS]] * 6, [], memory=memory))

    assert report.runs_out_first == 2
    assert report.odd_in_memory == (4,)


def test_two_that_call_themselves_the_same():
    """The first is believed; of the other it is said."""
    answers = played([[MS], [MS]], [])
    answers[1]["seat"]["rank"] = 0

    report = analysis.analyse(answers)

    assert [each.name for each in report.times] == [0]
    assert report.unfinished[0].why == "garbage"


# --------------------------------------------------------------------------- scale


def test_a_thousand_ranks():
    """Four times as many ranks take about four times as long; few are told singly."""
    random_of = random.Random(2)  # noqa: S311
    works = [[random_of.randint(MS, 2 * MS) for _ in range(91)] for _ in range(1024)]
    works[200] = [2 * each for each in works[200]]
    answers = played(works, [MS] * 90)
    took_s = {}
    for ranks in (256, 1024):
        began_s = time.process_time()
        report = analysis.analyse(answers[:ranks])
        took_s[ranks] = time.process_time() - began_s
        assert report.ranks == ranks
        assert [each.name for each in report.times] == [200]

    assert took_s[1024] <= 10 * took_s[256]


def test_a_thousand_sums():
    """Of sums alone the slow rank is named, and few ranks are told one by one."""
    random_of = random.Random(3)  # noqa: S311
    times = ("elapsed_s", "own_s", "waits_s", "moves_s", "blamed_s")
    sums = [
        {"version": 1, "kind": "sums", "rank": rank, **dict.fromkeys(times, 0.1)}
        for rank in range(1024)
    ]
    for each in sums:
        each["own_s"] = 0.1 + random_of.random() / 1000
    sums[33]["own_s"] = 0.3

    report = analysis.analyse(sums)

    assert report.bucketed
    assert report.slowest == 33
    assert 33 in [each.name for each in report.times]
    assert len(report.times) <= 65


# ------------------------------------------------------------------ who is missing


def alive(rank, *, open_=None, last=None, **more):
    """What a rank says while it runs: numbers of its collectives."""
    flight = {
        "under_way": [] if open_ is None else [["0", *open_]],
        "last": [] if last is None else [["0", last, "", ""]],
    }
    said = {"version": 1, "kind": "alive", "rank": rank, "since_s": 9.0}
    return said | {"flight": flight} | more


REDUCE = (5, "all_reduce", "[[8]]")


def test_who_has_not_called():
    """Who is behind the others is missing, with its line."""
    line = {"where": "In [3], line 3", "source": "time.sleep(12)"}
    report = analysis.where(
        [
            alive(0, open_=REDUCE, last=5, stuck_s=12.0),
            alive(1, last=4, line=line),
            alive(2, open_=REDUCE, last=5, stuck_s=11.0),
        ]
    )

    (waiting,) = report.waiting
    assert (waiting.collective, waiting.number) == ("all_reduce", 5)
    assert (waiting.waiting, waiting.missing) == ((0, 2), (1,))
    assert waiting.waited_s == 12
    assert waiting.lines[0][1].source == "time.sleep(12)"


def test_who_has_never_called_anything():
    """A rank that is not in the recorder at all is missing too."""
    (waiting,) = analysis.where([alive(0, open_=REDUCE, last=5), alive(1)]).waiting

    assert waiting.missing == (1,)


def test_who_has_ended_or_died():
    """So are those that wait for nobody any more."""
    ended = done(1, [], 0, 1, flight={"under_way": [], "last": [["0", 4, "", ""]]})
    dead = {"version": 1, "kind": "song", "rank": 2}

    report = analysis.where([alive(0, open_=REDUCE, last=5), ended, dead])

    assert report.waiting[0].missing == (1, 2)
    assert dict(report.waiting[0].lines)[1].where == "the end of the cell"


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ((5, "broadcast", "[[8]]"), "rank 2 calls broadcast, the others all_reduce"),
        ((5, "all_reduce", "[[9]]"), "rank 2 sends [[9]], the others [[8]]"),
    ],
)
def test_calls_that_do_not_fit(other, says):
    """Another operation or size under the same number is told, though nobody misses."""
    ranks = [alive(0, open_=REDUCE, last=5), alive(1, open_=REDUCE, last=5)]

    (waiting,) = analysis.where([*ranks, alive(2, open_=other, last=5)]).waiting

    assert waiting.mismatch == says
    assert not waiting.missing


def test_nobody_waits():
    """Ranks that are at different places and in no collective do not wait."""
    assert not analysis.where([alive(0, last=7), alive(1, last=4)]).waiting


def test_on_a_gpu_the_first_open_one_counts():
    """Hosts run ahead of devices: what is stuck is the first that has not ended."""
    ahead = alive(0, open_=(3, "all_reduce", ""), last=9)

    (waiting,) = analysis.where([ahead, alive(1, last=2)]).waiting

    assert (waiting.number, waiting.missing) == (3, (1,))


# ------------------------------------------------------------------ who sits where


def seat(rank, **more):
    """Where a rank sits."""
    gpu = more.pop("gpu", None)
    told = {"uuid": gpu, "number": 0, "confirmed": True} if gpu else None
    said = {"version": 1, "kind": "seat", "rank": rank, "host": "a", "pid": rank}
    return said | {"gpu": told} | more


def test_what_is_wrong_with_seats():
    """Two on one GPU, everybody on GPU 0, drivers, torches, network: each is found."""
    kinds = [
        {each.kind for each in analysis.seats(seats).findings}
        for seats in (
            [seat(0, gpu="G0"), seat(1, gpu="G0")],
            [seat(0, gpu="G0"), seat(1, gpu="G1", also_on=["G0"])],
            [seat(0, driver="1"), seat(1, driver="2")],
            [seat(0, torch="2.4"), seat(1, torch="2.5")],
            [seat(0, gpu="G0", network_far=True), seat(1, gpu="G1")],
            [seat(0, gpu="G0"), seat(1)],
            [seat(0, gpu="G0"), seat(1, gpu="G0", host="b")],
        )
    ]

    assert kinds == [
        {Misplaced.SHARED_GPU},
        {Misplaced.ON_GPU_0},
        {Misplaced.DRIVERS},
        {Misplaced.TORCHES},
        {Misplaced.FAR_NETWORK},
        {Misplaced.NO_GPU},
        set(),
    ]
