"""What the simulator does not do, each refused by name with a way on."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.devices import torch_private
from gpumagic.devices.nvidia import why_no_cuda
from gpumagic.errors import DeviceError
from gpumagic.simulator.backend.registration import NAME, registered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_OLDEST_TORCH = (2, 10)
_NO_CUDA_HINT = (
    f'say device="{NAME}", which is the simulated GPU; or let "cuda" mean it: '
    'gpumagic.simulate("h100", as_cuda=True)'
)
# What is refused in several places: what there is not, and the way on.
NO_SPARSE = (
    "tensors but dense ones",
    "keep the tensor dense, or move it to the CPU first",
)
# While the simulator is on there is no other GPU that has the second name.
_SIMULATED = (NAME, "cuda")


class NotSimulated(DeviceError, NotImplementedError):
    """Something that the simulated GPU does not do."""


class NoCuda(DeviceError, AssertionError, RuntimeError):
    """There is no CUDA here, but the simulated GPU; of torch's own types."""


def require_fit(module: Any) -> None:
    """Refuse to switch on where it would not work, or would do harm."""
    version = tuple(map(int, module.__version__.split("+")[0].split(".")[:2]))
    other = torch_private.registered_backend(module)
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise DeviceError(
            "the simulator needs Python's global lock, which is off here",
            "start Python with PYTHON_GIL=1, or use the usual build",
        )
    if version < _OLDEST_TORCH:
        raise DeviceError(
            f"the simulator needs torch 2.10 or newer; this is {module.__version__}",
            f"{sys.executable} -m pip install -U torch, then restart",
        )
    if other and not registered():
        raise DeviceError(
            f"torch takes one device registered from Python, and {other!r} is "
            "registered already",
            f"restart without the package that registers {other!r}",
        )
    if not why_no_cuda(module):
        raise DeviceError(
            "there is a real GPU for this process to use, and the simulator would "
            "disturb its streams and its pinned memory",
            "use the real one; or start a kernel that hides it: "
            "CUDA_VISIBLE_DEVICES= jupyter lab",
        )


def refused_everywhere() -> Iterator[tuple[Any, str, Any]]:
    """What to put in the place of torch's own while on: object, name, replacement."""
    begin = torch.cuda._lazy_init

    @functools.wraps(begin)
    def start(*args: Any, **options: Any) -> Any:
        try:
            return begin(*args, **options)
        except (AssertionError, RuntimeError) as error:
            problem = str(error).partition("\n")[0]
            raise NoCuda(problem, _NO_CUDA_HINT) from None

    for name, module in tuple(sys.modules.items()):
        if name.startswith("torch.cuda") and hasattr(module, "_lazy_init"):
            yield module, "_lazy_init", start
    storage = torch.UntypedStorage
    new_shared = storage._new_shared

    def checked(_: Any, size: int, *, device: Any = "cpu") -> Any:
        """What a worker of a DataLoader makes its batches in."""
        if torch.device(device).type == NAME:
            raise not_simulated(
                "memory that is shared between processes",
                "let datasets give CPU tensors, and move the batches in the loop",
            )
        return new_shared(size, device=device)

    yield storage, "_new_shared", classmethod(checked)
    inductor = torch._TorchCompileInductorWrapper
    yield inductor, "__call__", _refusing_to_compile(inductor.__call__)
    plain = torch.compile

    def compile_here(*args: Any, **options: Any) -> Any:
        _keep_out_of_our_code()
        return plain(*args, **options)

    yield torch, "compile", compile_here


def not_simulated(what: str, way_on: str) -> NotSimulated:
    """The one sentence in which all of these are refused."""
    return NotSimulated(f"the simulator has no {what}", way_on)


def refusing(what: str, way_on: str) -> Callable[..., Any]:
    """A function, or the kernel of an operator, that says so whenever it is called."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise not_simulated(what, way_on)

    return refuse


def refuse_in_child(*_: Any, **__: Any) -> Any:
    """What CUDA says in a child of a process that had started it."""
    raise RuntimeError(
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with "
        "multiprocessing, you must use the 'spawn' start method"
    )


def _refusing_to_compile(backend: Callable[..., Any]) -> Callable[..., Any]:
    def compile_graph(self: Any, graph: Any, examples: Any) -> Any:
        made = (node.meta.get("example_value") for node in graph.graph.nodes)
        values = (*examples, *graph.parameters(), *graph.buffers(), *made)
        devices = (getattr(each, "device", None) for each in values)
        if not any(getattr(each, "type", None) in _SIMULATED for each in devices):
            return backend(self, graph, examples)
        # Said when it runs: torch would wrap what is raised while it compiles.
        return refusing(
            "torch.compile with the inductor backend",
            'say torch.compile(f, backend="eager") here, or "aot_eager"',
        )

    return compile_graph


@functools.cache
def _keep_out_of_our_code() -> None:
    """Let torch compile the user's functions, and not the kernels that they end in."""
    from torch._dynamo import trace_rules

    trace_rules.add(__name__.partition(".")[0])
