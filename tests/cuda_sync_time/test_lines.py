"""Lines are counted and timed as Python runs them, whatever runs them."""

from __future__ import annotations

import sys
from itertools import count

import pytest

from gpumagic.cuda_sync_time import lines as lines_module
from gpumagic.cuda_sync_time import measure
from gpumagic.cuda_sync_time.lines import LineTracer
from gpumagic.cuda_sync_time.records import LineTime
from gpumagic.errors import GpuMagicError
from gpumagic.report.events import SpanKind, TraceSpan
from gpumagic.report.places import Places

PROGRAM = """\
def once(x):
    return x + 1

def falling(n):
    if n:
        falling(n - 1)
    return n

def some():
    yield 1
    yield 2

total = 0
for each in range(3):
    total += once(each)
falling(2)
for each in some():
    total += each
try:
    1 / 0
except ZeroDivisionError:
    total += 1
"""
FILE = "/home/somebody/program.py"


def traced(program=PROGRAM, clock=None):
    """The tracer of a program that has run; its clock ticks once a step."""
    ticks = count()
    tracer = LineTracer(Places(), clock or (lambda: next(ticks)))
    code = compile(program, FILE, "exec")
    tracer.start()
    try:
        exec(code, {})  # noqa: S102
    finally:
        tracer.stop()
    return tracer


def by_number(tracer, spans=()):
    """What each line came to, by its number."""
    host, device = tracer.host_by_line(), tracer.device_by_line(spans, 0)
    return {line[1]: LineTime(line, None, *host[line], *device[line]) for line in host}


def test_each_line_is_counted_as_often_as_it_begins():
    """Loops, calls, recursion, generators what is caught: as Python runs it."""
    runs = {number: each.runs for number, each in by_number(traced()).items()}

    assert runs[2] == 3
    assert (runs[5], runs[6], runs[7]) == (3, 2, 3)
    assert (runs[10], runs[11]) == (1, 1)
    assert (runs[14], runs[15]) == (4, 3)
    assert runs[18] == 2
    assert (runs[20], runs[21], runs[22]) == (1, 1, 1)


def test_a_line_has_the_time_of_what_it_calls_and_recursion_counts_once():
    """The times of a file's own lines add up to all of it, and no line has more."""
    ticks = iter(range(0, 10_000, 10))
    tracer = traced(clock=lambda: next(ticks))

    found = by_number(tracer)

    own = [13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 1, 4, 9]
    whole_ns = tracer._times[-2] - tracer._times[0]  # until the last line's end
    assert round(sum(found[number].host_s for number in own) * 1e9) == whole_ns
    assert found[6].host_s < found[16].host_s
    assert found[2].host_s < found[15].host_s


def test_what_is_launched_belongs_to_the_line_and_to_those_that_have_called_it():
    """A kernel counts where it was launched, however much later it ran."""
    program = "def work():\n    a = 1\n    b = 2\n\nwork()\nc = 3\n"
    at = iter([0, 10, 20, 30, 40, 50, 60, 70, 80])
    tracer = traced(program, clock=lambda: next(at))
    starts = dict(zip(tracer._steps, tracer._times, strict=True))
    in_b = next(at for step, at in starts.items() if tracer._lines[step] == (FILE, 3))
    kernel = TraceSpan(
        "gemm", SpanKind.KERNEL, 1.0, 1.5, device=0, launched_s=(in_b + 5) / 1e9
    )

    found = by_number(tracer, [kernel])

    assert (found[3].device_s, found[3].launches) == (0.5, 1)
    assert found[5].device_s == 0.5
    assert found[2].device_s == found[6].device_s == 0.0


def test_another_tracer_of_lines_is_left_alone():
    """A debugger keeps its lines: nothing is put in its place, and it is told."""

    def other(*_):
        return None

    sys.settrace(other)
    try:
        with pytest.raises(GpuMagicError, match="debugger"):
            LineTracer(Places(), lambda: 0).start()
        kept = sys.gettrace()
    finally:
        sys.settrace(None)
    assert kept is other


def test_after_an_error_nothing_is_traced():
    """Whatever the code raises, Python goes on without a tracer."""
    with pytest.raises(ZeroDivisionError):
        measure(lambda: 1 / 0, lines=True)

    assert sys.gettrace() is None


def test_a_loop_without_end_takes_no_memory_without_end(monkeypatch):
    """Beyond the most steps that are kept, lines are noted no more, and it is told."""
    monkeypatch.setattr(lines_module, "MOST_STEPS", 50)

    tracer = traced("for each in range(1000):\n    x = each\n")

    assert tracer.is_cut
    assert len(tracer._times) <= 51
    assert sys.gettrace() is None
