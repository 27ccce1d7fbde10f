"""Random numbers that are the same on every device: all are drawn on the CPU.

A device has a generator of its own, so that a program that draws on the device and on
the CPU gives other numbers on another device, rightly. Here programs are compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

_FACTORIES = ("rand", "randn", "randint", "randperm")
_LIKE = ("rand_like", "randn_like", "randint_like")
_IN_PLACE = ("normal_", "uniform_", "bernoulli_", "random_", "exponential_")


def load_dice(seed: int = 0) -> None:
    """Draw on the CPU from now on, whatever device is asked for."""
    import random

    import numpy as np

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if getattr(torch.rand, "loaded", False):
        return
    for name in _FACTORIES:
        setattr(torch, name, _factory(getattr(torch, name)))
    for name in _LIKE:
        setattr(torch, name, _like(getattr(torch, name)))
    for name in _IN_PLACE:
        setattr(torch.Tensor, name, _in_place(getattr(torch.Tensor, name)))
    torch.multinomial = _of_a_tensor(torch.multinomial)
    torch.bernoulli = _of_a_tensor(torch.bernoulli)
    torch.Tensor.multinomial = torch.multinomial
    functional.dropout = _dropout
    for name in ("dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout"):
        setattr(functional, name, _whole_channels)


def _factory(plain: Callable[..., Any]) -> Callable[..., Any]:
    def draw(
        *size: Any, device: Any = None, generator: Any = None, **named: Any
    ) -> Any:
        wanted = (
            torch.device(device) if device is not None else torch.get_default_device()
        )
        if wanted.type == "meta" or generator is not None:
            return plain(*size, device=device, generator=generator, **named)
        leaf = named.pop("requires_grad", False)
        drawn = plain(*size, device="cpu", **named).to(wanted)
        return drawn.requires_grad_() if leaf else drawn

    draw.loaded = True  # type: ignore[attr-defined]
    return draw


def _like(plain: Callable[..., Any]) -> Callable[..., Any]:
    def draw(like: Any, *more: Any, device: Any = None, **named: Any) -> Any:
        wanted = like.device if device is None else device
        return plain(like.detach().cpu(), *more, **named).to(wanted)

    return draw


def _in_place(plain: Callable[..., Any]) -> Callable[..., Any]:
    def draw(self: Any, *more: Any, generator: Any = None, **named: Any) -> Any:
        if generator is not None or self.device.type in {"cpu", "meta"}:
            return plain(self, *more, generator=generator, **named)
        drawn = plain(torch.empty_like(self, device="cpu"), *more, **named)
        with torch.no_grad():
            self.copy_(drawn)
        return self

    return draw


def _of_a_tensor(plain: Callable[..., Any]) -> Callable[..., Any]:
    def draw(weights: Any, *more: Any, **named: Any) -> Any:
        return plain(weights.detach().cpu(), *more, **named).to(weights.device)

    return draw


def _dropout(
    x: Any,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Any:
    if not training or p == 0:
        return x
    return _kept(x, x.shape, p, inplace)


def _whole_channels(
    x: Any,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Any:
    if not training or p == 0:
        return x
    return _kept(x, (*x.shape[:2], *(1 for _ in x.shape[2:])), p, inplace)


def _kept(x: Any, shape: Any, p: float, inplace: bool) -> Any:
    kept = torch.rand(shape, device="cpu").ge_(p).to(x.device, x.dtype).div_(1 - p)
    return x.mul_(kept) if inplace else x * kept
