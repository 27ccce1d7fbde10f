"""A copy of torch's private sanitizer that nobody else knows, for one block.

Once `torch.cuda._sanitizer` is loaded, it follows every allocation of the process for
good, each with its whole stack. So it is never loaded under its own name here, and
what the copy registers is taken back.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_SANITIZER = "torch.cuda._sanitizer"
_HEARD = (
    *("event_creation", "event_deletion", "event_record", "event_wait"),
    *("memory_allocation", "memory_deallocation", "stream_creation"),
    *("device_synchronization", "stream_synchronization", "event_synchronization"),
)


@contextlib.contextmanager
def private_sanitizer(torch: Any) -> Iterator[Any]:
    """The sanitizer's module, loaded beside the one that the user may have.

    At the end torch's registries are rid of whatever the copy has put there.

    Args:
        torch: The torch module itself.

    Raises:
        ImportError: This torch has no sanitizer.
        AttributeError: It lacks what the sanitizer listens to.
    """
    gpu_trace = importlib.import_module("torch.cuda._gpu_trace")
    # Asked first: a copy that fails half-way leaves half a sanitizer.
    for name in _HEARD:
        getattr(gpu_trace, f"register_callback_for_{name}")
    torch._C._activate_gpu_trace  # noqa: B018, SLF001 -- as above
    spec = importlib.util.find_spec(_SANITIZER)
    if spec is None or spec.loader is None:
        raise ImportError(f"there is no {_SANITIZER}")
    module: Any = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        # It extracts the whole stack at each operation, for texts that nobody reads.
        module.traceback = _NoStacks
        yield module
    finally:
        for registry in vars(gpu_trace).values():
            _rid(getattr(registry, "callback_list", []), module)


def _rid(callbacks: list[Any], module: Any) -> None:
    callbacks[:] = [each for each in callbacks if not _is_of(module, each)]


def _is_of(module: Any, callback: Any) -> bool:
    function = getattr(callback, "__func__", None)
    return getattr(function, "__globals__", None) is vars(module)


class _NoStacks:
    """In the place of `traceback`, for a sanitizer that is asked for no stacks."""

    class StackSummary:
        """The stack of nothing."""

        @staticmethod
        def extract(*_: Any, **__: Any) -> list[Any]:
            """No frames at all."""
            return []

    @staticmethod
    def walk_stack(_: Any) -> None:
        """Nothing to walk."""
