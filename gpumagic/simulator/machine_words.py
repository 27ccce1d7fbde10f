"""The words that a simulated machine was made with, to be typed again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class MachineWords(Record):
    """What `gpumagic.simulate` was called with.

    Attributes:
        machine: Which GPUs and how many, as one word: "4xh100".
    """

    machine: str
    as_cuda: bool = False
    memory: str | int | None = None
    hazards: str = "report"
    others: Sequence[Sequence[tuple[int, int]]] = ()
    allocator: str | None = None

    def anew(self, request: str) -> str:
        """What to type for the same machine once more, with another choice of GPUs.

        >>> MachineWords("4xh100", as_cuda=True).anew("3")
        '%gpu_select 3 --simulate 4xh100 --as-cuda'

        Args:
            request: The choice, as `%gpu_select` takes it.
        """
        if (
            self.others or self.allocator is not None
        ):  # the magic has no options for these
            return f"{self._call()}, then %gpu_select {request}"
        memory = "".join(str(self.memory).split())
        options = [
            *(["--as-cuda"] if self.as_cuda else []),
            *([] if self.memory is None else [f"--memory {memory}"]),
            *([] if self.hazards == "report" else [f"--hazards {self.hazards}"]),
        ]
        return " ".join([f"%gpu_select {request} --simulate {self.machine}", *options])

    def _call(self) -> str:
        named = {
            "as_cuda": (self.as_cuda, False),
            "memory": (self.memory, None),
            "hazards": (self.hazards, "report"),
            "others": (self.others, ()),
            "allocator": (self.allocator, None),
        }
        said = [f"{name}={is_!r}" for name, (is_, was) in named.items() if is_ != was]
        return f"gpumagic.simulate({', '.join([repr(self.machine), *said])})"
