"""Gives Triton's kernels, and those of torch.compile, right values.

A kernel is compiled (by ptxas, too), loaded and launched as ever; the machine runs it
without effect. Behind it, in the same stream and at each replay of a graph, Triton's
own interpreter runs the same function on the same addresses.

    GPUMAGIC_FAKE_TRITON_MOST   programs of a launch beyond which nothing is worked out
                                (20,000)
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib.abc
import importlib.machinery
import inspect
import os
import sys
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from types import ModuleType

_Work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_LaunchHook = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_uint),
    ctypes.c_void_p,
    ctypes.c_void_p,
)


def install(libraries: Path) -> None:
    """Puts it in place as soon as Triton is imported; the machine's folder is given."""
    os.environ.setdefault("TRITON_LIBCUDA_PATH", str(libraries))
    values = TritonValues(ctypes.CDLL(str(libraries / "libcuda.so.1")))
    wanted = {
        "triton.runtime.jit": values.stand_behind_triton,
        "triton.runtime.autotuner": values.leave_out_timing,
        "triton.compiler.compiler": values.let_compiler_wait,
        "torch._inductor.runtime.triton_heuristics": values.stand_behind_inductor,
    }
    for name, change in wanted.items():
        if name in sys.modules:
            change(sys.modules[name])
    sys.meta_path.insert(0, _AfterImport(wanted))


class TritonValues:
    """Runs behind each launch what the launch was to work out."""

    def __init__(self, machine: ctypes.CDLL) -> None:
        """The machine is libcuda; its functions are those of machine.h."""
        machine.machine_work.argtypes = [ctypes.c_void_p, _Work, ctypes.c_void_p]
        machine.machine_capturing.argtypes = [ctypes.c_void_p]
        self._machine = machine
        self._most = int(os.environ.get("GPUMAGIC_FAKE_TRITON_MOST", "20000"))
        self._launch = threading.local()
        self._works: dict[int, Any] = {}  # that are to run; those of graphs for good
        self._interpreter = _Interpreter()
        self._hook = _LaunchHook(self._note_launch)
        machine.machine_set_launch_hook(self._hook)
        # A stream's thread could not get at Python any more.
        atexit.register(machine.cuCtxSynchronize)

    def stand_behind_triton(self, jit: ModuleType) -> None:
        """Makes each `kernel[grid](...)` have its values."""
        own_run, values = jit.JITFunction.run, self

        def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            with values._noting_launches() as launches:
                result = own_run(self, *args, grid=grid, warmup=warmup, **kwargs)
            for launch in launches:
                signature = inspect.signature(self.fn)
                named = {k: v for k, v in kwargs.items() if k in signature.parameters}
                given = signature.bind(*args, **named)
                given.apply_defaults()
                values._run_behind(launch, self.fn, given.arguments)
            return result

        jit.JITFunction.run = run
        self._interpreter.stand_in_for_calls(jit)

    def stand_behind_inductor(self, heuristics: ModuleType) -> None:
        """Makes what torch.compile launches have its values, but not what it times."""
        tuner, values = heuristics.CachingAutotuner, self
        own_init, own_run = tuner.__init__, tuner.run
        functions: Any = weakref.WeakKeyDictionary()  # they may not be pickled with it

        def init(self: Any, fn: Any, *args: Any, **kwargs: Any) -> None:
            own_init(self, fn, *args, **kwargs)
            functions[self] = getattr(fn, "fn", None)  # later it is dropped

        def run(
            self: Any,
            *args: Any,
            stream: Any,
            benchmark_run: bool = False,
            **kwargs: Any,
        ) -> Any:
            with values._noting_launches() as launches:
                result = own_run(
                    self, *args, stream=stream, benchmark_run=benchmark_run, **kwargs
                )
            if launches and not benchmark_run:
                if functions.get(self) is None:  # compiled elsewhere, or cached
                    kept = self.fn if self.fn.fn is not None else None
                    functions[self] = (kept or self._reload_kernel().fn).fn
                function = functions[self]
                given = _arguments_of(self, function, args, kwargs)
                values._run_behind(launches[-1], function, given)
            return result

        tuner.__init__, tuner.run = init, run

    def leave_out_timing(self, autotuner: ModuleType) -> None:
        """Makes no values of the thousand launches by which a kernel is tuned."""
        own_bench, values = autotuner.Autotuner._bench, self

        def bench(self: Any, *args: Any, **kwargs: Any) -> Any:
            values._launch.timing = True
            try:
                return own_bench(self, *args, **kwargs)
            finally:
                values._launch.timing = False

        autotuner.Autotuner._bench = bench

    def let_compiler_wait(self, compiler: ModuleType) -> None:
        """Lets no kernel be compiled while one is interpreted."""
        source = compiler.ASTSource
        source.make_ir = self._interpreter.exclude(source.make_ir)

    @contextmanager
    def _noting_launches(self) -> Iterator[list[_Launch]]:
        launches: list[_Launch] = []
        timing = getattr(self._launch, "timing", False)
        self._launch.noted = None if timing else launches
        try:
            yield launches
        finally:
            self._launch.noted = None

    def _note_launch(self, _name: bytes, grid: Any, _given: int, stream: int) -> int:
        noted = getattr(self._launch, "noted", None)
        if noted is not None:
            noted.append(_Launch((grid[0], grid[1], grid[2]), stream))
        return 0

    def _run_behind(
        self, launch: _Launch, function: Callable[..., None], given: dict[str, Any]
    ) -> None:
        if launch.programs > self._most:
            return
        arguments = self._interpreter.arguments(function, given)
        kept = bool(self._machine.machine_capturing(launch.stream))

        def interpret(_: int) -> None:
            try:
                self._interpreter.run(function, arguments, launch.grid)
            except Exception as error:  # noqa: BLE001 - there is nobody to raise it to
                text = f"fake CUDA: no values of {function.__name__}: {error!r}"
                sys.stderr.write(f"{text:.300}\n")
            if not kept:
                del self._works[number]

        work = _Work(interpret)
        number = id(work)
        self._works[number] = work
        self._machine.machine_work(launch.stream, work, None)


class _Launch:
    """Where a kernel was launched, and with how many programs."""

    def __init__(self, grid: tuple[int, int, int], stream: int) -> None:
        self.grid = grid
        self.stream = stream

    @property
    def programs(self) -> int:
        x, y, z = self.grid
        return x * y * z


class _Interpreter:
    """Triton's interpreter, with what it lacks: libdevice, and calls of other kernels.

    While it runs, the functions of `triton.language` are others than those that the
    compiler reads: so one of them waits for the other.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._rewritten: dict[Any, Callable[..., None]] = {}
        self._interpreting = threading.local()

    def arguments(
        self, function: Callable[..., None], given: dict[str, Any]
    ) -> dict[str, Any]:
        """As the interpreter takes them; of a tensor the address alone is kept."""
        from triton.runtime.interpreter import _implicit_cvt

        parameters = inspect.signature(function).parameters
        return {
            name: value
            if value is None or "constexpr" in str(parameters[name].annotation)
            else _implicit_cvt(value)
            for name, value in given.items()
        }

    def run(
        self,
        function: Callable[..., None],
        arguments: dict[str, Any],
        grid: tuple[int, int, int],
    ) -> None:
        """Runs each program of the grid, one after the other."""
        from triton.runtime.interpreter import interpreter_builder

        with self._lock, self._language_of(function), self._libdevice():
            self._interpreting.now = True
            try:
                interpreter_builder.set_grid_dim(*grid)
                body = self._body(function)
                for x in range(grid[0]):
                    for y in range(grid[1]):
                        for z in range(grid[2]):
                            interpreter_builder.set_grid_idx(x, y, z)
                            body(**arguments)
            finally:
                self._interpreting.now = False

    def stand_in_for_calls(self, jit: ModuleType) -> None:
        """Lets interpreted kernels call others."""
        own_call = jit.JITFunction.__call__

        def call(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            if not getattr(self._interpreting, "now", False):
                return own_call(kernel, *args, **kwargs)
            kwargs.pop("_semantic", None)
            with self._language_of(kernel.fn):
                return self._body(kernel.fn)(*args, **kwargs)

        jit.JITFunction.__call__ = call

    def exclude(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, which waits while a kernel is interpreted."""

        @functools.wraps(function)
        def waiting(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                return function(*args, **kwargs)

        return waiting

    def _body(self, function: Callable[..., None]) -> Callable[..., None]:
        from triton.runtime.interpreter import FunctionRewriter

        if function not in self._rewritten:
            self._rewritten[function] = FunctionRewriter(function).rewrite_ast()
        return self._rewritten[function]

    @contextmanager
    def _language_of(self, function: Callable[..., None]) -> Iterator[None]:
        from triton.runtime.interpreter import _patch_lang

        scope = _patch_lang(function)
        try:
            yield
        finally:
            scope.restore()

    @functools.cached_property
    def _device_functions(self) -> dict[str, Callable[..., Any]]:
        return _device_functions()

    @contextmanager
    def _libdevice(self) -> Iterator[None]:
        from triton.language.extra import libdevice

        own = {name: getattr(libdevice, name) for name in self._device_functions}
        for name, function in self._device_functions.items():
            setattr(libdevice, name, function)
        try:
            yield
        finally:
            for name, function in own.items():
                setattr(libdevice, name, function)


def _device_functions() -> dict[str, Callable[..., Any]]:
    """What inductor uses of libdevice, by torch on the CPU."""
    import torch
    from triton.language.extra import libdevice

    alike = """exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos
        atan atan2 sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma pow fmod ceil
        floor trunc round copysign hypot nextafter ldexp isnan signbit abs"""
    functions: dict[str, Callable[..., Any]] = {
        name: getattr(torch, name) for name in alike.split()
    }
    functions |= {
        "rint": torch.round,
        "nearbyint": torch.round,
        "llrint": torch.round,
        "isinf": torch.isinf,
        "finitef": torch.isfinite,
        "isfinited": torch.isfinite,
        "j0": torch.special.bessel_j0,
        "j1": torch.special.bessel_j1,
        "cyl_bessel_i0": torch.special.i0,
        "div_rn": torch.div,
        "sqrt_rn": torch.sqrt,
        "fma": lambda a, b, c: a * b + c,
    }
    return {
        name: _on_blocks(function)
        for name, function in functions.items()
        if hasattr(libdevice, name)
    }


def _on_blocks(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors, as one of the interpreter's blocks and scalars."""
    import numpy as np
    import torch
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle, _implicit_cvt

    def stand_in(*args: Any, _semantic: Any = None) -> Any:
        blocks = [
            each
            if isinstance(each, tl.tensor)
            else _implicit_cvt(getattr(each, "value", each))
            for each in args
        ]
        arrays = np.broadcast_arrays(*[each.handle.data for each in blocks])
        tensors = [torch.from_numpy(np.ascontiguousarray(each)) for each in arrays]
        result = function(*tensors).numpy()
        truth = result.dtype == np.bool_
        scalar = tl.int1 if truth else blocks[0].dtype
        result = result.astype(np.bool_ if truth else arrays[0].dtype, copy=False)
        shape = max((each.shape for each in blocks), key=len)
        kind = tl.block_type(scalar, list(shape)) if shape else scalar
        return tl.tensor(TensorHandle(result, scalar), kind)

    return stand_in


def _arguments_of(
    tuner: Any,
    function: Callable[..., None],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """A kernel of inductor's by the names of its parameters."""
    config = tuner.launchers[0].config.kwargs
    constants = tuner.triton_meta.get("constants", {})
    named = {k: v for k, v in constants.items() if isinstance(k, str)}
    of_grid = len(tuner.inductor_meta.get("extra_launcher_args", ()))
    given = args[: len(args) - of_grid]
    parameters = inspect.signature(function).parameters
    names = [name for name in parameters if name not in config]
    if len(given) < len(names):
        names = [name for name in names if name not in named]
    values = {**named, **config, **kwargs, **dict(zip(names, given, strict=False))}
    return {name: values.get(name) for name in parameters}


class _AfterImport(importlib.abc.MetaPathFinder):
    """Changes modules once they have been imported."""

    def __init__(self, changes: dict[str, Callable[[ModuleType], None]]) -> None:
        self._changes: Final = changes

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module as others find it, with a change behind its execution."""
        if name not in self._changes:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        own_exec, change = spec.loader.exec_module, self._changes[name]

        def exec_module(module: ModuleType) -> None:
            own_exec(module)
            change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
