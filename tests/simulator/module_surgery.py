"""What people do to modules and parameters, as programs for any device.

Each takes the device and answers with plain values that do not depend on it: numbers,
types, and whether something lies where it should.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PROGRAMS: list[Callable[[str], object]] = []


def program(function):
    """A program of the list."""
    PROGRAMS.append(function)
    return function


def net():
    """A small network, the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def rows(device):
    """Three rows of numbers for it."""
    return torch.linspace(-1, 1, 12).reshape(3, 4).to(device)


def sums(tensors: Iterable[torch.Tensor]):
    """What tells numbers apart."""
    return [round(each.detach().double().abs().sum().item(), 3) for each in tensors]


def all_on(device, tensors: Iterable[torch.Tensor]):
    """Whether all of them lie there."""
    return {each.device.type for each in tensors} == {device}


def trained(model, device):
    """The model after one step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(rows(device)).pow(2).sum().backward()
    optimizer.step()
    return model


# -------------------------------------------------------------------- parametrised


def _normed(wrap, device):
    torch.manual_seed(0)
    model = wrap(nn.Linear(4, 3))
    alive = model(rows("cpu"))
    model.to(device)
    trained(model, device)
    return sums([alive, model(rows(device)), *model.parameters()])


@program
def weight_norm(device):
    """The same as a parametrization."""
    return _normed(parametrizations.weight_norm, device)


@program
def pruned_before_the_move(device):
    """Mask and original move, and pruning is made final there."""
    torch.manual_seed(0)
    model = prune.l1_unstructured(nn.Linear(4, 3), "weight", amount=0.5).to(device)
    trained(model, device)
    prune.remove(model, "weight")
    return all_on(device, model.parameters()), sums(model.parameters())


# --------------------------------------------------------------- copies and states


@program
def deep_copies(device):
    """A copy has its own parameters, which lie beside the others."""
    model = net().to(device)
    copied = copy.deepcopy(model)
    weight = copied[0].weight
    return (
        all_on(device, copied.parameters()),
        weight is not model[0].weight,
        sums([weight]),
    )


# ------------------------------------------------------------------- conversions


@program
def converted(device):
    """Precision changes in place, and with the place at once."""
    model, other = net().to(device), net()
    weight, others = model[0].weight, other[0].weight
    model.half().float().bfloat16().double()
    alive = other(rows("cpu"))
    other.to(device=device, dtype=torch.float64, non_blocking=True)
    return (
        model[0].weight is weight,
        weight.dtype,
        other[0].weight is others,
        others.dtype,
        other[1].num_batches_tracked.dtype,
        sums([alive, *other.parameters()]),
    )
