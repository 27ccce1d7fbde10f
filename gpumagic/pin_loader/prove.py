"""Proves that a rebuilt loader gives the same batches, and measures what it gains.

Both begin from the same random state, one after the other, so that a dataset is never
gone through twice at once. What is gone through are clones: a loader of the user's own
is not moved on. A batch's digest is a line for each of its leaves: the path, the class,
dtype, shape and a short sum; the first line that is another one is the difference.
Where tensors lie does not count, nor whether they are pinned. The same lines tell
records that several workers of an iterable dataset give.

Then the loop as it is and the new loop run in turn; both stay open, since starting
workers takes longer than many steps. The clock of a simulated machine does not move
while Python loads: there a step of either loop is worked out.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
import math
import sys
import time
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.simulated import word_of
from gpumagic.devices.storages import tensors_within
from gpumagic.pin_loader.batch import to_device, walk
from gpumagic.pin_loader.bound import Costs, Way, step_s
from gpumagic.pin_loader.load import no_batches
from gpumagic.pin_loader.loader import (
    USUAL_PREFETCH,
    clone,
    is_iterable_style,
    length_of,
)
from gpumagic.pin_loader.records import EndToEnd, Sameness
from gpumagic.pin_loader.trial import batches_of, kept
from gpumagic.report.introspection import is_array
from gpumagic.report.robust import verdict_of
from gpumagic.report.units import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpumagic.devices.protocols import Runtime
    from gpumagic.pin_loader.batch import Parts
    from gpumagic.pin_loader.prefetcher import DevicePrefetcher

_LONGEST = 60  # letters of a value
_RECORDS = 64  # of each worker, that are looked at
_FEWEST_RECORDS = 3
_MOSTLY = 0.9  # of a worker's records that another one gives as well


class Leaf(NamedTuple):
    """One line of a digest."""

    path: str
    what: str  # the class, with dtype and shape
    value: str  # what is in it, summed up where that is long


def digest_of(batch: Any) -> tuple[Leaf, ...]:
    """A line for each leaf and each container, in the order of walking."""
    return tuple(line for found in walk(batch) for line in _lines(*found))


def _lines(
    path: str, thing: Any, parts: Parts, above: tuple[Any, ...]
) -> Iterator[Leaf]:
    torch: Any = sys.modules["torch"]
    kind = type(thing).__qualname__
    if any(isinstance(each, set | frozenset) for each in above):
        return  # it is in the line of the set, which has no order
    if isinstance(thing, torch.Tensor):
        yield from _tensor_lines(torch, thing, path, kind)
    elif is_array(thing):
        about = f"{kind} {thing.dtype} {tuple(thing.shape)}"
        plain = not thing.dtype.hasobject
        content = thing.tobytes() if plain else repr(thing.tolist()).encode()
        yield Leaf(path, about, _sum_of(content))
    elif isinstance(thing, set | frozenset):
        inside = (digest_of(each) for each in thing)
        yield Leaf(path, kind, _sum_of("\n".join(sorted(map(str, inside))).encode()))
    elif parts.keys:
        yield Leaf(path, kind, f"keys {', '.join(map(repr, parts.keys))}")
    else:
        own: Any = type(thing)
        alike = own.__eq__ is not object.__eq__ and own.__repr__ is not object.__repr__
        # Else there is nothing to compare them by but who they are.
        yield Leaf(path, kind, repr(thing) if alike else "")


def _tensor_lines(torch: Any, tensor: Any, path: str, kind: str) -> Iterator[Leaf]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_nested:
        rows = tensor.unbind()
        yield Leaf(path, f"{kind} {dtype}", f"{len(rows)} rows")
        for at, row in enumerate(rows):
            yield from _tensor_lines(torch, row, f"{path}[{at}]", kind)
        return
    about = f"{kind} {dtype} {tuple(tensor.shape)}"
    if tensor.layout is not torch.strided:
        whole = tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor
        yield Leaf(path, f"{about} {tensor.layout}", "")
        for part in tensors_within(torch, whole):
            yield from _tensor_lines(torch, part, path, kind)
        return
    yield Leaf(path, about, _content(torch, tensor))


def _content(torch: Any, tensor: Any) -> str:
    """A sum of its bytes; one number is told itself."""
    try:
        with torch.no_grad():
            host = tensor.detach().cpu()
            if host.is_quantized:
                host = host.int_repr()
            host = host.resolve_conj().resolve_neg().contiguous()
            if host.numel() == 1:
                return repr(host.item())
            if host.is_floating_point() or host.is_complex():
                with contextlib.suppress(RuntimeError):  # of a dtype without `!=`
                    nan = host != host  # noqa: PLR0124 -- any is like another
                    host = host.masked_fill(nan, math.nan) if nan.any() else host
            return _sum_of(host.reshape(-1).view(torch.uint8).numpy())
    except Exception:  # noqa: BLE001 -- a class that only stands for a tensor
        return ""


def _sum_of(content: Any) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def difference(a: tuple[Leaf, ...], b: tuple[Leaf, ...]) -> str:
    """The first difference between two digests, in words; empty if they are equal."""
    for one, other in itertools.zip_longest(a, b, fillvalue=Leaf("", "", "")):
        if one == other:
            continue
        if one.path != other.path:
            return f"{one.path or other.path}: its parts are others"
        if one.what != other.what:
            return f"{one.path}: {one.what} became {other.what}"
        if len(one.value) == 32 == len(other.value):
            return f"{one.path}: other values"
        was, now = (shortened(each.value, _LONGEST) for each in (one, other))
        return f"{one.path}: {was} became {now}"
    return ""


# ------------------------------------------------------------------- two loaders


Digests = list[tuple[Leaf, ...]]  # one for each batch, in order


def compare(
    old: Any, new: Any, *, batches: int, enough_s: float = math.inf
) -> Sameness:
    """Whether two loaders give the same batches from the same random state.

    They can be copied, and gone through again: else nothing is made of them.
    """
    with kept(old):
        try:
            return _compared(_twin_of(old), _twin_of(new), batches, enough_s)
        except Exception as wrong:  # noqa: BLE001 -- the user's own, whatever it is
            problem = f"one of the loaders raised {type(wrong).__name__}"
            return Sameness(batches=0, same=False, problem=problem)


def _compared(old: Any, new: Any, most: int, enough_s: float) -> Sameness:
    seen, ended = gone_through(old, most, enough_s)
    count = len(seen)
    if not ended:
        most = count

    def parts_from(other: Any) -> tuple[int, str]:
        return _between(seen, gone_through(other, most)[0])

    place, words = parts_from(new)
    if not words:
        return Sameness(count, same=True)
    # A difference is one of the loaders, or of random numbers.
    workers = [getattr(each, "num_workers", 0) for each in (old, new)]
    if parts_from(old)[1]:
        problem = "the old loader itself gives other values each time"
        return Sameness(place, same=False, problem=problem)
    if workers[0] != workers[1] and not is_iterable_style(_host(old)):
        place, words = parts_from(_twin_of(new, workers=workers[0]))
        if not words:
            problem = (
                f"with {workers[1]} workers instead of {workers[0]} random transforms "
                "draw other numbers; with as many as before all values are the same"
            )
            return Sameness(count, same=True, problem=problem)
    return Sameness(place, same=False, difference=words)


def _between(one: Digests, other: Digests) -> tuple[int, str]:
    """After how many batches two ways part, and by what, if they do."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if words := difference(a, b):
            return place, f"batch {place}: {words}"
    counts = len(one), len(other)
    if counts[0] != counts[1]:
        return min(counts), f"the old loader gave {counts[0]}, the new one {counts[1]}"
    return min(counts), ""


def gone_through(
    loader: Any,
    most: int,
    enough_s: float = math.inf,
    fewest: int = 2,  # however long they take
    patience_s: float = 0.0,
) -> tuple[Digests, bool]:
    """Up to so many batches of a clone, and whether these are all that there are.

    It leaves all random numbers as before.
    """
    until_s = time.monotonic() + enough_s
    with kept(loader), batches_of(loader, patience_s=patience_s) as batches:
        return _gone_through(batches, most, until_s, fewest)


def _gone_through(
    batches: Iterable[Any], most: int, until_s: float, fewest: int
) -> tuple[Digests, bool]:
    digests = Digests()
    for batch in batches:
        digests.append(digest_of(batch))
        enough = len(digests) >= fewest and time.monotonic() > until_s
        if enough or len(digests) >= most:
            return digests, False
    return digests, True


def _twin_of(loader: Any, **changes: Any) -> Any:
    """A loader like it that may be moved on."""
    host = _host(loader)
    if host is loader:
        return clone(host, **changes)
    twin = copy.copy(loader)
    twin.loader = clone(host, **changes)
    return twin


def _host(loader: Any) -> Any:
    """What a prefetcher of ours feeds from; any other loader is that itself."""
    is_ours = type(loader).__module__.startswith("gpumagic.")
    return loader.loader if is_ours else loader


# ------------------------------------------------------------ records given twice


def given_by_all_workers(
    loader: Any, *, enough_s: float, patience_s: float = 60.0
) -> bool | None:
    """Whether each worker of an iterable dataset gives the records of the others, too.

    They come in turn, one from each worker, so that who gave which is known.
    """
    from torch.utils.data import DataLoader

    workers = loader.num_workers
    records: Any = DataLoader(
        loader.dataset,
        batch_size=None,
        num_workers=workers,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
    )
    most, fewest = workers * _RECORDS, workers * _FEWEST_RECORDS
    seen, ended = gone_through(records, most, enough_s, fewest, patience_s)
    return is_given_twice(seen, workers, ended=ended)


def is_given_twice(digests: Digests, workers: int, *, ended: bool) -> bool | None:
    """What the records of an epoch's beginning tell, handed over in turn by workers."""
    by_worker = [set(digests[at::workers]) for at in range(workers)]
    fewest = min(map(len, by_worker))
    if fewest < _FEWEST_RECORDS:  # they are alike, or too few to tell
        return None
    first, *others = by_worker
    common = min(len(first & each) / min(len(first), len(each)) for each in others)
    if common >= _MOSTLY:
        return True
    return False if ended or not common else None


# -------------------------------------------------------------- both loops, in turn

_BATCHES, _FEWEST_BATCHES, _FEWEST_ROUNDS = 20, 4, 3
_PAIRS, _MOST_PAIRS = 6, 20  # for a verdict
_FEWEST_AHEAD, _MOST_AHEAD = 3, 64
_WARM_STEPS = 2


def worked_out(old: Costs, new: Costs, *, known: bool) -> EndToEnd:
    """Both loops by the formulas, on a machine whose device has its own clock.

    `known`: loading was timed often enough to tell both apart.
    """
    pair = step_s(old, Way.BLOCKING), step_s(new, Way.AHEAD)
    found = verdict_of([pair] * (2 * _PAIRS if known else 1))
    return EndToEnd(found, modelled=True)


def end_to_end(  # noqa: PLR0913 -- two loaders, and what is known of both
    old: Any,
    new: DevicePrefetcher,
    runtime: Runtime,
    *,
    device: int,
    step: Callable[[Any], object],
    about_s: float,
    budget_s: float,
    tell: Callable[[float], object] = lambda _: None,
) -> EndToEnd:
    """Run both loops in turn, as pairs A B B A, and say which is faster, if any is.

    In each run a few batches come first that do not count: those that workers had
    prepared while the other loop ran. The device is waited for at both ends only.
    A step of the old loop takes `about_s`.
    """
    import torch

    place = torch.device(word_of(runtime.kind), device)

    def moved_then(batch: Any) -> None:
        step(to_device(batch, place, non_blocking=False))

    with contextlib.ExitStack() as stack:
        loops = [Loop(old, moved_then, runtime), Loop(new, step, runtime)]
        for loop in loops:
            stack.callback(loop.close)
        steps = _affordable(loops, about_s, budget_s)
        pairs = _pairs(loops, steps, budget_s, tell)
    return EndToEnd(verdict_of(pairs), steps)


def _affordable(loops: Sequence[Loop], about_s: float, budget_s: float) -> int:
    """So many steps that the pairs of a verdict fit into the budget, if that can be.

    They are whole rounds of the workers of both, and both drop as many.
    """
    every = math.lcm(*(loop.round for loop in loops))
    ahead = max(loop.ahead for loop in loops)
    for loop in loops:
        loop.ahead = ahead  # so that both are in one phase
    fewest = max(_FEWEST_BATCHES, _FEWEST_ROUNDS * every)
    affordable = int(budget_s / (2 * _PAIRS) / max(about_s, 1e-6)) - every
    wanted = min(max(affordable, fewest), max(_BATCHES, fewest))
    return math.ceil(wanted / every) * every


def _pairs(
    loops: Sequence[Loop], steps: int, budget_s: float, tell: Callable[[float], object]
) -> list[tuple[float, float]]:
    """Seconds for a step of either loop, in the order A B, B A, A B ..."""
    for loop in loops:  # workers, libraries, memory: what is paid for once
        loop.run(1)
    began_s, spent = perf_counter(), 0.0
    pairs: list[tuple[float, float]] = []
    # A verdict is worth twice the time.
    while len(pairs) < _MOST_PAIRS and spent < (2 if len(pairs) < _PAIRS else 1):
        first = len(pairs) % 2
        took_s = {at: loops[at].run(steps) for at in (first, 1 - first)}
        pairs.append((took_s[0], took_s[1]))
        spent = (perf_counter() - began_s) / max(budget_s, 1e-9)
        tell(max(spent, len(pairs) / _MOST_PAIRS))
    return pairs


class Loop:
    """One loop, again and again: a batch, then what is done with it."""

    def __init__(
        self, loader: Any, use: Callable[[Any], object], runtime: Runtime
    ) -> None:
        self._loader, self._use, self._runtime = loader, use, runtime
        self._epoch = contextlib.ExitStack()
        self._batches: Iterator[Any] = iter(())
        self._taken = 0  # in this epoch
        self._length = length_of(loader) or math.inf
        workers = getattr(loader, "num_workers", 0) or 0
        each = getattr(loader, "prefetch_factor", None) or USUAL_PREFETCH
        depth = getattr(loader, "depth", 0) or 0
        # Workers hand over in bursts, one batch each: only whole rounds are compared.
        # What may be ready before anybody asks comes faster than it can load.
        self.round = max(workers, 1)
        ahead = workers * each + workers + depth
        self.ahead = min(max(ahead, _FEWEST_AHEAD), _MOST_AHEAD)

    def run(self, steps: int) -> float:
        """Run some steps, after a few batches that are dropped; from idle to idle.

        Those were prepared while nobody took any. The step is run with the last few,
        so that the device is in its stride. Returns the seconds for one step.
        """
        if self._taken + self.ahead + steps > self._length:
            self.close()  # better now than while it is timed
        synchronize, now_ns = self._runtime.synchronize, self._runtime.now_ns
        began_ns = 0
        for at in range(-self.ahead, steps):
            if at == 0:
                synchronize()
                began_ns = now_ns()
            batch = self._next()
            if at >= -_WARM_STEPS:
                self._use(batch)
            del batch
        synchronize()
        return (now_ns() - began_ns) / 1e9 / steps

    def close(self) -> None:
        """End the iteration, and its workers with it."""
        self._batches, self._taken = iter(()), 0
        self._epoch.close()

    def _next(self) -> Any:
        for _ in range(2):
            for batch in self._batches:
                self._taken += 1
                return batch
            self.close()
            self._batches = self._epoch.enter_context(batches_of(self._loader))
        raise no_batches()
