"""Training on the simulated GPU: the CPU's numbers, whatever is used to train."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.simulator.small_models import (
    STEPS,
    Residual,
    Transformer,
    made,
    numbers,
    on_both,
)

# What these networks are made of: sizes of very different kinds in one list.
PARAMETERS = {
    "resnet": ((64, 3, 7, 7), (64,), (128, 64, 3, 3), (256, 128, 1, 1), (999, 256)),
    "mobilenet": ((32, 3, 3, 3), (32,), (960, 1, 3, 3), (96, 960, 1, 1), (999, 1280)),
}
# Each with the ways it has to go through a list of parameters.
WAYS = (
    *(
        (name, {"foreach": True})
        for name in (
            "ASGD",
            "Adadelta",
            "Adagrad",
            "Adam",
            "AdamW",
            "Adamax",
            "NAdam",
            "RAdam",
            "RMSprop",
            "Rprop",
            "SGD",
        )
    ),
    *((name, {"fused": True}) for name in ("Adagrad", "Adam", "AdamW", "SGD")),
    ("Adafactor", {"foreach": True}),
)

pytestmark = pytest.mark.usefixtures("kept_box")


def test_a_residual_network():
    """Convolution, BatchNorm, pooling, clipping and momentum give the CPU's numbers."""

    def workload(device):
        model = made(
            lambda: nn.Sequential(
                nn.Conv2d(3, 8, 3, padding=1),
                Residual(8, 8, 1),
                nn.MaxPool2d(2),
                Residual(8, 16, 2),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
                nn.Linear(16, 5),
            ),
            device,
        )
        optimizer = torch.optim.SGD(
            model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True
        )
        images, labels = numbers(6, 3, 12, 12).to(device), torch.arange(6) % 5
        losses, norms = [], []
        for _ in range(STEPS):
            optimizer.zero_grad(set_to_none=True)
            loss = functional.cross_entropy(model(images), labels.to(device))
            loss.backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        return losses, norms, model(images), model.state_dict()

    on_both(workload)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(
    "options",
    [{"foreach": True}, {"foreach": False}, {"fused": True}, {"capturable": True}, {}],
    ids=str,
)
def test_a_transformer(options, dropout):
    """Attention, with dropout from one seed, and every kind of AdamW agree."""
    here = {} if "capturable" in options else options

    def workload(device):
        model = made(lambda: Transformer(dropout), device)
        chosen = here if device == "cpu" else options
        # A bias of the keys has no effect. With a small eps, Adam would make steps of
        # the rounding errors that are its gradient.
        optimizer = torch.optim.AdamW(model.parameters(), 0.01, eps=1e-3, **chosen)
        tokens = (torch.arange(36).reshape(4, 9) * 7 % 20).to(device)
        losses = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            scores = model(tokens[:, :-1])
            loss = functional.cross_entropy(
                scores.flatten(0, 1), tokens[:, 1:].flatten()
            )
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, model.state_dict()

    # Fused kernels draw numbers of their own for dropout, here as on CUDA.
    kernels = [SDPBackend.MATH] if dropout else [*SDPBackend.__members__.values()][1:]
    with sdpa_kernel(kernels):
        on_both(workload, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("network", PARAMETERS)
@pytest.mark.parametrize(("name", "way"), WAYS, ids=str)
def test_optimizers_over_the_parameters_of_large_networks(name, way, network):
    """Steps over lists of parameters, their gradients clipped, are the CPU's."""

    def workload(device):
        parameters = [
            nn.Parameter(numbers(*shape).to(device)) for shape in PARAMETERS[network]
        ]
        optimizer = getattr(torch.optim, name)(parameters, lr=0.01, **way)
        for _ in range(2):
            for each in parameters:
                each.grad = numbers(*each.shape).to(device)
            norm = nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
        return norm, parameters

    on_both(workload)


def test_a_model_on_two_devices():
    """The first half on one GPU and the second on another train as on the CPU."""

    def workload(device):
        places = ("sim:0", "sim:1") if device == "sim" else ("cpu", "cpu")
        first = made(lambda: nn.Linear(6, 16), places[0])
        second = made(lambda: nn.Linear(16, 3), places[1])
        parameters = [*first.parameters(), *second.parameters()]
        optimizer = torch.optim.AdamW(parameters, lr=0.01, foreach=True)
        losses = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            hidden = first(numbers(8, 6).to(places[0])).relu()
            loss = second(hidden.to(places[1])).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert [str(each.grad.device) for each in parameters[::2]] == [
            each if device == "sim" else "cpu" for each in places
        ]
        return losses, [each.detach().cpu() for each in parameters]

    on_both(workload)
