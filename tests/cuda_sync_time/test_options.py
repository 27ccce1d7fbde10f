"""Options that contradict each other are met before anything runs."""

from __future__ import annotations

import pytest

from gpumagic.cuda_sync_time.magic import TimeMagics
from gpumagic.cuda_sync_time.options import Options
from gpumagic.cuda_sync_time.report import Mode
from gpumagic.errors import GpuMagicError, UsageProblem
from gpumagic.notebook import arguments
from gpumagic.notebook.arguments import parse


def request_of(line):
    """What the options of a line ask for."""
    parser = TimeMagics.cuda_sync_time.parser
    options, _ = arguments.split_code(parser, "%%cuda_sync_time", line)
    return Options.of(options, typed="%%")


@pytest.mark.parametrize(
    "line",
    [
        "--repeat",
        "-n 10",
        "-r 5",
        "--budget 2s",
        "--latency",
        "--throughput",
        "--before x=1",
        "--cold",
        "--vs base",
    ],
)
def test_whatever_speaks_of_samples_repeats(line):
    """Each option that only makes sense for many runs asks for many runs."""
    assert request_of(line).repeating


@pytest.mark.parametrize(
    "line",
    ["", "--syncs", "--profile", "--races", "--flops", "--name base", "--setup x=1"],
)
def test_everything_else_runs_once(line):
    """The code's side effects happen once unless somebody asks for more."""
    assert not request_of(line).repeating


def test_values_are_read_in_the_units_of_a_measurement():
    """Durations, sizes and modes arrive as what they mean."""
    request = request_of("--budget 300ms --latency --bytes 2KiB -n 4 -r 7")

    assert request.budget_s == 0.3
    assert request.mode is Mode.LATENCY
    assert request.nbytes == 2048
    assert (request.calls, request.samples) == (4, 7)


@pytest.mark.parametrize(
    ("plain", "apart"),
    [
        ("--repeat latency", "--latency"),
        ("--repeat throughput", "--throughput"),
        ("--repeat 100", "-r 100"),
        ("--repeat 5s", "--budget 5s"),
        ("--repeat=latency,100,300ms", "--latency -r 100 --budget 300ms"),
    ],
)
def test_one_option_says_how_to_repeat(plain, apart):
    """How to wait, how many samples and how long stand behind `--repeat`."""
    one, several = request_of(plain), request_of(apart)

    assert (one.mode, one.samples, one.budget_s) == (
        several.mode,
        several.samples,
        several.budget_s,
    )
    assert one.repeating[0] == "--repeat"


def test_saving_a_trace_is_profiling():
    """A file for the trace needs no second option."""
    assert request_of("--trace run.json").traces


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("--budget soon", "'soon' is not a duration"),
        ("--budget 0s", "a budget of no time"),
        ("--repeat 0s", "a budget of no time"),
        ("--repeat 0", "-r 0 runs nothing"),
        ("--repeat=soon", "--repeat=soon is no way to repeat"),
        ("--repeat latency --throughput", "--throughput once after many"),
        ("--races --repeat 3", "--races looks at one run"),
        ("--bytes many", "'many' is not a size"),
        ("-n 0", "-n 0 runs nothing"),
        ("-r -3", "-r -3 runs nothing"),
        ("--syncs --repeat", "--syncs looks at one run, and --repeat asks for many"),
        ("--profile -n 3", "--profile looks at one run, and -n asks for many"),
        ("--races --latency", "--races looks at one run, and --latency asks for many"),
        ("--races --syncs", "--races slows the code down"),
        ("--races --name x", "--races slows the code down"),
        ("--races --flops", "--races slows the code down"),
        ("--calibrate", "--calibrate measures the noise of a comparison"),
        ("--cold --throughput", "--cold flushes the caches"),
        ("--vs base --flops", "--vs compares two codes"),
    ],
)
def test_a_contradiction_is_told_with_what_to_type(line, word):
    """Each has one sentence on what is wrong, and one on what to do."""
    with pytest.raises(GpuMagicError) as caught:
        request_of(line)

    assert word in caught.value.problem
    assert caught.value.hint


@pytest.mark.parametrize(
    "options", ["--latency --throughput", "--throughput -n 3 --latency"]
)
def test_two_ways_to_wait_are_refused(options):
    """The last one does not win in silence; the two lines name both."""
    parser = TimeMagics.cuda_sync_time.parser

    with pytest.raises(UsageProblem) as refused:
        parse(parser, "%cuda_sync_time", options)

    assert "--latency" in refused.value.problem
    assert "--throughput" in refused.value.problem
    assert refused.value.hint == "leave one of them away"


def test_one_way_to_wait_may_be_said_twice():
    """Saying the same once more contradicts nothing."""
    options = parse(
        TimeMagics.cuda_sync_time.parser, "%cuda_sync_time", "--latency --latency"
    )

    assert options.mode == "latency"
