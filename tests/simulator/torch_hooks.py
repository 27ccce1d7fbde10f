"""A hook that raises in a backward pass raises its own exception, as on any device.

torch's C++ unwinds through the device's guard while that exception is pending, where
a guard written in Python without care ends the process.
"""

from __future__ import annotations

import pytest
import torch

import gpumagic


class Refusal(Exception):
    """What the hooks raise."""


def refuse(*_):
    """Raise, whatever kind of hook this is called as."""
    raise Refusal


def tensor_hook(weight, _layer):
    """Hang a raising hook on a tensor."""
    return weight.register_hook(refuse)


def post_accumulate_hook(weight, _layer):
    """Hang a raising hook behind the sum of a leaf's gradients."""
    return weight.register_post_accumulate_grad_hook(refuse)


def node_prehook(weight, layer):
    """Hang a raising hook before a node of the graph; also hands out its loss."""
    loss = layer(weight).sum()
    return loss.grad_fn.register_prehook(refuse), loss


def node_hook(weight, layer):
    """Hang a raising hook behind a node of the graph; also hands out its loss."""
    loss = layer(weight).sum()
    return loss.grad_fn.register_hook(refuse), loss


def module_backward_hook(_weight, layer):
    """Hang a raising hook on a module's backward pass."""
    return layer.register_full_backward_hook(refuse)


KINDS = [
    tensor_hook,
    post_accumulate_hook,
    node_prehook,
    node_hook,
    module_backward_hook,
]
DEVICES = ["sim:0", "sim:1"]


def gradient_of_square(device):
    """A gradient of which the right value is known: 2, 4, 6."""
    weight = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    (weight * weight).sum().backward()
    return weight.grad.tolist()


def raising_loss(kind, device):
    """A loss whose backward pass meets a hook of this kind, and the hook's handle."""
    weight = torch.ones(3, 3, device=device, requires_grad=True)
    layer = torch.nn.Linear(3, 3).to(device)
    handle = kind(weight, layer)
    return handle if isinstance(handle, tuple) else (handle, layer(weight).sum())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.usefixtures("kept_box")
def test_a_raising_hook_raises_its_own_exception(kind, device):
    """The caller of backward gets what the hook has raised, as often as it raises."""
    for _ in range(20):
        _, loss = raising_loss(kind, device)
        with pytest.raises(Refusal):
            loss.backward()

    assert gradient_of_square(device) == [2, 4, 6]


@pytest.mark.usefixtures("kept_box")
def test_a_hook_that_unpacks_a_saved_tensor_may_raise():
    """Backward raises what the unpacking of a saved tensor has raised."""
    weight = torch.ones(3, device="sim", requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, refuse):
        loss = (weight * weight).exp().sum()

    with pytest.raises(Refusal):
        loss.backward()

    assert gradient_of_square("sim") == [2, 4, 6]


@pytest.mark.usefixtures("kept_box")
def test_a_hook_that_packs_a_saved_tensor_may_raise():
    """The forward pass raises what the packing of a saved tensor has raised."""
    weight = torch.ones(3, device="sim", requires_grad=True)
    with (
        torch.autograd.graph.saved_tensors_hooks(refuse, lambda saved: saved),
        pytest.raises(Refusal),
    ):
        (weight * weight).sum()

    assert gradient_of_square("sim") == [2, 4, 6]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.usefixtures("kept_box")
def test_a_hook_may_raise_what_is_no_exception(interrupt):
    """Also KeyboardInterrupt and its like come out of backward as they are."""

    def stop(_):
        raise interrupt

    weight = torch.ones(3, device="sim", requires_grad=True)
    weight.register_hook(stop)

    with pytest.raises(interrupt):
        (weight * 2).sum().backward()

    assert gradient_of_square("sim") == [2, 4, 6]


@pytest.mark.usefixtures("kept_box")
def test_a_backward_within_a_hook_may_raise():
    """What an inner backward pass raises comes through the outer one."""
    inner = torch.ones(3, device="sim", requires_grad=True)
    inner.register_hook(refuse)
    outer = torch.ones(3, device="sim", requires_grad=True)

    @torch.enable_grad()
    def go_back(_):
        (inner * 2).sum().backward()

    outer.register_hook(go_back)

    with pytest.raises(Refusal):
        (outer * 3).sum().backward()

    assert gradient_of_square("sim") == [2, 4, 6]


@pytest.mark.usefixtures("kept_box")
def test_a_hook_may_handle_what_an_inner_backward_raised():
    """An exception that a hook has caught does not come up again outside."""
    inner = torch.ones(3, device="sim", requires_grad=True)
    inner.register_hook(refuse)
    handled = []

    @torch.enable_grad()
    def handle(_):
        try:
            (inner * 2).sum().backward()
        except Refusal:
            handled.append(True)

    outer = torch.ones(3, device="sim", requires_grad=True)
    outer.register_hook(handle)
    (outer * 3).sum().backward()

    assert handled == [True]
    assert outer.grad.tolist() == [3, 3, 3]


@pytest.mark.usefixtures("kept_box")
def test_a_custom_function_that_raises_raises_its_own():
    """An `autograd.Function` raises in backward what its code has raised."""

    class Refusing(torch.autograd.Function):
        @staticmethod
        def forward(_, given):
            return given.clone()

        backward = staticmethod(refuse)

    weight = torch.ones(3, device="sim", requires_grad=True)

    with pytest.raises(Refusal):
        Refusing.apply(weight).sum().backward()

    assert gradient_of_square("sim") == [2, 4, 6]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_hooks_raise_after_switching_off_and_on(kind):
    """The second simulation of a process is as safe as the first."""
    for request in ("h100", "2xt4"):
        with gpumagic.simulate(request):
            _, loss = raising_loss(kind, "sim")
            with pytest.raises(Refusal):
                loss.backward()
            assert gradient_of_square("sim") == [2, 4, 6]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_hooks_on_the_cpu_raise_with_the_simulator_off(kind):
    """What was put round torch's backward changes nothing for CPU tensors after."""
    with gpumagic.simulate("h100"):
        gradient_of_square("sim")
    _, loss = raising_loss(kind, "cpu")

    with pytest.raises(Refusal):
        loss.backward()

    assert gradient_of_square("cpu") == [2, 4, 6]
