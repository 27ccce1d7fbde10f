"""Reports on many ranks, written by hand with figures as real machines give them."""

from __future__ import annotations

from dataclasses import replace

from gpumagic.gpu_ranks.answer_seats import Misplaced, SeatFinding, SeatsReport
from gpumagic.gpu_ranks.answer_times import RanksReport, RankTime
from gpumagic.gpu_ranks.answer_where import Waiting, WhereReport
from gpumagic.gpu_ranks.answers import Alive, RankMemory, Seat, Unfinished
from gpumagic.report.places import CodeLine

MS = 1e-3
GIB = 2**30
H100 = "NVIDIA H100 80GB HBM3"
HOSTILE = "<script>alert(1)</script>&\"'</td>\x1b[31m\u202eevil\nnext line"


def seat(name, *, each=4, rank=True, **more):
    """A rank on a host of several, on the GPU that has its local rank's number."""
    host, local = divmod(name, each)
    return Seat(
        **{
            "name": name,
            "rank": name if rank else None,
            "engine": name,
            "host": f"node{host}",
            "pid": 40_100 + name,
            "local_rank": local,
            "gpu": f"GPU-{host:04x}{local:04x}-7f21-4a3b-9c55-8e1d0a6b4c2f",
            "gpu_name": H100,
            "gpu_number": local,
            "confirmed": True,
        }
        | more
    )


def seats(count, *, each=4, **more):
    """So many ranks, `each` of them on a host."""
    return tuple(seat(name, each=each, **more) for name in range(count))


def rank_time(name, own_ms, *, slow_ms, moves_ms=8.0, **more):
    """A rank that works, waits for the slowest, and moves data, in three steps."""
    waits_ms = max(slow_ms - own_ms, 0.0)
    length_ms = slow_ms + 3 * moves_ms
    return RankTime(
        **{
            "name": name,
            "elapsed_s": length_ms * MS,
            "own_s": own_ms * MS,
            "waits_s": waits_ms * MS,
            "moves_s": 3 * moves_ms * MS,
            "blamed_s": 0.0,
            "last": 0,
        }
        | more
    )


_OWN_MS = (205.0, 205.0, 207.0, 322.0, 205.0, 206.0, 205.0, 206.0)
_TIMES = tuple(
    rank_time(
        name,
        own_ms,
        slow_ms=322.0,
        moves_ms=30.0,
        blamed_s=0.117 if name == 3 else 0.0,
        last=3 if name == 3 else 0,
    )
    for name, own_ms in enumerate(_OWN_MS)
)
_MEMORY = tuple(
    RankMemory(60 * GIB + name * 2**20, 80 * GIB, name) for name in range(8)
)
STRAGGLER = RanksReport(
    times=_TIMES,
    seats=seats(8, each=2),
    memory=_MEMORY,
    ranks=8,
    matched=3,
    slowest=3,
    took_s=0.412,
    during="backward",
    clock_error_s=12e-6,
)


_EQUAL = RanksReport(
    times=tuple(
        rank_time(name, own_ms, slow_ms=391.0, last=1)
        for name, own_ms in enumerate((385.0, 388.0, 391.0, 380.0))
    ),
    seats=seats(4),
    ranks=4,
    matched=12,
    took_s=0.415,
    clock_error_s=3e-6,
)
_ALONE = replace(
    STRAGGLER,
    during="",
    differently=(("LIMITED", "something held the clock of the GPU down"),),
)


def _unfinished(ranks, *which, **more):
    left = {each.name for each in which}
    return RanksReport(
        times=tuple(
            rank_time(name, 245.0 + name, slow_ms=260.0)
            for name in range(ranks)
            if name not in left
        ),
        seats=tuple(each for each in seats(ranks) if each.name not in left),
        unfinished=tuple(which),
        ranks=ranks,
        matched=2,
        unmatched=1,
        **more,
    )


_RAISED = _unfinished(
    4,
    Unfinished(
        2,
        "raised",
        "ValueError: x",
        CodeLine("line 3", 'raise ValueError("x")'),
    ),
)
_DIED = _unfinished(
    4,
    Unfinished(2, "died", "the engine is gone"),
    Unfinished(0, "lost", "RuntimeError: Connection closed by peer"),
    Unfinished(1, "lost", "RuntimeError: Connection closed by peer"),
    Unfinished(3, "interrupted", ""),
)
_SILENT = _unfinished(
    4,
    Unfinished(2, "silent", "", CodeLine("line 3", "time.sleep(600)")),
    waiting=(
        Waiting(
            "all_reduce",
            2,
            (0, 1, 3),
            12.0,
            (2,),
            ((2, CodeLine("line 3", "time.sleep(600)")),),
        ),
    ),
)


_MANY = tuple(
    RankTime(name, 0.412, own_s, 0.38 - own_s, 0.03, 0.0, 0)
    for name in range(1024)
    for own_s in (0.246 + (name * 389 % 1024 - 512) * 1e-5,)
)
_THOUSAND = RanksReport(
    times=(
        *_MANY[:123],
        replace(_MANY[123], own_s=0.38, waits_s=0.0, blamed_s=0.117, last=90),
        *_MANY[124:],
    ),
    ranks=1024,
    matched=90,
    slowest=123,
    took_s=6.0,
)
_ODD_MEMORY = replace(
    STRAGGLER,
    with_memory=True,
    odd_in_memory=(5,),
    runs_out_first=5,
    memory=tuple(
        replace(
            each,
            peak_bytes=71 * GIB,
        )
        if each.name == 5
        else each
        for each in _MEMORY
    ),
)
_LINE = CodeLine("line 3", "time.sleep(12)")
_DEAF = replace(
    _SILENT,
    times=(),
    matched=0,
    waiting=(Waiting("all_reduce", 2, (0, 1, 3), 60.0, (2,), ((2, _LINE),)),),
    restart="rc.cluster.start_engines_sync(n=3); rc.wait_for_engines(7)",
    unfinished=(
        Unfinished(2, "interrupted", "KeyboardInterrupt", _LINE),
        *(Unfinished(name, "deaf", "still in all_reduce") for name in (0, 1, 3)),
    ),
)
_HANG = WhereReport(
    waiting=(Waiting("all_reduce", 2, (0, 1, 3), 12.0, (2,), ((2, _LINE),)),),
    alive=tuple(
        Alive(name, line=_LINE if name == 2 else CodeLine("line 5"))
        for name in range(4)
    ),
    seats=seats(4),
)
SAMPLES = (
    ("seats", SeatsReport(seats(8), backend="nccl")),
    (
        "seats-chosen",
        SeatsReport(seats(8, rank=False, confirmed=False), chosen=True),
    ),
    (
        "seats-shared",
        SeatsReport(
            (
                seat(0),
                seat(1),
                seat(2),
                seat(3, gpu=seat(1).gpu, gpu_number=1),
            ),
            (
                SeatFinding(
                    Misplaced.SHARED_GPU, (1, 3), "share one GPU on node0 (GPU 1)"
                ),
            ),
            backend="gloo",
        ),
    ),
    (
        "seats-refused",
        SeatsReport(
            seats(4, rank=False),
            unfinished=(
                Unfinished(2, "refused", "CUDA has started in In [4], line 2"),
            ),
        ),
    ),
    ("times-straggler", STRAGGLER),
    ("times-flags", _ALONE),
    ("times-equal", _EQUAL),
    ("times-raised", _RAISED),
    ("times-died", _DIED),
    ("times-deaf", _DEAF),
    ("times-1024", _THOUSAND),
    ("memory-odd", _ODD_MEMORY),
    ("where-hang", _HANG),
    (
        "where-mismatch",
        replace(
            _HANG,
            waiting=(
                Waiting(
                    "all_reduce",
                    7,
                    (0, 1, 2, 3),
                    31.0,
                    (),
                    mismatch="rank 2 calls broadcast, the others all_reduce",
                ),
            ),
        ),
    ),
    (
        "where-hostile",
        replace(
            _HANG,
            waiting=(
                Waiting(
                    HOSTILE,
                    2,
                    (0,),
                    1.0,
                    (2,),
                    ((2, CodeLine(HOSTILE, HOSTILE)),),
                ),
            ),
            alive=tuple(
                Alive(name, None, CodeLine(HOSTILE), HOSTILE) for name in (0, 2)
            ),
        ),
    ),
)
