"""Takes torch's warnings of waits out of the stream of warnings, and no others."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WAITED = "called a synchronizing CUDA operation"
_UNFINISHED = "Synchronization debug mode is a prototype"  # said once, by setting it
# Written so that it equals no filter of anybody else: that one would be replaced.
_OURS = f"(?:{_WAITED}|{_UNFINISHED})"


@contextlib.contextmanager
def taken_warnings(waited: Callable[[], object]) -> Iterator[None]:
    """Call a function for each of torch's warnings that something has waited.

    It is called within the warning, so that the stack tells who waited. All other
    warnings go where they would have gone. What the block itself changes in the
    filters, or in `warnings.showwarning`, stays.

    Args:
        waited: What to call.
    """
    before = warnings.showwarning
    watching = True

    def show(message: Any, category: Any, *args: Any, **options: Any) -> None:
        text = str(message)
        if not watching or not text.startswith((_WAITED, _UNFINISHED)):
            before(message, category, *args, **options)
        elif text.startswith(_WAITED):
            waited()

    # "always": by default each line warns once only.
    warnings.filterwarnings("always", message=_OURS, category=UserWarning)
    filters = _filters()
    own = filters[0]
    warnings.showwarning = show
    try:
        yield
    finally:
        watching = False  # somebody may have kept it, as logging does
        if warnings.showwarning is show:
            warnings.showwarning = before
        for each in (filters, _filters()):
            _take_out(own, each)


def _take_out(own: Any, filters: list[Any]) -> None:
    filters[:] = [each for each in filters if each is not own]


def _filters() -> list[Any]:
    """The filters in force; since Python 3.14 they can be those of a context."""
    current = getattr(warnings, "_get_filters", None)
    filters: list[Any] = warnings.filters if current is None else current()  # type: ignore[assignment]
    return filters
