"""Proves that a rebuilt loader gives the same batches, by going through both.

Both begin from the same random state, one after the other, so that a dataset is never
gone through twice at once. What is gone through are clones: a loader of the user's own
is not moved on. Of each batch only a digest is kept: the batch with a short sum in the
place of each tensor and array, so that two digests are compared as two batches are.

Classes, order and values count; where tensors lie does not, nor whether they are
pinned. A value that is not a number is the same as another such value.
"""

from __future__ import annotations

import copy
import ctypes
import hashlib
import itertools
import math
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.storages import tensors_within
from gpumagic.pin_loader import inspect_loader
from gpumagic.pin_loader.batch import (
    DEEPEST,
    Opened,
    mapped,
    opened,
    too_deep,
)
from gpumagic.pin_loader.inspect_loader import kind_of, one_shot_reason
from gpumagic.pin_loader.pinner import unwrapped
from gpumagic.pin_loader.random_state import kept
from gpumagic.pin_loader.rebuild import rebuild
from gpumagic.pin_loader.report import LoaderKind, Sameness, Way
from gpumagic.pin_loader.trial import batches_of
from gpumagic.report.introspection import is_array
from gpumagic.report.units import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

_FEWEST = 2  # batches to compare, however long they take
_LOOKED_INTO = 3  # batches with other sums, whose values may yet be the same
_ITSELF = "it is the same loader, only wrapped: there was nothing to compare"
_ONLY_ORDER = (
    "the old loader itself gives other values each time, from the same random state; "
    "the order of the indices is the same"
)
_ANY_ORDER = "with in_order=False batches come in the order in which workers end"
_SUM_BYTES = 16
_LONGEST = 60  # letters of a value


@dataclass(frozen=True)
class _Difference:
    """Where two ways through loaders part.

    Attributes:
        after: Batches that are the same before it.

        words: What differs.
    """

    after: int
    words: str


def compare(
    old: Any,
    new: Any,
    *,
    batches: int,
    whole: bool = False,
    enough_s: float = math.inf,
) -> Sameness:
    """Whether two loaders give the same batches from the same random state.

    Values count, their order and their classes; where tensors lie does not. Short sums
    of the old batches are kept, so that two batches at most are alive at once.

    Args:
        old: The user's loader. It is not iterated itself.

        new: What was made of it: a loader, or a prefetcher round one.

        batches: How many to compare.

        whole: Compare all of them, where their number is known.

        enough_s: How long going through the old one may take, before two are enough;
            where all are compared, that is no matter.
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
        most = _most(old, new, batches, whole=whole)
        enough_s = math.inf if whole else enough_s
        told = _LoaderComparison(twin, rebuilt, most, enough_s).told()
    return Sameness(**{**told, "restored": state.names})


class _LoaderComparison:
    """One comparison: what was seen of the old loader is kept for every question."""

    def __init__(self, old: Any, new: Any, most: int, enough_s: float) -> None:
        self._old, self._new = old, new
        self._seen = gone_through(old, most, enough_s)
        goes_on = not self._seen.ended and self._seen.error is None
        self._most = len(self._seen.seals) if goes_on else most

    def told(self) -> dict[str, Any]:
        """The words of a `Sameness`."""
        lengths = (
            inspect_loader.length_of(self._old),
            inspect_loader.length_of(self._new),
        )
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
    lengths = [inspect_loader.length_of(each) for each in (old, new)] if whole else []
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
        return list(itertools.islice(inspect_loader.index_sampler(host), most))


def _end_of(way: Pass) -> str:
    count = len(way.seals)
    if way.error is not None:
        return f"raises {way.error} after {count} batches"
    return f"ends after {count} batches" if way.ended else "goes on"


class Pass(NamedTuple):
    """One way through a loader.

    Attributes:
        seals: One for each batch, in order.

        ended: Whether the loader had no more.

        error: The class of the error that it raised instead.
    """

    seals: tuple[Any, ...]
    ended: bool = False
    error: str | None = None


def gone_through(loader: Any, most: int, enough_s: float = math.inf) -> Pass:
    """Take up to so many batches of a clone, and leave all random numbers as before.

    Args:
        loader: A clone.

        most: How many batches.

        enough_s: After how long two are enough.
    """
    until_s = time.monotonic() + enough_s
    seals: list[Any] = []
    ended, error = False, None
    with kept(loader), batches_of(loader) as batches:
        try:
            ended = not _seal(batches, most, seals, until_s)
        except Exception as wrong:  # noqa: BLE001 -- the other loader may raise it, too
            error = type(wrong).__name__
    return Pass(tuple(seals), ended, error)


def _seal(batches: Iterator[Any], most: int, seals: list[Any], until_s: float) -> bool:
    """Seal up to so many in all, as they come; whether they go on after that."""
    while len(seals) < most:
        if len(seals) >= _FEWEST and time.monotonic() > until_s:
            return True
        try:
            batch = next(batches)
        except StopIteration:
            return False
        seals.append(digest_of(unwrapped(batch)))
    return True


def batch_at(loader: Any, place: int) -> Any:
    """One batch of a clone, counted from 0; random numbers are left as before.

    Raises:
        StopIteration: There are not so many.
    """
    with kept(loader), batches_of(loader) as batches:
        return unwrapped(next(itertools.islice(batches, place, None)))


def digest_of(batch: Any) -> Any:
    """The batch with sums in the place of its tensors and arrays."""
    try:
        return mapped(batch, _sum_of_tensor, objects=True, whole=_sum_of_array)
    except Exception:  # noqa: BLE001 -- a class of the user's that wants real tensors
        return batch


def _sum_of_tensor(tensor: Any) -> Any:
    """A small tensor that stands for this one; itself where it cannot be summed up."""
    import torch

    plain = not tensor.is_nested and tensor.layout is torch.strided
    if not plain or tensor.is_quantized:
        return tensor
    host = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    size = host.numel() * host.element_size()
    if size and not host.data_ptr():  # a class that only stands for a tensor
        return tensor
    content = (ctypes.c_char * size).from_address(host.data_ptr()) if size else b""
    about = f"{type(tensor).__qualname__} {tensor.dtype} {tuple(tensor.shape)}"
    return torch.tensor(_sum_of(about, content))


def _sum_of_array(thing: Any) -> Any | None:
    """A small array that stands for this one; None where it is none."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or type(thing) is not numpy.ndarray or thing.dtype.hasobject:
        return None
    content = numpy.ascontiguousarray(thing)
    return numpy.array(_sum_of(f"{thing.dtype} {thing.shape}", content))


def _sum_of(about: str, content: Any) -> list[int]:
    told = hashlib.blake2b(content, digest_size=_SUM_BYTES, key=b"")
    told.update(about.encode())
    digest, half = told.digest(), _SUM_BYTES // 2
    return [
        int.from_bytes(part, "little", signed=True)
        for part in (digest[:half], digest[half:])
    ]


def difference(a: Any, b: Any) -> str | None:
    """The first difference between two batches, in words; None where they are equal.

    Args:
        a: What it was.

        b: What became of it.

    Raises:
        GpuMagicError: A tuple, a list or a mapping contains itself.
    """
    return _BatchComparison().of(a, b, "batch", 0)


class _BatchComparison:
    """One way through two batches at once."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], tuple[Any, Any]] = {}

    def of(self, a: Any, b: Any, path: str, depth: int) -> str | None:
        """The first difference below a path."""
        if type(a) is not type(b):
            return f"{path}: {type(a).__qualname__} became {type(b).__qualname__}"
        if a is b or (id(a), id(b)) in self._seen:
            return None
        self._seen[id(a), id(b)] = a, b
        if _is_tensor(a):
            return _between_tensors(a, b, path)
        if is_array(a):
            return _between_arrays(a, b, path)
        return self._between_others(a, b, path, depth)

    def _between_others(self, a: Any, b: Any, path: str, depth: int) -> str | None:
        if depth > DEEPEST:
            raise too_deep(a)
        if isinstance(a, set | frozenset):
            return self._between_sets(a, b, path, depth)
        parts, others = opened(a, objects=True), opened(b, objects=True)
        if parts is None or others is None:
            return _between_values(a, b, path)
        return self._between_parts(parts, others, path, depth)

    def _between_parts(self, a: Opened, b: Opened, path: str, depth: int) -> str | None:
        was, now = list(a.keys), list(b.keys)
        if was != now:
            return f"{path}: {_between_keys(was, now)}"
        for key, x, y in zip(a.keys, a.values, b.values, strict=True):
            found = self.of(x, y, a.path(path, key), depth + 1)
            if found:
                return found
        return None

    def _between_sets(self, a: Any, b: Any, path: str, depth: int) -> str | None:
        """Without an order: each of the one has to have its like in the other."""
        if len(a) != len(b):
            return f"{path}: {len(a)} elements became {len(b)}"
        left = list(b)
        for each in a:
            for place, other in enumerate(left):
                if self.of(each, other, path, depth + 1) is None:
                    del left[place]
                    break
            else:
                return f"{path}: {_shown(each)} is not in it any more"
        return None


def _between_keys(was: list[Any], now: list[Any]) -> str:
    if len(was) != len(now):
        return f"{len(was)} parts became {len(now)}"
    if all(key in now for key in was):
        return "its keys came in another order"
    gone = next(key for key in was if key not in now)
    return f"it has no {_shown(gone)} any more"


# -------------------------------------------------------------------------- tensors


def _between_tensors(a: Any, b: Any, path: str) -> str | None:
    import torch

    found = _between_words(a, b, path, "layout", "dtype")
    if found:
        return found
    if a.is_nested:  # its size is made of symbols, or is refused
        rows, others = a.unbind(), b.unbind()
        if len(rows) != len(others):
            return f"{path}: {len(rows)} rows became {len(others)}"
        return _between_all(rows, others, path)
    found = _between_words(a, b, path, "shape")
    if found:
        return found
    if a.layout is not torch.strided:
        return _between_all(_parts(torch, a), _parts(torch, b), path)
    with torch.no_grad():
        return _between_elements(torch, _plain(torch, a), _plain(torch, b), path)


def _between_words(a: Any, b: Any, path: str, *words: str) -> str | None:
    for word in words:
        was, now = getattr(a, word), getattr(b, word)
        if was != now:
            return f"{path}: its {word} {_of(was)} became {_of(now)}"
    return None


def _between_all(a: Any, b: Any, path: str) -> str | None:
    for x, y in zip(a, b, strict=True):
        found = _between_tensors(x, y, path)
        if found:
            return found
    return None


def _plain(torch: Any, tensor: Any) -> Any:
    """On the host, and of torch's own class where a subclass only adds words to it."""
    host = tensor.detach().cpu()
    ours = getattr(torch.Tensor, "__torch_dispatch__", None)
    is_plain = getattr(type(host), "__torch_dispatch__", ours) is ours
    return host.as_subclass(torch.Tensor) if is_plain else host


def _parts(torch: Any, tensor: Any) -> list[Any]:
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
    return list(tensors_within(torch, tensor))


def _between_elements(torch: Any, a: Any, b: Any, path: str) -> str | None:
    try:
        if torch.equal(a, b):
            return None
        differs = ~((a == b) | ((a != a) & (b != b)))  # noqa: PLR0124 - NaN is not
    except (RuntimeError, NotImplementedError):  # of a dtype that cannot be compared
        a, b = (each.contiguous().view(torch.uint8) for each in (a, b))
        differs = a != b
    return _told(differs, a, b, path)


def _between_arrays(a: Any, b: Any, path: str) -> str | None:
    found = _between_words(a, b, path, "dtype", "shape")
    if found or (a.tobytes() == b.tobytes() and not a.dtype.hasobject):
        return found
    try:
        differs = ~((a == b) | ((a != a) & (b != b)))  # noqa: PLR0124 - NaN is not
        return _told(differs, a, b, path)
    except Exception:  # noqa: BLE001 - an array of objects asks classes of the user's
        return f"{path}: cannot tell whether two arrays of objects are the same"


def _told(differs: Any, a: Any, b: Any, path: str) -> str | None:
    """How many places of a mask are set, and what is at the first of them."""
    count = int(differs.sum())
    if not count:
        return None
    first = _first_place(differs)
    was, now = (_shown(each[first].item()) for each in (a, b))
    where = f", the first at {list(first)}" if first else ""
    total = math.prod(differs.shape)
    return f"{path}: {count} of {total} values differ{where}: {was} became {now}"


def _first_place(mask: Any) -> tuple[int, ...]:
    if not mask.ndim:
        return ()
    places = mask.nonzero(as_tuple=True) if _is_tensor(mask) else mask.nonzero()
    return tuple(int(along[0]) for along in places)


# --------------------------------------------------------------------------- values


def _between_values(a: Any, b: Any, path: str) -> str | None:
    own: Any = type(a).__eq__
    if own is object.__eq__:  # nothing to compare them by but who they are
        return None
    try:
        same = bool(a == b) or bool(a != a and b != b)  # noqa: PLR0124 - NaN is not
    except Exception:  # noqa: BLE001 - a class of the user's may raise what it pleases
        return f"{path}: cannot tell whether two {type(a).__qualname__} are the same"
    return None if same else f"{path}: {_shown(a)} became {_shown(b)}"


def _of(value: Any) -> str:
    is_shape = isinstance(value, tuple)
    return str(tuple(value)) if is_shape else str(value).removeprefix("torch.")


def _shown(value: Any) -> str:
    return shortened(repr(value), _LONGEST)


def _is_tensor(thing: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.Tensor)
