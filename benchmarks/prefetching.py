"""What prefetching costs the host for each batch, beside a plain loop and its peers.

Two questions, each interleaved in itself. How much longer does a loop take whose
loader needs 1 ms for a batch and which has nothing to overlap? And what is it for a
loader that takes no time, where nothing but the host's work is left?

All run on the simulated GPU, which stands in for CUDA so that peers find one: the host
does for each copy, stream and event what it would do for a real one, only slower, in
Python. What of it is ours is measured again with streams that do nothing at all.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

import gpumagic
from benchmarks.runner import Comparison, Subject, side_by_side
from gpumagic.pin_loader.prefetcher import DevicePrefetcher, Lane, looking_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_BATCHES = 100  # in one sample
_LOADING_S = 0.001
_PLAIN, _OURS = "plain loop", "DevicePrefetcher"
_SLOW = f", {_LOADING_S * 1e3:g} ms a batch"
_BARE = ", streams that do nothing"
_LOADERS = ((_LOADING_S, _SLOW), (0.0, ""))


def run(rounds: int = 25) -> Comparison:
    """Time loops over the same batches; every figure is seconds for one batch."""
    torch.set_num_threads(1)
    # Races are not looked for: nobody pays for that on a real GPU.
    with gpumagic.simulate("h100", as_cuda=True):
        ways, notes = _ways()
        batches = _pinned_batches()
        parts = [
            side_by_side("", _subjects(ways, batches, seconds, name), rounds=rounds)
            for seconds, name in _LOADERS
        ]
    parts += [
        side_by_side("", _without_a_device(seconds, name), rounds=rounds)
        for seconds, name in _LOADERS
    ]
    samples = {name: each for part in parts for name, each in part.samples_s.items()}
    return Comparison("prefetching", samples, notes | _added(parts))


class Loader:
    """Gives the same batches each time, after so much work for each."""

    def __init__(self, batches: list[Any], seconds: float) -> None:
        self._batches = batches
        self._seconds = seconds
        self.sampler = self.batch_sampler = self.dataset = None

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            end = time.perf_counter() + self._seconds
            while time.perf_counter() < end:
                pass
            yield batch


def _pinned_batches() -> list[Any]:
    return [
        (torch.zeros(8, 3, 4, 4).pin_memory(), torch.zeros(8).pin_memory())
        for _ in range(_BATCHES)
    ]


def _subjects(
    ways: dict[str, Callable[[Loader], Iterable[Any]]],
    batches: list[Any],
    seconds: float,
    name: str,
) -> dict[str, Subject]:
    return {
        f"{way}{name}": partial(_for_a_batch, make(Loader(batches, seconds)))
        for way, make in ways.items()
    }


def _for_a_batch(loop: Iterable[Any]) -> float:
    start = time.perf_counter()
    for _ in loop:
        pass
    return (time.perf_counter() - start) / _BATCHES


# ------------------------------------------------------------------------ the ways


class _Plain:
    """The loop that everybody writes."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        for images, labels in self._loader:
            yield (
                images.to("cuda", non_blocking=True),
                labels.to("cuda", non_blocking=True),
            )


def _ways() -> tuple[dict[str, Callable[[Loader], Iterable[Any]]], dict[str, Any]]:
    """How batches can be brought to the device, and which peers are not here."""
    ways: dict[str, Callable[[Loader], Iterable[Any]]] = {
        _PLAIN: _Plain,
        _OURS: lambda loader: DevicePrefetcher(loader, "cuda"),
    }
    notes = {}
    for name, find in (("timm", _timm), ("PyG", _pyg)):
        try:
            ways[f"{name} PrefetchLoader"] = find()
        except ImportError as error:
            notes[name] = f"not here: {error}"
    notes["accelerate"] = "left out: it copies on the current stream"
    return ways, notes


def _timm() -> Callable[[Loader], Iterable[Any]]:
    kind = importlib.import_module("timm.data.loader").PrefetchLoader
    nothing = {"mean": (0.0,) * 3, "std": (1 / 255,) * 3}  # it normalises all the same
    return lambda loader: kind(loader, device=torch.device("cuda", 0), **nothing)


def _pyg() -> Callable[[Loader], Iterable[Any]]:
    kind = importlib.import_module("torch_geometric.loader").PrefetchLoader
    return lambda loader: kind(loader, torch.device("cuda", 0))


# -------------------------------------------------------------- without any device


class _Nothing:
    """A stream and an event at once, of a device that does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """There is nothing to make."""

    def record(self, stream: Any = None) -> None:
        """Nothing to mark."""

    def wait_event(self, event: Any) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """It has always been reached."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""


def _without_a_device(seconds: float, name: str) -> dict[str, Subject]:
    """Our own work for a batch: torch's meta device holds no numbers and has no copies.

    It is a lane and what looks ahead, which is all but one call of a generator.
    """
    stream = _Nothing()
    words = SimpleNamespace(
        Stream=_Nothing,
        Event=_Nothing,
        stream=lambda _: contextlib.nullcontext(),
        current_stream=lambda _: stream,
    )
    lane = Lane(SimpleNamespace(meta=words), torch.device("meta"))
    loader = Loader([(torch.zeros(8, 3, 4, 4), torch.zeros(8))] * _BATCHES, seconds)

    def plain() -> float:
        return _for_a_batch(
            tuple(each.to("meta", non_blocking=True) for each in batch)
            for batch in loader
        )

    def ours() -> float:
        under_way = looking_ahead(map(lane.send, loader), 1)
        return _for_a_batch(map(lane.hand_over, under_way))

    return {f"{_PLAIN}{_BARE}{name}": plain, f"{_OURS}{_BARE}{name}": ours}


# ----------------------------------------------------------------- what came of it


def _added(parts: list[Comparison]) -> dict[str, Any]:
    """What each adds to the plain loop, by subject."""
    return {
        name: f"{(ratio - 1) * 100:+.1f} %, "
        f"{(part.medians_s[name] - next(iter(part.medians_s.values()))) * 1e6:+.1f} us"
        for part in parts
        for name, ratio in list(part.ratios.items())[1:]
    }
