"""Kernels that begin at once: forks of a process that has imported what they import.

A kernel of Jupyter takes half a second to start and two more to import torch. Here it
is a fork (`quick_python`), with an environment, a folder and an end of its own, and is
spoken to over sockets as any other.

And products of large matrices are computed once for the same factors: the simulated
GPU computes on the host, a lesson multiplies the same matrices a hundred times, and
that is torch's own work. They are compared bit by bit, so results are the same.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

from tests.asleep import OF_TORCH
from tests.quick_python import Started

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.asleep import Asleep

_FEWEST_FACTORS = 1 << 24  # below it, comparing takes as long as computing
_MOST_BYTES = 800 << 20


@contextlib.contextmanager
def quick_kernels(torch: Sequence[str] = OF_TORCH) -> Iterator[None]:
    """Whoever starts a local kernel in this block has a fork."""
    from jupyter_client.provisioning import local_provisioner

    launch = local_provisioner.launch_kernel
    local_provisioner.launch_kernel = functools.partial(Kernel, torch=torch)
    try:
        yield
    finally:
        local_provisioner.launch_kernel = launch


class Kernel(Started):
    """A kernel's process, as a Popen is asked."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        torch: Sequence[str] = OF_TORCH,
        **_: Any,
    ) -> None:
        words = command[command.index("-m") :]
        before = f"{__name__}:{remember_products.__name__}"
        super().__init__(
            [command[0], *words], env=env, cwd=cwd, first=before, torch=torch
        )


# ------------------------------------------------------------------------- products


def remember_products(asleep: Sequence[Asleep]) -> None:
    """Let torch on the host give a product again that it has computed before."""
    known = {name: each for one in asleep for name, each in one.modules.items()}
    torch: Any = known.get("torch")
    if torch is None:
        return
    for name, factors in (("mm", 2), ("addmm", 3)):
        compute = _remembering(torch, getattr(torch.Tensor, name), factors)
        setattr(torch.Tensor, name, compute)
    into = torch.ops.aten.mm.out
    into._op = _into(torch, into._op)


def _into(torch: Any, write: Callable[..., Any]) -> Callable[..., Any]:
    """The same product, written to a tensor that takes its size, as the simulator's."""

    def product(*factors: Any, out: Any) -> Any:
        __tracebackhide__ = True
        kinds = {(each.dtype, each.device.type) for each in (*factors, out)}
        if out.numel() or kinds != {(torch.float32, "cpu")}:
            return write(*factors, out=out)
        result = factors[0].mm(factors[1])
        return out.resize_(result.shape).copy_(result)

    return product


def _remembering(
    torch: Any, compute: Callable[..., Any], count: int
) -> Callable[..., Any]:
    """The same method, with a memory."""
    known: dict[Any, tuple[list[Any], Any]] = {}

    @functools.wraps(compute)
    def product(*factors: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        if options or len(factors) != count or not all(map(plain, factors)):
            return compute(*factors, **options)
        if factors[-2].numel() * factors[-1].size(-1) < _FEWEST_FACTORS:
            return compute(*factors)
        key = tuple(
            (each.shape, each.stride(), each.flatten()[:8].numpy().tobytes())
            for each in map(torch.Tensor.detach, factors)
        )
        bits = [each.detach().view(torch.int32) for each in factors]
        if key in known:
            before, result = known[key]
            if all(map(torch.equal, before, bits)):
                return result.clone()
        result = compute(*factors)
        known[key] = [each.clone() for each in bits], result.clone()
        while sum(map(held, known.values())) > _MOST_BYTES:
            del known[next(iter(known))]
        return result

    def plain(factor: Any) -> bool:
        return (
            type(factor) is torch.Tensor
            and factor.device.type == "cpu"
            and factor.dtype is torch.float32
            and factor.dim() in (1, 2)
            and not factor.requires_grad
        )

    def held(entry: tuple[list[Any], Any]) -> int:
        factors, result = entry
        return sum(each.nbytes for each in (*factors, result))

    return product
