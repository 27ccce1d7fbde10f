"""torch's private names: each behind a feature test, with what is done without it.

Every function takes the torch module; `loaded_torch` finds it where the notebook has
imported it. Nothing here starts a device, except where its docstring says from when on
it may be asked.
"""

# ruff: noqa: SLF001 -- the one module that is meant to look inside torch

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_UNNAMED = "privateuseone"  # what torch calls the free place for a new backend
_EMPTY_HOST_CACHE = ("_accelerator_emptyHostCache", "_host_emptyCache")


def loaded_torch() -> Any | None:
    """torch, if it has been imported, and not only in part."""
    torch: Any = sys.modules.get("torch")
    return torch if hasattr(torch, "cuda") else None


def has_cuda_context(torch: Any, device: int) -> bool:
    """Whether this process has a context on a CUDA device; ask after the start."""
    ask = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    if ask is not None:
        return bool(ask(device))
    current: int = torch.cuda.current_device()
    return device == current or torch.cuda.memory_reserved(device) > 0


def cublas_workspace_bytes(torch: Any) -> int | None:
    """How large cuBLAS's workspaces are; None where that is not known."""
    ask = getattr(torch._C, "_cuda_getCublasWorkspaceSize", None)
    if ask is not None:
        return int(ask())
    # torch 2.11 does not tell, and this is its rule.
    starts = getattr(torch.cuda, "is_initialized", bool)()
    if not starts or torch.version.hip or "CUBLAS_WORKSPACE_CONFIG" in os.environ:
        return None
    is_new = torch.cuda.get_device_capability() >= (9, 0)
    return 32 << 20 if is_new else (8 << 20) + (128 << 10)


def cuda_count_latched(torch: Any) -> int:
    """The GPUs that CUDA itself counts; ask only once CUDA is initialised.

    The public `device_count()` may read CUDA_VISIBLE_DEVICES anew and then tells
    what a changed variable would give, not what the driver has fixed.
    """
    return int(getattr(torch._C, "_cuda_getDeviceCount", torch.cuda.device_count)())


def cuda_count_unstarted(torch: Any) -> int | None:
    """The GPUs that torch would see, counted without CUDA; None if it cannot be.

    It is the part of the public `device_count()` that asks NVML (on ROCm: AMD SMI).
    The public one goes on to initialise CUDA where that fails: for a MIG device,
    on Jetson, with a broken NVML.
    """
    name = "_device_count_amdsmi" if torch.version.hip else "_device_count_nvml"
    count = getattr(torch.cuda, name, None)
    if count is None:
        return None
    with warnings.catch_warnings():  # it warns when NVML fails: so we say None
        warnings.simplefilter("ignore")
        try:
            found = int(count())
        except RuntimeError:  # on ROCm, variables that contradict each other
            return None
    return None if found < 0 else found


def lost_by_fork(torch: Any) -> bool:
    """Whether a parent process had CUDA, so that this one can never have it."""
    return bool(getattr(torch.cuda, "_is_in_bad_fork", bool)())


def registered_backend(torch: Any) -> str | None:
    """The kind of device that an extension of torch has registered, if one has."""
    name: str = getattr(torch._C, "_get_privateuse1_backend_name", str)()
    return None if name in ("", _UNNAMED) else name


def is_capturing(torch: Any, kind: str) -> bool:
    """Whether this thread's current stream is being captured; ask after the start.

    Nothing may be waited for until that is over. A kind without the word captures
    nothing.
    """
    module = getattr(torch, kind, None)
    return bool(getattr(module, "is_current_stream_capturing", bool)())


def compilations(torch: Any) -> int:
    """How many pieces of code torch.compile has taken so far.

    Its counters are asked only where it has been used already: the attribute
    `torch._dynamo` imports itself, which takes seconds.
    """
    utils = sys.modules.get(f"{torch.__name__}._dynamo.utils")
    counters = getattr(utils, "counters", {})
    # Not by index: that would make an entry in the user's counters.
    return int(counters.get("frames", {}).get("total", 0))


def empty_host_cache(torch: Any) -> bool:
    """Give back page-locked memory that is unused; whether this torch can do that."""
    accelerator = getattr(torch, "accelerator", None)
    words = [
        getattr(accelerator, "empty_host_cache", None),
        *(getattr(torch._C, name, None) for name in _EMPTY_HOST_CACHE),
    ]
    for empty in filter(None, words):
        with contextlib.suppress(RuntimeError):
            empty()
            return True
    return False


@contextlib.contextmanager
def replaced(
    owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Put what is made of a function in its place; nothing happens if there is none.

    Whoever replaces it in turn, and leaves it so, keeps what they have put there. A
    class that has inherited it has nothing of its own afterwards.
    """
    before = getattr(owner, name, None)
    if before is None:
        yield
        return
    own = vars(owner).get(name)
    ours = make(before)
    setattr(owner, name, ours)
    try:
        yield
    finally:
        if vars(owner).get(name) is ours:
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
