"""Who is slow, who waits, who is missing: against schedules whose truth is known."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumagic.gpu_ranks import analysis
from gpumagic.gpu_ranks.answer_seats import Misplaced, seats_of
from gpumagic.gpu_ranks.answer_where import where_of
from gpumagic.gpu_ranks.answers import VERSION, read_answer
from gpumagic.report.events import length, merged, without

NS = 1_000_000_000
MS = 1_000_000


def analyse(answers):
    """The report of what ranks have sent."""
    return analysis.of_answers([read_answer(e, at) for at, e in enumerate(answers)])


def done(rank, rows, began_ns, ended_ns, **more):
    """What a rank says of a cell."""
    return {
        "version": VERSION,
        "kind": "done",
        "seat": {"rank": rank, "host": more.pop("host", "node0")},
        "elapsed_s": (ended_ns - began_ns) / NS,
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
            rows[rank].append(["0", number, "all_reduce", 8, *span])
        now = [end] * len(works_ns)
    return [
        done(
            rank,
            rows[rank],
            began[rank] + ahead[rank],
            now[rank] + works_ns[rank][-1] + ahead[rank],
            **{key: value[rank] for key, value in more.items()},
        )
        for rank in ranks
    ]


class Edgy(random.Random):
    """Numbers of which the ends of a range come often: what falls together is told.

    Hypothesis's own takes three times as long as what is tested with it.
    """

    def randint(self, first, last):
        """From the first to the last, and often one of these."""
        if self.random() < 0.15:
            return first if self.random() < 0.5 else last
        return super().randint(first, last)


RANDOM = st.integers(0, 2**32 - 1).map(Edgy)


@given(data=st.data(), ranks=st.integers(3, 8), collectives=st.integers(1, 12))
def test_own_work_waits_and_moves_add_up(data, ranks, collectives):
    """They are the wall time of each rank, and the planted straggler is named."""
    random_of = data.draw(RANDOM)
    works = [
        [random_of.randint(20 * MS, 22 * MS) for _ in range(collectives + 1)]
        for _ in range(ranks)
    ]
    slow = random_of.randrange(ranks)
    works[slow] = [3 * each for each in works[slow]]
    moves = [random_of.randint(MS, 9 * MS) for _ in range(collectives)]
    begins = [random_of.randint(NS, NS + 5 * MS) for _ in range(ranks)]

    report = analyse(played(works, moves, begins_ns=begins))

    assert report.slowest == slow
    assert report.matched == collectives
    for each in report.times:
        parts = each.own_s + each.waits_s + each.moves_s
        assert parts == pytest.approx(each.elapsed_s, abs=1e-9)
        assert each.own_s == pytest.approx(sum(works[each.name]) / NS, abs=1e-9)
        assert each.moves_s == pytest.approx(sum(moves) / NS, abs=1e-9)


def test_what_all_know_is_told_where_traces_were_cut():
    """Each knows some time of its own: what not all know is nobody's fault."""
    works = [[20 * MS] * 6, [50 * MS] * 6, [20 * MS] * 6]
    until = [NS + 130 * MS, NS + 300 * MS, NS + 180 * MS]  # after 2 of 5 collectives
    answers = played(works, [5 * MS] * 5, until_ns=until)
    for each in answers:
        kept = [row for row in each["collectives"] if row[5] <= each["until_ns"]]
        each["collectives"] = kept

    report = analyse(answers)

    assert (report.matched, report.unmatched, report.slowest) == (2, 0, 1)
    assert report.elapsed_s == pytest.approx(0.130)
    assert report.took_s == pytest.approx(0.325)
    for each in report.times:
        assert each.elapsed_s == pytest.approx(0.130)
        parts = each.own_s + each.waits_s + each.moves_s
        assert parts == pytest.approx(each.elapsed_s)
    # Cut in the midst of a collective, one has done no work that there is a ratio to.
    told = analyse(played([[NS, 0], [0, 0]], [MS])).headline
    assert "; rank 0 took longest for its own work; " in told


def crowd(random_of, ranks, collectives):
    """Ranks in groups of their own: what they say, and what they did in truth.

    Everybody is in the first group. Each rank works, comes to the next collective of
    its groups, waits there for the last one, and leaves with all others. What two ranks
    alone do tells nothing of waits: it is moving. Beside a collective ranks may work on
    at its beginning, in the middle, at its end, or all of that.
    """
    groups = {"0": list(range(ranks))}
    for name in ("1", "2", "3"):
        groups[name] = sorted(random_of.sample(range(ranks), random_of.randint(2, 3)))
    ahead = [random_of.randint(0, 3) * NS for _ in range(ranks)]
    began = [random_of.randint(NS, NS + 5 * MS) for _ in range(ranks)]
    now, rows = list(began), [[] for _ in range(ranks)]
    slow = random_of.randrange(ranks)
    truth = [dict.fromkeys(("own", "waits", "moves", "blamed"), 0) for _ in now]
    numbers, waited_for = Counter(), [[] for _ in range(ranks)]
    for _ in range(collectives):
        group = random_of.choice(list(groups))
        kind = random_of.choice(["all_reduce", "broadcast"])
        works = {
            rank: random_of.randint(20 * MS, 22 * MS) * (3 if rank == slow else 1)
            for rank in groups[group]
        }
        came = {rank: now[rank] + work for rank, work in works.items()}
        moves, waits = random_of.randint(MS, 9 * MS), {}
        left = max(came.values()) + moves
        for rank, at in came.items():
            beside = worked_on(random_of, at, left)
            span = at + ahead[rank], left + ahead[rank], ""
            spans = [end - at for each in beside for end in each]
            rows[rank].append([group, numbers[group], kind, 8, *span, spans])
            waits[rank] = without([(at, max(came.values()))], beside)
            moved = without([(max(came.values()), left)], beside)
            truth[rank]["own"] += works[rank] + length(beside)
            truth[rank]["waits"] += length(waits[rank])
            truth[rank]["moves"] += length(moved)
            now[rank] = left
        if len(set(came.values())) > 1:
            last = max(came, key=lambda rank: (came[rank], -rank))
            of_whom = max(sorted(waits), key=lambda rank: length(waits[rank]))
            waited_for[last] += waits[of_whom]
        numbers[group] += 1
    said = []
    for rank in range(ranks):
        rest = 20 * MS * (3 if rank == slow else 1)
        truth[rank]["own"] += rest
        # Two groups may wait for one rank at the same time.
        truth[rank]["blamed"] = length(merged(waited_for[rank]))
        ended = now[rank] + rest + ahead[rank]
        said.append(done(rank, rows[rank], began[rank] + ahead[rank], ended))
    return said, truth


def worked_on(random_of, came, left):
    """When a rank works on something else in a collective: now and then, anywhere."""
    pieces = random_of.choice([0, 0, 1, 1, 2, 5])
    ends = sorted(random_of.sample(range(came, left + 1), 2 * pieces))
    return list(zip(ends[::2], ends[1::2], strict=True))


@given(
    random_of=RANDOM,
    ranks=st.integers(3, 7),
    collectives=st.integers(1, 25),
)
def test_groups_within_the_group(random_of, ranks, collectives):
    """Own work, waits, moves and blame are the truth, and add up to each one's time."""
    said, truth = crowd(random_of, ranks, collectives)

    for each in analyse(said).times:
        for what, true_ns in truth[each.name].items():
            assert getattr(each, f"{what}_s") * NS == pytest.approx(true_ns, abs=1)
        parts = each.own_s + each.waits_s + each.moves_s
        assert parts == pytest.approx(each.elapsed_s, abs=1e-9)


def test_a_clock_three_seconds_ahead():
    """Clocks of two hosts are put together by what ended at once on both."""
    random_of = random.Random(1)  # noqa: S311
    works = [[random_of.randint(MS, 9 * MS) for _ in range(21)] for _ in range(4)]
    begins = [NS, NS + 2 * MS, NS + 4 * MS, NS + 6 * MS]
    hosts = ["a", "a", "b", "b"]
    ahead = [0, 0, 3 * NS, 3 * NS]

    said = played(works, [MS] * 20, begins_ns=begins, ahead_ns=ahead, host=hosts)
    read = {at: read_answer(each, at) for at, each in enumerate(said)}
    offsets = analysis._offsets(read)

    assert [offsets[at].ns for at in range(4)] == pytest.approx(
        [0, 0, -3 * NS, -3 * NS], abs=1_000
    )
    assert max(each.error_ns for each in offsets.values()) < MS


def test_more_is_needed_where_nobody_waited():
    """What has cost the others nothing is told where it is no noise."""
    found = []
    for longer_ns, place in ((20, 0), (20, 1), (80, 1)):
        works = [[10 * MS] * 2 for _ in range(3)]
        works[2][place] += longer_ns * MS
        found.append(analyse(played(works, [MS])))

    assert [each.slowest for each in found] == [2, None, 2]
    assert [bool(each.times[2].blamed_s) for each in found] == [True, False, False]


def test_memory_first_to_run_out_and_odd_one():
    """The first to run out is nearest to its own limit; the odd one is another."""
    peaks = [10, 10, 10, 10, 19, 10]
    limits = [80, 80, 12, 80, 80, 80]
    memory = [
        {"peak_bytes": peak << 30, "limit_bytes": limit << 30}
        for peak, limit in zip(peaks, limits, strict=True)
    ]

    report = analyse(played([[MS]] * 6, [], memory=memory))

    assert report.runs_out_first == 2
    assert report.odd_in_memory == (4,)


def test_who_raised_first_is_told_from_those_that_lost_it():
    """One raises, the others' backend fails then: it is the one that is named."""
    errors = [
        "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer",
        "RuntimeError: Timed out waiting 1800000ms for recv operation to complete",
        "ValueError: no such batch",
        "TypeError: later",
    ]
    line = {"where": "train.py, line 31", "source": "raise ValueError(name)"}
    answers = [
        done(rank, [], NS, NS + at, error=error, error_line=line)
        for rank, (error, at) in enumerate(zip(errors, (8, 9, 3, 4), strict=True))
    ]
    report = analyse(answers)

    whys = {each.name: each.why for each in report.unfinished}
    assert whys == {0: "lost", 1: "lost", 2: "raised", 3: "raised"}
    told = str(report)
    assert told.startswith(
        "none of 4 ranks finished; rank 2 raised ValueError: no such"
    )
    assert "(train.py, line 31)" in " ".join(told.split())
    assert "2 others lost it" in " ".join(told.split())
    # If all say that another is gone, each has raised what it says.
    unknown = analyse(answers[:2]).unfinished
    assert [each.why for each in unknown] == ["raised"] * 2


def test_two_that_call_themselves_the_same():
    """The first is believed; of the other it is said."""
    answers = played([[MS], [MS]], [])
    answers[1]["seat"]["rank"] = 0

    report = analyse(answers)

    assert [each.name for each in report.times] == [0]
    assert report.unfinished[0].why == "garbage"


# --------------------------------------------------------------------------- scale


def test_a_thousand_ranks():
    """Four times as many ranks take about four times as long; few are told singly."""
    random_of = random.Random(2)  # noqa: S311
    works = [[random_of.randint(MS, 2 * MS) for _ in range(31)] for _ in range(1024)]
    works[200] = [2 * each for each in works[200]]
    answers = played(works, [MS] * 30)
    took_s = {}
    for ranks in (256, 1024):
        began_s = time.process_time()
        report = analyse(answers[:ranks])
        took_s[ranks] = time.process_time() - began_s
        assert report.ranks == ranks
        assert report.slowest == 200

    assert took_s[1024] <= 10 * took_s[256]


# ------------------------------------------------------------------ who is missing


def where(answers):
    """Who is missing, of what ranks have said."""
    return where_of([read_answer(said, at) for at, said in enumerate(answers)])


def alive(rank, *, open_=None, last=None, **more):
    """What a rank says while it runs: numbers of its collectives."""
    flight = {
        "under_way": [] if open_ is None else [["0", *open_]],
        "last": [] if last is None else [["0", last, "", ""]],
    }
    said = {"version": VERSION, "kind": "alive", "rank": rank}
    return said | {"flight": flight} | more


REDUCE = (5, "all_reduce", "[[8]]")


def test_who_has_not_called():
    """Who is behind, has ended or does not answer is missing, with its line."""
    line = {"where": "line 3", "source": "time.sleep(12)"}
    (waiting,) = where(
        [
            alive(0, open_=REDUCE, last=5, stuck_s=12.0),
            alive(1, last=4, line=line),
            alive(2, open_=REDUCE, last=5, stuck_s=11.0),
            done(3, [], 0, 1, flight={"under_way": [], "last": [["0", 4, "", ""]]}),
            {"version": VERSION, "kind": "song", "rank": 4},
        ]
    ).waiting

    assert (waiting.collective, waiting.number) == ("all_reduce", 5)
    assert (waiting.waiting, waiting.missing) == ((0, 2), (1, 3, 4))
    assert waiting.waited_s == 12
    lines = dict(waiting.lines)
    assert lines[1].source == "time.sleep(12)"
    assert lines[3].where == "the end of the cell"


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

    (waiting,) = where([*ranks, alive(2, open_=other, last=5)]).waiting

    assert waiting.mismatch == says
    assert not waiting.missing


def test_who_waits_for_one_other_is_told_by_its_function():
    """A rank in recv is in no collective of all; without a recorder that is said."""
    answers = [alive(0, last=7), *(alive(rank, inside="recv") for rank in (1, 2))]

    assert str(where(answers)).startswith("no collective is open: 2 in recv, 1 at work")
    unrecorded = [each | {"flight": None} for each in answers]
    assert str(where(unrecorded)).startswith("no flight recorder here: 2 in recv")


def test_on_a_gpu_the_first_open_one_counts():
    """Hosts run ahead of devices: what is stuck is the first that has not ended."""
    ahead = alive(0, open_=(3, "all_reduce", ""), last=9)

    (waiting,) = where([ahead, alive(1, last=2)]).waiting

    assert (waiting.number, waiting.missing) == (3, (1,))


# ------------------------------------------------------------------ who sits where


def seat(rank, **more):
    """Where a rank sits."""
    said = {"version": VERSION, "kind": "seat", "rank": rank, "host": "a", "pid": rank}
    return read_answer(said | more, rank)


def test_what_is_wrong_with_seats():
    """Two on one GPU, everybody on GPU 0, none: each is found."""
    kinds = [
        {each.kind for each in seats_of(seats).findings}
        for seats in (
            [seat(0, gpu="G0"), seat(1, gpu="G0")],
            [seat(0, gpu="G0"), seat(1, gpu="G1", also_on=["G0"])],
            [seat(0, gpu="G0"), seat(1)],
            [seat(0, gpu="G0"), seat(1, gpu="G0", host="b")],
        )
    ]

    assert kinds == [
        {Misplaced.SHARED_GPU},
        {Misplaced.ON_GPU_0},
        {Misplaced.NO_GPU},
        set(),
    ]
