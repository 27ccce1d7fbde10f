"""torch on the machine gives what it gives on the CPU: values, order, errors, traces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.cuda import cublas

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
SCENARIOS = HERE.parent / "scenarios"

_PRELUDE = """
import ctypes, json, os, sys
from pathlib import Path
libraries = Path(os.environ["GPUMAGIC_FAKE_LIBRARIES"])
for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libcudart.so.13",
             "libcupti.so.13", "libcublas.so.13", "libcublasLt.so.13"):
    ctypes.CDLL(str(libraries / name), mode=ctypes.RTLD_GLOBAL)
machine = ctypes.CDLL(str(libraries / "libcuda.so.1"))
machine.machine_event_ns.restype = ctypes.c_int64
machine.machine_event_ns.argtypes = [ctypes.c_void_p]
import triton_values
triton_values.install(libraries)
import torch
from torch import nn
from torch.nn import functional as F

def show(found): print(json.dumps(found))

def on_device(value):
    '''The same, on the GPU.'''
    if isinstance(value, torch.Tensor): return value.detach().cuda()
    if isinstance(value, (list, tuple)): return type(value)(map(on_device, value))
    return value

def furthest(a, b):
    '''By how much two tensors differ at most, as a share of the larger one's values.'''
    a, b = a.detach().cpu().double(), b.detach().cpu().double()
    return ((a - b).abs().max() / b.abs().max().clamp(min=1)).item() if a.numel() else 0

def time_ns(work):
    '''What some work takes of the device.'''
    torch.cuda._sleep(20_000_000)      # the host is ahead
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record(); work(); end.record(); torch.cuda.synchronize()
    return (machine.machine_event_ns(end.cuda_event)
            - machine.machine_event_ns(start.cuda_event))
"""


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    """The folder of the machine's libraries; GPUMAGIC_FAKE_LIBRARIES if it is set."""
    if given := os.environ.get("GPUMAGIC_FAKE_LIBRARIES"):
        return Path(given)
    folder = tmp_path_factory.mktemp("libraries")
    command = ["make", "-j2", "-C", HERE, f"PYTHON={sys.executable}", f"OUT={folder}"]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture
def run(libraries, tmp_path) -> Callable[..., Any]:
    """Run a program with torch on the machine; what it shows, in a process of its own."""

    def run_program(code: str, scenario: str = "idle_gpu", **env: str) -> Any:
        environment = os.environ | {
            "GPUMAGIC_FAKE_LIBRARIES": str(libraries),
            "GPUMAGIC_FAKE_SCENARIO": str(SCENARIOS / f"{scenario}.txt"),
            "GPUMAGIC_FAKE_USAGE": str(tmp_path),
            "GPUMAGIC_FAKE_TORCH": str(libraries / "libvalues.so"),
            "PYTHONPATH": str(HERE),
            "TRITON_CACHE_DIR": str(tmp_path / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            **env,
        }
        program = tmp_path / "program.py"
        program.write_text(_PRELUDE + textwrap.dedent(code))
        done = subprocess.run(
            [sys.executable, program],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert "no values" not in done.stderr, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run_program


def test_random_operators_have_the_values_of_the_cpu(run):
    """Of torch's own database of operators, a hundred and fifty with their samples."""
    compared, differ = run("""
        import itertools, random
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.opinfo.core import UnaryUfuncInfo
        from torch.utils._pytree import tree_map

        LEFT_OUT = {
            # random, or memory that nobody has written
            "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial",
            "normal", "uniform", "empty_permuted", "svd_lowrank", "pca_lowrank",
            "nn.functional.rrelu", "nn.functional.multi_head_attention_forward",
            # not the same on a GPU: by their device, their shape, the sample's storage
            "tensor_split", "sparse.mm", "as_strided", "native_layer_norm",
            "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update",
            # compiled by NVRTC, which takes seconds
            "i0", "i1", "special.i0e", "special.i1", "special.i1e", "polygamma",
            "logaddexp", "addcmul", "addcdiv", "prod", "pow", "float_power", "sigmoid",
            "lerp", "gcd", "lcm", "digamma", "lgamma", "special.entr", "sgn",
            "special.zeta", "cumprod", "igamma", "igammac",
        }
        PARTS = ("rand", "empty", "dropout", "bessel", "polynomial", "polygamma",
                 "fractional", "flash_attention_for_cpu", "airy")

        def is_taken(op, dtype):
            compiled = dtype.is_complex and isinstance(op, UnaryUfuncInfo)
            return (op.name not in LEFT_OUT and not any(p in op.name for p in PARTS)
                    and not compiled and dtype in op.supported_dtypes("cuda"))

        cases = [(op, dtype) for op in op_db
                 for dtype in (torch.float32, torch.int64, torch.complex64, torch.float16)
                 if is_taken(op, dtype)]
        compared, differ = 0, []
        for op, dtype in random.Random(34).sample(cases, 150):
            tolerance = 1e-2 if dtype == torch.float16 else 1e-4
            for sample in itertools.islice(op.sample_inputs("cpu", dtype), 2):
                given = (sample.input, *sample.args), sample.kwargs
                args, kwargs = tree_map(on_device, given)
                if "device" in kwargs: kwargs["device"] = "cuda"
                try: wanted = op.op(*given[0], **given[1])
                except Exception: continue      # the CPU lacks it
                try:
                    found = tree_map(lambda x: x.cpu() if isinstance(x, torch.Tensor)
                                     else x, op.op(*args, **kwargs))
                    torch.testing.assert_close(found, wanted, rtol=tolerance,
                                               atol=tolerance, equal_nan=True)
                except Exception as error:
                    differ.append([op.name, op.variant_test_name, str(dtype),
                                   str(error)[:200]])
                compared += 1
        show((compared, differ))
    """)

    assert differ == []
    assert compared > 200


def test_what_writes_where_it_is_told_to_has_the_values_of_the_cpu(run):
    """In place, into out=, through views and conjugates, for each of a list, in half."""
    wrong = run("""
        def programs():
            def check(name): return lambda function: made.append((name, function))
            made = []
            @check("in place")
            def _(x, y, h): x.add_(y).mul_(2).clamp_(-1, 3); return x
            @check("through views")
            def _(x, y, h): x[1:, ::2].t().copy_(y[1:, ::2].t()); x[0] = 7; return x
            @check("masks and indices")
            def _(x, y, h):
                x[y > 0] = -1; x.index_put_((torch.tensor([0, 2, 0]),), y[0], True); return x
            @check("out=")
            def _(x, y, h):
                out = torch.empty(0, device=x.device)
                return torch.mm(x, y, out=out), torch.add(x, y, out=torch.empty_like(x).t())
            @check("values and indices")
            def _(x, y, h): return *torch.sort(x, 1), *x.max(0), *torch.topk(y, 2)
            @check("foreach")
            def _(x, y, h):
                all = [x, y, x[0]]
                torch._foreach_mul_(all, 3.); torch._foreach_add_(all, [y, x, x[1]])
                return *all, *torch._foreach_norm(all), torch._foreach_max(all)[0]
            @check("conjugates")
            def _(x, y, h):
                z = torch.complex(x, y); w = z.conj()
                return w @ z, w.imag + 1, z.mH + 0
            @check("half")
            def _(x, y, h):
                return (h @ h, F.softmax(h, -1, dtype=torch.float32), F.gelu(h), h.sum(),
                        F.layer_norm(h, (8,)), h.cumsum(0), F.conv2d(h[None, None], h[None, None, :3, :3]))
            @check("bfloat16")
            def _(x, y, h):
                b = h.to(torch.bfloat16); return b @ b, b.exp(), torch.addmm(b, b, b, alpha=0.5)
            @check("another type")
            def _(x, y, h):
                return (x > y, x.int(), x.long() // 2, x.argmax(), x.bool().any(), (x * 9).byte(),
                        torch.where(x > y, 1, y.double()))
            @check("made there")
            def _(x, y, h):
                d = x.device
                return (torch.arange(9, device=d), torch.full((3,), 2.5, device=d),
                        torch.eye(3, device=d), torch.linspace(0, 1, 7, device=d),
                        torch.tril_indices(4, 4, device=d))
            @check("sizes that depend on values")
            def _(x, y, h):
                i = (x * 2).long()
                return (x.nonzero(), x[x > 0], *torch.unique(i, return_counts=True),
                        torch.bincount(i.abs().flatten()), i[0].repeat_interleave(2),
                        torch.repeat_interleave(i[0].abs()), torch.histc(x, 4))
            @check("of libraries")
            def _(x, y, h):
                spd = x @ x.T + 8 * torch.eye(8, device=x.device)
                return (torch.fft.rfft(x), torch.fft.ifft2(torch.complex(x, y)),
                        torch.linalg.inv(spd), torch.linalg.cholesky(spd),
                        torch.linalg.solve(spd, y), torch.linalg.det(spd),
                        torch.linalg.svdvals(x), torch.linalg.lstsq(spd, y).solution,
                        torch.linalg.eigvalsh(spd), torch.linalg.norm(x),
                        torch.fft.fft(x, out=torch.empty(0, dtype=torch.cfloat, device=x.device)))
            @check("bags, cells, grids")
            def _(x, y, h):
                i = torch.tensor([1, 2, 4, 5, 4, 3], device=x.device)
                grid = torch.stack((x, y), -1)[None].clamp(-1, 1)
                return (F.embedding(i, x), F.embedding_bag(i, x, torch.tensor([0, 2], device=x.device)),
                        F.grid_sample(x[None, None], grid, align_corners=False),
                        F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
                        F.max_pool2d(x[None], 2), torch.cdist(x, y),
                        F.cross_entropy(x, i[:1].expand(8)), F.ctc_loss(
                            F.log_softmax(x[:, None], -1), torch.tensor([[1, 2]], device=x.device), [8], [2]))
            @check("made sparse")
            def _(x, y, h):
                sparse = x.relu().to_sparse(); return sparse._indices(), sparse._values()
            return made

        torch.manual_seed(1)
        given = torch.randn(8, 8), torch.randn(8, 8), torch.randn(8, 8).half()
        wrong = {}
        for name, program in programs():
            wanted = program(*(x.clone() for x in given))
            found = program(*(x.cuda() for x in given))
            both = zip(found, wanted) if isinstance(wanted, tuple) else [(found, wanted)]
            for i, (a, b) in enumerate(both):
                if not isinstance(b, torch.Tensor): continue
                half = b.dtype in (torch.half, torch.bfloat16)
                try: torch.testing.assert_close(a.cpu(), b, rtol=2e-2 if half else 1e-4,
                                                atol=2e-2 if half else 1e-4)
                except AssertionError as error: wrong[f"{name} {i}"] = str(error)[:300]
        show(wrong)
    """)

    assert wrong == {}


def test_networks_learn_what_they_learn_on_the_cpu(run):
    """After three steps outputs, gradients and weights are the same, in each optimizer."""
    differences = run("""
        import copy, warnings
        warnings.simplefilter("ignore")

        class Recurrent(nn.Module):
            def __init__(self, kind):
                super().__init__()
                self.inner = kind(6, 5, num_layers=2, batch_first=True)
            def forward(self, x): return self.inner(x)[0]

        image, sequence = torch.randn(3, 4, 9, 9), torch.randn(3, 7, 6)
        cases = [
            (nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                           nn.Flatten(), nn.Linear(72, 3)), image),
            (nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.GroupNorm(2, 4), nn.SiLU(),
                           nn.ConvTranspose2d(4, 3, 3, stride=2)), image),
            (nn.Conv3d(2, 3, 2), torch.randn(2, 2, 5, 5, 5)),
            (nn.Conv1d(7, 7, 2, groups=7, dilation=2), sequence),
            (Recurrent(nn.LSTM), sequence), (Recurrent(nn.GRU), sequence),
            (Recurrent(nn.RNN), sequence),
            (nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.RMSNorm(8), nn.GELU()), sequence),
            (nn.TransformerEncoderLayer(6, 2, 12, dropout=0., batch_first=True), sequence),
        ]
        optimizers = [
            lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), torch.optim.Adam,
            lambda p: torch.optim.AdamW(p, 0.01, fused=True),
            lambda p: torch.optim.RMSprop(p, 0.01, foreach=False),
        ]
        torch.manual_seed(0)
        differences = {}
        for i, (network, given) in enumerate(cases):
            other = copy.deepcopy(network).cuda()
            both = [(network, given.clone()), (other, given.cuda())]
            results = []
            for model, x in both:
                x.requires_grad_()
                optimizer = optimizers[i % len(optimizers)](model.parameters())
                for _ in range(3):
                    optimizer.zero_grad()
                    out = model(x); loss = out.square().mean(); loss.backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 1.)
                    optimizer.step()
                results.append([out, loss, x.grad, *model.parameters()])
            worst = max(furthest(b, a) for a, b in zip(*results))
            differences[f"{i} {type(network).__name__}"] = worst
        show(differences)
    """)

    assert len(differences) == 9
    assert {k: v for k, v in differences.items() if v > 1e-4} == {}


def test_attention_is_the_same_by_each_kernel(run):
    """Flash, efficient and plain; causal, masked, grouped; and its mask is drawn once."""
    far = run("""
        from torch.nn.attention import sdpa_kernel, SDPBackend as Kernel
        torch.manual_seed(2)
        q, k, v = (torch.randn(2, 4, 16, 32) for _ in range(3))
        bias = torch.randn(2, 4, 16, 16)
        far = {}

        def attend(kernel, tensors, **how):
            tensors = [t.detach().requires_grad_() for t in tensors]
            with sdpa_kernel(kernel):
                out = F.scaled_dot_product_attention(*tensors, **how)
            out.float().square().sum().backward()
            return [out, *(t.grad for t in tensors)]

        for name, kernel in Kernel.__members__.items():
            if name not in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"): continue
            hows = [{}, {"is_causal": True}, {"scale": 0.5}]
            if name != "FLASH_ATTENTION": hows.append({"attn_mask": bias})
            for how in hows:
                there = {x: y.cuda().half() if x == "attn_mask" else y for x, y in how.items()}
                found = attend(kernel, [t.cuda().half() for t in (q, k, v)], **there)
                wanted = attend(Kernel.MATH, [t.half().float() for t in (q, k, v)], **how)
                far[f"{name} {list(how)}"] = max(map(furthest, found, wanted))
            # A sum of outputs is linear in the values: their gradients have the same mask.
            torch.manual_seed(5)
            value = v.cuda().half().requires_grad_()
            with sdpa_kernel(kernel):
                out = F.scaled_dot_product_attention(q.cuda().half(), k.cuda().half(), value,
                                                     dropout_p=0.5)
            out.float().sum().backward()
            far[f"{name} dropout"] = furthest((value.grad.float() * value.float()).sum(),
                                              out.float().sum()) / 5
        show(far)
    """)

    assert len(far) == 14
    assert {k: v for k, v in far.items() if v > 2e-2} == {}


def test_random_numbers_follow_their_generator(run):
    """The same seed gives the same, the next call others, a replay the next ones."""
    found = run("""
        def draw():
            generator = torch.Generator("cuda").manual_seed(3)
            x = torch.ones(1000, device="cuda", requires_grad=True)
            dropped = F.dropout(x, 0.25); dropped.sum().backward()
            return [torch.rand(9, device="cuda"), torch.randn(9, device="cuda"),
                    torch.randperm(9, device="cuda"), torch.randint(9, (9,), device="cuda"),
                    torch.rand(9, device="cuda", generator=generator),
                    torch.multinomial(torch.ones(9, device="cuda"), 3), dropped, x.grad]
        torch.manual_seed(7); first, second = draw(), draw()
        torch.manual_seed(7); again = draw()
        state = torch.cuda.get_rng_state(); later = draw()
        torch.cuda.set_rng_state(state); restored = draw()

        graph, rows = torch.cuda.CUDAGraph(), torch.zeros(4, device="cuda")
        with torch.cuda.graph(graph): rows.copy_(torch.rand(4, device="cuda"))
        def replays():
            torch.manual_seed(9); taken = []
            for _ in range(3): graph.replay(); taken.append(rows.tolist())
            return taken
        same = lambda a, b: [torch.equal(x, y) for x, y in zip(a, b)]
        host = torch.get_rng_state(); draw()
        untouched = torch.equal(host, torch.get_rng_state())
        many = torch.randn(100_000, device="cuda")
        show({
            "same seed": all(same(first, again)), "next": any(same(first[:4], second[:4])),
            "restored": all(same(later, restored)),
            "one mask": torch.equal(first[-2], first[-1]),
            "kept": first[-1].count_nonzero().item() / 1000,
            "mean": many.mean().item(), "deviation": many.std().item(),
            "replays": len({str(r) for r in replays()}), "replayed": replays() == replays(),
            "host": untouched,
        })
    """)

    assert abs(found.pop("kept") - 0.75) < 0.05
    assert abs(found.pop("mean")) < 0.02
    assert abs(found.pop("deviation") - 1) < 0.02
    assert found == {
        "same seed": True,
        "next": False,
        "restored": True,
        "one mask": True,
        "replays": 3,
        "replayed": True,
        "host": True,
    }


def test_values_are_made_in_the_order_of_streams_and_replays(run):
    """Thirty random programs on three streams; a graph computes anew from its inputs."""
    wrong, replayed, early, late = run("""
        import random
        pool, wrong = [torch.cuda.Stream() for _ in range(3)], 0
        for seed in range(30):
            chance = random.Random(seed); torch.manual_seed(seed)
            host = [torch.randn(64, 64) for _ in range(4)]
            there = [h.cuda() for h in host]
            torch.cuda.synchronize(); last = {}
            for _ in range(20):
                i, j, what = (chance.randrange(n) for n in (4, 4, 3))
                stream = pool[chance.randrange(3)]
                for n in {i, j} & last.keys(): stream.wait_event(last[n])
                with torch.cuda.stream(stream):
                    if chance.random() < 0.3: torch.cuda._sleep(chance.randrange(500_000))
                    for a, b in ((host[i], host[j]), (there[i], there[j])):
                        if what == 0: a.copy_(torch.tanh(b @ a))
                        elif what == 1: a.add_(b, alpha=0.5)
                    if what == 2:
                        there[i].copy_(host[j].pin_memory(), non_blocking=True)
                        host[i].copy_(host[j])
                    last[i] = last[j] = torch.cuda.Event(); last[i].record()
                for n in (i, j): there[n].record_stream(stream)
            torch.cuda.synchronize()
            wrong += sum(furthest(a, b) > 1e-4 for a, b in zip(there, host))

        network, given = nn.Linear(8, 8).cuda(), torch.zeros(2, 8, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph): out = network(given).relu().sum()
        replayed = []
        for i in range(3):
            given.fill_(i); graph.replay()
            replayed.append(furthest(out, network(torch.full_like(given, i)).relu().sum()))

        # A race that the host loses: the pinned result is read before the device has it.
        x, seen = torch.zeros(1000, device="cuda"), torch.full((1000,), -1.).pin_memory()
        torch.cuda._sleep(200_000_000); x += 1; seen.copy_(x, non_blocking=True)
        early = seen.max().item(); torch.cuda.synchronize(); late = seen.min().item()
        show((wrong, replayed, early, late))
    """)

    assert wrong == 0
    assert max(replayed) < 1e-5
    assert (early, late) == (-1, 1)


def test_each_device_works_out_its_own_values(run):
    """On default streams of four GPUs, and between them whatever the strides and types."""
    found = run(
        """
        first, second = torch.device("cuda:0"), torch.device("cuda:1")
        torch.cuda._sleep(50_000_000)              # keeps only the first one busy
        x = torch.arange(12., device=second).view(3, 4)
        there = torch.zeros(4, 3, dtype=torch.long, device=first)
        there.copy_(x.t()); half = x.t().to(first, torch.half)
        for i in range(torch.cuda.device_count()): x = x.to(f"cuda:{i}") + 1
        show([there.tolist(), half.tolist(), x.tolist(), str(x.device),
              (x.cuda(0)[:, ::2] @ torch.ones(2, 1, device=first)).flatten().tolist()])
        """,
        scenario="idle_four_gpus",
    )

    columns = [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]
    rows = [[4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert found == [columns, columns, rows, "cuda:3", [10, 18, 26]]


def test_what_a_kernel_would_assert_is_told_later_and_for_good(run):
    """The launch succeeds, the next wait fails, and so does every call from then on."""
    told = run("""
        import os
        kinds = {
            "index": lambda: torch.zeros(4, device="cuda")[torch.tensor([9], device="cuda")],
            "gather": lambda: torch.zeros(4, device="cuda").gather(
                0, torch.tensor([4], device="cuda")),
            "embedding": lambda: F.embedding(torch.tensor([7], device="cuda"),
                                             torch.zeros(4, 4, device="cuda")),
            "target": lambda: F.cross_entropy(torch.zeros(1, 3, device="cuda"),
                                              torch.tensor([3], device="cuda")),
            "probability": lambda: torch.bernoulli(torch.tensor([1.5], device="cuda")),
            "assertion": lambda: torch._assert_async(torch.tensor(False, device="cuda")),
            "loss": lambda: F.binary_cross_entropy(torch.tensor([2.], device="cuda"),
                                                   torch.zeros(1, device="cuda")),
        }
        told = {}
        for name, work in kinds.items():      # each in a child: nothing works afterwards
            reads, writes = os.pipe()
            if not (child := os.fork()):
                steps = [work, torch.cuda.synchronize, lambda: torch.zeros(1, device="cuda")]
                for step in steps:
                    try: step(); outcome = "well"
                    except Exception as error:
                        outcome = "assert" if "device-side assert" in str(error) else repr(error)
                    os.write(writes, f"{outcome} ".encode())
                os._exit(0)
            os.waitpid(child, 0); told[name] = os.read(reads, 1000).decode().split()
        show(told)
    """)

    assert told == dict.fromkeys(told, ["well", "assert", "assert"])
    assert len(told) == 7


def test_times_are_those_of_sizes_and_limits_leave_out_values_alone(run):
    """Products by operations, others by bytes; what is too long for a CPU has no values."""
    found = run(
        """
        def product(n, **how): return torch.ones(n, n, device="cuda", **how)
        a, b, h = product(1024), product(4096), product(4096, dtype=torch.half)
        zeros = torch.zeros_like(b)
        for x in (a, h): x @ x                   # cuBLAS makes its workspace
        exact = time_ns(lambda: b @ b)
        torch.backends.cuda.matmul.allow_tf32 = True
        with_tf32 = time_ns(lambda: b @ b)
        show({
            "fp32": exact, "tf32": with_tf32, "half": time_ns(lambda: h @ h),
            "add": time_ns(lambda: b.add_(1)), "small": time_ns(lambda: b[0].add_(1)),
            "computed": (a @ a).max().item(),
            "left out": torch.mm(b, b, out=zeros).max().item(),
        })
        """,
        GPUMAGIC_CLOCK="model",
    )

    operations, size_bytes = 2 * 4096**3, 4096 * 4096 * 4
    assert found == {
        "fp32": operations // 52_000,
        "tf32": operations // 415_000,
        "half": operations // 800_000,
        "add": size_bytes // 3000,
        "small": 2000,
        "computed": 1024,
        "left out": 0,
    }


def test_the_profiler_is_told_what_the_device_did(run):
    """Kernels, copies, memsets, calls and waits: named, tied together, to a nanosecond."""
    found = run("""
        import tempfile
        from torch.profiler import profile, ProfilerActivity
        x = torch.ones(256, 256, device="cuda"); x @ x
        pinned = torch.ones(1 << 20, dtype=torch.uint8).pin_memory()
        there = torch.empty_like(pinned, device="cuda")
        stream, event = torch.cuda.Stream(), torch.cuda.Event()
        torch.cuda.synchronize()
        cycles = [2_000, 200_000, 1_000_000]
        waits = torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
                     experimental_config=waits) as taken:
            for each in cycles: torch.cuda._sleep(each)
            there.copy_(pinned, non_blocking=True)
            with torch.cuda.stream(stream): (x @ x).relu()
            event.record(stream); event.synchronize(); there.zero_()
            torch.cuda.synchronize()
        path = tempfile.mktemp(); taken.export_chrome_trace(path)
        events = [e for e in json.load(open(path))["traceEvents"] if e.get("ph") == "X"]
        of = lambda kind: [e for e in events if e.get("cat") == kind]
        calls = {e["args"]["correlation"]: e for e in of("cuda_runtime")}
        operators = {e["args"]["External id"]: e["name"] for e in of("cpu_op")}
        device = of("kernel") + of("gpu_memcpy") + of("gpu_memset")
        of_operator = lambda part: sorted({operators.get(e["args"].get("External id"))
                                           for e in of("kernel") if part in e["name"]})
        spins = [e for e in of("kernel") if "spin" in e["name"]]
        show({
            "spins": [round(e["dur"] * 1000) for e in sorted(spins, key=lambda e: e["ts"])],
            "copies": [[e["name"], e["args"]["bytes"], round(e["dur"] * 1000)]
                       for e in of("gpu_memcpy")],
            "operator of gemm": of_operator("gemm"),
            "operator of relu": of_operator("clamp"),
            "streams": len({e["args"]["stream"] for e in of("kernel")}),
            "launched before they begin": all(
                calls[e["args"]["correlation"]]["ts"] <= e["ts"] for e in device),
            "calls": sorted({e["name"] for e in calls.values()}
                            & {"cudaLaunchKernel", "cudaMemcpyAsync", "cudaEventRecord",
                               "cudaDeviceSynchronize", "cudaEventSynchronize"}),
            "waits": sorted({e["name"] for e in of("cuda_sync")}),
        })
    """)

    spins = [2_000 * 100 // 198, 200_000 * 100 // 198, 1_000_000 * 100 // 198]
    off = [abs(a - b) for a, b in zip(found.pop("spins"), spins, strict=True)]
    ((name, size, took),) = found.pop("copies")
    assert max(off) <= 1
    assert (name, size) == ("Memcpy HtoD (Pinned -> Device)", 1 << 20)
    assert abs(took - (1500 + (1 << 20) // 55)) <= 1
    assert found == {
        "operator of gemm": ["aten::mm"],
        "operator of relu": ["aten::clamp_min"],
        "streams": 2,
        "launched before they begin": True,
        "calls": [
            "cudaDeviceSynchronize",
            "cudaEventRecord",
            "cudaEventSynchronize",
            "cudaLaunchKernel",
            "cudaMemcpyAsync",
        ],
        "waits": ["Context Sync", "Event Sync"],
    }


TRITON = """
import triton, triton.language as tl
from triton.language.extra import libdevice

@triton.jit
def scale(values, by): return values * by

@triton.jit
def softmax(x, out, n, stride, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + i, mask=i < n, other=-float("inf"))
    e = libdevice.exp(values - tl.max(values, axis=0))
    tl.store(out + row * stride + i, scale(e / tl.sum(e, axis=0), 1.0), mask=i < n)

@triton.jit
def dot(a, b, c, N: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(c + i * N + j, tl.dot(tl.load(a + i * N + j), tl.load(b + i * N + j)))

@triton.autotune([triton.Config({"BLOCK": n}) for n in (32, 64)], key=["n"])
@triton.jit
def add_one(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)
"""


def test_kernels_of_triton_have_values(run):
    """A softmax with a helper, a dot in half, one that tunes itself, and a replay."""
    code = textwrap.indent(TRITON, "        ")
    found = run(f"""{code}
        x = torch.randn(5, 50, device="cuda"); out = torch.empty_like(x)
        softmax[(5,)](x, out, 50, 50, BLOCK=64)
        a, b = (torch.randn(16, 16, device="cuda").half() for _ in range(2))
        c = torch.empty(16, 16, device="cuda"); dot[(1,)](a, b, c, N=16)
        tuned = torch.zeros(100, device="cuda")
        add_one[lambda how: (triton.cdiv(100, how["BLOCK"]),)](tuned, 100)
        graph, rows = torch.cuda.CUDAGraph(), torch.zeros(2, 50, device="cuda")
        with torch.cuda.graph(graph): softmax[(2,)](rows, out, 50, 50, BLOCK=64)
        far = furthest(out, x.softmax(-1))
        rows.normal_(); graph.replay()
        show([far, furthest(c, a.float() @ b.float()), tuned.tolist() == [1] * 100,
              furthest(out[:2], rows.softmax(-1))])
    """)

    far, product, tuned, replayed = found
    assert max(far, product, replayed) < 1e-3
    assert tuned


def test_compiled_networks_have_the_values_of_the_cpu(run):
    """Forward and backward through inductor's own kernels."""
    forward, backward, launched = run("""
        import copy
        network = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
        other = copy.deepcopy(network).cuda()
        x = torch.randn(6, 8)
        y = x.cuda()
        compiled = torch.compile(lambda x: F.softmax(other(x), -1).square().mean())
        for _ in range(2):
            network.zero_grad(); other.zero_grad()
            wanted = F.softmax(network(x), -1).square().mean(); wanted.backward()
            found = compiled(y); found.backward()
        from torch.profiler import profile, ProfilerActivity
        with profile(activities=[ProfilerActivity.CUDA]) as taken: compiled(y)
        show([furthest(found, wanted),
              max(furthest(b.grad, a.grad) for a, b in
                  zip(network.parameters(), other.parameters())),
              any(e.key.startswith("triton_") for e in taken.key_averages())])
    """)

    assert forward < 1e-5
    assert backward < 1e-5
    assert launched


def test_a_routine_that_no_table_knows_is_told_by_its_name():
    """The build ends where a newer torch asks cuBLAS for more."""
    with pytest.raises(SystemExit, match="cublasSomethingNew"):
        cublas.body("cublasSomethingNew", "cublasHandle_t handle")
    with pytest.raises(SystemExit, match="cublasSgemm_v9"):
        cublas.declaration("cublasStatus_t CUBLASWINAPI cublasSgemm_v2(int n);", "cublasSgemm_v9")
