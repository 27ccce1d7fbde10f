"""Options that contradict each other are met before anything runs."""

from __future__ import annotations

import pytest

from gpumagic.cuda_sync_time.magic import TimeMagics
from gpumagic.cuda_sync_time.records import Options
from gpumagic.errors import GpuMagicError
from gpumagic.notebook import arguments


def request_of(line):
    """What the options of a line ask for."""
    parser = TimeMagics.cuda_sync_time.parser
    options, _ = arguments.split_code(parser, "%%cuda_sync_time", line)
    return Options.of(options, magic="%%cuda_sync_time")


def test_one_option_says_how_to_repeat():
    """How to wait, how many samples and how long stand behind `--repeat`."""
    one = request_of("--repeat=latency,100,300ms")

    assert (one.mode, one.samples, one.budget_s) == ("latency", 100, 0.3)
    assert request_of("--repeat throughput").mode == "throughput"
    assert request_of("--trace run.json").traces
    assert request_of("--vs base").repeats


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("--repeat 0s", "a budget of no time"),
        ("--repeat 0", "no sample is asked for"),
        ("--repeat=soon", "--repeat=soon is no way to repeat"),
        ("--races --repeat 3", "--races looks at one run"),
        ("--syncs --repeat", "--syncs looks at one run; --repeat and --vs"),
        ("--profile --vs base", "--profile looks at one run; --repeat and"),
        ("--races --syncs", "--races slows the code down"),
        ("--races --name x", "--races slows the code down"),
    ],
)
def test_a_contradiction_is_told_with_what_to_type(line, word):
    """Each has one sentence on what is wrong, and one on what to do."""
    with pytest.raises(GpuMagicError) as caught:
        request_of(line)

    assert word in caught.value.problem
    assert caught.value.hint
