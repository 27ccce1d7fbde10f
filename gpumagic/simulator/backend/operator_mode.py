"""torch's mode that sees each operator, without what it is guarded with."""

from __future__ import annotations


def operator_mode() -> type:
    """A class to derive a mode from, whose first call imports nothing.

    torch keeps torch.compile out of every other mode's code. For that it imports
    torch._dynamo and sympy at the first call, which takes seconds; nothing is compiled
    for a simulated GPU.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class OperatorMode(TorchDispatchMode):
        """Not guarded from torch.compile."""

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

    return OperatorMode
