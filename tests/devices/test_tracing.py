"""The real profiler of torch, on the host: its window, its spans, and its traps."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from gpumagic.devices import tracing  # noqa: E402
from gpumagic.errors import DeviceError  # noqa: E402
from gpumagic.report.events import SpanKind  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.profiler.kineto_available(), reason="this torch has no Kineto"
)
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_profiler_is_left():
    """Every test leaves torch without a running profiler."""
    yield
    assert not torch.autograd._profiler_enabled()
    assert not torch.autograd.profiler._is_profiler_enabled


@pytest.fixture
def square():
    """A matrix that is there before anything is traced."""
    return torch.ones(64, 64)


def traced(code):
    """What is seen of some code on the host."""
    with tracing.trace(torch, "cpu") as taken:
        taken.begin()
        code()
        taken.end()
    return taken


def names(trace, kind=SpanKind.HOST):
    """The names of the spans of one kind, in order."""
    return [span.name for span in trace.spans if span.kind is kind]


def test_only_what_lies_in_the_window_is_seen(square):
    """What is done before `begin` or after `end` leaves no span."""
    with tracing.trace(torch, "cpu") as taken:
        square.exp()
        taken.begin()
        square.cos()
        taken.end()
        square.sin()

    assert names(taken.trace()) == ["aten::cos"]


def test_code_that_never_ended_is_not_waited_for(square, monkeypatch):
    """Stopping as usual waits for the device, which nobody may: there is no trace."""
    with monkeypatch.context() as patched, tracing.trace(torch, "cpu") as taken:
        patched.setattr(
            torch.profiler.profile, "stop", lambda _: pytest.fail("it has waited")
        )
        taken.begin()
        square.cos()

    trace = taken.trace()

    assert trace.spans == ()
    assert "did not come to its end" in trace.problem
    assert names(traced(square.cos).trace()) == ["aten::cos"]


def test_a_profiler_that_is_running_is_left_alone(square):
    """Tracing within the user's profiler is refused, and theirs sees all it should."""
    with torch.profiler.profile() as mine:
        square.exp()
        with pytest.raises(DeviceError, match="running already") as refused:
            traced(square.cos)
        square.sin()

    assert "stop it first" in refused.value.hint
    assert {"aten::exp", "aten::sin"} <= {each.key for each in mine.key_averages()}


def test_code_with_a_profiler_of_its_own_is_survived(square):
    """Our session is dropped by torch; the cell's profiler works, and we say so."""
    seen = []

    def code():
        with torch.profiler.profile() as mine:
            square.cos()
        seen.extend(each.key for each in mine.key_averages())

    taken = traced(code)
    trace = taken.trace()

    assert "aten::cos" in seen
    assert trace.spans == ()
    assert "used torch's profiler itself" in trace.problem
    assert trace.length_s > 0
    with pytest.raises(DeviceError, match="used torch's profiler itself"):
        taken.save(os.devnull)


def test_cuda_is_not_started_by_tracing(monkeypatch):
    """Where CUDA could be used and has not been, torch's profiler would start it."""
    from gpumagic.devices import tracing

    monkeypatch.setattr(tracing, "why_no_cuda", lambda _: None)
    monkeypatch.setattr(tracing, "driver_initialised", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)

    with pytest.raises(DeviceError, match="would start CUDA") as refused:
        traced(lambda: pytest.fail("the code has run"))
    assert "torch.zeros" in refused.value.hint

    monkeypatch.setattr(tracing, "driver_initialised", lambda: True)
    assert traced(lambda: None).trace().problem is None


def test_a_failing_device_does_not_keep_the_profiler_running(monkeypatch, square):
    """It waits for the device before it stops; where that raises, it is stopped."""

    def fails(_):
        raise RuntimeError("CUDA error: device-side assert triggered")

    with tracing.trace(torch, "cpu") as taken:
        taken.begin()
        square.cos()
        taken.end()
        monkeypatch.setattr(torch.profiler.profile, "stop", fails)

    assert not torch.autograd._profiler_enabled()
    assert "device-side assert" in taken.trace().problem
    monkeypatch.undo()
    assert names(traced(square.cos).trace()) == ["aten::cos"]


def test_nothing_stays(square, monkeypatch, tmp_path):
    """Random numbers, variables, temporary files, threads: all as before."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    state, python_state = torch.get_rng_state(), random.getstate()
    variables, threads = dict(os.environ), set(threading.enumerate())

    traced(square.cos).trace()

    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python_state
    assert dict(os.environ) == variables
    assert list(tmp_path.iterdir()) == []
    assert set(threading.enumerate()) <= threads  # one of another test may have ended


@pytest.mark.parametrize("asked_for", [False, True])
def test_the_compiler_is_not_imported_unless_its_graphs_are_asked_for(asked_for):
    """A first profile takes no seconds for it, and whoever wants it finds it after."""
    code = (
        "import sys, torch; from gpumagic.devices import tracing\n"
        "profile = tracing.started(torch, 'cpu')\n"
        "tracing.stop(torch, profile)\n"
        "print('torch._inductor' in sys.modules, hasattr(torch, '_inductor'))\n"
    )
    variables = os.environ | {"TORCHINDUCTOR_CUDAGRAPHS": str(int(asked_for))}

    run = in_a_process(code, variables)

    assert run.stdout == f"{asked_for} True\n", run.stderr


def in_a_process(code, variables):
    """What a program in a process of its own has said."""
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=variables,
    )


# ------------------------------------------- a device that is not really there


class Gpu:
    """As much of torch's module for a kind of device in use as tracing asks for."""

    is_initialized = staticmethod(lambda: True)
    is_current_stream_capturing = staticmethod(lambda: False)
    _sleep = synchronize = staticmethod(lambda *_: None)


class Stand:
    """torch's host part, with a device put beside it."""

    def __init__(self, kind, gpu):
        setattr(self, kind, gpu)
        self.profiler = torch.profiler
        self.autograd = torch.autograd


@pytest.fixture
def traced_on(monkeypatch):
    """Traces code with a device of a kind, of which no profiler sees anything."""
    monkeypatch.setattr(tracing, "why_no_cuda", lambda _: "a stand-in")
    monkeypatch.setattr(tracing, "sees_devices", lambda _, kind: kind != "mps")

    def run(kind, gpu, code=lambda: None):
        with tracing.trace(Stand(kind, gpu), kind) as taken:
            taken.begin()
            code()
            taken.end()
        return taken.trace()

    return run


def test_a_used_device_that_cannot_be_seen_is_a_problem(traced_on, square):
    """Other profilers are named, and the host's part is kept."""
    trace = traced_on("cuda", Gpu(), square.cos)

    assert trace.problem == "no GPU activity could be traced"
    assert "nsys" in trace.hint
    assert "DCGM" in trace.hint
    assert names(trace) == ["aten::cos"]


@pytest.mark.parametrize(
    ("first_ones", "all_lost"),
    [([], True), ([{"ts": -1e11}], True), ([{"ts": -1e11}, {"ts": -9.0}], False)],
)
def test_kernels_that_were_lost_are_a_problem(
    traced_on, monkeypatch, first_ones, all_lost
):
    """If none of those that came first is seen, the code's own may be missing, too.

    Such a kernel is left out of the trace, or bears a time of another clock.
    """
    kernels = [
        {"ph": "X", "cat": "kernel", "name": "k", "dur": 1.0, "pid": 0, "tid": 7} | each
        for each in ({"ts": 5.0}, *first_ones)
    ]
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 1}
    mark = {"ph": "X", "cat": "user_annotation", "dur": 1, "tid": 1}
    ends = ((tracing._BEGIN, 0), (tracing._END, 50))
    marks = [mark | {"name": name, "ts": ts} for name, ts in ends]
    text = json.dumps({"traceEvents": [*marks, call | {"ts": -10, "tid": 1}, *kernels]})
    monkeypatch.setattr(tracing, "exported", lambda _: text)
    monkeypatch.setattr(tracing, "kernels_to_lose", lambda _: 3)

    trace = traced_on("cuda", Gpu())

    assert names(trace, SpanKind.KERNEL) == ["k"]
    assert (trace.problem is not None) is all_lost
    assert "restart the kernel" in (trace.hint or "restart the kernel")


@pytest.mark.parametrize(
    ("version", "first_ones"),
    [("12.4", 1), ("12.6", 200), ("13.0", 200), ("13.1", 1), ("14.0", 1), (None, 1)],
)
def test_where_the_first_kernels_are_lost_others_come_first(version, first_ones):
    """CUPTI of these versions loses one kernel more in each session of a process."""
    built = SimpleNamespace(version=SimpleNamespace(cuda=version))

    assert tracing.kernels_to_lose(built) == first_ones
