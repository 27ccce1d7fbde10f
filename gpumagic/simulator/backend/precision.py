"""Types that a CPU computes slowly or not at all: computed in wider ones, rounded once.

Processors without arithmetic in half precision take minutes for a product that takes
a second in single precision. CUDA adds up in single precision and rounds the sum, so
that is what is done here, too, on every machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Precision:
    """Runs operators in wider types than they are given."""

    def __init__(self, torch: Any) -> None:
        self._tensor = torch.Tensor
        self._halves = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
        self._wider = {**self._halves, torch.complex32: torch.complex64}
        self._rounded = {
            (torch.complex32, torch.float32): torch.float16,
            **{(narrow, wide): narrow for narrow, wide in self._wider.items()},
        }

    def in_single(
        self, call: Callable[..., Any], written: tuple[int | str, ...] = ()
    ) -> Callable[..., Any]:
        """An operator that computes halves in single precision."""
        halves = self._halves

        def run(*args: Any, **named: Any) -> Any:
            if getattr(args[0], "dtype", None) not in halves:
                return call(*args, **named)
            result = self.widened(call, written, args, named)
            # torch says what is wrong with a mixture
            return call(*args, **named) if result is NotImplemented else result

        return run

    def widened(  # noqa: C901 -- with what it does to one value
        self,
        call: Callable[..., Any],
        written: tuple[int | str, ...],
        args: Sequence[Any],
        named: Mapping[str, Any],
    ) -> Any:
        """Run it in a wider type; `NotImplemented` where there is none."""
        narrow = self._narrow_type((*args, *named.values()))
        if narrow is None:
            return NotImplemented
        originals: dict[int, tuple[Any, Any]] = {}

        def widen(where: int | str, value: Any) -> Any:
            if isinstance(value, list):
                return [widen(where, each) for each in value]
            if not isinstance(value, self._tensor) or value.dtype is not narrow:
                return value
            wide = value.to(self._wider[narrow])
            if where in written:
                originals[id(wide)] = value, wide
            return wide

        def round_(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return type(value)(map(round_, value))
            if not isinstance(value, self._tensor):
                return value
            if id(value) in originals:
                return originals[id(value)][0]
            return value.to(self._rounded.get((narrow, value.dtype), value.dtype))

        result = call(
            *(widen(where, each) for where, each in enumerate(args)),
            **{key: widen(key, each) for key, each in named.items()},
        )
        for original, wide in originals.values():  # an output may be of any size
            original.resize_(wide.shape).copy_(wide)
        return round_(result)

    def _narrow_type(self, values: Sequence[Any]) -> Any:
        """The one type of the numbers, if it is one to be widened; None otherwise."""
        flat = [
            each
            for value in values
            for each in (value if isinstance(value, list) else (value,))
            if isinstance(each, self._tensor)
        ]
        types = {
            each.dtype for each in flat if each.is_floating_point() or each.is_complex()
        }
        return (
            next(iter(types)) if len(types) == 1 and types <= {*self._wider} else None
        )
