"""Torch on the machine: values, errors that come late, several devices, times."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.cuda import cublas, environment

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent


@pytest.fixture
def run(tmp_path) -> Callable[..., str]:
    """Run a program with torch on the machine; what it prints."""

    def run_program(code: str, scenario: str = "idle_gpu", **env: str) -> str:
        surroundings = environment(scenario) | {
            "TRITON_CACHE_DIR": str(tmp_path / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            **env,
        }
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                "import ctypes, json, os, sys\n" + textwrap.dedent(code),
            ],
            env=surroundings,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
        assert "no values" not in done.stderr, done.stderr[-3000:]
        return done.stdout

    return run_program


def shown(printed: str) -> Any:
    """What the last line that a program printed says."""
    return json.loads(printed.splitlines()[-1])


def test_torch_has_the_values_of_the_cpu(run):
    """Each test in torch_values.py passes, in one process."""
    printed = run(f"""
        import pytest
        options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short"]
        sys.exit(pytest.main([*options, {str(HERE / "torch_values.py")!r}]))
    """)

    assert " passed" in printed


def test_each_device_works_out_its_own_values(run):
    """On default streams of four GPUs, and between them for any strides and types."""
    found = shown(
        run(
            """
            import torch
            first, second = torch.device("cuda:0"), torch.device("cuda:1")
            torch.cuda._sleep(50_000_000)              # keeps only the first one busy
            x = torch.arange(12., device=second).view(3, 4)
            there = torch.zeros(4, 3, dtype=torch.long, device=first)
            there.copy_(x.t())
            half = x.t().to(first, torch.half)
            for i in range(torch.cuda.device_count()):
                x = x.to(f"cuda:{i}") + 1
            ones, row = torch.ones(3, device=second), torch.zeros(3, device=first)
            torch._foreach_copy_([row], [ones.half()])
            sums = x.cuda(0)[:, ::2] @ torch.ones(2, 1, device=first)
            print(json.dumps([there.tolist(), half.tolist(), x.tolist(), str(x.device),
                              sums.flatten().tolist(), row.tolist()]))
            """,
            scenario="idle_four_gpus",
        )
    )

    columns = [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]
    rows = [[4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert found == [columns, columns, rows, "cuda:3", [10, 18, 26], [1] * 3]


def test_what_a_kernel_would_assert_is_told_later_and_for_good(run):
    """The launch succeeds, the next wait fails, and so does every call from then on."""
    told = shown(
        run("""
        import torch
        from torch.nn import functional

        def tensor(*values): return torch.tensor(values, device="cuda")
        def zeros(*sizes): return torch.zeros(sizes, device="cuda")

        kinds = {
            "index": lambda: zeros(4)[tensor(9)],
            "gather": lambda: zeros(4).gather(0, tensor(4)),
            "embedding": lambda: functional.embedding(tensor(7), zeros(4, 4)),
            "target": lambda: functional.cross_entropy(zeros(1, 3), tensor(3)),
            "probability": lambda: torch.bernoulli(tensor(1.5)),
            "assertion": lambda: torch._assert_async(tensor(False)),
            "loss": lambda: functional.binary_cross_entropy(tensor(2.), zeros(1)),
        }

        def outcome(step):
            try: step()
            except Exception as error:
                return "assert" if "device-side assert" in str(error) else repr(error)
            return "well"

        told = {}
        for name, work in kinds.items():      # in a child: nothing works afterwards
            reads, writes = os.pipe()
            if not (child := os.fork()):
                steps = [work, torch.cuda.synchronize, lambda: zeros(1)]
                os.write(writes, json.dumps([outcome(each) for each in steps]).encode())
                os._exit(0)
            os.waitpid(child, 0)
            told[name] = json.loads(os.read(reads, 5000))
        print(json.dumps(told))
    """)
    )

    assert len(told) == 7
    for outcomes in told.values():
        assert outcomes == ["well", "assert", "assert"]


def test_times_are_those_of_sizes_and_limits_leave_out_values_alone(run):
    """Products by operations, others by bytes; a CPU's too long work has no values."""
    found = shown(
        run(
            """
            import torch
            machine = ctypes.CDLL("libcuda.so.1")
            machine.machine_event_ns.restype = ctypes.c_int64
            machine.machine_event_ns.argtypes = [ctypes.c_void_p]

            def time_ns(work):
                torch.cuda._sleep(20_000_000)      # the host is ahead
                start, end = torch.cuda.Event(), torch.cuda.Event()
                start.record(); work(); end.record(); torch.cuda.synchronize()
                at = machine.machine_event_ns
                return at(end.cuda_event) - at(start.cuda_event)

            def square(n, **how): return torch.ones(n, n, device="cuda", **how)
            a, b, half = square(1024), square(4096), square(4096, dtype=torch.half)
            zeros = torch.zeros_like(b)
            for each in (a, half): each @ each     # cuBLAS makes its workspace
            found = {
                "fp32": time_ns(lambda: b @ b),
                "half": time_ns(lambda: half @ half),
                "add": time_ns(lambda: b.add_(1)),
                "small": time_ns(lambda: b[0].add_(1)),
                "computed": (a @ a).max().item(),
                "left out": torch.mm(b, b, out=zeros).max().item(),
            }
            torch.backends.cuda.matmul.allow_tf32 = True
            print(json.dumps(found | {"tf32": time_ns(lambda: b @ b)}))
            """,
            GPUMAGIC_CLOCK="model",
        )
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


def test_a_routine_that_no_table_knows_is_told_by_its_name():
    """The build ends where a newer torch asks cuBLAS for more."""
    with pytest.raises(SystemExit, match="cublasSomethingNew"):
        cublas.body("cublasSomethingNew", "cublasHandle_t handle")
    with pytest.raises(SystemExit, match="cublasSgemm_v9"):
        cublas.declaration("", "cublasSgemm_v9")
