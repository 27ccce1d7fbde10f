"""Values on the machine, held to those of the CPU; test_values.py runs it there."""

from __future__ import annotations

import copy
import itertools
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
import triton
import triton.language as tl
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_map
from triton.language.extra import libdevice

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPES = (torch.float32, torch.int64, torch.complex64, torch.float16)
# Of torch's database of operators: what is random or was never written, ...
RANDOM = """bernoulli cauchy exponential geometric log_normal multinomial normal uniform
    empty_permuted svd_lowrank pca_lowrank nn.functional.rrelu
    nn.functional.multi_head_attention_forward"""
# ... what is another on a GPU by its device, its shape or the sample's storage, ...
DIFFERENT = """tensor_split sparse.mm as_strided native_layer_norm native_batch_norm
    _native_batch_norm_legit _batch_norm_with_update"""
# ... and what NVRTC compiles, which takes seconds each.
COMPILED = """i0 i1 polygamma logaddexp addcmul addcdiv prod pow float_power sigmoid
    lerp gcd lcm digamma lgamma special.entr sgn special.zeta cumprod igamma igammac
    special.i0e special.i1 special.i1e"""
FAMILIES = """rand empty dropout bessel polynomial polygamma fractional airy
    flash_attention_for_cpu"""


def on_device(value: Any) -> Any:
    """A tensor's copy on the GPU; anything else as it is."""
    return value.detach().cuda() if isinstance(value, torch.Tensor) else value


def on_host(value: Any) -> Any:
    """A tensor's copy on the CPU; anything else as it is."""
    return value.cpu() if isinstance(value, torch.Tensor) else value


def assert_close(found: Any, wanted: Any, tolerance: float = 1e-4) -> None:
    """Says of whatever torch returns that two are the same but for rounding."""
    found, wanted = tree_map(on_host, found), tree_map(on_host, wanted)
    torch.testing.assert_close(
        found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True
    )


def assert_same_on_both(
    program: Callable[..., Any], *given: torch.Tensor, tolerance: float = 1e-4
) -> None:
    """Runs a program on the CPU and on the GPU."""
    wanted = program(*(each.clone() for each in given))
    assert_close(program(*(each.cuda() for each in given)), wanted, tolerance)


def cases() -> list[tuple[Any, torch.dtype]]:
    """Three hundred operators with a type, the same in each run."""
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo.core import UnaryUfuncInfo

    left_out = f"{RANDOM} {DIFFERENT} {COMPILED}".split()
    all_cases = [
        (operator, dtype)
        for operator in op_db
        if operator.name not in left_out
        and not any(family in operator.name for family in FAMILIES.split())
        for dtype in DTYPES
        if dtype in operator.supported_dtypes("cuda")
        and not (dtype.is_complex and isinstance(operator, UnaryUfuncInfo))
    ]
    return random.Random(34).sample(all_cases, 300)  # noqa: S311


@pytest.fixture(autouse=True)
def seed():
    """The same random inputs in each run."""
    torch.manual_seed(1)


@pytest.fixture
def x():
    """A square."""
    return torch.randn(8, 8)


@pytest.fixture
def y():
    """Another one."""
    return torch.randn(8, 8)


@pytest.mark.filterwarnings("ignore")
def test_operators_have_the_values_of_the_cpu():
    """Of torch's own database a random sample, two inputs each."""
    compared, differ = 0, {}
    for operator, dtype in cases():
        samples = operator.sample_inputs("cpu", dtype)
        for sample in itertools.islice(samples, 2):
            given = (sample.input, *sample.args), sample.kwargs
            args, kwargs = tree_map(on_device, given)
            if "device" in kwargs:
                kwargs["device"] = "cuda"
            try:
                wanted = operator.op(*given[0], **given[1])
            except RuntimeError:
                continue  # the CPU lacks it
            compared += 1
            try:
                found = operator.op(*args, **kwargs)
                assert_close(found, wanted, 1e-2 if dtype.itemsize == 2 else 1e-4)
            except (AssertionError, RuntimeError) as error:
                name = f"{operator.name} {operator.variant_test_name} {dtype}"
                differ[name] = str(error)[:300]

    assert differ == {}
    assert compared > 400


def test_what_writes_in_place_has_the_values_of_the_cpu(x, y):
    """Through views, masks, indices, and for each tensor of a list."""

    def write(a, b):
        a.add_(b).mul_(2).clamp_(-1, 3)
        a[1:, ::2].t().copy_(b[1:, ::2].t())
        a[b > 1] = -1
        a.index_put_((torch.tensor([0, 2, 0]),), b[0], accumulate=True)
        both = [a, b]
        torch._foreach_mul_(both, 3.0)
        torch._foreach_add_(both, [b, a])
        return a, b, *torch._foreach_norm(both), *torch._foreach_max(both)

    assert_same_on_both(write, x, y)


class Recurrent(nn.Module):
    """A recurrent network that returns a tensor."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        """Two layers of 5."""
        super().__init__()
        self.inner = kind(6, 5, num_layers=2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Its outputs."""
        return self.inner(x)[0]


NETWORKS = {
    "convolution": lambda: nn.Sequential(
        *(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(72, 3)),
    ),
    "depthwise": lambda: nn.Sequential(
        *(nn.Conv2d(4, 4, 3, groups=4), nn.GroupNorm(2, 4), nn.SiLU()),
        nn.ConvTranspose2d(4, 3, 3, stride=2),
    ),
    "LSTM": lambda: Recurrent(nn.LSTM),
    "GRU": lambda: Recurrent(nn.GRU),
    "RNN": lambda: Recurrent(nn.RNN),
    "norms": lambda: nn.Sequential(
        *(nn.Linear(6, 8), nn.LayerNorm(8), nn.RMSNorm(8), nn.GELU())
    ),
    "transformer": lambda: nn.TransformerEncoderLayer(
        6, 2, 12, dropout=0.0, batch_first=True
    ),
}
OPTIMIZERS = [
    lambda weights: torch.optim.SGD(weights, 0.1, momentum=0.9),
    lambda weights: torch.optim.AdamW(weights, 0.01, fused=True),
    lambda weights: torch.optim.Adam(weights, 0.01, foreach=True),
    lambda weights: torch.optim.RMSprop(weights, 0.01, foreach=False),
]


def trained(network: nn.Module, given: torch.Tensor, optimize: Any) -> list[Any]:
    """What there is after three steps."""
    given.requires_grad_()
    optimizer = optimize(network.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        out = network(given)
        loss = out.square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    return [out, loss, given.grad, *network.parameters()]


@pytest.mark.parametrize("kind", NETWORKS)
def test_networks_learn_what_they_learn_on_the_cpu(kind):
    """Outputs, gradients and weights are the same after three steps."""
    network = NETWORKS[kind]()
    pictures = kind in ("convolution", "depthwise")
    given = torch.randn(3, 4, 9, 9) if pictures else torch.randn(3, 7, 6)
    # Some biases have no gradient but for rounding, of which Adam makes whole steps.
    steady = kind in ("convolution", "transformer")
    optimize = OPTIMIZERS[0 if steady else list(NETWORKS).index(kind) % 4]

    found = trained(copy.deepcopy(network).cuda(), given.cuda(), optimize)

    assert_close(found, trained(network, given, optimize))


KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def attended(kernel: SDPBackend, tensors: list[torch.Tensor], **how: Any) -> list[Any]:
    """What attention gives, and the gradients of what went in."""
    tensors = [each.detach().requires_grad_() for each in tensors]
    with sdpa_kernel(kernel):
        out = functional.scaled_dot_product_attention(*tensors, **how)
    out.float().square().sum().backward()
    return [each.float() for each in (out, *(each.grad for each in tensors))]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_attention_is_the_same_by_each_kernel(kernel):
    """Plain, causal, with another scale and with a mask."""
    tensors = [torch.randn(2, 4, 16, 32).half() for _ in range(3)]
    mask = torch.randn(2, 4, 16, 16)
    hows: list[dict[str, Any]] = [{}, {"is_causal": True}, {"scale": 0.5}]
    if kernel != SDPBackend.FLASH_ATTENTION:
        hows.append({"attn_mask": mask})

    for how in hows:
        wide = [each.float() for each in tensors]
        there = {k: v.cuda().half() if v is mask else v for k, v in how.items()}
        found = attended(kernel, [each.cuda() for each in tensors], **there)
        assert_close(found, attended(SDPBackend.MATH, wide, **how), 2e-2)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_attention_drops_the_same_on_its_way_back(kernel):
    """A sum of outputs is linear in the values, by the weights of one mask."""
    query, key, value = (torch.randn(2, 4, 16, 32).cuda().half() for _ in range(3))
    value.requires_grad_()

    with sdpa_kernel(kernel):
        out = functional.scaled_dot_product_attention(query, key, value, dropout_p=0.5)
    total = out.float().sum()
    total.backward()

    assert_close((value.grad.float() * value.float()).sum(), total.detach(), 5e-2)


def drawn() -> list[torch.Tensor]:
    """Random numbers of each kind."""
    generator = torch.Generator("cuda").manual_seed(3)
    ones = torch.ones(1000, device="cuda", requires_grad=True)
    dropped = functional.dropout(ones, 0.25)
    dropped.sum().backward()
    return [
        torch.rand(9, device="cuda"),
        torch.randn(9, device="cuda"),
        torch.randint(1000, (9,), device="cuda"),
        torch.randperm(99, device="cuda"),
        torch.multinomial(torch.ones(99, device="cuda"), 30),
        torch.rand(9, device="cuda", generator=generator),
        dropped.detach(),
        ones.grad,
    ]


def test_random_numbers_follow_their_generator():
    """The same seed or state gives the same, the next call others."""
    torch.manual_seed(7)
    first, second = drawn(), drawn()
    torch.manual_seed(7)
    again = drawn()
    state, host_state = torch.cuda.get_rng_state(), torch.get_rng_state()
    later = drawn()
    torch.cuda.set_rng_state(state)
    restored = drawn()

    *_, own_generator, dropped, gradient = zip(first, second, strict=True)
    assert_close(again, first, 0)
    assert_close(restored, later, 0)
    assert not any(map(torch.equal, first[:5], second[:5]))
    assert torch.equal(*own_generator)
    assert torch.equal(dropped[0], gradient[0])
    assert torch.equal(torch.get_rng_state(), host_state)


def test_random_numbers_have_their_distribution():
    """Mean and deviation of many."""
    normal = torch.randn(100_000, device="cuda")
    kept = functional.dropout(torch.ones(100_000, device="cuda"), 0.25)

    assert abs(normal.mean().item()) < 0.02
    assert abs(normal.std().item() - 1) < 0.02
    assert abs(kept.count_nonzero().item() / 100_000 - 0.75) < 0.02


def test_each_replay_of_a_graph_draws_the_next_numbers():
    """From the seed on, again the same."""
    graph, numbers = torch.cuda.CUDAGraph(), torch.zeros(4, device="cuda")
    with torch.cuda.graph(graph):
        numbers.copy_(torch.rand(4, device="cuda"))

    def replays() -> list[list[float]]:
        torch.manual_seed(9)
        taken = []
        for _ in range(3):
            graph.replay()
            taken.append(numbers.tolist())
        return taken

    first = replays()
    assert replays() == first
    assert first[0] != first[1] != first[2]


@pytest.mark.parametrize("program", range(20))
def test_values_are_made_in_the_order_of_streams(program):
    """Random programs on three streams that wait for each other."""
    chance = random.Random(program)  # noqa: S311
    pool = [torch.cuda.Stream() for _ in range(3)]
    host = [torch.randn(64, 64) for _ in range(4)]
    device = [each.cuda() for each in host]
    torch.cuda.synchronize()
    last: dict[int, torch.cuda.Event] = {}
    for _ in range(20):
        i, j, what = chance.randrange(4), chance.randrange(4), chance.randrange(3)
        stream = pool[chance.randrange(3)]
        for n in {i, j} & last.keys():
            stream.wait_event(last[n])
        with torch.cuda.stream(stream):
            torch.cuda._sleep(chance.randrange(500_000))
            for to, other in ((host[i], host[j]), (device[i], device[j])):
                if what == 0:
                    to.copy_(torch.tanh(other @ to))
                elif what == 1:
                    to.add_(other, alpha=0.5)
            if what == 2:
                device[i].copy_(host[j].pin_memory(), non_blocking=True)
                host[i].copy_(host[j])
            last[i] = last[j] = torch.cuda.Event()
            last[i].record()
        for n in (i, j):
            device[n].record_stream(stream)
    torch.cuda.synchronize()

    assert_close(device, host)


@triton.jit
def scaled(values, by):
    """A helper of another kernel's."""
    return values * by


@triton.jit
def softmax(x, out, n, stride, BLOCK: tl.constexpr):  # noqa: N803
    """Of one row."""
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + i, mask=i < n, other=-float("inf"))
    e = libdevice.exp(values - tl.max(values, axis=0))
    tl.store(out + row * stride + i, scaled(e / tl.sum(e, axis=0), 1.0), mask=i < n)


@triton.jit
def product(a, b, out, N: tl.constexpr):  # noqa: N803
    """Of two squares, at once."""
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    first, second = tl.load(a + i * N + j), tl.load(b + i * N + j)
    tl.store(out + i * N + j, tl.dot(first, second))


@triton.autotune([triton.Config({"BLOCK": n}) for n in (32, 64)], key=["n"])
@triton.jit
def add_one(x, n, BLOCK: tl.constexpr):  # noqa: N803
    """To each element."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


def test_kernels_of_triton_have_values():
    """With a helper and libdevice; a dot in half; at each replay."""
    x = torch.randn(5, 50, device="cuda")
    out = torch.empty_like(x)
    softmax[(5,)](x, out, 50, 50, BLOCK=64)
    assert_close(out, x.softmax(-1))

    a, b = (torch.randn(16, 16, device="cuda").half() for _ in range(2))
    multiplied = torch.empty(16, 16, device="cuda")
    product[(1,)](a, b, multiplied, N=16)
    assert_close(multiplied, a.float() @ b.float(), 1e-3)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        softmax[(5,)](x, out, 50, 50, BLOCK=64)
    x.normal_()
    graph.replay()
    assert_close(out, x.softmax(-1))


def test_a_kernel_that_tunes_itself_is_worked_out_once():
    """And not each of the thousand times that it is timed."""
    x = torch.zeros(100, device="cuda")

    add_one[lambda how: (triton.cdiv(100, how["BLOCK"]),)](x, 100)
    torch.cuda.synchronize()
    x.zero_()
    add_one[lambda how: (triton.cdiv(100, how["BLOCK"]),)](x, 100)

    assert x.tolist() == [1] * 100


@pytest.mark.filterwarnings("ignore")
def test_compiled_networks_have_the_values_of_the_cpu():
    """Forward and backward through inductor's own kernels."""
    network = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16))
    other = copy.deepcopy(network).cuda()
    given = torch.randn(6, 8)
    wanted = functional.softmax(network(given), -1).square().mean()
    wanted.backward()

    compiled = torch.compile(lambda x: functional.softmax(other(x), -1).square().mean())
    found = compiled(given.cuda())
    found.backward()
    with profile(activities=[ProfilerActivity.CUDA]) as taken:
        compiled(given.cuda())

    assert_close(found, wanted)
    gradients = [[p.grad for p in each.parameters()] for each in (other, network)]
    assert_close(*gradients)
    assert any(each.key.startswith("triton_") for each in taken.key_averages())
