"""What is kept of batches so that others can be compared with them: no batch itself.

A seal is the batch with a short sum in the place of each tensor and array. It has the
same containers and plain values, so that two seals are compared as two batches are.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.pin_loader.batch.adapter import unwrapped
from gpumagic.pin_loader.batch.walker import mapped
from gpumagic.pin_loader.loader.random_state import kept
from gpumagic.pin_loader.trials.trial import batches_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_SUM_BYTES = 16


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


def gone_through(loader: Any, most: int) -> Pass:
    """Take up to so many batches of a clone, and leave all random numbers as before."""
    seals: list[Any] = []
    ended, error = False, None
    with kept(loader), batches_of(loader) as batches:
        try:
            ended = not _seal(batches, most, seals)
        except Exception as wrong:  # noqa: BLE001 -- the other loader may raise it, too
            error = type(wrong).__name__
    return Pass(tuple(seals), ended, error)


def _seal(batches: Iterator[Any], most: int, seals: list[Any]) -> bool:
    """Seal up to so many in all, as they come; whether there were as many."""
    while len(seals) < most:
        try:
            batch = next(batches)
        except StopIteration:
            return False
        seals.append(sealed(unwrapped(batch)))
    return True


def batch_at(loader: Any, place: int) -> Any:
    """One batch of a clone, counted from 0; random numbers are left as before.

    Raises:
        StopIteration: There are not so many.
    """
    with kept(loader), batches_of(loader) as batches:
        return unwrapped(next(itertools.islice(batches, place, None)))


def sealed(batch: Any) -> Any:
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
