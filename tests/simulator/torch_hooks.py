"""A hook that raises in a backward pass raises its own exception, as on any device.

torch's C++ unwinds through the device's guard while that exception is pending, where
a guard written in Python without care ends the process.
"""

from __future__ import annotations

import pytest
import torch


class Refusal(Exception):
    """What the hooks raise; asked for its truth, it fails."""

    __bool__ = None


def refuse(*_):
    """Raise, whatever kind of hook this is called as."""
    raise Refusal


def tensor_hook(weight, _layer):
    """Hang a raising hook on a tensor."""
    return weight.register_hook(refuse)


def node_hook(weight, layer):
    """Hang a raising hook behind a node of the graph; also hands out its loss."""
    loss = layer(weight).sum()
    return loss.grad_fn.register_hook(refuse), loss


def module_backward_hook(_weight, layer):
    """Hang a raising hook on a module's backward pass."""
    return layer.register_full_backward_hook(refuse)


KINDS = [tensor_hook, node_hook, module_backward_hook]


def raising_loss(kind):
    """A loss whose backward pass meets a hook of this kind, and the hook's handle."""
    weight = torch.ones(3, 3, device="sim:1", requires_grad=True)
    layer = torch.nn.Linear(3, 3).to("sim:1")
    handle = kind(weight, layer)
    return handle if isinstance(handle, tuple) else (handle, layer(weight).sum())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.usefixtures("kept_box")
def test_a_raising_hook_raises_its_own_exception(kind):
    """The caller of backward gets what the hook has raised, as often as it raises."""
    for _ in range(20):
        _, loss = raising_loss(kind)
        with pytest.raises(Refusal):
            loss.backward()

    weight = torch.tensor([1.0, 2.0, 3.0], device="sim:1", requires_grad=True)
    (weight * weight).sum().backward()
    assert weight.grad.tolist() == [2, 4, 6]
