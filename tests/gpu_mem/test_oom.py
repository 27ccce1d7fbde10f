"""Out-of-memory errors: what their text tells, and what is remembered of the last."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gpumagic.gpu_mem.oom import (
    LastOom,
    is_out_of_memory,
    read_oom,
)
from gpumagic.gpu_mem.records import OomFacts

MIB, GIB = 1 << 20, 1 << 30
NOTHING = OomFacts("", None, None, *[None] * 8)
ADVICE = (
    " If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
    "documentation for Memory Management  (https://pytorch.org/docs/stable/notes/"
    "cuda.html#environment-variables)"
)
PLAIN = (
    "CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total capacity of "
    "31.47 GiB of which 12.73 GiB is free. Including non-PyTorch memory, this process "
    "has 18.73 GiB memory in use. Of the allocated memory 9.08 GiB is allocated by "
    f"PyTorch, and 9.35 GiB is reserved by PyTorch but unallocated.{ADVICE}"
)
PRIVATE_POOLS = (
    "CUDA out of memory. Tried to allocate 9.28 GiB. GPU 3 has a total capacity of "
    "139.81 GiB of which 7.30 GiB is free. Process 2678129 has 132.50 GiB memory in "
    "use. Of the allocated memory 115.89 GiB is allocated by PyTorch, with 2.01 GiB "
    "allocated in private pools (e.g., CUDA Graphs), and 10.53 GiB is reserved by "
    f"PyTorch but unallocated.{ADVICE}"
)
SHARED_AND_CAPPED = (
    "HIP out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total capacity of "
    "23.65 GiB of which 11.06 MiB is free. Process 41 has 512.00 MiB memory in use. "
    "Including non-PyTorch memory, this process has 1.60 GiB memory in use. Process "
    "1007 has 21.53 GiB memory in use. 11.82 GiB allowed; Of the allocated memory "
    "1.22 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but "
    f"unallocated.{ADVICE}"
)
ASYNC = (
    "Allocation on device 2 would exceed allowed memory. (out of memory)\n"
    "Currently allocated     : 6.89 GiB\n"
    "Requested               : 320.00 MiB\n"
    "Device limit            : 23.69 GiB\n"
    "Free (according to CUDA): 2.94 MiB\n"
    "PyTorch limit (set by user-supplied memory fraction)\n"
    "                        : 17179869184.00 GiB"
)

READ = [
    pytest.param(
        PLAIN,
        {
            "device": 0,
            "requested_bytes": round(22.78 * GIB),
            "total_bytes": round(31.47 * GIB),
            "free_bytes": round(12.73 * GIB),
            "process_bytes": round(18.73 * GIB),
            "allocated_bytes": round(9.08 * GIB),
            "reserved_unallocated_bytes": round(9.35 * GIB),
        },
        id="torch 2.4 to 2.13",
    ),
    pytest.param(
        PRIVATE_POOLS,
        {
            "device": 3,
            "requested_bytes": round(9.28 * GIB),
            "total_bytes": round(139.81 * GIB),
            "free_bytes": round(7.30 * GIB),
            "allocated_bytes": round(115.89 * GIB),
            "reserved_unallocated_bytes": round(10.53 * GIB),
            "private_pools_bytes": round(2.01 * GIB),
        },
        id="private pools, in a container",
    ),
    pytest.param(
        SHARED_AND_CAPPED,
        {
            "device": 1,
            "requested_bytes": 20 * MIB,
            "total_bytes": round(23.65 * GIB),
            "free_bytes": round(11.06 * MIB),
            "process_bytes": round(1.60 * GIB),
            "allocated_bytes": round(1.22 * GIB),
            "reserved_unallocated_bytes": 0,
            "allowed_bytes": round(11.82 * GIB),
            "others": ((41, 512 * MIB), (1007, round(21.53 * GIB))),
        },
        id="other processes and a limit, on ROCm",
    ),
    pytest.param(
        ASYNC,
        {
            "device": 2,
            "requested_bytes": 320 * MIB,
            "total_bytes": round(23.69 * GIB),
            "free_bytes": round(2.94 * MIB),
            "allocated_bytes": round(6.89 * GIB),
        },
        id="cudaMallocAsync",
    ),
]


@pytest.mark.parametrize(("text", "facts"), READ)
def test_all_that_a_text_tells(text, facts):
    """Every figure of the known forms is read, and what is not said stays unknown."""
    read = read_oom(text)

    assert read == replace(NOTHING, text=text, **facts)
    assert is_out_of_memory(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the size of tensor a (3) must match the size of tensor b (4)",
        "Tried to allocate 20.00 MiB of a total capacity of 3.00 GiB",
    ],
)
def test_other_errors(text):
    """An error about something else tells nothing, whatever sizes it names."""
    read = read_oom(text)

    assert read == replace(NOTHING, text=text)
    assert not is_out_of_memory(text)


def test_rounded_figures_of_an_error_give_others_no_negative_bytes():
    """Sizes in the text are rounded; together they may be more than the device has."""
    oom = read_oom(
        "CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total capacity "
        "of 31.47 GiB of which 12.73 GiB is free. Including non-PyTorch memory, this "
        "process has 18.75 GiB memory in use."
    )

    assert oom.others_bytes == 0


TEXT = "CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of"


@pytest.fixture
def shell():
    """A shell that holds nothing."""
    return SimpleNamespace(user_ns={}, user_ns_hidden={})


@pytest.fixture
def last(shell):
    """What is known of its last error."""
    return LastOom(shell)


def test_an_error_without_a_text_does_no_harm(last, shell):
    """An object of the user's whose words cannot be had is no error of memory."""

    class Odd(Exception):
        def __str__(self):
            raise ValueError

        __bool__ = __str__

    shell.user_ns["kept"] = RuntimeError()
    shell.user_ns["kept"].__cause__ = Odd()

    assert last.seen().text == ""


def test_the_last_error_is_remembered_in_words_alone(last, shell):
    """One that ended a cell comes before an older one that a variable has, and goes."""
    shell.user_ns["kept"] = RuntimeError(TEXT.replace("3.00", "2.00"))
    error = type("Weak", (RuntimeError,), {})(TEXT)
    gone = weakref.ref(error)
    before = last.seen()
    last.cell_ended(error)
    del error
    gc.collect()

    assert before.requested_bytes == 2 * GIB
    assert last.seen().requested_bytes == 3 * GIB
    assert gone() is None


def test_an_error_in_a_variable_is_found_once(last, shell):
    """Also bare, and it does not come back in place of a later one."""
    shell.user_ns["kept"] = RuntimeError(TEXT)
    assert last.seen().requested_bytes == 3 * GIB

    last.cell_ended(RuntimeError(TEXT.replace("3.00", "2.00")))

    assert last.seen().requested_bytes == 2 * GIB
