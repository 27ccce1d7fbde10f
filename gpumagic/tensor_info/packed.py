"""Dtypes of fewer than eight bits, which torch keeps in whole bytes."""

from __future__ import annotations

_PACKED = {
    "float4_e2m1fn_x2": 2,
    "bits4x2": 2,
    "quint4x2": 2,
    "bits2x4": 4,
    "quint2x4": 4,
    "bits1x8": 8,
}


def packed_remark(dtype: str) -> str:
    """What one element of a dtype of fewer than eight bits is; empty for others."""
    word = dtype.removeprefix("torch.")
    if word in _PACKED:
        return (
            f"{word}: one element is a byte that packs {_PACKED[word]} values; sizes "
            f"and strides count bytes"
        )
    small = word.removeprefix("u").removeprefix("int")
    if small.isdigit() and int(small) < 8 and "int" in word:
        return f"{word}: torch keeps each value of {small} bits in a byte of its own"
    return ""
