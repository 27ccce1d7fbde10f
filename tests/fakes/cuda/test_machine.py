"""The machine itself, by hand and in processes of its own: clock, streams, memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
SCENARIOS = HERE.parent / "scenarios"
MIB = 1 << 20

_PRELUDE = """
import ctypes, json, os, subprocess, sys, threading, time
from by_hand import Cuda, CudaError, MILLISECOND_CYCLES
cuda = Cuda()
def show(found): print(json.dumps(found))
"""


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    """The folder of the machine's libraries; GPUMAGIC_FAKE_LIBRARIES if it is set."""
    if given := os.environ.get("GPUMAGIC_FAKE_LIBRARIES"):
        return Path(given)
    folder = tmp_path_factory.mktemp("libraries")
    command = ["make", "-j2", "-C", HERE, f"PYTHON={sys.executable}", f"OUT={folder}"]
    names = ("libcuda.so.1", "libcudart.so.13", "libnvidia-ml.so.1")
    targets = [str(folder / name) for name in names]
    subprocess.run([*command, *targets], check=True, capture_output=True)
    return folder


@pytest.fixture
def run(libraries, tmp_path) -> Callable[..., Any]:
    """Run a snippet on the machine; what it shows."""
    usage = tmp_path / "usage"
    usage.mkdir()

    def run_snippet(
        code: str, scenario: str | Path = "idle_gpu", clock: str = "model", **env: str
    ) -> Any:
        path = SCENARIOS / f"{scenario}.txt" if isinstance(scenario, str) else scenario
        environment = os.environ | {
            "GPUMAGIC_FAKE_LIBRARIES": str(libraries),
            "GPUMAGIC_FAKE_SCENARIO": str(path),
            "GPUMAGIC_FAKE_USAGE": str(usage),
            "GPUMAGIC_CLOCK": clock,
            "LD_LIBRARY_PATH": str(libraries),
            "PYTHONPATH": str(HERE),
            **env,
        }
        done = subprocess.run(
            [sys.executable, "-c", _PRELUDE + textwrap.dedent(code)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run_snippet


def changed(scenario: str, pattern: str, replacement: str, tmp_path: Path) -> Path:
    """A scenario in which one line is another."""
    text = (SCENARIOS / f"{scenario}.txt").read_text()
    assert re.search(pattern, text, re.MULTILINE)
    file = tmp_path / "scenario.txt"
    file.write_text(re.sub(pattern, replacement, text, count=1, flags=re.MULTILINE))
    return file


# ---------------------------------------------------------------- the clock

PROGRAMS = """
import hashlib
from random_programs import Programs
programs = Programs(cuda)
times = [programs.run(seed) for seed in range({many})]
digest = hashlib.sha256(repr(times).encode()).hexdigest()
show([programs.wrong[:3], sum(map(len, times)), digest])
"""


def test_a_thousand_random_programs_follow_the_rules_to_the_nanosecond(run):
    """Of streams, copies, events, waits and questions each moment is the model's."""
    wrong, events, _ = run(PROGRAMS.format(many=1000))

    assert wrong == []
    assert events > 3000


def test_a_short_launch_queue_makes_the_host_wait_where_the_model_does(run, tmp_path):
    """With room for four launches programs wait at other places, and exactly there."""
    scenario = changed(
        "idle_gpu", "^cuda_version", "launch_queue=4\ncuda_version", tmp_path
    )

    wrong, *_ = run(PROGRAMS.format(many=200), scenario, LAUNCH_QUEUE="4")

    assert wrong == []


def test_device_times_are_the_same_in_every_run(run):
    """A model's clock does not know what else the machine does."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            loaded = [run(PROGRAMS.format(many=100)) for _ in "ab"]
        finally:
            busy.kill()

    assert loaded == [run(PROGRAMS.format(many=100))] * 2


def test_threads_of_the_host_share_a_clock_that_never_goes_back(run):
    """Four threads run programs at once in the paced clock, by the rules, and end."""
    wrong, backward = run(
        """
        from random_programs import Programs
        four, ends, backward = [Programs(cuda) for _ in range(4)], [], []

        def run(programs, first):
            for seed in range(first, first + 25):
                programs.run(seed)

        def watch(last=0):
            while not ends:
                now = cuda.now()
                if now < last:
                    backward.append((last, now))
                last = now

        threads = [threading.Thread(target=run, args=(each, 1000 * i))
                   for i, each in enumerate(four)]
        watcher = threading.Thread(target=watch)
        for each in (watcher, *threads): each.start()
        for each in threads: each.join()
        ends.append(True)
        watcher.join()
        show([[each.wrong[:3] for each in four], backward[:3]])
        """,
        clock="paced",
    )

    assert wrong == [[]] * 4
    assert backward == []


def test_a_frozen_clock_does_not_count_what_the_thread_does(run):
    """Of 200 ms of the host's own work at least so much is not in the virtual time."""
    real, virtual = run(
        """
        real, virtual = time.monotonic_ns(), cuda.now()
        cuda.driver.machine_freeze(1)
        time.sleep(0.2)
        cuda.driver.machine_freeze(0)
        virtual = cuda.now() - virtual
        show([time.monotonic_ns() - real, virtual])
        """,
        clock="paced",
    )

    assert virtual <= real - 200_000_000


# ---------------------------------------------------------------- streams


@pytest.mark.parametrize("clock", ["model", "paced"])
def test_what_is_told_to_be_done_is_there(run, clock):
    """Once an event has passed, the bytes that were copied before can be read."""
    wrong = run(
        """
        stream, event = cuda.stream(), cuda.event()
        device, pinned = cuda.memory(1 << 16), cuda.pinned(1 << 16)
        wrong = []
        for i in range(1, 100):
            cuda.call("cudaMemsetAsync", device, i, 1 << 16, stream)
            cuda.copy(pinned, device, 1 << 16, stream)
            cuda.record(event, stream)
            while not cuda.passed(event): pass
            if ctypes.string_at(pinned, 1 << 16) != bytes([i]) * (1 << 16):
                wrong.append(i)
        show(wrong)
        """,
        clock=clock,
    )

    assert wrong == []


def test_what_the_host_writes_before_a_copy_begins_is_copied(run):
    """A race with the host stays one: the copy reads when the stream has come to it."""
    found = run(
        """
        stream, device, pinned = cuda.stream(), cuda.memory(8), cuda.pinned(8)
        cuda.spin(60 * MILLISECOND_CYCLES, stream)
        cuda.copy(device, pinned, 8, stream)
        ctypes.memset(pinned, 7, 8)
        cuda.wait(stream)
        show(list(cuda.read(device, 8)))
        """,
        clock="paced",
    )

    assert found == [7] * 8


def test_streams_of_the_old_sense_and_the_default_one_wait_for_each_other(run):
    """A blocking stream begins after the default one has ended, another does not."""
    blocking, other, end = run("""
        streams = cuda.made("cudaStreamCreateWithPriority", 0, 0), cuda.stream()
        cuda.spin(5 * MILLISECOND_CYCLES)
        default, *events = [cuda.event() for _ in range(3)]
        cuda.record(default)
        for event, stream in zip(events, streams): cuda.record(event, stream)
        show([*map(cuda.event_ns, events), cuda.event_ns(default)])
    """)

    assert blocking >= end
    assert other < end


@pytest.mark.parametrize("clock", ["model", "paced"])
def test_a_function_of_the_host_runs_at_its_place_and_time(run, clock):
    """It sees the moment at which its stream is; who asks the stream goes on."""
    called, end, order = run(
        """
        stream, event, order = cuda.stream(), cuda.event(), []

        @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        def called(_): order.append(("called", cuda.now()))

        cuda.spin(20 * MILLISECOND_CYCLES, stream)
        cuda.record(event, stream)
        cuda.call("cudaLaunchHostFunc", stream, called, None)
        while not cuda.done(stream): pass
        order.append(("done", cuda.now()))
        show([order[0][1], cuda.event_ns(event), [what for what, _ in order]])
        """,
        clock=clock,
    )

    assert called == end
    assert order == ["called", "done"]


def test_a_chain_runs_in_the_order_of_its_calls_on_whatever_streams(run):
    """Operations of one communicator keep their order, though their streams do not."""
    order = run("""
        WORK, order = ctypes.CFUNCTYPE(None, ctypes.c_void_p), []
        note, forget = WORK(lambda i: order.append(i or 0)), WORK(lambda _: None)
        streams = [cuda.stream() for _ in range(3)]
        for i in range(30):
            if i % 7 == 0: cuda.spin(MILLISECOND_CYCLES, streams[i % 3])
            cuda.call("machine_kernel_work", b"meet", streams[i % 3], 2000, 1, 32,
                      ctypes.c_void_p(1), note, forget, ctypes.c_void_p(i))
        cuda.wait_for_all()
        show(order)
    """)

    assert order == list(range(30))


def test_after_an_assertion_of_a_kernel_every_call_fails(run):
    """The device is broken for the process: 710 from then on, of the last error too."""
    codes = run("""
        stream = cuda.stream()
        cuda.driver.machine_break(710)
        names = ("cudaStreamSynchronize", stream), ("cudaMalloc", stream, 8)
        show([cuda.answer(*each) for each in names]
             + [cuda.answer("cudaGetLastError"), cuda.answer("cudaGetLastError")])
    """)

    assert codes == [710] * 4


def test_a_forked_child_is_refused(run):
    """What was initialised in the parent answers 3 in the child, and hangs nowhere."""
    code = run("""
        cuda.spin(MILLISECOND_CYCLES, cuda.stream())
        child = os.fork()
        if not child:
            os._exit(cuda.answer("cudaMalloc", ctypes.byref(ctypes.c_uint64()), 8))
        show(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)

    assert code == 3


# ---------------------------------------------------------------- graphs


def test_a_graph_does_again_what_was_captured(run):
    """Nothing runs while it is captured; each replay takes the same time anew."""
    start, sums, took = run("""
        stream, other = cuda.stream(), cuda.stream()
        source, target = cuda.memory(8), cuda.memory(8)
        fork, join, graph, exec = cuda.event(), cuda.event(), None, None
        cuda.write(target, bytes(8))
        cuda.call("cudaStreamBeginCapture", stream, 0)
        cuda.record(fork, stream)
        cuda.call("cudaStreamWaitEvent", other, fork, 0)
        cuda.copy(target, source, 8, other)
        cuda.record(join, other)
        cuda.call("cudaStreamWaitEvent", stream, join, 0)
        cuda.spin(MILLISECOND_CYCLES, stream)
        graph = ctypes.c_void_p()
        cuda.call("cudaStreamEndCapture", stream, ctypes.byref(graph))
        start = list(cuda.read(target, 8))
        exec = cuda.made("cudaGraphInstantiateWithFlags", graph, 0)
        cuda.call("cudaGraphDestroy", graph)
        sums, took = [], []
        before, after = cuda.event(), cuda.event()
        for i in range(3):
            cuda.write(source, bytes([i + 1]) * 8)
            cuda.wait_for_all()
            cuda.record(before, stream)
            cuda.call("cudaGraphLaunch", exec, stream)
            cuda.record(after, stream)
            cuda.wait(stream)
            sums.append(sum(cuda.read(target, 8)))
            took.append(cuda.event_ns(after) - cuda.event_ns(before))
        show([start, sums, took])
    """)

    assert start == [0] * 8
    assert sums == [8, 16, 24]
    assert took[0] == took[1] == took[2] > 1_000_000


def test_a_wait_for_everything_breaks_a_capture_unless_it_is_relaxed(run):
    """An allocation while a stream is captured is refused, and the capture invalid."""
    refused, ended, relaxed = run("""
        stream, graph = cuda.stream(), ctypes.c_void_p()
        cuda.call("cudaStreamBeginCapture", stream, 0)
        refused = cuda.answer("cudaMalloc", ctypes.byref(ctypes.c_uint64()), 8)
        ended = cuda.answer("cudaStreamEndCapture", stream, ctypes.byref(graph))
        cuda.call("cudaStreamBeginCapture", stream, 0)
        mode = ctypes.c_int(2)
        cuda.call("cudaThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        cuda.memory(8)
        relaxed = cuda.answer("cudaStreamEndCapture", stream, ctypes.byref(graph))
        show([refused, ended, relaxed])
    """)

    assert (refused, ended, relaxed) == (900, 901, 0)


# ---------------------------------------------------------------- memory


def test_memory_runs_out_at_what_the_card_has_less_what_is_held(run):
    """Reserved memory, the context and allocations count; freed memory is zero anew."""
    free, total, code, after, fresh = run("""
        free, total = cuda.memory_info()
        first = cuda.memory(3 << 20)
        cuda.write(first, b"x" * 100)
        out = ctypes.byref(ctypes.c_uint64())
        code = cuda.answer("cudaMalloc", out, free)
        cuda.call("cudaFree", first)
        again = cuda.memory(3 << 20)
        show([free, total, code, cuda.memory_info()[0], sum(cuda.read(again, 100))])
    """)

    assert total == (81559 - 559) * MIB
    assert free == total - 500 * MIB
    assert code == 2
    assert after == free - 4 * MIB
    assert fresh == 0


def test_a_mig_slice_is_a_device_with_its_own_memory(run):
    """Of a slice a process sees its MIB, less what the scenario says is used of it."""
    free, total, name = run(
        """
        name = ctypes.create_string_buffer(1024)
        cuda.call("cudaGetDeviceProperties", name, 0)
        show([*cuda.memory_info(), name.value.decode()])
        """,
        "mig_with_holes",
        CUDA_VISIBLE_DEVICES="MIG-bbbb1111-2222-4333-8444-555566667777",
    )

    assert total == 19968 * MIB
    assert free == total - (1536 + 500) * MIB
    assert name.endswith(" MIG")


def test_addresses_descend_where_the_scenario_says_so(run, tmp_path):
    """The highest that are free are taken, and a hole is filled again."""
    code = """
        made = [cuda.memory(2 << 20) for _ in range(4)]
        cuda.call("cudaFree", made[1])
        show([[b - a for a, b in zip(made, made[1:])], cuda.memory(1) == made[1]])
    """
    scenario = changed(
        "idle_gpu", "^cuda_version", "addresses=descending\ncuda_version", tmp_path
    )

    assert run(code) == [[4 * MIB] * 3, True]
    assert run(code, scenario) == [[-4 * MIB] * 3, True]


def test_a_pool_keeps_what_is_freed_in_stream_order_up_to_its_threshold(run):
    """Memory is freed when its stream has come so far; the pool holds on to it."""
    used, reserved, freed = run("""
        RESERVED, USED, THRESHOLD = 5, 7, 4
        pool, stream = cuda.made("cudaDeviceGetDefaultMemPool", 0), cuda.stream()

        def ask(attribute):
            value = ctypes.c_uint64()
            cuda.call("cudaMemPoolGetAttribute", pool, attribute, ctypes.byref(value))
            return value.value >> 20

        keep = ctypes.c_uint64(10 << 20)
        cuda.call("cudaMemPoolSetAttribute", pool, THRESHOLD, ctypes.byref(keep))
        memory = cuda.made("cudaMallocAsync", 40 << 20, stream)
        found = [ask(USED)]
        cuda.spin(5 * MILLISECOND_CYCLES, stream)
        cuda.call("cudaFreeAsync", memory, stream)
        found.append(ask(USED))
        cuda.wait(stream)
        found.append(ask(USED))
        kept = [ask(RESERVED)]
        cuda.call("cudaMemPoolTrimTo", pool, 0)
        kept.append(ask(RESERVED))
        show([found, kept, cuda.memory_info()[0] >> 20])
    """)

    assert used == [40, 40, 0]
    assert reserved == [10, 0]
    assert freed == 81000 - 500


VIRTUAL = """
class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int),
                ("where", ctypes.c_int), ("device", ctypes.c_int),
                ("rest", ctypes.c_uint8 * 16)]
class Access(ctypes.Structure):
    _fields_ = [("where", ctypes.c_int), ("device", ctypes.c_int),
                ("flags", ctypes.c_int)]
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 64)]
    @staticmethod
    def of(text): return Handle.from_buffer_copy(bytes.fromhex(text))
SIZE = 4 << 20
properties, access = Properties(1, 1, 1, 0), Access(1, 0, 3)
def map_at(address, handle):
    cuda.call("cuMemMap", address, SIZE, 0, handle, 0)
    cuda.call("cuMemSetAccess", address, SIZE, ctypes.byref(access), 1)
"""


# ---------------------------------------------------------------- several processes


def test_memory_and_events_are_shared_between_processes(run):
    """A child writes into its parent's memory and waits for its parent's event."""
    found, waited = run(
        VIRTUAL
        + """
CHILD = '''
cuda.call("cudaSetDevice", 1)
opened = cuda.made("cudaIpcOpenMemHandle", Handle.of(sys.argv[1]), 1)
assert cuda.driver.machine_device_of(ctypes.c_void_p(opened)) == 2
cuda.write(opened, b"child")
file = ctypes.c_void_p(int(sys.argv[3]))
imported = cuda.made("cuMemImportFromShareableHandle", file, 1)
space = cuda.made("cuMemAddressReserve", SIZE, 0, 0, 0)
map_at(space, imported)
cuda.write(space, b"again")
event = cuda.made("cudaIpcOpenEventHandle", Handle.of(sys.argv[2]))
before = cuda.passed(event)
stream = cuda.stream()
cuda.call("cudaStreamWaitEvent", stream, event, 0)
after = cuda.event()
cuda.record(after, stream)
print("waits", flush=True)
cuda.wait(stream)
show([before, cuda.passed(event), cuda.passed(after)])
'''
cuda.call("cudaSetDevice", 2)
properties.device = access.device = 2
memory, memory_handle, event_handle = cuda.memory(SIZE), Handle(), Handle()
cuda.call("cudaIpcGetMemHandle", ctypes.byref(memory_handle), memory)
event = cuda.made("cudaEventCreateWithFlags", 4 | 2)
cuda.call("cudaIpcGetEventHandle", ctypes.byref(event_handle), event)
handle = cuda.made("cuMemCreate", SIZE, ctypes.byref(properties), 0)
space = cuda.made("cuMemAddressReserve", SIZE, 0, 0, 0)
map_at(space, handle)
exported = ctypes.c_int()
cuda.call("cuMemExportToShareableHandle", ctypes.byref(exported), handle, 1, 0)
stream = cuda.stream()
WORK, come = ctypes.CFUNCTYPE(None, ctypes.c_void_p), threading.Event()
wait, forget = WORK(lambda _: come.wait()), WORK(lambda _: None)
cuda.call("machine_kernel_work", b"meet", stream, 5000, 1, 32, None, wait, forget, None)
cuda.record(event, stream)
os.set_inheritable(exported.value, True)
child = subprocess.Popen(
    [sys.executable, "-c", os.environ["PRELUDE"] + CHILD, bytes(memory_handle).hex(),
     bytes(event_handle).hex(), str(exported.value)],
    stdout=subprocess.PIPE, text=True, pass_fds=[exported.value])
assert child.stdout.readline() == "waits\\n"
come.set()
waited = json.loads(child.stdout.readline())
show([[cuda.read(memory, 5).decode(), cuda.read(space, 5).decode()], waited])
""",
        "idle_four_gpus",
        "paced",
        PRELUDE=_PRELUDE + VIRTUAL,
    )

    assert found == ["child", "again"]
    assert waited == [False, True, True]


# ---------------------------------------------------------------- several devices


def test_each_device_has_its_own_default_stream_memory_and_peers(run):
    """Device 1 is busy while device 0 is not, though both streams have one name."""
    busy, idle, within, between, second = run(
        """
        def devices(*numbers):
            for number in numbers:
                cuda.call("cudaSetDevice", number)
                yield number

        memory = [cuda.memory(1 << 20) for _ in devices(0, 1)]
        cuda.spin(10 * MILLISECOND_CYCLES)
        ends = []
        for _ in devices(1, 0):
            event = cuda.event()
            cuda.record(event)
            ends.append(cuda.event_ns(event) - cuda.now())
        cuda.write(memory[0], b"peer")
        spare, stream = cuda.memory(1 << 20), cuda.stream()
        took = []
        for target in (spare, memory[1]):
            before, after = cuda.event(), cuda.event()
            cuda.record(before, stream)
            cuda.copy(target, memory[0], 1 << 20, stream)
            cuda.record(after, stream)
            took.append(cuda.event_ns(after) - cuda.event_ns(before))
        cuda.wait(stream)
        enable = [cuda.answer("cudaDeviceEnablePeerAccess", 1, 0) for _ in "ab"]
        assert enable == [0, 704]
        show([*ends, *took, cuda.read(memory[1], 4).decode()])
        """,
        "idle_four_gpus",
    )

    assert busy > 9_000_000
    assert idle < 10_000
    assert between > within
    assert second == "peer"
