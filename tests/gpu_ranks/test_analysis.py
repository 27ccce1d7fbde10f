"""Who is slow, who waits, who is missing: against schedules whose truth is known."""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumagic.gpu_ranks import analysis, reducing, scale
from gpumagic.gpu_ranks import answers as answers_of_ranks
from gpumagic.gpu_ranks.records import Misplaced, Unfinished
from gpumagic.gpu_ranks.view import draw
from gpumagic.report.events import length, merged, without

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


def played(works_ns, moves_ns, *, begins_ns=None, ahead_ns=None, beside=None, **more):
    """Play a schedule: each works, then all meet, data moves, and all leave at once.

    Args:
        works_ns: For each rank its own work before each collective, and after the last.

        moves_ns: How long data moves in each.

        begins_ns: When each begins.

        ahead_ns: How far each clock is ahead.

        beside: Called with the beginning and the end of each rank in each collective;
            says when it works on something else meanwhile.

        more: What each says beside it, a list for each key.
    """
    ranks = range(len(works_ns))
    now = list(begins_ns or [NS] * len(works_ns))
    ahead = ahead_ns or [0] * len(works_ns)
    began, rows = list(now), [[] for _ in ranks]
    works_on = [[] for _ in ranks]
    for number, moves in enumerate(moves_ns):
        came = [now[rank] + works_ns[rank][number] for rank in ranks]
        end = max(came) + moves
        for rank in ranks:
            span = came[rank] + ahead[rank], end + ahead[rank]
            its = beside(came[rank], end) if beside else ()
            rows[rank].append(["0", number, "all_reduce", 8, *span, "", length(its)])
            works_on[rank].append(
                [number, *(at - came[rank] for each in its for at in each)]
            )
        now = [end] * len(works_ns)
    ends = [now[rank] + works_ns[rank][-1] for rank in ranks]
    return [
        done(
            rank,
            rows[rank],
            began[rank] + ahead[rank],
            ends[rank] + ahead[rank],
            **({"beside": works_on[rank]} if beside else {}),
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

    report = analysis.analyse(played(works, moves, begins_ns=begins))

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

    report = analysis.analyse(answers)

    assert (report.matched, report.unmatched, report.slowest) == (2, 0, 1)
    assert report.told_s == pytest.approx(0.130)
    assert report.took_s == pytest.approx(0.325)
    for each in report.times:
        assert each.elapsed_s == pytest.approx(0.130)
        parts = each.own_s + each.waits_s + each.moves_s
        assert parts == pytest.approx(each.elapsed_s)


@pytest.mark.parametrize("place", ["beginning", "middle", "end", "pieces"])
@pytest.mark.parametrize("above_the_limit", [False, True])
def test_work_beside_a_collective_hides_no_straggler(place, above_the_limit):
    """Wherever it was, waits are those before the last one came and nothing else ran.

    It is the transfer that a rank computes beside, where it is at the end.
    """
    random_of = random.Random(5)  # noqa: S311
    works = [[random_of.randint(20 * MS, 22 * MS) for _ in range(9)] for _ in range(4)]
    works[2] = [each + 60 * MS for each in works[2]]
    moves = [8 * MS] * 8

    def beside(came, end):
        if place == "end":
            return [(end - 7 * MS, end)]
        if place == "pieces":
            at = [came, (came + end) // 2, end - 2 * MS]
            return [(each, each + 2 * MS) for each in at]
        took, at = 7 * MS, came if place == "beginning" else came + 1
        return [(at, min(at + took, end))]

    said = played(works, moves, beside=beside)
    report = analysis.analyse(summed(said) if above_the_limit else said)
    found = {each.name: each for each in report.every or report.times}
    waited = [0] * 4
    for number in range(8):
        came = [each["collectives"][number][4] for each in said]
        for rank, at in enumerate(came):
            end = said[rank]["collectives"][number][5]
            waited[rank] += length(without([(at, max(came))], beside(at, end)))

    assert report.slowest == 2
    assert report.waits_more_s == 0
    for rank, each in found.items():
        assert each.waits_s == pytest.approx(waited[rank] / NS, abs=1e-9)
        parts = each.own_s + each.waits_s + each.moves_s
        assert parts == pytest.approx(each.elapsed_s, abs=1e-9)
    assert found[2].blamed_s >= (0.4 if place == "end" else 0.3)


def summed(answers):
    """What goes out of each rank once its figures have been compared with the others'.

    The least over all ranks is what a reduction among them gives. Each begins again
    with every reduction that is known, until it asks for one that is not.
    """
    checked = [answers_of_ranks.read(each, at) for at, each in enumerate(answers)]
    where = scale.layout(map(scale.extents, checked))
    known = []
    while True:
        found = [_compared(done, where, known) for done in checked]
        if all(isinstance(each, scale.Compared) for each in found):
            return [
                scale.sums_of(said, done, its, where)
                for said, done, its in zip(answers, checked, found, strict=True)
            ]
        known.append([min(each) for each in zip(*found, strict=True)])


class _Asks(Exception):
    """A rank wants the least of this row."""


def _compared(done, where, known):
    """What came of comparing, or the row that comes next."""
    left = iter(known)

    def least_of(row):
        least = next(left, None)
        if least is None and row:
            raise _Asks(row)
        return least or []

    try:
        return scale.compared(done, where, least_of)
    except _Asks as asks:
        return asks.args[0]


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
    works_on = [[] for _ in range(ranks)]
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
            span = at + ahead[rank], left + ahead[rank], "", length(beside)
            works_on[rank].append(
                [len(rows[rank]), *(end - at for each in beside for end in each)]
            )
            rows[rank].append([group, numbers[group], kind, 8, *span])
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
        more = {"beside": [each for each in works_on[rank] if len(each) > 1]}
        said.append(done(rank, rows[rank], began[rank] + ahead[rank], ended, **more))
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
    """Own work, waits, moves and blame are the truth, by all that was done and by sums.

    They add up to the time of each rank.
    """
    said, truth = crowd(random_of, ranks, collectives)
    whole = analysis.analyse(said)
    of_sums = analysis.analyse(json.loads(json.dumps(summed(said))))

    for report in (whole, of_sums):
        for each in report.every or report.times:
            for what, true_ns in truth[each.name].items():
                assert getattr(each, f"{what}_s") * NS == pytest.approx(true_ns, abs=1)
            parts = each.own_s + each.waits_s + each.moves_s
            assert parts == pytest.approx(each.elapsed_s, abs=1e-9)
    assert (of_sums.matched, of_sums.unmatched) == (whole.matched, whole.unmatched)
    assert of_sums.slowest == whole.slowest
    assert of_sums.collectives == whole.collectives


@given(random_of=RANDOM)
def test_overlapping_sums_tell_the_same(random_of):
    """Collectives beside work and beside each other, missing and misnamed ones too.

    So do those of a group that one rank alone is in.
    """
    said = []
    for rank in range(4):
        rows, beside = [], []
        for number in range(6):
            came = NS + number * 10 * MS + random_of.randint(0, 9 * MS)
            ended = NS + (number + 2) * 10 * MS
            its = worked_on(random_of, came, ended)
            name = random_of.choice(["all_reduce"] * 9 + ["broadcast"])
            group = random_of.choice(["0"] * 9 + [f"alone {rank}"])
            row = [group, number, name, None, came, ended, "", length(its)]
            for _ in range(random_of.choice([1] * 9 + [0, 2])):
                if random_of.random() < 0.8:  # else nothing but its length is known
                    ends = (end - came for each in its for end in each)
                    beside += [[len(rows), *ends]]
                rows.append(row)
        said.append(done(rank, rows, NS, NS + 100 * MS, beside=beside))
    whole = analysis.analyse(said)
    of_sums = analysis.analyse(summed(said))

    assert (of_sums.matched, of_sums.unmatched) == (whole.matched, whole.unmatched)
    assert of_sums.waits_more_s == pytest.approx(whole.waits_more_s, abs=1e-9)
    for one, other in zip(whole.times, of_sums.every, strict=True):
        for what in ("own_s", "waits_s", "moves_s", "blamed_s", "last"):
            assert getattr(one, what) == pytest.approx(getattr(other, what), abs=1e-9)


@given(random_of=RANDOM, ranks=st.integers(3, 7))
def test_of_too_many_pieces_the_longest_are_told(random_of, ranks):
    """Blame is told at least then; all else stays what it is."""
    said, _ = crowd(random_of, ranks, 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scale, "_MOST_ENDS", 30)
        few = analysis.analyse(summed(said)).every
    every = analysis.analyse(summed(said)).every

    for least, exact in zip(few, every, strict=True):
        assert least.blamed_s <= exact.blamed_s
        assert replace(least, blamed_s=exact.blamed_s) == exact
        assert exact.blamed_s == 0 or least.blamed_s > 0


class Store:
    """What ranks write down for each other."""

    def __init__(self):
        self.values = {}

    def set(self, key, value):
        """Write it."""
        self.values[key] = value.encode()

    def get(self, key):
        """Read it."""
        return self.values[key]

    def add(self, key, more):
        """Count."""
        count = int(self.values.get(key, 0)) + more
        self.values[key] = count
        return count

    def check(self, keys):
        """Whether all are there."""
        return all(key in self.values for key in keys)

    def compare_set(self, key, _, value):
        """Write it, unless something is there."""
        self.values.setdefault(key, value.encode())

    def delete_key(self, key):
        """Forget it."""
        del self.values[key]


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_compare_other_figures_send_all(rank):
    """Of two versions nothing is compared, whichever of them rank 0 has."""
    store = Store()
    if rank == 0:
        store.set("ready/1", json.dumps({"beside": "", "extents": {"0": [0, 3]}}))
        store.add("ready", 1)
    else:
        store.set("plan", json.dumps({"groups": {"0": [0, 0, 4]}, "beside": ""}))
    ranks = SimpleNamespace(rank=rank, size=2, store=store, clocks=(), beside="")

    said = done(rank, [], NS, 2 * NS)
    assert reducing.summed(said, ranks, reducing.Others(5.0)) is None


def test_what_was_done_together_by_name():
    """How often, how much, how long waited and moved, and who came last most often."""
    works = [[20 * MS] * 4, [20 * MS] * 4, [50 * MS] * 4]
    said = played(works, [MS] * 3)
    for each in said:
        each["collectives"][2][2:4] = "barrier", None

    reduces, barriers = analysis.analyse(said).collectives

    assert (reduces.name, reduces.count, reduces.nbytes) == ("all_reduce", 2, 16)
    assert reduces.waits_s == pytest.approx((0.0, 0.06))
    assert reduces.moves_s == pytest.approx((0.002, 0.002))
    assert (barriers.name, barriers.nbytes, barriers.last) == ("barrier", None, 2)


def test_nobody_waits_where_a_store_cannot_settle_it():
    """A store without a way to say what all do ends the waiting, and all is sent."""
    asked = iter((True,))

    def compare_set(*_):
        raise NotImplementedError

    store = SimpleNamespace(
        set=lambda *_: None,
        add=lambda *_: 1,
        check=lambda _: False,
        compare_set=compare_set,
    )
    ranks = SimpleNamespace(rank=1, size=100, store=store, clocks=(), beside="")
    others = reducing.Others(60.0, lambda: next(asked))

    with pytest.raises(NotImplementedError):
        reducing.summed(done(1, [], NS, 2 * NS), ranks, others)


def test_ctrl_c_leaves_no_group_that_others_are_elsewhere_in(monkeypatch):
    """Who was interrupted among reductions makes a new group with all others."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(reducing, "_of_engine", [object()])
    monkeypatch.setattr(reducing, "summed", interrupted)
    job = SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda: 100)
    monkeypatch.setitem(sys.modules, "torch.distributed", job)

    assert reducing.summed_on_engine({}, "cell 1", None) is None
    assert reducing._of_engine == []


def test_sums_tell_as_much_of_memory_as_an_answer():
    """What is shown of few ranks is known of many."""
    memory = {
        "allocated_bytes": 1,
        "reserved_bytes": 2,
        "peak_bytes": 3,
        "limit_bytes": 4,
        "ooms": 5,
    }
    whole = [done(rank, [], NS, 2 * NS, memory=memory) for rank in range(2)]

    told = [analysis.analyse(each).memory for each in (whole, summed(whole))]
    assert told[0] == told[1]


def test_a_rank_that_missed_the_comparison_is_named():
    """It finished, and its times are not among the others': that is said."""
    whole = [done(rank, [], NS, 2 * NS) for rank in range(4)]

    report = analysis.analyse([*summed(whole[:3]), whole[3]])

    assert (report.left_out, report.unfinished) == ((3,), ())
    assert "rank 3 missed the comparison" in str(report)


def test_more_odd_ones_are_not_the_others():
    """Of very many ranks those are told that are odd, and not called all others."""
    gib = 1 << 30
    said = [
        done(
            rank, [], NS, 2 * NS, memory={"peak_bytes": (60 if rank < 9 else 10) * gib}
        )
        for rank in range(100)
    ]
    told = str(analysis.analyse(summed(said), with_memory=True))
    assert "6 more odd ones" in told
    assert "6 others" not in told


def test_a_sum_fits_into_a_kilobyte():
    """However much a rank has to say: what can be missed is left out, sums never."""
    rows = [
        [str(at % 3), at, f"collective_of_kind_{at}", 1 << 40, NS + at, 2 * NS, ""]
        for at in range(40)
    ]
    seat = {"rank": 1, "host": "h" * 200, "pid": 1, "gpu": {"uuid": "G" * 200}}
    more = {"phases": {"p" * 30: 0.1}, "flags": ["F" * 30] * 20}
    said = [done(0, rows, NS, 3 * NS), done(1, rows, NS, 3 * NS, **more)]
    said[1]["seat"] = seat

    short = summed(said)

    assert all(len(json.dumps(each)) <= 1000 for each in short)
    assert [each.elapsed_s for each in analysis.analyse(short).every] == [2.0, 2.0]


def test_groups_that_are_too_long_are_told_as_far_as_they_fit():
    """A rank whose numbers are beyond all measure takes no memory for it."""
    rows = [["0", at, "all_reduce", 8, NS, NS + 1, ""] for at in (0, 1, 10**12)]
    short = summed([done(rank, rows, NS, 2 * NS) for rank in range(2)])

    assert [each["matched"] for each in short] == [2, 2]


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


@pytest.mark.parametrize(
    ("longer_ns", "before", "slowest"),
    [
        (20 * MS, [1], 2),  # the others wait for it
        (20 * MS, [], None),  # after the last collective: as much as a host does beside
        (80 * MS, [], 2),
    ],
)
def test_more_is_needed_where_nobody_waited(longer_ns, before, slowest):
    """What has cost the others nothing is told where it is no noise, and so it says."""
    works = [[10 * MS] * 2, [10 * MS] * 2, [10 * MS] * 2]
    works[2][0 if before else 1] += longer_ns
    report = analysis.analyse(played(works, [MS]))

    assert report.slowest == slowest
    assert report.phases_told is False
    if slowest is not None:
        assert bool(report.times[2].blamed_s) is bool(before)


def test_parts_of_a_step_are_told_apart_where_a_rank_has_told_them():
    """Only then "in none of them alone" is more than not known."""
    works = [[20 * MS] * 3, [20 * MS] * 3, [60 * MS] * 3]
    phases = [{"forward": 0.03, "backward": 0.03}] * 2
    phases.append({"forward": 0.09, "backward": 0.09})
    report = analysis.analyse(played(works, [MS] * 2, phases=phases))

    assert report.phases_told


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
    report = analysis.analyse(answers)

    whys = {each.name: each.why for each in report.unfinished}
    assert whys == {0: "lost", 1: "lost", 2: "raised", 3: "raised"}
    told = draw(report).title
    assert told.startswith(
        "none of 4 ranks finished; rank 2 raised ValueError: no such"
    )
    assert "(train.py, line 31)" in told
    assert told.endswith("2 others lost it")


def test_who_raised_first_is_told_across_hosts():
    """Moments are compared by the clock of rank 0, which is itself nowhere ahead."""
    ahead = 3 * NS
    answers = [
        done(0, [], 9 * NS, 10 * NS, error="ValueError: late", offset_ns=0),
        done(
            1,
            [],
            8 * NS + ahead,
            9 * NS + ahead,
            error="ValueError: first",
            offset_ns=-ahead,
            host="node1",
        ),
    ]

    assert [each.name for each in analysis.analyse(answers).unfinished] == [1, 0]


def test_where_nobody_is_known_to_have_failed_first_none_has_lost_it():
    """If all say that another is gone, each has raised what it says."""
    error = "RuntimeError: Connection closed by peer"
    answers = [done(rank, [], NS, NS + 1, error=error) for rank in range(2)]

    assert {e.why for e in analysis.analyse(answers).unfinished} == {"raised"}


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
    works = [[random_of.randint(MS, 2 * MS) for _ in range(31)] for _ in range(1024)]
    works[200] = [2 * each for each in works[200]]
    answers = played(works, [MS] * 30)
    took_s = {}
    for ranks in (256, 1024):
        began_s = time.process_time()
        report = analysis.analyse(answers[:ranks])
        took_s[ranks] = time.process_time() - began_s
        assert report.ranks == ranks
        assert [each.name for each in report.times] == [200]

    assert took_s[1024] <= 10 * took_s[256]


def test_a_thousand_sums():
    """A kilobyte a rank says the same as all that they did, in a dozen lines."""
    random_of = random.Random(3)  # noqa: S311
    # Apart from each other, in all, as hosts of one kind are.
    least, most = MS * 6 // 5, MS * 9 // 5
    works = [[random_of.randint(least, most) for _ in range(31)] for _ in range(1024)]
    works[200] = [2 * each for each in works[200]]
    answers = played(works, [MS] * 30)
    short = summed(answers)
    sent = [json.dumps(each) for each in short]
    report = analysis.analyse(map(json.loads, sent))
    drawn = draw(report).text(80)
    whole = analysis.analyse(answers)

    assert max(map(len, sent)) <= 1000
    assert report.bucketed
    assert (report.slowest, report.matched) == (200, 30)
    assert [each.name for each in report.times] == [200]
    in_sight = [line for line in drawn.splitlines() if line.strip()]
    assert len(in_sight) <= 14  # two are of the picture
    assert report.ratio == pytest.approx(whole.ratio)
    assert report.collectives == whole.collectives
    for one, other in zip(report.every, whole.every, strict=True):
        assert one.waits_s == pytest.approx(other.waits_s, abs=1e-9)
        assert one.blamed_s == pytest.approx(other.blamed_s, abs=1e-9)


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
    line = {"where": "line 3", "source": "time.sleep(12)"}
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


def test_who_waits_for_one_other_does_not_work():
    """A rank in recv is in no collective of all, and waits all the same.

    Not so one that is in a collective to which all have come: there data moves.
    """
    report = analysis.where(
        [
            alive(0, last=7, working=True, line={"where": "line 1"}),
            alive(1, last=7, working=False, line={"where": "line 2"}),
            alive(2, last=7, working=True, inside="recv"),
            alive(3, last=7, open_=(7, "all_reduce", ""), working=False),
        ]
    )

    assert report.waiting_for_one == (1, 2)
    assert str(report).startswith(
        "ranks 1 and 2 wait for another, in no collective of all; 1 works"
    )


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


def test_of_very_many_ranks_a_dead_one_ends_the_group():
    """Ranks that have sent sums were in a group as well."""
    died = Unfinished(3, "died", "its engine is gone")
    sums = SimpleNamespace(seat=SimpleNamespace(rank=0))

    assert analysis._group_died([sums], [died]) == "rank 3 died"
    assert analysis._group_died([SimpleNamespace(seat=None)], [died]) is None


def test_an_older_notebook_is_answered_whole():
    """It does not say how many ranks are very many."""
    from gpumagic.gpu_ranks import on_engine

    said = {"kind": "done"}
    assert on_engine._summed_if_many(said, {"ranks": 2, "key": "cell 1"}) is said
