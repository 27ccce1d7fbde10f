"""The names of one device and the rest, which together are all that is allocated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.devices.simulated import word_of
from gpumagic.gpu_mem.holding_remarks import surplus_remark, workspace_remark
from gpumagic.gpu_mem.library_held import workspace_bytes
from gpumagic.gpu_mem.naming import UNATTRIBUTED, WORKSPACES
from gpumagic.gpu_mem.records.names import Holder, HolderKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.gpu_mem.rows import DeviceRows


class DeviceBalance:
    """The rows of one device with what no name was found for: all that is allocated.

    Attributes:
        device: Its number.

        allocated_bytes: What the rows add up to. Where names hold more than the
            allocator says, it is that.

    Args:
        kind: The kind of the device.

        rows: The names.

        allocated: What the allocator says; None where it does not.
    """

    def __init__(
        self,
        kind: str,
        rows: DeviceRows,
        allocated: int | None,
    ) -> None:
        self.device = rows.device
        self._kind = kind
        self._rows = rows
        self._told = allocated
        self._library_bytes = workspace_bytes(kind, rows.device)
        known = rows.found_bytes + self._library_bytes
        self.allocated_bytes = max(known, allocated or 0)
        self._rest_bytes = self.allocated_bytes - known

    def sums(self) -> tuple[tuple[int, HolderKind, int], ...]:
        """What is allocated, by what keeps it."""
        sums = self._rows.sums()
        sums[HolderKind.LIBRARY] = self._library_bytes
        sums[HolderKind.UNATTRIBUTED] = self._rest_bytes
        return tuple(
            (self.device, kind, sums[kind]) for kind in HolderKind if sums[kind]
        )

    def holders(self) -> Iterator[Holder]:
        """All rows, in no order."""
        yield from self._rows.holders()
        if self._library_bytes:
            yield self._nameless(WORKSPACES, HolderKind.LIBRARY, self._library_bytes)
        if self._rest_bytes:
            yield self._nameless(
                UNATTRIBUTED, HolderKind.UNATTRIBUTED, self._rest_bytes
            )

    def remarks(self) -> Iterator[str]:
        """What does not add up, and what may explain the rest."""
        told = self._told
        if told is not None and told < self.allocated_bytes:
            where = f"{word_of(self._kind)}:{self.device}"
            yield surplus_remark(where, told, self.allocated_bytes)
        remark = workspace_remark(self._kind, self._rest_bytes)
        if remark is not None:
            yield remark

    def _nameless(self, name: str, kind: HolderKind, nbytes: int) -> Holder:
        return Holder(name, kind, self.device, own_bytes=nbytes, reachable_bytes=nbytes)
