"""Kernels that begin at once: forks of a process that has imported what they import.

A kernel of Jupyter takes half a second to start and two more to import torch. Here one
process has imported both, once; each kernel is a fork of it, with an environment, a
folder and an end of its own, and is spoken to over sockets as any other. To a kernel
torch is not there until it imports it, as `sys.modules` is asked for that.

And products of large matrices are computed once for the same factors: the simulated
GPU computes on the host, a lesson multiplies the same matrices a hundred times, and
that is torch's own work. They are compared bit by bit, so results are the same.

`python -m tests.quick_kernels` is that process.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.asleep import OF_TORCH, Asleep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_ROOT = Path(__file__).parents[1]
_OF_KERNELS = (
    "ipykernel.kernelapp",
    "ipykernel.zmqshell",
    "IPython.core.completer",
    "ipywidgets",
)
_FEWEST_FACTORS = 1 << 24  # below it, comparing takes as long as computing
_MOST_BYTES = 800 << 20
_POLL_S = 0.02


@contextlib.contextmanager
def quick_kernels() -> Iterator[None]:
    """Whoever starts a local kernel in this block has a fork."""
    from jupyter_client.provisioning import local_provisioner

    launch = local_provisioner.launch_kernel
    local_provisioner.launch_kernel = Kernel
    try:
        yield
    finally:
        local_provisioner.launch_kernel = launch


class Kernel:
    """A kernel's process, as a Popen is asked.

    Args:
        command: As it would be started: Python, `-m`, a module, and its words.

        env: All of its environment.

        cwd: Its folder.
    """

    stdin = stdout = stderr = None

    def __init__(
        self,
        command: list[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        **_: Any,
    ) -> None:
        words = command[command.index("-m") + 1 :]
        wanted = {"words": words, "env": {**(os.environ if env is None else env)}}
        server = _server()
        print(json.dumps({**wanted, "cwd": cwd}), file=server.stdin, flush=True)
        self.pid = int(server.stdout.readline())

    def poll(self) -> int | None:
        """None while it is there; how it has ended is not known."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    def wait(self) -> int:
        """Until it has ended."""
        while self.poll() is None:
            time.sleep(_POLL_S)
        return 0

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


@functools.cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-m", __name__],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.communicate)  # it ends with what it reads
    return server


# ----------------------------------------------------------- the process that forks


def main() -> None:
    """Fork a kernel for each line that is read."""
    for name in _OF_KERNELS:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    asleep = Asleep(OF_TORCH)
    if "torch" in asleep.modules:
        _remember_products(asleep.modules["torch"])
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    asked, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    for line in asked:
        if os.fork() == 0:
            asked.close()
            # Whoever reads this asks for its group, which gets the signals: a new one.
            os.setsid()
            print(os.getpid(), file=answers)
            answers.close()
            _become(json.loads(line), asleep)
            return


def _become(wanted: Mapping[str, Any], asleep: Asleep) -> None:
    """Be the kernel that was asked for, as if Python had been started for it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in range(3):
        os.dup2(nothing, file)
    os.environ.clear()
    os.environ.update(wanted["env"])
    os.chdir(wanted["cwd"] or os.curdir)
    added = wanted["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = dict.fromkeys([*filter(None, added), *sys.path])
    for action in filter(None, wanted["env"].get("PYTHONWARNINGS", "").split(",")):
        warnings.simplefilter(action)
    sys.argv[:] = wanted["words"]
    sys.meta_path.insert(0, asleep)
    from ipykernel import kernelapp

    kernelapp.launch_new_instance()


# ------------------------------------------------------------------------- products


def _remember_products(torch: Any) -> None:
    """Let torch on the host give a product again that it has computed before."""
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


if __name__ == "__main__":
    # Not the module that runs here: that is `__main__`, which is the kernel's own.
    importlib.import_module("tests.quick_kernels").main()
