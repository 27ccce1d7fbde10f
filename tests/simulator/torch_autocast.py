"""Autocast on the simulated GPU: the types that CUDA's lists give."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

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
        if function == "einsum":
            continue  # einsum has its own test: this sample of torch's is not called
        options = next((each for each in more if isinstance(each, dict)), {})
        found = dtype_of(function, in_type(args, half), options, half)
        if found is not expected:
            wrong[function] = found

    assert wrong == {}


def test_a_convolution_by_cudnns_name_is_the_convolution():
    """With its gradients, and transposed as well."""
    x = torch.rand(2, 3, 6, 6, device="sim")
    weight, back = (
        torch.rand(*shape, 2, 2, device="sim", requires_grad=True)
        for shape in ((4, 3), (3, 4))
    )
    pairs = (1, 1), (2, 2), (1, 1), 1
    flags = False, False, True
    found = torch.cudnn_convolution(x, weight, *pairs, *flags)
    widened = torch.cudnn_convolution_transpose(
        x, back, (1, 1), (0, 0), *pairs[1:], *flags
    )
    (found.sum() + widened.sum()).backward()
    gradients = weight.grad, back.grad
    weight.grad = back.grad = None
    expected = functional.conv2d(x, weight, stride=2, padding=1)
    wide = functional.conv_transpose2d(x, back, stride=2, padding=1)
    (expected.sum() + wide.sum()).backward()

    assert torch.equal(found, expected)
    assert torch.equal(widened, wide)
    assert torch.equal(gradients[0], weight.grad)
    assert torch.equal(gradients[1], back.grad)


def test_einsum_and_sums_of_several_tensors():
    """Lists of tensors are cast as a whole."""
    a = torch.ones(4, 4, device="sim")
    with torch.autocast("sim", dtype=torch.float16):
        assert torch.einsum("ij,jk->ik", a, a).dtype is torch.float16
        assert torch.linalg.multi_dot([a, a, a]).dtype is torch.float16


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_what_is_told_its_type_keeps_it(half):
    """`dtype=` and float64 are obeyed; a norm of halves is float32 otherwise."""
    a = torch.rand(4, 4, device="sim", dtype=half)
    with torch.autocast("sim", dtype=half):
        assert a.sum(dtype=half).dtype is half
        assert a.softmax(0, half).dtype is half
        assert a.double().sum().dtype is torch.float64
        assert (a.double() @ a.double()).dtype is torch.float64
        for norm in (a.norm(), a.norm(dim=0), torch.linalg.vector_norm(a), a.prod()):
            assert norm.dtype is torch.float32
        assert torch.linalg.matrix_norm(a).dtype is torch.float32
        assert functional.rms_norm(a, (4,)).dtype is torch.float32
        assert functional.interpolate(a[None], 8).dtype is torch.float32


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


def test_what_is_unsafe_is_refused():
    """Binary cross entropy of probabilities is refused, as on CUDA."""
    p = torch.full((3,), 0.5, device="sim")
    with (
        torch.autocast("sim", dtype=torch.float16),
        pytest.raises(RuntimeError, match="unsafe to autocast"),
    ):
        functional.binary_cross_entropy(p, p)


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
