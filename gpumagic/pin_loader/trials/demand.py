"""What a loader takes of the machine while all that can be under way is under way.

With everything handed over, `prefetch_factor * workers` batches wait for their turn,
one is in the user's hands, and a prefetcher holds as many as it is deep. Each of them
takes pinned blocks of powers of two, which are kept for reuse, and with workers the
plain bytes in shared memory before that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.pin_loader.records.batch import Pinned, WhyPageable

if TYPE_CHECKING:
    from gpumagic.pin_loader.records.batch import Anatomy, Leaf

WARN_SHARE = 0.2  # of what there is; nothing is said below
REFUSE_SHARE = 0.5


@dataclass(frozen=True)
class Demand:
    """What one setting takes.

    Attributes:
        anatomy: Of a batch.

        pinned: Whether batches are pinned at all.
    """

    anatomy: Anatomy
    workers: int
    prefetch_factor: int
    depth: int
    pinned: bool = True

    @property
    def ahead(self) -> int:
        """Batches that workers have finished, or are at."""
        return self.prefetch_factor * self.workers

    @property
    def batches(self) -> int:
        """All that can be under way."""
        return self.ahead + 1 + self.depth

    @property
    def locked_bytes(self) -> int:
        """What is pinned of them."""
        return self.batches * self.anatomy.locked_bytes if self.pinned else 0

    @property
    def shared_bytes(self) -> int:
        """What lies in shared memory."""
        if not self.workers:
            return 0
        listed = sum(leaf.nbytes for leaf in self._shared_leaves)
        return self.batches * (listed + self.anatomy.left_out_bytes)

    @property
    def ram_bytes(self) -> int:
        """Both: shared memory is RAM as well."""
        return self.locked_bytes + self.shared_bytes

    @property
    def files(self) -> int:
        """Open files, if each tensor is handed over in one."""
        leaves = len(self._shared_leaves) + self.anatomy.left_out
        return leaves * self.ahead

    @property
    def _shared_leaves(self) -> list[Leaf]:
        """Tensors on the host, each memory once; arrays are sent through a pipe."""
        return [
            leaf
            for leaf in self.anatomy.leaves
            if leaf.same_as is None
            and leaf.why is not WhyPageable.NOT_A_TENSOR
            and leaf.pinned is not Pinned.ON_DEVICE
        ]
