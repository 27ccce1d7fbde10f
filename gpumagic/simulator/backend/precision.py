"""Types that a CPU computes slowly or not at all: computed in wider ones, rounded once.

Processors without arithmetic in half precision take minutes for a product that takes
a second in single precision. CUDA adds up in single precision and rounds the sum, so
that is what is done here, too, on every machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_HALVES = ("float16", "bfloat16")
# What CUDA computes in these types, and a CPU does not.
_IN_COMPLEX_HALF = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "sin", "sinh"),
    *("tan", "tanh", "exp", "log", "logaddexp", "pow", "sqrt", "rsqrt", "reciprocal"),
    *("angle", "div", "lerp", "nansum", "prod", "sigmoid", "sum", "trace"),
)
_BEGIN_IN_HALF = (
    "_upsample_",
    "adaptive_",
    "avg_pool",
    "fractional_max_pool",
    "im2col",
    "col2im",
    "max_pool",
    "max_unpool",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "reflection_pad",
    "replication_pad",
    "rrelu_with_noise",
    "upsample_",
)
_TRANSFORMS = tuple(
    f"fft_{direction}{name}{dimensions}"
    for name in ("fft", "rfft", "hfft")
    for direction in ("", "i")
    for dimensions in ("", "2", "n")
)


class Precision:
    """Runs operators in wider types than they are given."""

    def __init__(self, torch: Any) -> None:
        self._tensor = torch.Tensor
        self._halves = {getattr(torch, name): torch.float32 for name in _HALVES}
        self._wider = {**self._halves, torch.complex32: torch.complex64}
        self._integers = dict.fromkeys(
            (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
            torch.float64,
        )
        self._rounded = {
            (torch.complex32, torch.float32): torch.float16,
            (torch.complex32, torch.complex64): torch.complex32,
            **{(narrow, wide): narrow for narrow, wide in self._halves.items()},
            **{(narrow, wide): narrow for narrow, wide in self._integers.items()},
        }
        self._brain = {}  # with complex numbers to go with it, which torch 2.14 brought
        if hasattr(torch, "bcomplex32"):
            self._brain = {torch.bfloat16: torch.float32}
            self._rounded[torch.bfloat16, torch.complex64] = torch.bcomplex32

    def in_single(
        self, call: Callable[..., Any], written: tuple[int | str, ...] = ()
    ) -> Callable[..., Any]:
        """An operator that computes halves in single precision."""
        halves = self._halves

        def run(*args: Any, **named: Any) -> Any:
            if getattr(args[0], "dtype", None) not in halves:
                return call(*args, **named)
            return self._run(call, written, args, named, halves)

        return run

    def widened(
        self,
        name: str,
        call: Callable[..., Any],
        written: tuple[int | str, ...],
        args: Sequence[Any],
        named: Mapping[str, Any],
    ) -> Any:
        """What CUDA computes and the CPU has just said that it does not.

        `NotImplemented` if CUDA does not, either.
        """
        if name == "histc":
            wider = self._integers
        elif name in _IN_COMPLEX_HALF:
            wider = self._wider
        elif name.startswith(_BEGIN_IN_HALF):
            wider = self._halves
        elif name == "_fft_r2c" and self._brain:
            wider = self._brain
        else:
            return NotImplemented
        return self._run(call, written, args, named, wider)

    def _run(
        self,
        call: Callable[..., Any],
        written: tuple[int | str, ...],
        args: Sequence[Any],
        named: Mapping[str, Any],
        wider: Mapping[Any, Any],
    ) -> Any:
        narrow = _narrow_type((*args, *named.values()), self._tensor, wider)
        if narrow is None:
            return call(*args, **named)  # torch says what is wrong with a mixture
        once = _OneCall(self._tensor, narrow, wider[narrow], written)
        result = call(
            *(once.widened(where, each) for where, each in enumerate(args)),
            **{key: once.widened(key, each) for key, each in named.items()},
        )
        once.write_back()
        return once.rounded(result, self._rounded)


class _OneCall:
    """The arguments and results of one call, on their way to another type and back."""

    def __init__(
        self, tensor: Any, narrow: Any, wide: Any, written: tuple[int | str, ...]
    ) -> None:
        self._tensor, self._narrow, self._wide = tensor, narrow, wide
        self._written = written
        self._originals: dict[int, tuple[Any, Any]] = {}

    def widened(self, where: int | str, value: Any) -> Any:
        """An argument in the wider type."""
        if isinstance(value, list):
            return [self.widened(where, each) for each in value]
        if not isinstance(value, self._tensor) or value.dtype is not self._narrow:
            return value
        wide = value.to(self._wide)
        if where in self._written:
            self._originals[id(wide)] = value, wide
        return wide

    def write_back(self) -> None:
        """Round what was written into; what is only an output may be of any size."""
        for original, wide in self._originals.values():
            original.resize_(wide.shape).copy_(wide)

    def rounded(self, value: Any, types: Mapping[tuple[Any, Any], Any]) -> Any:
        """A result in the type that it would have had."""
        if isinstance(value, (list, tuple)):
            return type(value)(self.rounded(each, types) for each in value)
        if not isinstance(value, self._tensor):
            return value
        if id(value) in self._originals:
            return self._originals[id(value)][0]
        return value.to(types.get((self._narrow, value.dtype), value.dtype))


def transforms(torch: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Fourier transforms in half precision, which torch's C++ allows on CUDA alone."""
    families = [(torch.float16, torch.complex32)]
    if hasattr(torch, "bcomplex32"):
        families.append((torch.bfloat16, torch.bcomplex32))
    narrower = {
        narrow: {torch.float32: family[0], torch.complex64: family[1]}
        for family in families
        for narrow in family
    }

    def kernel_of(name: str) -> Callable[..., Any]:
        composed = getattr(torch.ops.aten, name).default.decompose

        def kernel(source: Any, *args: Any, **named: Any) -> Any:
            rounded = narrower.get(source.dtype)
            if rounded is None:
                return composed(source, *args, **named)
            wide = torch.complex64 if source.is_complex() else torch.float32
            result = composed(source.to(wide), *args, **named)
            return result.to(rounded[result.dtype])

        return kernel

    for name in _TRANSFORMS:
        yield name, kernel_of(name)


def _narrow_type(values: Sequence[Any], tensor: Any, wider: Mapping[Any, Any]) -> Any:
    """The one type of the numbers, if it is one to be widened; None otherwise."""
    flat = [
        each
        for value in values
        for each in (value if isinstance(value, list) else (value,))
        if isinstance(each, tensor)
    ]
    real = {
        each.dtype for each in flat if each.is_floating_point() or each.is_complex()
    }
    types = real or {flat[0].dtype}
    return next(iter(types)) if len(types) == 1 and types <= wider.keys() else None
