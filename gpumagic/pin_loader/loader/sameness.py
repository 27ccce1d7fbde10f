"""Proves that a rebuilt loader gives the same batches, by going through both.

Both begin from the same random state, one after the other, so that a dataset is never
gone through twice at once. What is gone through are clones: a loader of the user's own
is not moved on.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.pin_loader.batch.walker import difference
from gpumagic.pin_loader.loader import loader_words
from gpumagic.pin_loader.loader.facts import kind_of, one_shot_reason
from gpumagic.pin_loader.loader.random_state import kept
from gpumagic.pin_loader.loader.rebuilding import rebuild
from gpumagic.pin_loader.loader.seals import batch_at, gone_through
from gpumagic.pin_loader.records.loader import LoaderKind
from gpumagic.pin_loader.records.proof import Sameness
from gpumagic.pin_loader.records.rebuilding import Way

if TYPE_CHECKING:
    from gpumagic.pin_loader.loader.seals import Pass

_LOOKED_INTO = 3  # batches with other sums, whose values may yet be the same
_ITSELF = "it is the same loader, only wrapped: there was nothing to compare"
_ONLY_ORDER = (
    "the old loader itself gives other values each time, from the same random state; "
    "the order of the indices is the same"
)
_ANY_ORDER = "with in_order=False batches come in the order in which workers end"


@dataclass(frozen=True)
class _Difference:
    """Where two ways through loaders part.

    Attributes:
        after: Batches that are the same before it.

        words: What differs.
    """

    after: int
    words: str


def compare(old: Any, new: Any, *, batches: int, whole: bool = False) -> Sameness:
    """Whether two loaders give the same batches from the same random state.

    Values count, their order and their classes; where tensors lie does not. Short sums
    of the old batches are kept, so that two batches at most are alive at once.

    Args:
        old: The user's loader. It is not iterated itself.

        new: What was made of it: a loader, or a prefetcher round one.

        batches: How many to compare.

        whole: Compare all of them, where their number is known.
    """
    if _host_loader(new) is old:
        return Sameness(batches=0, same=True, problem=_ITSELF)
    reason = one_shot_reason(old)
    if reason is not None:
        return Sameness(batches=0, same=None, problem=reason)
    twin, rebuilt = _clone(old), _clone(new)
    if twin is None or rebuilt is None:
        problem = f"a {type(old).__name__} cannot be copied, and would be moved on"
        return Sameness(batches=0, same=None, problem=problem)
    with kept(old) as state:
        told = _Comparison(twin, rebuilt, _most(old, new, batches, whole=whole)).told()
    return Sameness(**{**told, "restored": state.names})


class _Comparison:
    """One comparison: what was seen of the old loader is kept for every question."""

    def __init__(self, old: Any, new: Any, most: int) -> None:
        self._old, self._new, self._most = old, new, most
        self._seen = gone_through(old, most)

    def told(self) -> dict[str, Any]:
        """The words of a `Sameness`."""
        lengths = loader_words.length_of(self._old), loader_words.length_of(self._new)
        if None not in lengths and lengths[0] != lengths[1]:
            words = f"the old loader has {lengths[0]} batches, the new one {lengths[1]}"
            return {"batches": 0, "same": False, "difference": words}
        there = gone_through(self._new, self._most)
        found = self._between(self._seen, there, self._new)
        if found is not None:
            return self._explained(found)
        count = len(self._seen.seals)
        error = self._seen.error
        return {
            "batches": count,
            "same": None if error and not count else True,
            "whole": self._seen.ended or lengths[0] == count,
            "problem": f"both raise {error} after {count} batches" if error else None,
        }

    def _explained(self, found: _Difference) -> dict[str, Any]:
        """Whether a difference is one of the loaders, or of random numbers."""
        again = gone_through(self._old, self._most)
        if self._between(self._seen, again, self._old) is not None:
            return self._by_order(found)
        if _comes_in_any_order(self._new):
            return self._unknown(found, _ANY_ORDER)
        workers = _workers_of(self._old), _workers_of(self._new)
        if workers[0] != workers[1] and kind_of(self._old) is not LoaderKind.ITERABLE:
            alike = _clone(self._new, workers=workers[0])
            there = gone_through(alike, self._most)
            further = self._between(self._seen, there, alike)
            if further is None:
                return {
                    "batches": len(self._seen.seals),
                    "same": True,
                    "whole": self._seen.ended,
                    "random_values": True,
                    "problem": f"with {workers[1]} workers instead of {workers[0]} "
                    "random transforms draw other numbers; with as many as before all "
                    "values are the same",
                }
            found = further
        return {"batches": found.after, "same": False, "difference": found.words}

    def _by_order(self, found: _Difference) -> dict[str, Any]:
        """What can be said where the old loader does not repeat itself."""
        orders = [_order_of(each, self._most) for each in (self._old, self._new)]
        if None in orders:
            return self._unknown(
                found,
                "the old loader itself gives other batches each time, from the same "
                "random state",
            )
        if orders[0] != orders[1] and orders[0] == _order_of(self._old, self._most):
            words = "the indices come in another order"
            return {"batches": 0, "same": False, "difference": words}
        return self._unknown(found, _ONLY_ORDER)

    def _unknown(self, found: _Difference, problem: str) -> dict[str, Any]:
        return {
            "batches": found.after,
            "same": None,
            "random_values": True,
            "problem": problem,
        }

    def _between(self, one: Pass, other: Pass, loader: Any) -> _Difference | None:
        """Where two ways part; the second one was through this loader."""
        looked = 0
        for place, (a, b) in enumerate(zip(one.seals, other.seals, strict=False)):
            words = difference(a, b)
            if words is None:
                continue
            looked += 1
            words = self._exactly(place, loader, words)
            if words is not None or looked == _LOOKED_INTO:
                return _Difference(place, f"batch {place}: {words or 'other bits'}")
        counts = len(one.seals), len(other.seals)
        if counts[0] != counts[1] or one.error != other.error:
            return _Difference(
                min(counts),
                f"the old loader {_end_of(one)}, the new one {_end_of(other)}",
            )
        return None

    def _exactly(self, place: int, loader: Any, words: str) -> str | None:
        """The difference in values, of batches that are loaded once more for it."""
        try:
            a = batch_at(self._old, place)
            b = batch_at(loader, place)
        except Exception:  # noqa: BLE001 -- it cannot be had again: then by its sum
            return words
        return difference(a, b) if loader is not self._old else words


def _clone(loader: Any, workers: int | None = None) -> Any | None:
    """A loader like it that may be moved on; None where there is none."""
    host = _host_loader(loader)
    made = rebuild(host, workers=workers, persistent_workers=False)
    if made.way in (Way.WRAPPED, Way.UNCHANGED):
        return None
    if host is loader:
        return made.loader
    twin = copy.copy(loader)
    twin.loader = made.loader
    return twin


def _host_loader(loader: Any) -> Any:
    """What a prefetcher of ours feeds from; any other loader is that itself."""
    is_ours = type(loader).__module__.startswith("gpumagic.")
    return loader.loader if is_ours else loader


def _most(old: Any, new: Any, batches: int, *, whole: bool) -> int:
    lengths = [loader_words.length_of(each) for each in (old, new)] if whole else []
    return max((each + 1 for each in lengths if each is not None), default=batches)


def _workers_of(loader: Any) -> int:
    return getattr(loader, "num_workers", 0)


def _comes_in_any_order(loader: Any) -> bool:
    return _workers_of(loader) > 1 and not getattr(loader, "in_order", True)


def _order_of(loader: Any, most: int) -> list[Any] | None:
    """The indices that are asked for; None where a dataset is not asked by index."""
    host = _host_loader(loader)
    if kind_of(host) in (LoaderKind.ITERABLE, LoaderKind.FOREIGN):
        return None
    with kept(host):
        return list(itertools.islice(loader_words.index_sampler(host), most))


def _end_of(way: Pass) -> str:
    count = len(way.seals)
    if way.error is not None:
        return f"raises {way.error} after {count} batches"
    return f"ends after {count} batches" if way.ended else "goes on"
