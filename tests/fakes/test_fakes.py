"""The fakes themselves: layouts, the latch, the mask, and the helper around them."""

import os

import pytest

from tests.fakes.build import SCENARIOS
from tests.fakes.run import CuInitCall, run_python

CUDA = """
    import ctypes, json, os, uuid

    cuda = ctypes.CDLL("libcuda.so.1")

    def show(found):
        print(json.dumps(found), flush=True)

    def uuid_of(device):
        raw = (ctypes.c_ubyte * 16)()
        code = cuda.cuDeviceGetUuid_v2(raw, device)
        return str(uuid.UUID(bytes=bytes(raw))) if code == 0 else code

    def count():
        number = ctypes.c_int(-1)
        code = cuda.cuDeviceGetCount(ctypes.byref(number))
        return number.value if code == 0 else -code

    def visible():
        return [uuid_of(device) for device in range(count())]
"""


# ---------------------------------------------------------------- NVML


def test_structures_have_the_layout_of_pynvml():
    """Every structure that crosses the border has pynvml's size and offsets."""
    run = run_python("""
        import ctypes, json, pynvml

        class Layout(ctypes.Structure):
            _fields_ = [("name", ctypes.c_char_p), ("bytes", ctypes.c_int)]

        def in_pynvml(name):
            structure, _, field = name.partition(".")
            known = getattr(pynvml, structure)
            return getattr(known, field).offset if field else ctypes.sizeof(known)

        table = (Layout * 100).in_dll(ctypes.CDLL("libnvidia-ml.so.1"), "fake_layouts")
        found = {}
        for row in table:
            if row.name is None:
                break
            found[row.name.decode()] = row.bytes
        print(json.dumps([found, {name: in_pynvml(name) for name in found}]))
    """)

    found, known = run.json()
    assert found == known
    assert (len(found), found["nvmlPciInfo_t"], found["c_nvmlMemory_v2_t"]) == (
        44,
        68,
        40,
    )


def test_pynvml_finds_everything_it_may_ask_of_a_gpu():
    """Handles, MIG devices and processes answer through every call we imitate."""
    run = run_python(
        """
        import json
        from pynvml import *
        nvmlInit()
        gpu = nvmlDeviceGetHandleByUUID("GPU-22222222-cccc-4ccc-8ccc-222222222222")
        same = nvmlDeviceGetHandleByPciBusId("00000000:86:00.0")
        part = nvmlDeviceGetMigDeviceHandleByIndex(gpu, 1)
        parent = nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)
        busy = nvmlDeviceGetHandleByIndex(0)
        version = nvmlProcessDetailList_v1
        detail = nvmlDeviceGetRunningProcessDetailList(busy, version, 0)
        print(json.dumps([
            nvmlDeviceGetIndex(gpu), nvmlDeviceGetMinorNumber(same),
            nvmlDeviceGetIndex(parent),
            bool(nvmlDeviceIsMigDeviceHandle(part)),
            bool(nvmlDeviceIsMigDeviceHandle(gpu)),
            nvmlDeviceGetMemoryInfo(part).total, nvmlDeviceGetName(part)[-4:],
            [row.pid for row in detail], nvmlDeviceGetDisplayActive(gpu),
            nvmlDeviceGetPciInfo(gpu).busId, nvmlDeviceGetPciInfo(gpu).busIdLegacy,
        ] , default=bytes.decode))
        """,
        scenario="mig_with_holes",
    )

    assert run.json() == [
        *(2, 2, 2, True, False, 9856 * 2**20, " MIG", [4242], 0),
        *("00000000:86:00.0", "0000:86:00.0"),
    ]


# What a call comes to that cannot be answered, as in the real library.
ERRORS = {
    "nvmlDeviceGetMemoryInfo(gpu, version=0x02000027)": "ArgumentVersionMismatch",
    "nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)": "NotFound",
    "nvmlDeviceGetHandleByIndex(16)": "InvalidArgument",
    "nvmlDeviceGetHandleByUUID('GPU-1')": "NotFound",
    "nvmlDeviceGetGpuInstanceId(gpu)": "NotSupported",
    "nvmlShutdown() or nvmlDeviceGetCount()": "Uninitialized",
}


def test_pynvml_meets_the_errors_of_the_real_library():
    """A wrong version, a missing device or a closed library fail as they do there."""
    run = run_python(f"""
        import json
        from pynvml import *
        nvmlInit()
        gpu = nvmlDeviceGetHandleByIndex(1)
        found = {{}}
        for call in {[*ERRORS]}:
            try:
                eval(call)
            except NVMLError as failure:
                found[call] = type(failure).__name__.removeprefix("NVMLError_")
        print(json.dumps(found))
    """)

    assert run.json() == ERRORS


def test_pynvml_misses_what_an_old_driver_lacks():
    """A hidden function is truly not found, as pynvml finds it on an old driver."""
    run = run_python(
        """
        import json
        from pynvml import *
        nvmlInit()
        gpu = nvmlDeviceGetHandleByIndex(0)
        failures = []
        for attempt in (
            lambda: nvmlDeviceGetComputeRunningProcesses_v3(gpu),
            lambda: nvmlDeviceGetComputeRunningProcesses(gpu),
            lambda: nvmlDeviceGetMemoryInfo(gpu, version=nvmlMemory_v2),
        ):
            try:
                attempt()
            except Exception as failure:
                failures.append(type(failure).__name__)
        print(json.dumps(failures))
        """,
        scenario="old_driver",
    )

    assert run.json() == [
        "NVMLError_FunctionNotFound",
        "NVMLLibraryMismatchError",
        "NVMLError_FunctionNotFound",
    ]


# ---------------------------------------------------------------- the latch


def test_the_choice_of_gpus_is_latched_by_the_first_success():
    """Before cuInit all calls say 3; after it, the variable has no effect."""
    run = run_python(
        CUDA
        + """
    name, number = ctypes.create_string_buffer(99), ctypes.c_int()
    before = [
        cuda.cuDeviceGetCount(ctypes.byref(number)),
        cuda.cuDeviceGet(ctypes.byref(number), 0),
        cuda.cuDeviceGetName(name, 99, 0),
        cuda.cuCtxGetCurrent(ctypes.byref(ctypes.c_void_p())),
        uuid_of(0),
    ]
    os.putenv("CUDA_VISIBLE_DEVICES", "3,1")  # C's environment is what counts
    first = cuda.cuInit(0)
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    show([before, first, cuda.cuInit(0), count(), cuda.cuDeviceGetName(name, 99, 2)])
    """,
    )

    assert run.json() == [[3, 3, 3, 3, 3], 0, 0, 2, 101]
    assert [call.code for call in run.cuinit_calls()] == [0, 0]


@pytest.mark.parametrize(
    ("scenario", "code"),
    [("no_gpus", 100), ("mismatch", 803), ("driver_not_loaded", 100)],
)
def test_a_broken_driver_does_not_start(scenario, code):
    """The scenario's failure reaches CUDA as it reaches NVML."""
    run = run_python(CUDA + "    show([cuda.cuInit(0), count()])", scenario=scenario)

    assert run.json() == [code, -3]


def test_a_forked_child_has_lost_the_parents_cuda():
    """In the child every call says 3, cuInit too; the parent goes on."""
    run = run_python(
        CUDA
        + """
    cuda.cuInit(0)
    child = os.fork()
    if child == 0:
        found = [cuda.cuInit(0), count(), uuid_of(0)]
        show([os.getpid(), os.getppid(), found])
        os._exit(0)
    os.waitpid(child, 0)
    assert count() == 4
    """
    )

    child, parent, found = run.json()
    assert found == [3, -3, 3]
    assert run.cuinit_calls() == [CuInitCall(parent, 0), CuInitCall(child, 3)]


# ---------------------------------------------------------------- the mask

MACHINE_A = {
    "11111111-aaaa-4aaa-8aaa-111111111111": 0,
    "11111111-bbbb-4bbb-8bbb-111111111111": 1,
    "22222222-cccc-4ccc-8ccc-222222222222": 2,
    "33333333-dddd-4ddd-8ddd-333333333333": 3,
    "aaaa1111-2222-4333-8444-555566667777": "M0",
    "bbbb1111-2222-4333-8444-555566667777": "M1",
}

M0, M1 = (f"MIG-{uuid}" for uuid, name in MACHINE_A.items() if name in ("M0", "M1"))


def visible_with(mask, scenario="four_gpus", **env):
    """Which devices CUDA sees, by the names above, and what cuInit said."""
    run = run_python(
        CUDA + "    show([cuda.cuInit(0), visible()])",
        scenario=scenario,
        env={"CUDA_VISIBLE_DEVICES": mask} | env,
    )
    code, uuids = run.json()
    assert code == (0 if uuids else 100)
    return [MACHINE_A.get(each, each) for each in uuids]


# What is disputed or unknown about the real driver is left out.
@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("0,4,1", [0]),
        ("-1", []),
        (" 1 , 0 ", [1, 0]),
        ("+1", [1]),
        ("GPU-11111111-b", [1]),
        ("GPU-2,GPU-22", []),
        ("GPU-33333333,GPU-9,GPU-22222222", [3]),
        ("22222222-cccc-4ccc-8ccc-222222222222", []),
    ],
)
def test_the_mask_is_read_as_the_driver_reads_it(mask, expected):
    """Order is kept, the first invalid entry ends the list, duplicates hide all."""
    assert visible_with(mask) == expected


SLICE = "MIG-GPU-22222222-cccc-4ccc-8ccc-222222222222"


@pytest.mark.parametrize(
    ("scenario", "mask", "expected"),
    [
        ("mig_with_holes", M1, ["M1"]),
        ("mig_with_holes", f"{SLICE}/2/0", ["M1"]),
        ("mig_with_holes", "2", ["M0"]),
        ("mig_with_holes", f"{M1},{M0}", ["M1"]),
        ("no_permission", "0,1", [1]),
        ("slurm_cgroup", "1,0", ["6666", "3333"]),
        ("mps_daemon", None, [2, 3]),
        ("mps_daemon", "1,0", [3, 2]),
        ("mixed_models", "0,1,2", ["9999", "6666", "4444"]),
        ("mixed_models PCI_BUS_ID", "0,1,2", ["4444", "9999", "6666"]),
    ],
)
def test_what_a_machine_is_like_decides_what_a_mask_means(scenario, mask, expected):
    """Slices, GPUs that are denied or of other jobs, a daemon's mask, the order."""
    name, _, order = scenario.partition(" ")
    found = visible_with(mask, name, CUDA_DEVICE_ORDER=order or None)

    assert [each[:4] if isinstance(each, str) else each for each in found] == expected


def test_a_mask_can_be_read_without_the_latch():
    """The shortcut for tests sees what cuInit would, and starts nothing."""
    run = run_python(
        CUDA
        + """
    pairs = (ctypes.c_int * 64)()
    found = []
    for mask, order in ((b"3,2", b"PCI_BUS_ID"), (b"MIG-bbbb1111-2222-4333-8444-5555"
                        b"66667777", None), (b"0,0", None), (None, None)):
        count = cuda.fake_visible(mask, order, pairs)
        found.append(pairs[: 2 * count])
    show(found)
    """,
        scenario="mig_with_holes",
    )

    assert run.json() == [[2, 0], [2, 1], [], [2, 0]]
    assert run.cuinit_calls() == []


# ---------------------------------------------------------------- both libraries


@pytest.mark.parametrize(
    "scenario", ["four_gpus", "sixteen_gpus", "mixed_models", "container_foreign_pids"]
)
def test_both_libraries_describe_the_same_gpus(scenario):
    """Address, UUID, name, capability and the memory that is not reserved agree."""
    run = run_python(
        CUDA
        + """
    from gpumagic.devices.nvml import read_inventory

    def attribute(number, device):
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        return value.value

    def row(device):
        name, address = (ctypes.create_string_buffer(99) for _ in range(2))
        size = ctypes.c_size_t()
        cuda.cuDeviceGetName(name, 99, device)
        cuda.cuDeviceGetPCIBusId(address, 99, device)
        cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        return [address.value.decode(), "GPU-" + uuid_of(device), name.value.decode(),
                size.value, [attribute(75, device), attribute(76, device)]]

    cuda.cuInit(0)
    import pynvml
    pynvml.nvmlInit()

    def usable(gpu):
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
        return memory.total - memory.reserved

    by_nvml = [[gpu.pci_address, gpu.uuid, gpu.name, usable(gpu),
                list(gpu.compute_capability)] for gpu in read_inventory().gpus]
    show([sorted(row(device) for device in range(count())), sorted(by_nvml)])
    """,
        scenario=scenario,
        env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    )

    by_cuda, by_nvml = run.json()
    assert by_cuda == by_nvml
    assert by_cuda


def test_what_processes_note_is_in_use_for_both_libraries(tmp_path):
    """Another process's note counts for NVML and CUDA; a dead one's does not."""
    slice_uuid = "MIG-aaaa1111-2222-4333-8444-555566667777"
    other = os.getpid()
    (tmp_path / str(other)).write_text(f"{slice_uuid} {300 << 20}\n")
    (tmp_path / "4194304").write_text(f"{slice_uuid} {700 << 20}\n")

    run = run_python(
        CUDA
        + f"""
    import pynvml
    pynvml.nvmlInit()
    part = pynvml.nvmlDeviceGetHandleByUUID({slice_uuid!r})
    cuda.cuInit(0)
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cuda.cuCtxSetCurrent(context)
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    rows = pynvml.nvmlDeviceGetComputeRunningProcesses(part)
    used = pynvml.nvmlDeviceGetMemoryInfo(part).used
    show([used >> 20, (total.value - free.value) >> 20,
          sorted([row.pid == {other}, row.usedGpuMemory >> 20] for row in rows)])
    """,
        scenario="mig_with_holes",
        env={"CUDA_VISIBLE_DEVICES": slice_uuid, "GPUMAGIC_FAKE_USAGE": str(tmp_path)},
    )

    assert run.json() == [800, 800, [[False, 500], [True, 300]]]
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(
        [str(other), "4194304"]
    )


# ---------------------------------------------------------------- the helper


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.txt")), ids=lambda p: p.stem)
def test_every_scenario_is_understood(path):
    """Each file is read to its end by both libraries."""
    assert run_python("", scenario=path).returncode == 0


def test_a_misspelt_scenario_cannot_pass(tmp_path):
    """An unknown key ends the process, and an unknown name names the known ones."""
    wrong = tmp_path / "scenario.txt"
    wrong.write_text("driver_versoin=1\n")

    run = run_python("print('unreached')", scenario=wrong, check=False)

    assert (run.returncode, run.stdout) == (86, "")
    assert "driver_versoin" in run.stderr
    with pytest.raises(ValueError, match=r"there are .*four_gpus"):
        run_python("", scenario="for_gpus")


def test_what_is_installed_can_be_loaded_here_and_by_children():
    """What is loaded, what can be found and what is absent are three things."""
    code = """
        import ctypes, subprocess, sys
        def found(name):
            try:
                return bool(ctypes.CDLL(name))
            except OSError:
                return False
        names = "libnvidia-ml.so.1", "libcuda.so.1"
        print([found(name) for name in names])
        if len(sys.argv) == 1:
            source = open("/proc/self/cmdline").read().split(chr(0))[3]
            subprocess.run([sys.executable, "-c", source, "child"])
    """

    def lines(**options):
        return run_python(code, **options).stdout.splitlines()

    assert lines(load=()) == ["[False, False]"] * 2
    assert lines(load=["nvml"]) == ["[True, False]"] * 2
    assert lines(load=(), install=["libcuda"]) == ["[False, True]"] * 2
    assert lines(load=["libcuda"], install=()) == ["[False, True]", "[False, False]"]


def test_the_surroundings_stay_outside(monkeypatch):
    """A mask in the test run's own environment does not reach the fake machine."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("Y", "removed by the call")

    run = run_python(
        CUDA
        + '    show([os.getenv(name) for name in ("CUDA_VISIBLE_DEVICES", "X", "Y")])',
        env={"X": "x", "Y": None},
    )

    assert run.json() == [None, "x", None]


def test_what_is_claimed_on_one_machine_is_free_on_another():
    """Two of the same scenario at the same time do not choose for each other."""
    where = "from gpumagic.gpu_select import claims; print(claims.folder())"

    first, second = (run_python(where).stdout for _ in range(2))

    assert first != second
