"""What the simulator does not do, each refused by name with a way on.

Backends that make kernels of their own for a GPU are refused by name once they are to
do so for the simulated one; for the CPU they do what they always do.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from gpumagic.devices import torch_private
from gpumagic.devices.cuda_availability import why_no_cuda
from gpumagic.errors import DeviceError
from gpumagic.simulator.backend.registration import NAME, lies_there, registered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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


def require_fit(torch: Any) -> None:
    """Refuse to switch on where it would not work, or would do harm."""
    version = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2]))
    other = torch_private.registered_backend(torch)
    for wrong, problem, way_on in (
        (
            not getattr(sys, "_is_gil_enabled", lambda: True)(),
            "the simulator needs Python's global lock, which is off here",
            "start Python with PYTHON_GIL=1, or use the usual build",
        ),
        (
            version < _OLDEST_TORCH,
            f"the simulator needs torch 2.10 or newer; this is {torch.__version__}",
            f"{sys.executable} -m pip install -U torch, then restart",
        ),
        (
            other is not None and registered() is None,
            (
                f"torch takes one device registered from Python, and {other!r} is "
                "registered already"
            ),
            f"restart without the package that registers {other!r}",
        ),
        (
            why_no_cuda(torch) is None,
            (
                "there is a real GPU for this process to use, and the simulator would "
                "disturb its streams and its pinned memory"
            ),
            (
                "use the real one; or start a kernel that hides it: "
                "CUDA_VISIBLE_DEVICES= jupyter lab"
            ),
        ),
    ):
        if wrong:
            raise DeviceError(problem, way_on)


def refused_everywhere(torch: Any) -> list[tuple[Any, str, Any]]:
    """What to put in the place of torch's own while on: object, name, replacement."""
    return [
        *_cuda_entered(torch),
        (torch.UntypedStorage, "_new_shared", _new_shared(torch)),
        (
            torch.UntypedStorage,
            "share_memory_",
            _unless_on_device(
                torch.UntypedStorage.share_memory_,
                "memory that is shared between processes",
                "share a CPU tensor and move it in the other process",
            ),
        ),
    ]


def _cuda_entered(torch: Any) -> Iterator[tuple[Any, str, Any]]:
    """Where code that wants CUDA enters torch, to be told of what there is."""
    cuda, loading = torch.cuda, torch.serialization
    start = _telling_of_ours(cuda._lazy_init)
    for name, module in tuple(sys.modules.items()):
        if name.startswith("torch.cuda") and hasattr(module, "_lazy_init"):
            yield module, "_lazy_init", start
    for owner, name in (
        (cuda, "set_device"),
        (cuda.device, "__enter__"),
        (cuda.Stream, "__new__"),
        (cuda.Event, "__new__"),
    ):
        yield owner, name, _telling_of_ours(getattr(owner, name))
    yield loading, "_validate_device", _validating(torch, loading._validate_device)


def _telling_of_ours(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def enter(*args: Any, **options: Any) -> Any:
        try:
            return original(*args, **options)
        except DeviceError:
            raise
        except (AssertionError, AttributeError, RuntimeError) as error:
            raise no_cuda(error) from None

    return enter


def _validating(torch: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """What is asked before something is loaded to a device."""

    @functools.wraps(original)
    def validate(location: Any, backend_name: str) -> Any:
        if backend_name == "cuda" and not torch.cuda.is_available():
            raise no_cuda(
                RuntimeError(f"{location} is wanted, and there is no CUDA here"),
                f'load it with map_location="{NAME}", which is the simulated GPU',
            )
        return original(location, backend_name)

    return validate


def no_cuda(error: Exception, hint: str = _NO_CUDA_HINT) -> Exception:
    """There is no CUDA, as torch says, but the simulated GPU; of torch's own type."""
    kind = type("NoCuda", (DeviceError, type(error)), {"__module__": __name__})
    said = str(error).partition("\n")[0]
    made: Exception = kind(said if "CUDA" in said else "there is no CUDA here", hint)
    return made


def not_simulated(what: str, way_on: str) -> NotSimulated:
    """The one sentence in which all of these are refused."""
    return NotSimulated(f"the simulator has no {what}", way_on)


def refusing(what: str, way_on: str) -> Callable[..., Any]:
    """A function, or the kernel of an operator, that says so whenever it is called."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise not_simulated(what, way_on)

    return refuse


def lost_by_fork(*_: Any, **__: Any) -> RuntimeError:
    """What CUDA says in a child of a process that had started it."""
    return RuntimeError(
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with "
        "multiprocessing, you must use the 'spawn' start method"
    )


def refuse_in_child(*_: Any, **__: Any) -> Any:
    """The kernel of every operator, in such a child."""
    raise lost_by_fork()


def _new_shared(torch: Any) -> Any:
    """What a worker of a DataLoader makes its batches in."""
    original = torch.UntypedStorage._new_shared

    def checked(_: Any, size: int, *, device: Any = "cpu") -> Any:
        if torch.device(device).type == NAME:
            raise not_simulated(
                "memory that is shared between processes",
                "let the dataset give CPU tensors, and move the batches in the loop",
            )
        return original(size, device=device)

    return classmethod(checked)


def _unless_on_device(
    original: Callable[..., Any], what: str, way_on: str
) -> Callable[..., Any]:
    def checked(self: Any, *args: Any, **options: Any) -> Any:
        if lies_there(self):
            raise not_simulated(what, way_on)
        return original(self, *args, **options)

    return checked


def compiling(torch: Any) -> Iterator[tuple[Any, str, Any]]:
    """What to put in the place of torch's own: object, name, replacement."""
    plain = torch.compile
    inductor = torch._TorchCompileInductorWrapper
    yield inductor, "__call__", _refusing_to_compile("inductor", inductor.__call__)

    def compile_here(*args: Any, **options: Any) -> Any:
        _keep_out_of_our_code()
        if options.get("backend") == "cudagraphs":
            options["backend"] = _refusing_to_compile("cudagraphs", _cudagraphs)
        return plain(*args, **options)

    yield torch, "compile", compile_here


def _refusing_to_compile(name: str, backend: Callable[..., Any]) -> Callable[..., Any]:
    def compile_graph(*args: Any, **options: Any) -> Any:
        graph, examples = args[-2:]
        if not _is_simulated(graph, examples):
            return backend(*args, **options)

        # Said when it runs: torch would wrap what is raised while it compiles.
        return refusing(
            f"torch.compile with the {name} backend",
            'say torch.compile(f, backend="eager") here, or "aot_eager"',
        )

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
