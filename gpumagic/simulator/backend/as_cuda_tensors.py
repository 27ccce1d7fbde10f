"""What tensors and their factories say and take while "cuda" is simulated."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.registration import NAME, lies_there

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.simulator.backend.as_cuda import Names

Replacement = tuple[Any, str, Any]

# Factories that ask, before the dispatcher does, which of CUDA's devices is current.
_ASKING = (
    "tensor",
    "as_tensor",
    "asarray",
    "range",
    "sparse_coo_tensor",
    "sparse_compressed_tensor",
    "sparse_csr_tensor",
    "sparse_csc_tensor",
    "sparse_bsr_tensor",
    "sparse_bsc_tensor",
)

# Those whose device torch's C++ compares with that of `out=`.
_INTO_TENSORS = (
    "arange",
    "empty",
    "eye",
    "full",
    "linspace",
    "logspace",
    "normal",
    "ones",
    "rand",
    "randint",
    "randn",
    "randperm",
    "zeros",
)
_OURS_IN_TEXTS = re.compile(rf"\b{NAME}(?=:\d| DeviceType)").sub
_VERSION_OF_CUDNN = 92400  # where torch has none: that of torch today


def cuda_tensors(torch: Any, names: Names) -> Iterator[Replacement]:
    """What to put in the place of torch's own: object, name, replacement."""
    from torch.utils import _device

    # A default device looks for torch's own factories; it must have seen them.
    _device._device_constructors()
    yield _device.DeviceContext, "__torch_function__", _in_default_device(torch, names)
    for name in _ASKING:
        yield torch, name, _naming_device(getattr(torch, name), names)
    for name in _INTO_TENSORS:
        yield torch, name, _into_tensor(getattr(torch, name), names)
    nested = torch.nested
    yield nested, "nested_tensor", _naming_device(nested.nested_tensor, names)
    scripts = torch.jit._serialization
    yield scripts, "validate_map_location", _map_location(scripts, names)
    yield torch, "kaiser_window", _kaiser_window(torch, names)
    tensor = torch.Tensor
    yield tensor, "new_tensor", _naming_device(tensor.new_tensor, names)
    yield tensor, "device", _shown_device(torch._C.TensorBase.device.__get__, names)
    yield tensor, "is_cuda", _is_cuda(torch)
    yield tensor, "to", _to(torch, names)
    yield tensor, "cuda", _cuda(torch, names)
    yield tensor, "type", _type(torch, names)
    for where, telling in _telling_devices(torch):
        for name in telling:
            yield where, name, _saying_cuda(getattr(where, name))
    for name in ("_make_subclass", "_make_wrapper_subclass"):
        yield tensor, name, _made_in_cpp(getattr(tensor, name), names)
    fake = torch._subclasses.fake_tensor.FakeTensor
    yield fake, "fake_device", _fake_device(names)
    yield fake, "device", _shown_device(fake.device.fget, names)
    storage = torch.UntypedStorage
    yield storage, "clone", _clone(torch, storage.clone)
    yield storage, "device", _shown_device(torch._C.StorageBase.device.__get__, names)
    yield storage, "__new__", _naming_device(storage.__new__, names)
    yield from _cudnn(torch)


def _cudnn(torch: Any) -> Iterator[Replacement]:
    """There is cuDNN, as far as anybody asks; no operator of its own is called."""
    cudnn = torch.backends.cudnn

    def is_acceptable(tensor: Any) -> bool:
        enabled = torch._C._get_cudnn_enabled() and tensor.is_cuda
        return bool(enabled and tensor.dtype in cudnn.CUDNN_TENSOR_DTYPES)

    yield cudnn, "is_acceptable", is_acceptable
    yield cudnn, "is_available", lambda: True
    if cudnn.version() is None:
        yield cudnn, "version", lambda: _VERSION_OF_CUDNN
    # Else recurrent networks would lay out their weights by one of its operators.
    yield torch, "_use_cudnn_rnn_flatten_weight", lambda: False


def _shown_device(device_of: Callable[[Any], Any], names: Names) -> property:
    shown = names.shown

    def device(self: Any) -> Any:
        found = device_of(self)
        return shown[found.index] if found.type == NAME else found

    return property(device, doc="Where it lies.")


def _fake_device(names: Names) -> property:
    """Where a tensor without numbers would lie, as torch's C++ is to know it."""

    def set_device(self: Any, device: Any) -> None:
        self._fake_device = names.ours(device)

    return property(lambda self: self._fake_device, set_device)


def _is_cuda(torch: Any) -> property:
    device_of = torch._C.TensorBase.device.__get__

    def is_cuda(self: Any) -> bool:
        return bool(device_of(self).type == NAME)

    return property(is_cuda, doc="Whether the tensor lies on a GPU.")


def _to(torch: Any, names: Names) -> Callable[..., Any]:
    plain, ours = torch._C.TensorBase.to, names.ours

    @functools.wraps(plain)
    def to(self: Any, *args: Any, **options: Any) -> Any:
        if args:
            args = (ours(args[0]), *args[1:])
        if "device" in options:
            options["device"] = ours(options["device"])
        return plain(self, *args, **options)

    return to


def _cuda(torch: Any, names: Names) -> Callable[..., Any]:
    plain = torch._C.TensorBase.to

    @functools.wraps(torch._C.TensorBase.cuda)
    def cuda(
        self: Any,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: Any = torch.preserve_format,
    ) -> Any:
        if device is None:
            # As on CUDA: what lies on the current device is itself the answer.
            where = names.numbered(None)
        elif isinstance(device, int):
            where = names.numbered(device)
        else:
            where = names.ours(device)
            if torch.device(where).type != NAME:
                raise RuntimeError(f"Invalid device, must be cuda device: {device}")
        return plain(
            self, where, non_blocking=non_blocking, memory_format=memory_format
        )

    return cuda


def _made_in_cpp(make: Callable[..., Any], names: Names) -> Callable[..., Any]:
    """What makes tensors of other classes, such as those of torch's compiler.

    On a device that is none, torch's C++ ends the process.
    """
    ours = names.ours

    def made(*args: Any, **options: Any) -> Any:
        args = tuple(map(ours, args))
        for option in ("device", "device_for_backend_keys"):
            if option in options:
                options[option] = ours(options[option])
        return make(*args, **options)

    return made


def _type(torch: Any, names: Names) -> Callable[..., Any]:
    plain = torch._C.TensorBase.type

    @functools.wraps(plain)
    def type_(
        self: Any,
        dtype: Any = None,
        non_blocking: bool = False,
    ) -> Any:
        if dtype is None:
            return plain(self).replace(f"torch.{NAME}.", "torch.cuda.")
        if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
            dtype = getattr(torch.cuda, dtype.removeprefix("torch.cuda."))
        if isinstance(dtype, CudaTensorType):
            return self.to(names.numbered(None), dtype.dtype, non_blocking=non_blocking)
        return plain(self, dtype, non_blocking=non_blocking)

    return type_


def _clone(torch: Any, plain: Callable[..., Any]) -> Callable[..., Any]:
    """How torch copies the memory of what says that it is on CUDA."""

    @functools.wraps(plain)
    def clone(self: Any) -> Any:
        if not lies_there(self):
            return plain(self)
        memory = self._gpumagic
        # The view of bytes ends here, so it changes nothing for those that stay.
        was_plain = memory.plain
        whole = torch.empty(0, dtype=torch.uint8, device=self.device)
        whole.set_(self, 0, (self.nbytes(),), (1,))
        made = whole.clone().untyped_storage()
        memory.plain = was_plain
        return made

    return clone


def _telling_devices(torch: Any) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Functions that look at devices in torch's C++, and tell of them in errors."""
    recurrent = ("lstm", "gru", "rnn_tanh", "rnn_relu", "_pack_padded_sequence")
    yield torch._VF, (*recurrent, "stft")
    yield torch, ("istft", "inner", "tensor_split", "_weight_norm")
    yield torch.nn.functional, ("scaled_dot_product_attention",)
    yield torch.Tensor, ("numpy", "__array__", "set_", "inner", "tensor_split")


def _saying_cuda(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose errors name the device as the user did."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        try:
            return function(*args, **options)
        except (RuntimeError, TypeError) as error:
            error.args = tuple(map(_in_words_of_cuda, error.args))
            raise

    return call


def _in_words_of_cuda(said: Any) -> Any:
    return _OURS_IN_TEXTS("cuda", said) if isinstance(said, str) else said


def _into_tensor(factory: Callable[..., Any], names: Names) -> Callable[..., Any]:
    """A factory that is told of the device where it writes into a tensor."""
    ours = names.ours

    @functools.wraps(factory)
    def make(*args: Any, **options: Any) -> Any:
        if "out" in options and "device" in options:
            options["device"] = ours(options["device"])
        return factory(*args, **options)

    return make


def _naming_device(factory: Callable[..., Any], names: Names) -> Callable[..., Any]:
    """A factory that is told which device is current, if it is to use that."""
    ours = names.ours

    @functools.wraps(factory)
    def make(*args: Any, **options: Any) -> Any:
        device = options.get("device")
        if device is not None:
            options["device"] = ours(device)
        return factory(*args, **options)

    return make


def _map_location(scripts: Any, names: Names) -> Callable[..., Any]:
    """Where `torch.jit.load` puts the tensors of a script."""
    plain = scripts.validate_map_location

    @functools.wraps(plain)
    def validate_map_location(map_location: Any = None) -> Any:
        return names.ours(plain(map_location))

    return validate_map_location


def _kaiser_window(torch: Any, names: Names) -> Callable[..., Any]:
    plain = torch.kaiser_window

    @functools.wraps(plain)
    def make(*args: Any, **options: Any) -> Any:
        device = names.ours(options.pop("device", None))
        made = plain(*args, **options)
        return made if device is None else made.to(device)

    return make


def _in_default_device(torch: Any, names: Names) -> Callable[..., Any]:
    """What a default device does to a call, also if it is a device of CUDA's."""
    from torch.utils._device import _device_constructors

    del torch

    def run(
        self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if func in _device_constructors() and kwargs.get("device") is None:
            kwargs["device"] = names.ours(self.device)
        return func(*args, **kwargs)

    return run


# --------------------------------------------------------- types of old programs


class CudaTensorType(type):
    """A class such as `torch.cuda.FloatTensor`: makes tensors, and knows them."""

    dtype: Any
    _tensor: type

    def __instancecheck__(cls, value: Any) -> bool:
        return (
            isinstance(value, cls._tensor)
            and value.is_cuda  # type: ignore[attr-defined]
            and value.dtype is cls.dtype  # type: ignore[attr-defined]
        )


def tensor_types(torch: Any) -> Iterator[tuple[str, type]]:
    """The classes by the names that old programs call."""
    for name, dtype in (
        ("FloatTensor", torch.float32),
        ("DoubleTensor", torch.float64),
        ("HalfTensor", torch.float16),
        ("BFloat16Tensor", torch.bfloat16),
        ("LongTensor", torch.int64),
        ("IntTensor", torch.int32),
        ("ShortTensor", torch.int16),
        ("CharTensor", torch.int8),
        ("ByteTensor", torch.uint8),
        ("BoolTensor", torch.bool),
    ):
        yield name, _tensor_type(torch, name, dtype)


def _tensor_type(torch: Any, name: str, dtype: Any) -> type:
    on_host = getattr(torch, name)

    def make(cls: type, *args: Any, device: Any = None) -> Any:
        del cls
        return on_host(*args).cuda(device)

    return CudaTensorType(
        name,
        (),
        {
            "__new__": make,
            "__module__": "torch.cuda",
            "dtype": dtype,
            "is_cuda": True,
            "_tensor": torch.Tensor,
        },
    )
