"""Whether torch may round float32 to TF32, which makes a product several times faster.

There are two switches, one for matrix products and one for convolutions, and two ways
to turn each. The newer way (torch 2.9) is asked first: once somebody has used it, the
older one may raise.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROUNDED = "tf32"


def products_round(torch: Any) -> bool:
    """Whether a matrix product of float32 may be rounded."""
    return _allowed(torch.backends.cuda.matmul, torch.backends.cuda.matmul)


def convolutions_round(torch: Any) -> bool:
    """Whether a convolution of float32 may be rounded; by default it may."""
    cudnn = torch.backends.cudnn
    return _allowed(getattr(cudnn, "conv", None), cudnn)


@contextlib.contextmanager
def rounding_products(torch: Any) -> Iterator[None]:
    """Let matrix products of float32 be rounded during a block.

    By both ways: by the newer one alone each product raises (torch 2.14), since the
    older one contradicts it.
    """
    matmul = torch.backends.cuda.matmul
    before, newer = matmul.allow_tf32, getattr(matmul, "fp32_precision", None)
    matmul.allow_tf32 = True
    if newer is not None:
        matmul.fp32_precision = _ROUNDED
    try:
        yield
    finally:
        matmul.allow_tf32 = before
        if newer is not None:
            matmul.fp32_precision = newer


def _allowed(newer: Any, older: Any) -> bool:
    precision = getattr(newer, "fp32_precision", None)
    if precision is not None:
        return bool(precision == _ROUNDED)
    try:
        return bool(older.allow_tf32)
    except RuntimeError:  # both ways have been used, and contradict each other
        return False
