"""`torch.compile` while the simulator is on: what runs torch's own operators works.

Backends that make kernels of their own for a GPU are refused by name once they are to
do so for the simulated one; for the CPU they do what they always do.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.refusals import not_simulated
from gpumagic.simulator.backend.registration import NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# While the simulator is on there is no other GPU that has the second name.
_SIMULATED = (NAME, "cuda")


def compiling(torch: Any) -> Iterator[tuple[Any, str, Any]]:
    """What to put in the place of torch's own: object, name, replacement."""
    plain = torch.compile
    inductor = torch._TorchCompileInductorWrapper
    yield inductor, "__call__", _refusing("inductor", inductor.__call__)

    def compile_here(*args: Any, **options: Any) -> Any:
        _keep_out_of_our_code()
        if options.get("backend") == "cudagraphs":
            options["backend"] = _refusing("cudagraphs", _cudagraphs)
        return plain(*args, **options)

    yield torch, "compile", compile_here


def _refusing(name: str, backend: Callable[..., Any]) -> Callable[..., Any]:
    def compile_graph(*args: Any, **options: Any) -> Any:
        graph, examples = args[-2:]
        if not _is_simulated(graph, examples):
            return backend(*args, **options)

        # Said when it runs: torch would wrap what is raised while it compiles.
        def refuse(*_: Any) -> Any:
            raise not_simulated(
                f"torch.compile with the {name} backend",
                'say torch.compile(f, backend="eager") here, or "aot_eager"',
            )

        return refuse

    return compile_graph


def _cudagraphs(graph: Any, examples: Sequence[Any], **options: Any) -> Any:
    from torch._dynamo.backends.registry import lookup_backend

    return lookup_backend("cudagraphs")(graph, examples, **options)


def _is_simulated(graph: Any, examples: Sequence[Any]) -> bool:
    made = (node.meta.get("example_value") for node in graph.graph.nodes)
    values = (*examples, *graph.parameters(), *graph.buffers(), *made)
    devices = (getattr(each, "device", None) for each in values)
    return any(getattr(each, "type", None) in _SIMULATED for each in devices)


@functools.cache
def _keep_out_of_our_code() -> None:
    """Let torch compile the user's functions, and not the kernels that they end in."""
    from torch._dynamo import trace_rules

    trace_rules.add(__name__.partition(".")[0])
