"""Steps through memory in words."""

from __future__ import annotations


def step_text(step: int, itemsize: int) -> str:
    """One step along a dim, in elements and in bytes.

    >>> step_text(6, 4), step_text(0, 4)
    ('+6 elements = 24 B', '+0 elements, the same one again')
    """
    if not step:
        return "+0 elements, the same one again"
    elements = "element" if abs(step) == 1 else "elements"
    return f"{step:+,} {elements} = {step * itemsize:,} B"


def elements_text(count: int, itemsize: int) -> str:
    """A number of elements with its bytes.

    >>> elements_text(6, 4)
    '6 el = 24 B'
    """
    return f"{count:,} el = {count * itemsize:,} B"
