"""Saving and loading under the name of CUDA: files fit a machine that has it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.registration import NAME, lies_there

if TYPE_CHECKING:
    from collections.abc import Iterator

_BEFORE_TORCHS_OWN = 4


@contextlib.contextmanager
def saved_as_cuda(torch: Any) -> Iterator[None]:
    """While this is entered, simulated tensors are saved and loaded as CUDA's."""
    serialization = torch.serialization

    def tag(storage: Any) -> str | None:
        return str(storage.device) if lies_there(storage) else None

    def restore(saved: Any, location: str) -> Any:
        if location != "cuda" and not location.startswith("cuda:"):
            return None
        serialization._validate_device(location, "cuda")
        where = location.replace("cuda", NAME, 1)
        return serialization.default_restore_location(saved, where)

    serialization.register_package(_BEFORE_TORCHS_OWN, tag, restore)
    registry = serialization._package_registry
    entry = next(each for each in registry if each[2] is restore)
    try:
        yield
    finally:
        registry.remove(entry)
