"""The arguments of one call, turned into their twins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.operations import MASKS
from gpumagic.simulator.backend.spans import operand_of

if TYPE_CHECKING:
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.hazards import Operand
    from gpumagic.simulator.simulated_gpu import SimulatedGpu


class Call:
    """The arguments of one call, on their way to the twins.

    Attributes:
        gpu: The one GPU on which all simulated arguments lie; None if there is none.

        reads: The storages that are read, as the tracker wants them.

        found: The storages of an argument, by its position or name.

        nbytes: How many bytes they are.

        expanded: Whether one of them names the same bytes again and again.

        host: The first CPU tensor among them that is more than a number.

        indices: Of an operator that indexes: those that lie on the GPU.
    """

    __slots__ = (
        "_copied",
        "_simulation",
        "_tensor",
        "expanded",
        "found",
        "gpu",
        "host",
        "indices",
        "nbytes",
        "reads",
    )

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._tensor = simulation.torch.Tensor
        self.gpu: SimulatedGpu | None = None
        self.reads: list[Operand] = []
        self.found: dict[int | str, list[Operand]] = {}
        self.nbytes = 0
        self.expanded = False
        self.host: Any = None
        self.indices: list[Any] = []
        self._copied: list[Any] = []  # to the GPU, for as long as the call

    def twin(self, tensor: Any, where: int | str) -> Any:
        """What stands for a tensor on the CPU; notes the storage it lies on."""
        __tracebackhide__ = True
        memory = getattr(tensor.untyped_storage(), "_gpumagic", None)
        if memory is None:
            if tensor.device.type != self._simulation.device_type:
                if self.host is None and tensor.dim():
                    self.host = tensor
                return tensor
            memory = self._simulation.tensors.claimed(tensor)
        gpu = memory.gpu
        if self.gpu is None:
            self.gpu = gpu
        elif self.gpu is not gpu:
            self._refuse_mixing(f"{self._word}:{gpu.index}")
        if memory.plain:
            twin, operand = memory.twin, memory.whole
            nbytes = operand[2]
        else:
            twin = self._simulation.tensors.view_of_twin(tensor, memory.twin)
            operand, nbytes = operand_of(tensor, memory)
            self.expanded = self.expanded or tensor.numel() > nbytes
        self.nbytes += nbytes
        self.reads.append(operand)
        self.found.setdefault(where, []).append(operand)
        return twin

    def twins(self, items: Any, where: int | str) -> list[Any]:
        """Likewise for a list of tensors, in which None may stand as well."""
        tensor = self._tensor
        return [
            self.twin(each, where) if isinstance(each, tensor) else each
            for each in items
        ]

    def twins_of_indices(self, items: Any, where: int) -> list[Any]:
        """Likewise for the indices of a tensor, which may lie on the CPU."""
        tensor = self._tensor
        gpu = self.gpu
        if gpu is None:
            return self.twins(items, where)
        simulated = self._simulation.device_type
        twins = []
        for each in items:
            if isinstance(each, tensor) and each.device.type != simulated:
                self._copy_over(each, where, gpu)
                twins.append(each)
            else:
                twins += self.twins([each], where)
                self.indices.append(twins[-1])
        return twins

    def _copy_over(self, index: Any, where: int, gpu: SimulatedGpu) -> None:
        """As CUDA does: a copy that the host waits for; of a mask what it selects."""
        ops, device = self._simulation.torch.ops.aten, self._simulation.torch.device
        is_mask = str(index.dtype) in MASKS
        copied = ops._to_copy.default(
            index.nonzero() if is_mask else index,
            device=device(self._simulation.device_type, gpu.index),
        )
        self._copied.append(copied)
        self.twin(copied, where)

    def require_one_device(self) -> None:
        """Refuse CPU tensors beside simulated ones, as CUDA does.

        A CPU tensor may index a simulated one; a simulated one never a CPU one.
        """
        __tracebackhide__ = True
        if self.host is not None and self.gpu is not None:
            self._refuse_mixing("cpu")

    @property
    def _word(self) -> str:
        return self._simulation.word

    def _refuse_mixing(self, other: str) -> None:
        __tracebackhide__ = True
        index = self.gpu.index if self.gpu else 0
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two "
            f"devices, {self._word}:{index} and {other}!"
        )
