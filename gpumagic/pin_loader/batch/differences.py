"""The first place where two batches are not the same, in words.

Classes, order and values count; where tensors lie does not, nor whether they are
pinned. A value that is not a number is the same as another such value.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from gpumagic.devices.storages import tensors_within
from gpumagic.pin_loader.batch.containers import DEEPEST, Opened, opened, too_deep
from gpumagic.pin_loader.batch.recognising import is_array

_LONGEST = 60  # letters of a value


def difference(a: Any, b: Any) -> str | None:
    """The first difference between two batches, in words; None where they are equal.

    Args:
        a: What it was.

        b: What became of it.

    Raises:
        GpuMagicError: A tuple, a list or a mapping contains itself.
    """
    return _Comparison().of(a, b, "batch", 0)


class _Comparison:
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
                return f"{path}: {_short(each)} is not in it any more"
        return None


def _between_keys(was: list[Any], now: list[Any]) -> str:
    if len(was) != len(now):
        return f"{len(was)} parts became {len(now)}"
    if all(key in now for key in was):
        return "its keys came in another order"
    gone = next(key for key in was if key not in now)
    return f"it has no {_short(gone)} any more"


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
    was, now = (_short(each[first].item()) for each in (a, b))
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
    return None if same else f"{path}: {_short(a)} became {_short(b)}"


def _of(value: Any) -> str:
    is_shape = isinstance(value, tuple)
    return str(tuple(value)) if is_shape else str(value).removeprefix("torch.")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _is_tensor(thing: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.Tensor)
