"""What people do to modules and parameters, as programs for any device.

Each takes the device and answers with plain values that do not depend on it: numbers,
types, and whether something lies where it should.
"""

from __future__ import annotations

import copy
import io
import pickle
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.optim import swa_utils

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
def weight_norm_of_old(device):
    """The weight is computed from two parameters, by a hook."""
    return _normed(nn.utils.weight_norm, device)


@program
def weight_norm(device):
    """The same as a parametrization."""
    return _normed(parametrizations.weight_norm, device)


@program
def spectral_norm_of_old(device):
    """A buffer is brought forward at each call, by a hook."""
    return _normed(nn.utils.spectral_norm, device)


@program
def spectral_norm(device):
    """The same as a parametrization."""
    return _normed(parametrizations.spectral_norm, device)


@program
def parametrization_taken_off(device):
    """The weight becomes a parameter again, where the module lies."""
    torch.manual_seed(0)
    model = parametrizations.weight_norm(nn.Linear(4, 3)).to(device)
    parametrize.remove_parametrizations(model, "weight")
    return all_on(device, [model.weight]), sums(model.parameters())


@program
def pruned_before_the_move(device):
    """Mask and original move, and pruning is made final there."""
    torch.manual_seed(0)
    model = prune.l1_unstructured(nn.Linear(4, 3), "weight", amount=0.5).to(device)
    trained(model, device)
    prune.remove(model, "weight")
    return all_on(device, model.parameters()), sums(model.parameters())


@program
def pruned_there(device):
    """The mask is made where the weight is."""
    model = net().to(device)
    prune.ln_structured(model[0], "weight", amount=1, n=2, dim=0)
    trained(model, device)
    return all_on(device, model.buffers()), sums(model.parameters())


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


@program
def shallow_copies(device):
    """A shallow copy of a parameter is another object over the same memory."""
    weight = net().to(device)[0].weight
    copied = copy.copy(weight)
    return type(copied), copied is weight, copied.data_ptr() == weight.data_ptr()


@program
def pickles(device):
    """A pickled model comes back where it was."""
    model = pickle.loads(pickle.dumps(net().to(device)))  # noqa: S301 -- our own
    return all_on(device, model.parameters()), sums(model.parameters())


@program
def states_from_the_host(device):
    """load_state_dict copies into what is there; assign=True takes what it is given."""
    model, saved = net().to(device), net().state_dict()
    weight = model[0].weight
    model.load_state_dict(saved)
    copied = all_on(device, model.parameters()), model[0].weight is weight
    model.load_state_dict(saved, assign=True)
    return copied, all_on("cpu", model.parameters()), type(model[0].weight)


@program
def saved_and_loaded(device):
    """Files come back where map_location says."""
    saved = io.BytesIO()
    torch.save(net().to(device).state_dict(), saved)
    found = []
    for where, expected in (
        (None, device),
        ("cpu", "cpu"),
        (device, device),
        (torch.device(device), device),
        ({f"{device}:0": "cpu"}, "cpu"),
        (lambda storage, _: storage, "cpu"),
    ):
        saved.seek(0)
        loaded = torch.load(saved, map_location=where)
        found.append((all_on(expected, loaded.values()), sums(loaded.values())))
    return found


@program
def optimizer_states_loaded(device):
    """The state of an optimizer follows its parameters when it is loaded."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(rows("cpu")).sum().backward()
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer.load_state_dict(saved)
    model(rows(device)).sum().backward()
    optimizer.step()
    moments = (each["exp_avg"] for each in optimizer.state.values())
    return all_on(device, moments), sums(model.parameters())


@program
def optimizer_states_moved_by_hand(device):
    """As do those that are moved entry by entry."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(rows("cpu")).sum().backward()
    optimizer.step()
    model.to(device)
    for state in optimizer.state.values():
        state["momentum_buffer"] = state["momentum_buffer"].to(device)
    model(rows(device)).sum().backward()
    optimizer.step()
    return sums(model.parameters())


# ---------------------------------------------------------------- made and unmade


@program
def made_on_meta(device):
    """Memory first, values from a file then."""
    with torch.device("meta"):
        model = net()
    model.to_empty(device=device).load_state_dict(net().state_dict())
    with torch.device("meta"):
        assigned = net()
    assigned.load_state_dict(net().to(device).state_dict(), assign=True)
    return [
        (all_on(device, each.parameters()), sums(each.parameters()))
        for each in (model, assigned)
    ]


@program
def sent_to_meta(device):
    """Values are dropped, and the module can be filled again."""
    model = net().to(device).to("meta")
    dropped = all_on("meta", model.parameters())
    model.to_empty(device=device)
    return dropped, all_on(device, model.parameters())


@program
def moved_from_meta(device):
    """There is nothing to copy, as torch says."""
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    try:
        model.to("cpu").to(device)
    except NotImplementedError as error:
        return str(error).split(";")[0]
    return None


@program
def made_in_a_block(device):
    """What is made in `with torch.device(...)` lies there."""
    with torch.device(device):
        model = net()
        made = [torch.ones(2), torch.tensor([1.0]), torch.arange(3), torch.eye(2)]
    return all_on(device, [*model.parameters(), *model.buffers(), *made])


@program
def made_by_default(device):
    """A default device reaches modules, factories and loaders."""
    torch.set_default_device(device)
    try:
        made = [*net().parameters(), torch.ones(2), torch.hann_window(4)]
        chosen = torch.get_default_device().type == device
        batches = list(torch.utils.data.DataLoader([1, 2, 3], batch_size=2))
    finally:
        torch.set_default_device(None)
    return chosen, all_on(device, [*made, *batches])


@program
def lazy_modules(device):
    """Their parameters have a place before they have a shape."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.LazyConv2d(3, 3),
        nn.LazyBatchNorm2d(),
        nn.LazyConvTranspose2d(2, 2),
        nn.Flatten(),
        nn.LazyLinear(2),
    ).to(device)
    copied = copy.deepcopy(model[4])
    model(torch.ones(2, 1, 8, 8, device=device)).sum().backward()
    copied(torch.ones(2, 3, device=device))
    return (
        all_on(device, [*model.parameters(), *model.buffers()]),
        all_on(device, copied.parameters()),
        [tuple(each.shape) for each in model.parameters()],
        [type(each) for each in model],
    )


@program
def lazy_modules_there_and_back(device):
    """Until they have a shape they go where they are told, in any precision."""
    model = nn.LazyLinear(3).to(device).half().cpu().to(device, torch.float64)
    text = repr(model.weight)
    model.load_state_dict(nn.Linear(2, 3).state_dict())
    return text, all_on(device, model.parameters()), model.weight.dtype


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


@program
def in_channels_last(device):
    """The order of memory is kept over a move, and changes in place."""
    torch.manual_seed(0)
    first = nn.Conv2d(3, 4, 3).to(device)
    weight = first.weight
    first.to(memory_format=torch.channels_last)
    second = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last).to(device)
    x = torch.ones(1, 3, 5, 5, device=device)
    out = first(x.to(memory_format=torch.channels_last))
    return (
        first.weight is weight,
        weight.stride(),
        second.weight.stride(),
        out.stride(),
        sums([out]),
    )


@program
def recurrent_there_and_back(device):
    """The flat weights of an LSTM are its parameters wherever it is."""
    torch.manual_seed(0)
    model = nn.LSTM(4, 3, num_layers=2, bidirectional=True)
    outs = []
    for where in ("cpu", device, "cpu", device):
        model.to(where)
        outs.append(model(rows(where))[0])
    flat = zip(model._flat_weights, model.parameters(), strict=True)
    return sums(outs), all(one is other for one, other in flat)


@program
def buffers(device):
    """Buffers move, persistent or not; other tensors stay."""
    model = nn.Module()
    model.register_buffer("kept", torch.ones(2))
    model.register_buffer("passing", torch.zeros(2), persistent=False)
    model.register_buffer("none", None)
    model.plain = torch.ones(1)
    model.to(device)
    return (
        all_on(device, model.buffers()),
        all_on("cpu", [model.plain]),
        list(model.state_dict()),
    )


# -------------------------------------------------------------------- transformers


def padded(device):
    """Two sequences, the second of which ends early, and the mask that says so."""
    x = torch.linspace(-1, 1, 80).reshape(2, 5, 8).to(device)
    ends = torch.tensor([5, 3], device=device)
    return x, torch.arange(5, device=device) >= ends[:, None]


@program
def encoder_with_padding(device):
    """It says what it says on the CPU, where there is no padding."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    outs = []
    for norm in (None, nn.LayerNorm(8)):
        model = nn.TransformerEncoder(layer, 2, norm=norm)
        model.eval().to(device)
        x, ends = padded(device)
        as_float = torch.zeros(2, 5, device=device).masked_fill(ends, -torch.inf)
        with torch.inference_mode():
            outs.append(model(x, src_key_padding_mask=ends)[~ends])
            outs.append(model(x, None, as_float)[~ends])
    with torch.no_grad():  # padding on the left, or another mask: it is kept
        outs.append(model(x, torch.zeros(5, 5, device=device), ends)[~ends])
    return [out.shape for out in outs], sums(outs)


@program
def scripted_encoder_with_padding(device):
    """Where there are words."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = torch.jit.script(nn.TransformerEncoder(layer, 2).eval().to(device))
    x, ends = padded(device)
    with torch.no_grad():
        return sums([model(x, src_key_padding_mask=ends)[~ends]])


@program
def encoder_layers_in_one_operation(device):
    """The fast path of a layer, with each kind of mask."""
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval().to(device)
    x, ends = padded(device)
    causal = nn.Transformer.generate_square_subsequent_mask(5).to(device)
    with torch.no_grad():
        outs = model(x), model(x, src_mask=causal), model(x, src_key_padding_mask=ends)
    return sums([*outs[:2], outs[2][~ends]])


@program
def attention_with_padding(device):
    """The fast path of attention, with weights and without."""
    model = nn.MultiheadAttention(8, 2, batch_first=True).eval().to(device)
    x, ends = padded(device)
    with torch.no_grad():
        out, weights = model(x, x, x, key_padding_mask=ends)
        alone, none = model(x, x, x, need_weights=False)
    return sums([out, weights, alone]), none


# ------------------------------------------------------------ averages, functions


@program
def moving_averages(device):
    """The average of the weights is kept beside them."""
    model = net().to(device)
    average = swa_utils.AveragedModel(
        model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9)
    )
    for _ in range(2):
        average.update_parameters(trained(model, device))
    swa_utils.update_bn([rows(device)], average)
    return all_on(device, average.parameters()), sums(average.parameters())


@program
def functional_calls(device):
    """Gradients for each row, with parameters given from outside."""
    model = net().to(device).eval()
    parameters = {name: each.detach() for name, each in model.named_parameters()}

    def loss(parameters, row):
        return torch.func.functional_call(model, parameters, (row[None],)).sum()

    per_row = torch.func.vmap(torch.func.grad(loss), (None, 0))
    found = per_row(parameters, rows(device))
    return all_on(device, found.values()), sums(found.values())


@program
def ensembles(device):
    """Several models in one call."""
    models = [trained(net().to(device), device).eval() for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")

    def call(parameters, buffers, x):
        return torch.func.functional_call(base, (parameters, buffers), (x,))

    return sums(torch.vmap(call, (0, 0, None))(parameters, buffers, rows(device)))


@program
def hooks_of_modules(device):
    """Forward and backward hooks of modules see tensors of the device."""
    model, seen = net().to(device), []
    model[0].register_forward_hook(
        lambda _, __, out: seen.append(("forward", all_on(device, [out])))
    )
    model[0].register_full_backward_hook(
        lambda _, __, grads: seen.append(("backward", all_on(device, grads)))
    )
    model(rows(device).requires_grad_()).sum().backward()
    return seen


@program
def clipped(device):
    """Norms are told where the gradients are."""
    model = net().to(device)
    model(rows(device)).sum().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    return all_on(device, [norm]), sums(each.grad for each in model.parameters())


@program
def frozen(device):
    """What needs no gradient does not after a move."""
    model = net()
    model[0].requires_grad_(False)
    return [each.requires_grad for each in model.to(device).parameters()]


@program
def lists_of_parameters(device):
    """Parameters in lists and dictionaries are the ones that moved."""
    model = nn.ModuleDict(
        {
            "list": nn.ParameterList([nn.Parameter(torch.ones(2)), torch.ones(3)]),
            "dict": nn.ParameterDict({"a": nn.Parameter(torch.ones(1))}),
        }
    )
    before = [id(each) for each in model.parameters()]
    model.to(device)
    return (
        before == [id(each) for each in model.parameters()],
        all_on(device, model.parameters()),
    )


@program
def moved_in_inference_mode(device):
    """A move without autograd keeps the objects."""
    model = net()
    weight = model[0].weight
    with torch.inference_mode():
        model.to(device)
        out = model(rows(device))
    return model[0].weight is weight, all_on(device, model.parameters()), sums([out])
