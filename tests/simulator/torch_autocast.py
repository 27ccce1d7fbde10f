"""Autocast on the simulated GPU: the types that CUDA's lists give."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytestmark = [
    pytest.mark.usefixtures("kept_box"),
    pytest.mark.filterwarnings("ignore"),  # torch's samples use what it warns about
]

HALVES = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("torch_fp16", "half"),
        ("nn_fp16", "half"),
        ("linalg_fp16", "half"),
        ("methods_fp16", "half"),
        ("torch_fp32", torch.float32),
        ("nn_fp32", torch.float32),
        ("methods_fp32", torch.float32),
        ("torch_need_autocast_promote", torch.float32),
    ],
)
@pytest.mark.parametrize("half", HALVES, ids=str)
def test_results_have_the_types_of_cuda(name, expected, half):
    """Each sample that torch tests CUDA's autocast with has its type here."""
    lists = pytest.importorskip("torch.testing._internal.autocast_test_lists")
    samples = getattr(lists.AutocastTestLists(torch.device("sim")), name)
    expected = half if expected == "half" else expected
    wrong = {}
    for function, args, *more in samples:
        if function == "einsum" or function.startswith("cudnn_"):
            continue  # einsum has its own test: this sample of torch's is not called
        options = next((each for each in more if isinstance(each, dict)), {})
        found = dtype_of(function, in_type(args, half), options, half)
        if found is not expected:
            wrong[function] = found

    assert wrong == {}


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN", "LSTMCell", "GRUCell"])
def test_recurrent_layers_are_half(name, half):
    """Their outputs and states are in the type of the block, gradients in float32."""
    layer = getattr(nn, name)(8, 8).to("sim")
    x = torch.randn(3, 2, 8, device="sim")
    with torch.autocast("sim", dtype=half):
        out = layer(x[0] if name.endswith("Cell") else x)
    first = out[0] if isinstance(out, tuple) else out
    first.float().sum().backward()

    assert first.dtype is half
    assert all(each.grad.dtype is torch.float32 for each in layer.parameters())


def dtype_of(function, args, options, half):
    """The type of the first result of an operator, wherever torch keeps it."""
    places = (torch, torch._C._nn, torch._C._linalg, torch.Tensor)
    place = next(each for each in places if hasattr(each, function))
    with torch.autocast("sim", dtype=half):
        result = getattr(place, function)(*args, **options)
    return (result[0] if isinstance(result, tuple) else result).dtype


def in_type(args, half):
    """The samples are in float16."""
    if isinstance(args, torch.Tensor):
        return args.to(half) if args.dtype is torch.float16 else args
    if isinstance(args, (tuple, list)):
        return type(args)(in_type(each, half) for each in args)
    return args
