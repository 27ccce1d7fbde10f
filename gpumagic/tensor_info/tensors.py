"""Reads a tensor without an operation on it: each look-up guarded by itself."""

from __future__ import annotations

from typing import Any

from gpumagic.tensor_info import kinds, torch_words
from gpumagic.tensor_info.packed import packed_remark
from gpumagic.tensor_info.reading import (
    Memory,
    Questions,
    Reading,
    geometry_of,
    in_bytes,
)


def read_tensor(torch: Any, tensor: Any) -> Reading:
    """Read a tensor without an operation on it, whatever kind it is."""
    with torch_words.without_overrides(torch):
        return _TensorReader(torch, tensor).read()


class _TensorReader:
    """Puts the questions to one tensor."""

    def __init__(self, torch: Any, tensor: Any) -> None:
        self._torch, self._tensor = torch, tensor
        self._questions = Questions()
        self._ask = self._questions.ask

    def read(self) -> Reading:
        """Everything, each look-up for itself."""
        tensor, plain, ask = self._tensor, self._torch.Tensor, self._ask
        kind = kinds.kind_of(self._torch, tensor)
        dtype = ask("the dtype", lambda: str(tensor.dtype).removeprefix("torch."))
        device = ask("the device", lambda: tensor.device)
        itemsize = ask("the itemsize", lambda: int(tensor.element_size()))
        size, stride, offset = self._steps(kind)
        geometry = geometry_of(size, stride, offset, itemsize)
        storage = self._storage(kind)
        simulated, made_up = torch_words.simulated_memory(storage)
        memory = None
        if kind.has_memory and storage is not None:
            memory = self._memory(storage, made_up=made_up if simulated else -1)
        return Reading(
            kind=kind.name,
            dtype=dtype,
            device=None if device is None else str(device),
            itemsize=itemsize,
            size=size,
            stride=stride,
            stride_bytes=in_bytes(stride, itemsize),
            storage_offset=offset,
            geometry=geometry if kind.has_geometry else None,
            has_layout=kind.has_geometry and geometry is not None,
            memory=memory,
            storage=torch_words.identity(storage),
            storage_bytes=None if storage is None else int(storage.nbytes()),
            is_view=ask("is_view", lambda: torch_words.is_view(self._torch, tensor)),
            base_shape=ask("the base's shape", self._base_shape),
            neg_bit=ask("the negative bit", lambda: bool(plain.is_neg(tensor))),
            conj_bit=ask("the conjugate bit", lambda: bool(plain.is_conj(tensor))),
            requires_grad=ask("requires_grad", lambda: bool(tensor.requires_grad)),
            on_accelerator=getattr(device, "type", "cpu") not in ("cpu", "meta"),
            simulated=simulated,
            inner=tuple(
                (name, read_tensor(self._torch, part)) for name, part in kind.inner
            ),
            remarks=self._remarks(kind, dtype),
        )

    def _steps(
        self, kind: kinds.Kind
    ) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None, int | None]:
        """Size, stride and offset, as far as this kind has them."""
        numbers, tensor = self._questions.numbers, self._tensor
        plain = self._torch.Tensor
        size = stride = offset = None
        if kind.has_size:
            size = numbers("size", lambda: plain.size(tensor))
        if kind.has_strides:
            stride = numbers("stride", lambda: plain.stride(tensor))
        if kind.has_geometry:
            offset = numbers("storage offset", lambda: (tensor.storage_offset(),))
        return size, stride, None if offset is None else offset[0]

    def _storage(self, kind: kinds.Kind) -> Any:
        if not kind.has_storage:
            return None
        return self._ask(
            "the storage", lambda: self._torch.Tensor.untyped_storage(self._tensor)
        )

    def _memory(self, storage: Any, *, made_up: int | None) -> Memory | None:
        """The memory behind a storage; `made_up` is its simulated address or -1."""
        start = self._ask(
            "the address",
            lambda: torch_words.storage_address(self._torch, self._tensor),
        )
        size_bytes = int(storage.nbytes())
        if not start or not size_bytes:  # all that is empty has the address 0
            return None
        return Memory(
            device=str(self._tensor.device),
            start=start,
            size_bytes=size_bytes,
            address=start if made_up == -1 else made_up,
            holders=self._holders(),
            all_holders=torch_words.storage_holders(self._torch, storage),
        )

    def _holders(self) -> frozenset[int]:
        own = torch_words.identity(self._tensor)
        base = torch_words.identity(torch_words.base_of(self._tensor))
        return frozenset(each for each in (own, base) if each is not None)

    def _base_shape(self) -> tuple[int, ...] | None:
        base = torch_words.base_of(self._tensor)
        return None if base is None else tuple(map(int, base.size()))

    def _is_lazy_copy(self) -> bool | None:
        return torch_words.is_lazy_copy(self._torch, self._tensor)

    def _remarks(self, kind: kinds.Kind, dtype: str | None) -> tuple[str, ...]:
        found = [kind.remark, packed_remark(dtype or "")]
        if kind.has_memory:
            if self._ask("laziness", self._is_lazy_copy):
                found.append(
                    "a lazy copy: its memory is shared until one of the two is written"
                )
            found.extend(torch_words.missing_words(self._torch))
        return tuple(filter(None, found + self._questions.remarks))
