"""Modules and their parameters go to the simulated device and back, as CUDA's do."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

import gpumagic
from tests.simulator.module_surgery import PROGRAMS


@pytest.fixture(params=["sim", "cuda"], scope="module")
def device(request):
    """The simulated device, under either of its names."""
    with gpumagic.simulate("2xh100", as_cuda=request.param == "cuda"):
        yield request.param


def made_of(*layers):
    """A module, with a result on the CPU that still needs its parameters."""
    model = nn.Sequential(*layers)
    return model, model(torch.ones(2, 4))


class Tied(nn.Module):
    """A language model whose last layer is its first."""

    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x):
        """Scores of the words that follow."""
        return self.out(self.embedding(x.long().clamp(0, 4)))


class Recurrent(nn.LSTM):
    """An LSTM that answers with its outputs alone."""

    def forward(self, x):
        """What it says after each step."""
        return super().forward(x)[0]


class Attending(nn.MultiheadAttention):
    """Attention of a sequence to itself."""

    def forward(self, x):
        """What each place has found."""
        return super().forward(x, x, x)[0]


MODULES = {
    "linear": lambda: nn.Linear(4, 3),
    "normalised": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
    "layer norm": lambda: nn.LayerNorm(4),
    "convolution": lambda: nn.Conv1d(2, 3, 1),
    "attention": lambda: Attending(4, 2),
    "LSTM": lambda: Recurrent(4, 3, num_layers=2),
    "tied": Tied,
    "old weight norm": lambda: nn.utils.weight_norm(nn.Linear(4, 3)),
    "script": lambda: torch.jit.script(nn.Linear(4, 3)),
}


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
@pytest.mark.filterwarnings("ignore")  # torch's own, about what is old or new
def test_a_module_moves_while_a_result_on_the_cpu_is_alive(make, device):
    """All parameters go, each stays the object that it was, and the result is right."""
    torch.manual_seed(0)
    model, x = make(), torch.linspace(-1, 1, 8).reshape(2, 4)
    alive = model(x)
    before = dict(model.named_parameters())
    kept = {name: id(each) for name, each in before.items()}

    model.to(device)
    there = model(x.to(device))
    there.sum().backward()

    after = dict(model.named_parameters())
    assert {name: id(each) for name, each in after.items()} == kept
    assert {each.device.type for each in after.values()} == {device}
    assert {each.grad.device.type for each in after.values()} == {device}
    torch.testing.assert_close(there.cpu(), alive)


def test_a_parameter_keeps_what_hangs_on_it(device):
    """Attributes, hooks and weak references outlive a move there and back."""
    model = nn.Linear(4, 3)
    weight, seen = model.weight, []
    weight.no_decay = True
    reference = weakref.ref(weight)
    weight.register_hook(lambda grad: seen.append(("grad", grad.device.type)))
    weight.register_post_accumulate_grad_hook(
        lambda each: seen.append(("accumulated", each.grad.device.type))
    )

    model.to(device)
    model(torch.ones(2, 4, device=device)).sum().backward()
    model.cpu()
    model(torch.ones(2, 4)).sum().backward()

    assert model.weight is weight is reference()
    assert weight.no_decay
    assert seen == [
        ("grad", device),
        ("accumulated", device),
        ("grad", "cpu"),
        ("accumulated", "cpu"),
    ]


def test_hooks_fire_after_a_move_between_two_passes(device):
    """A pass before the move does not bind the parameter to where it was."""
    model, seen = nn.Linear(4, 3), []
    model.weight.register_post_accumulate_grad_hook(
        lambda each: seen.append(each.grad.device.type)
    )
    model(torch.ones(2, 4)).sum().backward()

    model.to(device)
    model(torch.ones(2, 4, device=device)).sum().backward()

    assert seen == ["cpu", device]
    assert model.weight.grad.tolist() == torch.full((3, 4), 4.0).tolist()


def test_gradients_move_as_the_objects_that_they_are(device):
    """A gradient that somebody holds is the one that has moved."""
    model, out = made_of(nn.Linear(4, 3), nn.BatchNorm1d(3))
    out.sum().backward()
    held = model[0].weight.grad

    model.to(device)

    assert model[0].weight.grad is held
    assert held.device.type == device


def test_an_optimizer_made_before_goes_on(device):
    """It steps the parameters that have moved."""
    model, _alive = made_of(nn.Linear(4, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    before = model[0].weight.tolist()

    model.to(device)
    model(torch.ones(2, 4, device=device)).sum().backward()
    optimizer.step()

    assert model[0].weight.tolist() != before


def test_data_is_assigned_over_devices(device):
    """`p.data = p.data.to(...)`, and that of gradients, go there and back."""
    parameter = nn.Parameter(torch.ones(3))

    parameter.data = parameter.data.to(device)
    parameter.sum().backward()
    parameter.grad.data = parameter.grad.data.to("cpu")
    assert parameter.grad.device.type == "cpu"
    assert parameter.device.type == device

    parameter.data = parameter.data.to("cpu", torch.float64)
    assert (parameter.device.type, parameter.dtype) == ("cpu", torch.float64)
    assert parameter.tolist() == [1.0, 1.0, 1.0]


def test_a_vector_on_the_host_becomes_parameters_on_the_host(device):
    """vector_to_parameters assigns what it is given, wherever that lies."""
    model = nn.Linear(4, 3).to(device)
    vector = nn.utils.parameters_to_vector(model.parameters()).detach()

    nn.utils.vector_to_parameters(vector * 2, model.parameters())
    assert {each.device.type for each in model.parameters()} == {device}
    nn.utils.vector_to_parameters(vector.cpu(), model.parameters())
    assert {each.device.type for each in model.parameters()} == {"cpu"}


@pytest.mark.parametrize(
    "other",
    [
        lambda: torch.ones(3, device="meta"),
        lambda: torch.ones(3).to_sparse(),
        lambda: torch.ones(3).to_mkldnn(),
    ],
    ids=["meta", "sparse", "mkldnn"],
)
def test_data_of_another_make_is_refused_as_by_torch(other, device):
    """Only dense tensors are alike; others would end the process."""
    tensor = torch.ones(3, device=device)

    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        tensor.data = other()
    assert tensor.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("flag", ["swap", "overwrite"])
def test_what_the_user_chose_for_conversions_holds(flag, device):
    """Torch's own switches decide how a module is moved, and stay as they were."""
    future = torch.__future__
    set_, get = (
        getattr(future, f"{verb}_{flag}_module_params_on_conversion")
        for verb in ("set", "get")
    )
    model = nn.Linear(4, 3)
    weight = model.weight
    set_(True)
    try:
        model.to(device)
        assert get() is True
    finally:
        set_(False)

    assert model.weight.device.type == device
    assert (model.weight is weight) == (flag == "swap")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
@pytest.mark.filterwarnings("ignore")  # torch's own, about what is old or new
def test_module_surgery_is_that_of_the_cpu(program, device):
    """What people do to modules gives on the device what it gives on the CPU."""
    torch.manual_seed(0)
    expected = program("cpu")

    torch.manual_seed(0)
    assert program(device) == expected
