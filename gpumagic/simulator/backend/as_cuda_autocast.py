"""Autocast under the name of CUDA: its switches are those of the simulated device."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.simulator.backend.as_cuda import Names
    from gpumagic.simulator.backend.as_cuda_tensors import Replacement

_SWITCHES = (
    "get_autocast_dtype",
    "set_autocast_dtype",
    "set_autocast_enabled",
    "is_autocast_enabled",
)


def autocast_for_cuda(torch: Any, names: Names) -> Iterator[Replacement]:
    """What to put in the place of torch's own: object, name, replacement."""
    for name in _SWITCHES:
        yield torch, name, _switch(getattr(torch, name), names)
    get, set_ = torch.get_autocast_dtype, torch.set_autocast_dtype
    ours = names.type_of("cuda")
    yield torch, "get_autocast_gpu_dtype", lambda: get(ours)
    yield torch, "set_autocast_gpu_dtype", lambda dtype: set_(ours, dtype)
    autocast = torch.amp.autocast_mode.autocast
    yield autocast, "__init__", _block(autocast.__init__, names)


def _switch(switch: Callable[..., Any], names: Names) -> Callable[..., Any]:
    """One of torch's switches, which without a device is that of CUDA."""

    @functools.wraps(switch)
    def ask(*args: Any, **options: Any) -> Any:
        if "device_type" in options:
            options["device_type"] = names.type_of(options["device_type"])
        elif not args or isinstance(args[0], bool):
            args = (names.type_of("cuda"), *args)
        else:
            args = (names.type_of(args[0]), *args[1:])
        return switch(*args, **options)

    return ask


def _block(init: Callable[..., None], names: Names) -> Callable[..., None]:
    @functools.wraps(init)
    def begin(self: Any, device_type: Any, *args: Any, **options: Any) -> None:
        init(self, names.type_of(device_type), *args, **options)

    return begin
