"""Lets very many ranks compare what they did, so that each sends its sums alone.

Nobody may hang for it. So ranks first say through the store that they are there, and
one word decides for all: when everyone has come, rank 0 says in which order figures
stand, and the least of each is found in a group of gloo's with a short timeout; when a
rank has failed or does not come, whoever notices says that all send what they have
whole. Whichever is said first holds.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gpumagic.gpu_ranks import answers, scale
from gpumagic.gpu_ranks.answers import Done
from gpumagic.gpu_ranks.collectives_seen import UNKNOWN, cut_to, shifted, with_ends

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpumagic.gpu_ranks.scale import Layout

_READY, _PLAN, _OFFSETS = "ready", "plan", "offsets"
_WHOLE = "whole"
_PATIENCE_S = 3.0  # of engines, with ranks whose cell has not ended
_TIMEOUT = dt.timedelta(seconds=5)  # of a reduction; all are there when it begins
_CONNECTING = dt.timedelta(seconds=60)
_LOOK_S = 0.005
_NS = 1_000_000_000


class Comparing(Protocol):
    """The ranks of a job, as seen by one of them."""

    @property
    def rank(self) -> int:
        """This one."""

    @property
    def size(self) -> int:
        """How many there are."""

    @property
    def store(self) -> Any:
        """What they write down for each other."""

    @property
    def clocks(self) -> Sequence[str]:
        """By rank, what tells whether clocks are the same; empty where none counts."""

    @property
    def beside(self) -> str | None:
        """Which group they reduce in; "" for one that is to be made, None for none."""

    def group_beside(self, word: str) -> Any:
        """That group; it is made where this rank has not got it."""


@dataclass(frozen=True)
class Others:
    """What is to be known of the other ranks while they are waited for."""

    patience_s: float  # how long they are waited for
    # whether they are waited for in vain
    is_hopeless: Callable[[], bool] = lambda: False
    # called on all ranks once all are there: on rank 0 it says what is added to each
    # clock to have its own
    offsets: Callable[[], Mapping[str, int]] = dict


class _Plan(NamedTuple):
    """What all do."""

    where: Layout
    beside: str


def summed(
    said: Mapping[str, Any], ranks: Comparing, others: Others
) -> dict[str, Any] | None:
    """The sums of what this rank did; None where it is to be sent whole.

    All ranks of the job call it, and none for longer than it has patience.
    """
    done = answers.read(said, ranks.rank)
    if not isinstance(done, Done) or done.error is not None or ranks.beside is None:
        _settle(ranks, _WHOLE)  # without one of them nothing can be compared
        return None
    plan = _agreed(done, ranks, others)
    if plan is None:
        return None
    group = ranks.group_beside(plan.beside)
    placed = _placed(said, ranks, others, lambda row: _least(row, group), plan.where)
    found = answers.read(placed, ranks.rank)
    if not isinstance(found, Done):
        return None
    all_ = scale.compared(found, plan.where, lambda row: _least(row, group))
    return scale.sums_of(placed, found, all_, plan.where)


# ------------------------------------------------------------------------ agreement


def _agreed(done: Done, ranks: Comparing, others: Others) -> _Plan | None:
    """What all do once all are there; None if it has been given up."""
    ready = {
        "beside": ranks.beside,
        "extents": scale.extents(done),
        "figures": scale.FIGURES,
    }
    ranks.store.set(f"{_READY}/{ranks.rank}", json.dumps(ready))
    ranks.store.add(_READY, 1)
    until_s = time.monotonic() + others.patience_s
    pause = threading.Event()  # `time.sleep` would move the clock of a simulated GPU
    while not ranks.store.check([_PLAN]):
        if time.monotonic() > until_s or others.is_hopeless():
            _settle(ranks, _WHOLE)
        elif ranks.rank == 0 and ranks.store.add(_READY, 0) >= ranks.size:
            _settle(ranks, _plan(ranks))
        else:
            pause.wait(_LOOK_S)
    plan = ranks.store.get(_PLAN).decode()
    told = {} if plan == _WHOLE else json.loads(plan)
    if told.get("figures") != scale.FIGURES:
        return None
    groups = {name: scale.Group(*its) for name, its in told["groups"].items()}
    places = sum(each.length for each in groups.values())
    return _Plan(scale.Layout(groups, places, told["alone"]), told["beside"])


def _plan(ranks: Comparing) -> str:
    """On rank 0: the order of figures, and a group that all have or all make.

    Where some compare other figures than others, as of another version, all send all.
    """
    said = []
    for rank in range(ranks.size):
        key = f"{_READY}/{rank}"
        said.append(json.loads(ranks.store.get(key)))
        ranks.store.delete_key(key)
    if any(each.get("figures") != scale.FIGURES for each in said):
        return _WHOLE
    words = {each["beside"] for each in said}
    where = scale.layout(each["extents"] for each in said)
    return json.dumps(
        {
            "groups": where.groups,
            "alone": where.alone,
            "beside": words.pop() if len(words) == 1 else "",
            "figures": scale.FIGURES,
        }
    )


def _settle(ranks: Comparing, plan: str) -> None:
    """Say what all do, unless it has been said."""
    ranks.store.compare_set(_PLAN, "", plan)


# ------------------------------------------------------------------------- reduction


def _least(row: Sequence[int], group: Any) -> list[int]:
    """The least of each figure over all ranks."""
    import torch
    import torch.distributed as dist

    if not row:
        return []
    figures = torch.tensor(row, dtype=torch.int64)
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MIN
    options.timeout = _TIMEOUT
    group.allreduce([figures], options).wait()
    found: list[int] = figures.tolist()
    return found


def _placed(
    said: Mapping[str, Any],
    ranks: Comparing,
    others: Others,
    least_of: Callable[[Sequence[int]], list[int]],
    where: Layout,
) -> dict[str, Any]:
    """What this rank says by the clock of rank 0, with ends where none are known."""
    placed, known = dict(said), True
    if len(set(ranks.clocks)) > 1:
        told = others.offsets()
        if ranks.rank == 0:
            ranks.store.set(_OFFSETS, json.dumps(told))
        ranks.store.wait([_OFFSETS], _TIMEOUT)
        told = json.loads(ranks.store.get(_OFFSETS))
        offset_ns = told.get(ranks.clocks[ranks.rank])
        known = offset_ns is not None
        placed = shifted({**said, "offset_ns": offset_ns})
    if said.get("ends") != UNKNOWN:
        return placed
    if not known:  # without a common clock calls tell nothing
        placed["collectives"] = []
    from_ns, until_ns = placed.get("from_ns"), placed.get("until_ns")
    bounds = (None if from_ns is None else -from_ns, until_ns)
    agreed = least_of([scale.NOTHING if each is None else each for each in bounds])
    if agreed != [scale.NOTHING] * 2:
        from_ns, until_ns = (
            None if each == scale.NOTHING else abs(each) for each in agreed
        )
        cut_to(placed, from_ns, until_ns)
        known_ns = placed["ended_ns"] - placed["began_ns"]
        placed.setdefault("told_s", known_ns / _NS)  # unless it is nothing
    done = answers.read(placed, ranks.rank)
    if isinstance(done, Done):
        latest = scale.latest(done, least_of(scale.arrivals(done, where)), where)
        placed["collectives"] = with_ends(placed["collectives"], latest)
    return placed


# ------------------------------------------------------------------ of a notebook


_of_engine: list[_Beside] = []  # the one that this process has, or none


class _Beside(NamedTuple):
    """A group with all ranks that torch's list of groups does not have.

    So it leaves no trace in what is the user's: not in the names that groups get.
    """

    of: weakref.ref[Any]  # the user's own group, which it ends with
    word: str  # by which ranks tell whether they have the same one
    group: Any


@dataclass(frozen=True)
class _Engines:
    """The ranks of the group of an engine."""

    rank: int
    size: int
    store: Any
    key: str  # for each cell another one
    clocks: Sequence[str] = ()

    @property
    def beside(self) -> str:
        distributed = sys.modules["torch.distributed"]
        if _of_engine and _of_engine[0].of() is distributed.group.WORLD:
            return _of_engine[0].word
        _of_engine.clear()
        return ""

    def group_beside(self, word: str) -> Any:
        if not word or word != self.beside:
            connect(word or self.key, _TIMEOUT)
        return _of_engine[0].group


def bare_group(store: Any, rank: int, size: int, timeout: dt.timedelta) -> Any:
    """A group of gloo's that torch's own list does not have.

    Where a rank does not come to it, the names that groups get stay the same on all:
    torch counts what is on its list, also what was never made.
    """
    import torch.distributed as dist

    return dist.ProcessGroupGloo(store, rank, size, timeout)


def connect(word: str, timeout: dt.timedelta = _CONNECTING) -> None:
    """Make a group beside that of this process, with all of its ranks."""
    import torch.distributed as dist

    _of_engine.clear()
    store = _store(f"gpumagic/beside/{word}")
    group = bare_group(store, dist.get_rank(), dist.get_world_size(), timeout)
    _of_engine.append(_Beside(weakref.ref(dist.group.WORLD), word, group))


def _store(prefix: str) -> Any:
    distributed = sys.modules["torch.distributed"]
    common = distributed.distributed_c10d._get_default_store()  # noqa: SLF001
    return distributed.PrefixStore(prefix, common)


def summed_on_engine(
    said: Mapping[str, Any], key: str, store: Any
) -> dict[str, Any] | None:
    """The sums of what an engine did; None where it is to be sent whole."""
    distributed = sys.modules["torch.distributed"]
    try:
        rank, size = distributed.get_rank(), distributed.get_world_size()
        return summed(said, _Engines(rank, size, store, key), Others(_PATIENCE_S))
    # Then all is sent, as it is of few ranks. The cell has ended when Ctrl-C comes, so
    # it is the waiting that is to end, in a group that others may be elsewhere in.
    except (KeyboardInterrupt, Exception):  # noqa: BLE001
        _of_engine.clear()
        return None
