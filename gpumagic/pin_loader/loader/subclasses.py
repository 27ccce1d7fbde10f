"""Who is who among the subclasses of DataLoader and what looks like one.

They are known by name, along all their bases: none of their packages is imported.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from gpumagic.pin_loader.loader.loader_words import is_torch_loader
from gpumagic.report.introspection import attributes_of


class Treatment(enum.Enum):
    """What can be done with a loader."""

    REBUILD = "made anew by its own class"
    FLAG = "copied, and the copy's attributes set"
    INNER = "copied round a copy of the loader within"
    MOVES = "left alone: it copies batches to the device itself"
    LEAVE = "left alone"


class Known(NamedTuple):
    """A class that needs a treatment of its own.

    Attributes:
        package: The first part of its module's name; empty is any.

        name: Its own name, or that of a base.

        inner: The attribute with the loader within.

        reason: Why it is treated so, in half a sentence; empty where it is as usual.

        hint: What can be done instead.
    """

    package: str
    name: str
    treatment: Treatment
    inner: str = ""
    reason: str = ""
    hint: str = ""


_BY_DEVICE = "it copies each batch to the device itself"
_WITHIN = "give the loader within it pin_memory=True"
_PREPARED = (
    "pass DataLoaderConfiguration(non_blocking=True) to the Accelerator, and "
    "pin_memory=True to the loader before `prepare`"
)

KNOWN = (
    # Iterating makes it collect the batches of all processes: on one alone it hangs.
    Known(
        "accelerate",
        "DataLoaderDispatcher",
        Treatment.MOVES,
        "base_dataloader",
        "it reads for all processes, and hands each its part on the device",
        _PREPARED,
    ),
    # A new one would shard what is sharded already; its own flag is never read.
    Known(
        "accelerate",
        "DataLoaderAdapter",
        Treatment.INNER,
        "base_dataloader",
        "accelerate has prepared it, and only the loader within reads pin_memory",
        _PREPARED,
    ),
    Known("gpumagic", "DevicePrefetcher", Treatment.MOVES, "loader", _BY_DEVICE),
    Known("timm", "PrefetchLoader", Treatment.MOVES, "loader", _BY_DEVICE, _WITHIN),
    Known(
        "torch_geometric",
        "PrefetchLoader",
        Treatment.MOVES,
        "loader",
        "it pins each batch in the main thread, and copies it to the device itself",
        "hand the loader within it to %pin_loader instead",
    ),
    Known(
        "lightning",
        "_FabricDataLoader",
        Treatment.MOVES,
        "_dataloader",
        "Fabric copies each batch to the device itself",
        "pass pin_memory=True to the loader before `setup_dataloaders`",
    ),
    Known(
        "",  # lightning, pytorch_lightning
        "CombinedLoader",
        Treatment.MOVES,
        "",
        "Lightning's trainer rebuilds its loaders and copies their batches itself",
        "pass pin_memory=True to each of its loaders",
    ),
    Known(
        "fastai",
        "DataLoader",
        Treatment.MOVES,
        "",
        "fastai copies each batch to its device itself",
        "pass pin_memory=True to `dataloaders(...)`",
    ),
    Known(
        "nvidia",
        "_DaliBaseIterator",
        Treatment.MOVES,
        "",
        "a DALI pipeline gives batches that are on the device already",
    ),
    Known(
        "ffcv",
        "Loader",
        Treatment.MOVES,
        "",
        "FFCV has buffers of its own, and copies with its ToDevice",
    ),
    # Its arguments are not kept as attributes: data, neighbours, node sampler.
    Known(
        "torch_geometric",
        "NodeLoader",
        Treatment.FLAG,
        "",
        "its samplers cannot be made anew from what it keeps",
    ),
    Known(
        "torch_geometric",
        "LinkLoader",
        Treatment.FLAG,
        "",
        "its samplers cannot be made anew from what it keeps",
    ),
    # Their batch samplers never end: a loader of the plain kind would not, either.
    Known(
        "timm",
        "MultiEpochsDataLoader",
        Treatment.FLAG,
        "",
        "its batch sampler repeats for ever, and only its own class counts the epochs",
    ),
    Known(
        "ultralytics",
        "InfiniteDataLoader",
        Treatment.FLAG,
        "",
        "its batch sampler repeats for ever, and only its own class counts the epochs",
    ),
)
_USUAL = Known("", "DataLoader", Treatment.REBUILD)
_FOREIGN = Known(
    "",
    "",
    Treatment.LEAVE,
    "",
    "it is not a DataLoader of torch, and how it was made is not known",
    "pin its batches where they are made",
)


def known_as(loader: Any) -> Known:
    """How a loader is to be treated, by its true class and the bases of that."""
    for base in type(loader).__mro__:
        package = base.__module__.partition(".")[0]
        for known in KNOWN:
            if known.name == base.__name__ and known.package in ("", package):
                return known
    return _USUAL if is_torch_loader(loader) else _FOREIGN


def loader_within(loader: Any) -> Any | None:
    """The DataLoader that a look-alike has within it, if it is known where."""
    name = known_as(loader).inner
    inner = (attributes_of(loader) or {}).get(name) if name else None
    return inner if is_torch_loader(inner) else None
