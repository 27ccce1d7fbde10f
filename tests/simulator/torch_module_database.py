"""Torch's own database of modules: each moves to the device and computes the same."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

import gpumagic

pytest.importorskip(
    "expecttest", reason="torch's module database needs the package expecttest"
)
from torch.testing._internal.common_modules import module_db

_SAMPLES = 4  # of each module, which has up to fifty
# They draw random numbers when they are called, which differ by device.
_RANDOM = (
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
    nn.modules.lazy.LazyModuleMixin,
)


@pytest.fixture(scope="module", autouse=True)
def _machine():
    """A simulated machine for all of them."""
    with gpumagic.simulate("h100"):
        yield


def samples(info, *, training):
    """Modules with what they are called with, as torch tests them."""
    torch.manual_seed(0)
    inputs = info.module_inputs_func(
        info,
        device="cpu",
        dtype=torch.float32,
        requires_grad=True,
        training=training,
    )
    for each in inputs[:_SAMPLES]:
        made, called = each.constructor_input, each.forward_input
        if called is not None:
            module = info.module_cls(*made.args, **made.kwargs).train(training)
            yield _predictable(module), (called.args, called.kwargs)


def _predictable(module):
    """The same module without anything that is drawn at random."""
    for each in module.modules():
        if isinstance(each, nn.modules.dropout._DropoutNd):
            each.p = 0.0
        elif isinstance(each, nn.MultiheadAttention):
            each.dropout = 0.0
        elif isinstance(each, nn.RReLU):
            each.lower = each.upper
    return module


def tensors(tree):
    """All tensors in what a module takes or gives."""
    return [each for each in tree_leaves(tree) if isinstance(each, torch.Tensor)]


def sent(tree, device):
    """The same arguments, as leaves on a device."""

    def send(value):
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().to(device).requires_grad_(value.requires_grad)

    return tree_map(send, tree)


def results(module, arguments):
    """What a module gives, after going back through it."""
    args, named = arguments
    out = [each for each in tensors(module(*args, **named)) if each.is_floating_point()]
    loss = sum(each.sum() for each in out if each.requires_grad)
    if isinstance(loss, torch.Tensor):
        loss.backward()
    return out


def assert_same(there, here):
    """The numbers of tensors on the device are those of the CPU, to rounding."""
    for one, other in zip(there, here, strict=True):
        if other is None:
            assert one is None
            continue
        torch.testing.assert_close(
            one.cpu(), other, rtol=1e-3, atol=1e-4, equal_nan=True
        )


CASES = [
    (info, training)
    for info in module_db
    if not issubclass(info.module_cls, _RANDOM)
    for training in ((True, False) if info.train_and_eval_differ else (True,))
]


@pytest.mark.filterwarnings("ignore")  # torch's own, about its old names
@pytest.mark.parametrize(
    ("info", "training"),
    CASES,
    ids=[f"{info.name}-{'train' if on else 'eval'}" for info, on in CASES],
)
def test_a_module_moves_and_computes_the_same(info, training):
    """Moved with a result alive it keeps its parameters, and its numbers agree."""
    for module, arguments in samples(info, training=training):
        here, on_cpu = copy.deepcopy(module), sent(arguments, "cpu")
        try:
            expected = results(here, on_cpu)
        except RuntimeError:
            continue  # nor does the CPU take it
        before = [id(each) for each in module.parameters()]
        alive = (
            copy.deepcopy(here) if training else module(*arguments[0], **arguments[1])
        )

        module.to("sim")
        on_device = sent(arguments, "sim")
        out = results(module, on_device)

        del alive
        assert [id(each) for each in module.parameters()] == before
        assert {each.device.type for each in [*out, *module.parameters()]} <= {"sim"}
        assert_same(out, expected)
        assert_same(module.buffers(), here.buffers())
        for there, those in (
            (module.parameters(), here.parameters()),
            (tensors(on_device), tensors(on_cpu)),
        ):
            assert_same((each.grad for each in there), (each.grad for each in those))
