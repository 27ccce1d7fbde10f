"""Autocast on the simulated GPU: the types that CUDA's lists give."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from gpumagic.simulator.backend import autocast

pytestmark = [
    pytest.mark.usefixtures("kept_box"),
    pytest.mark.filterwarnings("ignore"),  # torch's samples use what it warns about
]

HALVES = (torch.float16, torch.bfloat16)
# It is called by cuDNN's own name alone, and is not there without it.
OF_CUDNN = {"aten::_cudnn_rnn"}


def test_the_lists_are_complete():
    """What torch casts on CUDA is cast here, and nothing else."""
    kernels = autocast.autocast_kernels(torch, "sim", autocast.CastWeights(torch))
    ours = {f"aten::{name}" for name, _ in kernels}
    of_cuda = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")

    assert ours == {*of_cuda} - OF_CUDNN


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


def casts_of(work, device, **options):
    """How often something was cast in an autocast block, on a device."""
    seen = []

    class Looking(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Looking(), torch.autocast(device, dtype=torch.bfloat16, **options):
        work()
    return seen.count(torch.ops.aten._to_copy.default)


def uses(first, second, *, of=lambda weight: weight):
    """Something that uses a weight once in a mode and twice in another."""

    def make(device):
        weight = nn.Parameter(torch.ones(4, 4, device=device))
        x = torch.ones(2, 4, device=device, dtype=torch.bfloat16)

        def work():
            with first():
                x @ of(weight)
            with second():
                x @ of(weight)
                x @ of(weight)

        return work

    return make


GRADS = (torch.enable_grad, torch.no_grad, torch.inference_mode)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        *((uses(first, second), {}) for first in GRADS for second in GRADS),
        (uses(*GRADS[:2]), {"cache_enabled": False}),
        (uses(*GRADS[:2], of=lambda weight: weight.t()), {}),
        (uses(*GRADS[:2], of=lambda weight: weight.detach()), {}),
    ],
)
def test_a_weight_is_cast_as_often_as_torch_casts_it(make, options):
    """Once in a block, at its first use, where torch itself keeps what it casts."""
    on_sim = casts_of(make("sim"), "sim", **options)
    assert on_sim == casts_of(make("cpu"), "cpu", **options)


def test_a_cast_weight_takes_memory_until_the_block_ends():
    """A weight used twenty times is in memory once more, not twenty times."""
    weight = nn.Parameter(torch.ones(512, 512, device="sim"))
    x = torch.ones(1, 512, device="sim")
    functional.linear(x, x)  # takes cuBLAS's workspace
    before = torch.sim.memory_allocated()
    with torch.autocast("sim", dtype=torch.bfloat16):
        with torch.no_grad():
            functional.linear(x, weight)
        made = torch.sim.memory_allocated()
        kept = [functional.linear(x, weight) for _ in range(20)]
        within = torch.sim.memory_allocated()
    sum(kept).sum().backward()
    del kept

    assert made - before == weight.numel() * 2
    assert within - made == 20 * (1024 + 1024)  # a result, and its input cast
    assert weight.grad[0, 0].item() == 20
    weight.grad = None
    assert torch.sim.memory_allocated() == before


def test_a_weight_is_cast_anew_in_the_next_block():
    """A step of the optimizer between two blocks is seen."""
    weight = nn.Parameter(torch.ones(2, 2, device="sim"))
    x = torch.ones(1, 2, device="sim")
    found = []
    for _ in range(2):
        with torch.autocast("sim", dtype=torch.bfloat16):
            found.append((x @ weight)[0, 0].item())
        with torch.no_grad():
            weight.mul_(3)
    assert found == [2.0, 6.0]


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
