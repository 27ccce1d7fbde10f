"""Whose a failure of PyTorch's own tests is: ours, beyond a simulator, the test's.

`KNOWN` is a visible list, one line an entry: which tests, whose, and why. A failure
that is not on it is ours. Where no test of an entry fails, it is out of date.
"""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PASSED, SKIPPED = "passed", "skipped"
OURS, BEYOND, THE_TESTS = "ours", "beyond a simulator", "the test's own"


class Known(NamedTuple):
    """Tests that fail for a reason that has been looked at."""

    tests: str  # file.Class.test, with * for any part
    whose: str
    why: str


_NEWER = "of a newer torch than the one that is installed"
_OLDER = "of an older torch: what it asks for has since gone or changed"
_ANOTHER_PYTHON = "starts a Python of its own, in which nothing is simulated"
_NO_DRIVER = "asks the driver's own library, or the runtime, which are not there"
_CPP = "compiles C++ against CUDA, or wants C++ frames"
_RAW = "memory without a tensor: there is nothing behind a simulated address"
_TREES = "checkpoints of private pools, which only torch.compile's graphs make"
_CORRUPTS = "wants wrong values where graphs share memory; here the values stay right"
_FRAMES = "wants torch's own functions among the frames; a record begins at the caller"
_SEGMENT = "supposes that there is a segment already"
_TOO_LARGE = "computes for minutes on a CPU what a GPU does in no time"
_PINNED = "pinned memory comes from this machine's allocator, with other addresses"
_GENERATOR = "random numbers are those of a CPU's generator, which goes to no offset"
_TURNS = "threads wait for the simulated clock one after the other"
_ANYWHERE = "does the same where nothing is simulated"
_SPARSE = "sparse tensors are refused"
_NESTED = "nested tensors in the strided layout are refused"
_CUDNN = "wants cuDNN's own operator by name; recurrent networks run cell by cell"

KNOWN: tuple[Known, ...] = (
    Known("test_accelerator.*.test_custom_pin_memory_device_*", THE_TESTS, _NEWER),
    Known("test_cuda.*.test_no_triton_on_import", BEYOND, _ANOTHER_PYTHON),
    Known("test_cuda.*.test_device_count_not_cached_pre_init", BEYOND, _ANOTHER_PYTHON),
    Known("test_cuda.*.test_graph_error", BEYOND, _ANOTHER_PYTHON),
    Known("test_cuda.TestBlockStateAbsorption.*", BEYOND, _TREES),
    Known("test_cuda.*.test_cublas_allow_*", THE_TESTS, _OLDER),
    Known("test_cuda.*.test_float32_matmul_precision_get_set", THE_TESTS, _OLDER),
    Known("test_cuda.*.test_cublas_workspace_*", BEYOND, "cuBLAS's own settings"),
    Known("test_cuda.*.test_autocast_rnn", BEYOND, _CUDNN),
    Known("test_cuda.*.test_cudart_register", BEYOND, _NO_DRIVER),
    Known("test_cuda.*.test_cuda_module_loading_env", BEYOND, _NO_DRIVER),
    Known("test_cuda.*.test_clock_speed", BEYOND, _NO_DRIVER),
    Known("test_cuda.*.test_device_memory_used", BEYOND, _NO_DRIVER),
    Known("test_cuda.*.test_nvml_get_handler", BEYOND, _NO_DRIVER),
    Known("test_cuda.*.test_power_draw", BEYOND, _NO_DRIVER),
    Known("test_cuda.*.test_temperature", BEYOND, _NO_DRIVER),
    Known("test_cuda_multigpu.*.test_external_streams*", BEYOND, _NO_DRIVER),
    Known("test_cuda.*.test_cpp_memory_snapshot_pickle", BEYOND, _CPP),
    Known("test_cuda.*.test_memory_snapshot_with_cpp", BEYOND, _CPP),
    Known("test_cuda.*.test_memory_snapshot_script", BEYOND, _CPP),
    Known("test_cuda.*.test_memory_plots", BEYOND, _CPP),
    Known("test_cuda.*.test_mempool_context", THE_TESTS, _OLDER),
    Known("test_cuda.*.test_mempool_multithread", THE_TESTS, _OLDER),
    Known("test_cuda.*.test_mempool_with_allocator", BEYOND, _CPP),
    Known("test_cuda.*.test_memory_allocation", BEYOND, _RAW),
    Known("test_cuda.*.test_cachingAllocator_raw_alloc", BEYOND, _RAW),
    Known("test_cuda.*.test_graph_three_successive", BEYOND, _CORRUPTS),
    Known("test_cuda.*.test_graph_concurrent_replay", BEYOND, _CORRUPTS),
    Known("test_cuda.*.test_graph_debugdump", BEYOND, "there is no drawing of a graph"),
    Known("test_cuda.*.test_memory_plots_free_segment_stack", BEYOND, _FRAMES),
    Known("test_cuda.*.test_memory_plots_free_stack", THE_TESTS, _SEGMENT),
    Known("test_cuda.*.test_memory_snapshot", THE_TESTS, "downloads a script"),
    Known("test_cuda.*.test_allocator_fuzz", BEYOND, _TOO_LARGE),
    Known("test_cuda.*.test_graph_make_graphed_callables_*", BEYOND, _TOO_LARGE),
    Known("test_cuda.*.test_caching_pinned_memory*", BEYOND, _PINNED),
    Known("test_dataloader.*.test_get_worker_info", THE_TESTS, _ANYWHERE),
    Known("test_dataloader.*.test_segfault", THE_TESTS, _ANYWHERE),
    Known("test_dataloader.*.test_multiprocessing_*", BEYOND, _ANOTHER_PYTHON),
    Known("test_dataloader.*.test_nested_tensor_*_cpu", BEYOND, _ANOTHER_PYTHON),
    Known("test_dataloader.*.test_nested_tensor_*_cuda", BEYOND, _NESTED),
    Known("test_dataloader.*.test_out_of_order_index_ds", THE_TESTS, _OLDER),
    Known("test_dataloader.*.test_shuffler_iterdatapipe", BEYOND, _ANOTHER_PYTHON),
    Known("test_cuda_multigpu.*.test_rng_state_offset", BEYOND, _GENERATOR),
    Known("test_cuda_multigpu.*.test_stream_event_nogil", BEYOND, _TURNS),
    Known("test_cuda.*.test_cusparse_*", BEYOND, _SPARSE),
    Known("test_cuda_multigpu.TestCudaComm.*_coalesced", BEYOND, _SPARSE),
)  # fmt: skip


def verdict(test: str, outcome: str, known: Sequence[Known] = KNOWN) -> str:
    """What a test says of the simulated GPU, in a word or two."""
    if outcome in {PASSED, SKIPPED}:
        return outcome
    entry = entry_of(test, known)
    return entry.whose if entry else OURS


def entry_of(test: str, known: Sequence[Known] = KNOWN) -> Known | None:
    """The first entry that a test is meant by."""
    return next((each for each in known if fnmatch.fnmatch(test, each.tests)), None)


def counted(
    outcomes: Mapping[str, str], known: Sequence[Known] = KNOWN
) -> dict[str, int]:
    """How many tests have which verdict."""
    words = (PASSED, SKIPPED, BEYOND, THE_TESTS, OURS)
    found = [verdict(test, outcome, known) for test, outcome in outcomes.items()]
    return {word: found.count(word) for word in words}


def out_of_date(
    outcomes: Mapping[str, str], known: Sequence[Known] = KNOWN
) -> Iterable[Known]:
    """Entries for which no test fails any more."""
    failed = [
        test for test, outcome in outcomes.items() if outcome not in {PASSED, SKIPPED}
    ]
    meant = {entry_of(test, known) for test in failed}
    return [each for each in known if each not in meant]
