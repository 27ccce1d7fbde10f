"""The user's step, and how often it was called: what it changes has changed."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Self

from gpumagic.errors import UsageProblem
from gpumagic.pin_loader.records.remark import Remark
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Callable


class CountedStep:
    """Calls a function with a batch, and counts.

    Attributes:
        calls: How often it was called.

    Args:
        function: The user's.
    """

    def __init__(self, function: Callable[[Any], object]) -> None:
        self.calls = 0
        self._function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    @classmethod
    def of(cls, function: Callable[[Any], object] | None) -> Self | None:
        """The function counted, if there is one.

        Raises:
            UsageProblem: It does not take one batch.
        """
        if function is None:
            return None
        try:
            inspect.signature(function).bind(None)
        except TypeError:
            name = getattr(function, "__name__", "step")
            typed = name if name.isidentifier() else "step"
            raise UsageProblem(
                f"{name} does not take one argument, and is called with one: the batch",
                f"def {typed}(batch): x, y = batch ...",
            ) from None
        except ValueError:  # it does not tell what it takes
            pass
        return cls(function)

    def __call__(self, batch: Any) -> object:
        """Call it with a batch."""
        self.calls += 1
        return self._function(batch)

    def remarks(self, *, simulated: bool) -> list[Remark]:
        """What a reader has to know of these calls."""
        found = [
            Remark(
                f"{self.__name__} was called {count_text(self.calls, 'time')}: what it "
                "changes has changed, as weights and an optimizer have",
                "measure with a copy of the model, or make both anew",
            )
        ]
        if simulated:
            found.append(
                Remark(
                    "what the step does on the host takes no time on the simulated "
                    "device's clock: only its work on the device counts"
                )
            )
        return found
