"""Tensors over memory that is already there, by DLPack, in a microsecond and a half.

DLPack hands a tensor over as a C structure: pointer, device, type, sizes, strides.
One structure is kept for each kind of tensor, filled but for the pointer, the sizes
and the strides, and for each thread: another may run between filling and handing
over. torch reads a structure again when the storage dies, so none is ever given up.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

HOST, EXTENSION = 1, 12  # DLPack's numbers for kinds of devices
_FIXED = struct.Struct("<QiiiIQQQQQ")  # what does not grow with the dimensions
_LANES = 1 << 16
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6  # DLPack's codes
_TYPES = {
    "float32": (_FLOAT, 32),
    "float64": (_FLOAT, 64),
    "float16": (_FLOAT, 16),
    "bfloat16": (_BFLOAT, 16),
    "int64": (_INT, 64),
    "int32": (_INT, 32),
    "int16": (_INT, 16),
    "int8": (_INT, 8),
    "uint8": (_UINT, 8),
    "uint16": (_UINT, 16),
    "uint32": (_UINT, 32),
    "uint64": (_UINT, 64),
    "bool": (_BOOL, 8),
    "complex32": (_COMPLEX, 32),
    "complex64": (_COMPLEX, 64),
    "complex128": (_COMPLEX, 128),
}

Make: TypeAlias = (
    "Callable[[int, int, int, int, tuple[int, ...], tuple[int, ...]], Any]"
)
_Kind = tuple[int, int, int, int]  # of device, its index, type, dimensions
# The bytes of a structure, how to fill in sizes, strides and pointer, where it lies.
_Form = tuple[bytearray, "Callable[..., None]", ctypes.c_void_p]


class _Forms(threading.local):
    """The structures of this thread, by kind."""

    def __init__(self, on_new_thread: Callable[[], object]) -> None:
        self.by_kind: dict[_Kind, _Form] = {}
        on_new_thread()


class Maker:
    """Makes tensors.

    Attributes:
        types: What DLPack calls the types of torch; some have no name there.

        make: Makes a tensor over the memory at a host address, of a kind of device
            (`HOST` or `EXTENSION`), its index, one of `types`, sizes, and strides.

    Args:
        torch: The torch module itself.

        kept: Where the structures are kept, until the process ends.

        on_new_thread: Called in each thread before its first tensor.
    """

    def __init__(
        self, torch: Any, kept: list[bytearray], on_new_thread: Callable[[], object]
    ) -> None:
        self.types = {
            getattr(torch, name): bits << 8 | code | _LANES
            for name, (code, bits) in _TYPES.items()
        }
        self._kept = kept
        self._forms = _Forms(on_new_thread)
        self._take = torch._C._from_dlpack
        self._capsule = ctypes.pythonapi["PyCapsule_New"]
        self._capsule.restype = ctypes.py_object
        self._capsule.argtypes = [ctypes.c_void_p] * 3  # the cheapest to convert
        self._word = ctypes.create_string_buffer(b"dltensor")
        self.make = self._maker(ctypes.cast(self._word, ctypes.c_void_p))

    def _maker(self, name: ctypes.c_void_p) -> Make:
        """What makes a tensor, with all that it needs within reach."""
        forms, new_form, capsule = self._forms, self._new_form, self._capsule
        take = self._take

        def make(
            pointer: int,
            kind: int,
            index: int,
            type_: int,
            size: tuple[int, ...],
            stride: tuple[int, ...],
        ) -> Any:
            which = kind, index, type_, len(size)
            form = forms.by_kind.get(which) or new_form(which)
            structure, fill, address = form
            fill(structure, 0, *size, *stride, pointer)
            return take(capsule(address, name, None))

        return make

    def _new_form(self, which: _Kind) -> _Form:
        kind, index, type_, dimensions = which
        # Sizes and strides lie in front, so that the pointer follows them.
        sizes_bytes = 8 * dimensions
        structure = bytearray(2 * sizes_bytes + _FIXED.size)
        sizes = ctypes.addressof(
            (ctypes.c_char * len(structure)).from_buffer(structure)
        )
        strides, fixed = sizes + sizes_bytes, sizes + 2 * sizes_bytes
        _FIXED.pack_into(
            structure,
            2 * sizes_bytes,
            0,
            kind,
            index,
            dimensions,
            type_,
            sizes,
            strides,
            0,
            0,
            0,
        )
        fill = struct.Struct("<" + "q" * (2 * dimensions) + "Q").pack_into
        self._kept.append(structure)
        form = structure, fill, ctypes.c_void_p(fixed)
        self._forms.by_kind[which] = form
        return form
