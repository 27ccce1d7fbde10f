"""Torch's private words for CUDA, answered where other code calls them, else refused.

They go to a driver that is not there. Most then say so; some of those for memory pools
end the process instead, and with it a notebook.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.refusals import not_simulated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.simulator.backend.as_cuda_tensors import Replacement
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.backend.words import Words

_PREFIX = "_cuda_"
_WAY_ON = "it is not for programs; torch.cuda has public words for most of this"
_CUDA = 1  # a device's type, as torch's C++ counts them
# Settings, and facts about the build: no driver is asked, or its absence is the answer.
_WITHOUT_A_DRIVER = (
    "cudaCachingAllocator_enable",
    "cudaCachingAllocator_is_enabled",
    "getAllocatorBackend",
    "getArchFlags",
    "getCompiledVersion",
    "getCublas",
    "getDeviceCount",
    "getHipblasltVersion",
    "get_conv_benchmark_empty_cache",
    "get_cudnn_benchmark_limit",
    "get_sync_debug_mode",
    "hasPrimaryContext",
    "init",
    "isHistoryEnabled",
    "isInBadFork",
    "resetCublas",
    "setCublas",
    "set_cudnn_benchmark_limit",
    "set_sync_debug_mode",
    "tunableop",
    "record_untuned",
)


def private_words(simulation: Simulation, words: Words) -> Iterator[Replacement]:
    """What to put in the place of torch's own: object, name, replacement."""
    core = simulation.torch._C
    answers = _answers(simulation, words)
    for name, value in tuple(vars(core).items()):
        if not name.startswith(_PREFIX) or not isinstance(value, _FUNCTIONS):
            continue
        short = name.removeprefix(_PREFIX)
        if short in answers:
            yield core, name, answers[short]
        elif not short.startswith(_WITHOUT_A_DRIVER):
            yield core, name, _refusing(name)


_FUNCTIONS = (types.BuiltinFunctionType, types.FunctionType)


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise not_simulated(f"torch._C.{name}", _WAY_ON)

    return refuse


def _answers(simulation: Simulation, words: Words) -> dict[str, Callable[..., Any]]:
    """Those that Python code of torch, and of others, calls past `torch.cuda`."""

    def ids(stream: Any) -> tuple[int, int, int]:
        return stream.stream_id, stream.device_index, _CUDA

    def set_stream(stream_id: int, device_index: int, device_type: int = _CUDA) -> None:
        del device_type
        stream = simulation.torch.cuda.Stream
        words.set_stream(stream(stream_id=stream_id, device_index=device_index))

    def exchange(device: int) -> int:
        before = words.current_device()
        if device >= 0:
            words.set_device(device)
        return before

    return {
        "getDevice": words.current_device,
        "setDevice": words.set_device,
        "exchangeDevice": exchange,
        "maybeExchangeDevice": exchange,
        "synchronize": words.synchronize,
        "emptyCache": words.empty_cache,
        "resetPeakMemoryStats": words.reset_peak_memory_stats,
        "resetAccumulatedMemoryStats": words.reset_accumulated_memory_stats,
        "getCurrentStream": lambda device: ids(words.current_stream(device)),
        "getDefaultStream": lambda device: ids(words.default_stream(device)),
        "getCurrentRawStream": lambda device: words.current_stream(device).cuda_stream,
        "setStream": set_stream,
    }
