"""What the machine has, asked of the NVIDIA driver through NVML.

That differs from GPU to GPU and from driver to driver, so every field is asked on
its own: one that fails stays unknown and costs no other.

NVML neither initialises CUDA nor heeds `CUDA_VISIBLE_DEVICES`: what it lists is the
machine, in an order of its own, whatever this process may see of it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.devices.protocols import Gpu, GpuLoad, GpuProcess, Inventory, MigSlice
from gpumagic.errors import MissingPackage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpumagic.devices.protocols import VisibleDevice

_NOT_AVAILABLE = 2**64 - 1  # NVML's way to say that it does not know a size
_GPU_TEMPERATURE = 0
_MIG_ENABLED = 1
_COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")

_LOST = 15
_RESET_REQUIRED = 16
_LOST_OR = "reboot; if it is lost again, look for NVRM lines in `sudo dmesg`"
_GPU_FAILURES = {
    4: (
        "this user may not use this GPU",
        "choose another one, or ask who runs this machine for access to it",
    ),
    _LOST: ("this GPU is lost: the driver cannot reach it any more", _LOST_OR),
    _RESET_REQUIRED: (
        "this GPU must be reset before it can be used",
        "reset it (sudo nvidia-smi --gpu-reset) or reboot",
    ),
}
_UNOPENED = "the driver does not open this GPU"
_LOOK = "run nvidia-smi to see whether the driver itself works"

# The last one came with MIG: a pynvml without it would show whole GPUs where
# there are only slices.
_NEEDED = (
    "NVMLError",
    "nvmlInit",
    "nvmlShutdown",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetMigMode",
)
_LIBRARY_NOT_FOUND = 12
_IN_A_CONTAINER = "in a container, pass the GPUs on (docker run --gpus all)"
_VERSIONS_APART = (
    "the NVIDIA driver and pynvml do not fit each other: a call is missing or differs",
    "update the driver, or nvidia-ml-py: pip install --upgrade nvidia-ml-py",
)
_DRIVER_FAILURES = {
    4: (
        "this user may not talk to the NVIDIA driver",
        "check who may read and write /dev/nvidiactl; " + _IN_A_CONTAINER,
    ),
    9: (
        "the NVIDIA driver does not run: its kernel module is not loaded",
        "load it (sudo modprobe nvidia) or reboot; " + _IN_A_CONTAINER,
    ),
    13: _VERSIONS_APART,
    25: _VERSIONS_APART,
    _LIBRARY_NOT_FOUND: (
        "there is no NVIDIA driver here (libnvidia-ml was not found)",
        "if there is an NVIDIA GPU, install its driver; " + _IN_A_CONTAINER,
    ),
    _LOST: ("a GPU is lost, so that the NVIDIA driver does not answer", _LOST_OR),
    18: (
        "the NVIDIA library and the loaded kernel module are of different versions",
        "if the driver was just updated, reboot or reload the kernel module nvidia",
    ),
}


def _read_gpu(nvml: Any, index: int) -> Gpu:
    """One GPU now, as far as it answers."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except Exception as failure:  # noqa: BLE001 -- the other GPUs still count
        return Gpu(index=index, **explain(failure, _GPU_FAILURES, _UNOPENED))
    failures: list[Exception] = []
    known = answers(_GPU, failures, nvml, handle)
    memory = known.pop("memory", {})
    gone = [each for each in failures if _error_code(each) in (_LOST, _RESET_REQUIRED)]
    why = explain(gone[0], _GPU_FAILURES, _UNOPENED) if gone else {}
    return Gpu(index=index, **known, **memory, **why)


def answers(
    questions: tuple[tuple[str, Callable[..., Any]], ...],
    failures: list[Exception],
    *about: Any,
) -> dict[str, Any]:
    """The fields that could be read; what hindered the others joins `failures`."""
    known = {}
    for field, read in questions:
        try:
            known[field] = read(*about)
        except Exception as failure:  # noqa: BLE001 -- it costs this field only
            failures.append(failure)
    return known


def first(*attempts: Callable[[], Any]) -> Any:
    """The first answer; drivers and pynvml differ in the calls they know."""
    for attempt in attempts[:-1]:
        with contextlib.suppress(Exception):
            return attempt()
    return attempts[-1]()


def text(value: str | bytes) -> str:
    """A name as text, which early versions of pynvml give as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _error_code(failure: Exception) -> int | None:
    """NVML's code, if the failure is one of NVML's."""
    return getattr(failure, "value", None)


def explain(
    failure: Exception, known: dict[int, tuple[str, str]], otherwise: str
) -> dict[str, Any]:
    """The `problem` and the `hint` of a record for which this failure stands."""
    code = _error_code(failure)
    if code is None:
        return {"problem": f"{otherwise}: {failure}", "hint": _LOOK}
    unknown = f"{otherwise}: {failure} (NVML code {code})", _LOOK
    problem, hint = known.get(code, unknown)
    return {"problem": problem, "hint": hint}


# ---------------------------------------------------------------- the GPU itself


def uuid(nvml: Any, gpu: Any) -> str:
    """NVML's name for a GPU or a slice, with GPU- or MIG- in front."""
    return text(nvml.nvmlDeviceGetUUID(gpu))


def pci_address(nvml: Any, gpu: Any) -> str:
    """As CUDA and lspci write it; NVML itself writes the domain in eight digits."""
    pci = nvml.nvmlDeviceGetPciInfo(gpu)
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


# ---------------------------------------------------------------- how it does


def _size(value: int | None) -> int | None:
    return None if value == _NOT_AVAILABLE else value


def _memory(nvml: Any, gpu: Any) -> dict[str, int | None]:
    # Version 1 counts what the driver keeps for itself as used, and cannot say it.
    memory = first(
        lambda: nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2),
        lambda: nvml.nvmlDeviceGetMemoryInfo(gpu),
    )
    if not _size(memory.total):  # no GPU has no memory: this one cannot tell
        return {}
    return {
        "memory_total_bytes": memory.total,
        "memory_free_bytes": _size(memory.free),
        "memory_used_bytes": _size(memory.used),
        "memory_reserved_bytes": _size(getattr(memory, "reserved", None)),
    }


def utilisation_share(nvml: Any, gpu: Any) -> float:
    """How much of the last moment something ran."""
    return float(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu) / 100


def _temperature_c(nvml: Any, gpu: Any) -> int:
    # The first call is announced to go with CUDA 14; only new drivers know the second.
    degrees = first(
        lambda: nvml.nvmlDeviceGetTemperature(gpu, _GPU_TEMPERATURE),
        lambda: nvml.nvmlDeviceGetTemperatureV(gpu, _GPU_TEMPERATURE),
    )
    return int(degrees)


# ---------------------------------------------------------------- its processes


def _processes(nvml: Any, gpu: Any) -> tuple[GpuProcess, ...]:
    """A process that computes and draws is listed once, as one that computes."""
    compute = running(nvml, gpu, "Compute")
    graphics: list[Any] = []
    with contextlib.suppress(Exception):
        graphics = running(nvml, gpu, "Graphics")
    known = {row.pid for row in compute}
    rows = [(row, "compute") for row in compute]
    rows += [(row, "graphics") for row in graphics if row.pid not in known]
    return tuple(
        GpuProcess(row.pid or None, _size(row.usedGpuMemory), kind)
        for row, kind in rows
    )


def running(nvml: Any, gpu: Any, kind: str) -> list[Any]:
    """NVML's rows. The unversioned call is not asked: pynvml refuses it at will."""
    call = f"nvmlDeviceGet{kind}RunningProcesses_"

    def older() -> list[Any]:
        return list(getattr(nvml, call + "v2")(gpu))

    rows = list(first(lambda: getattr(nvml, call + "v3")(gpu), older))
    # Drivers 535.43 to 535.86 write longer rows into version 3, which then read as
    # processes of number 0; older ones have version 2 only.
    return rows if all(row.pid for row in rows) else first(older, lambda: rows)


# ---------------------------------------------------------------- its slices


def _mig(nvml: Any, gpu: Any) -> tuple[MigSlice, ...]:
    if nvml.nvmlDeviceGetMigMode(gpu)[0] != _MIG_ENABLED:
        return ()
    slices = []
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        # Most places are empty, and the taken ones need not be the first.
        with contextlib.suppress(Exception):
            slices.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place))
    return tuple(_slice(nvml, each) for each in slices)


def _slice(nvml: Any, part: Any) -> MigSlice:
    known = answers(_SLICE, [], nvml, part)
    memory = known.pop("memory", {})
    memory.pop("memory_reserved_bytes", None)
    return MigSlice(**(memory | known))


# ---------------------------------------------------------------- the questions

_GPU = (
    ("name", lambda nvml, gpu: text(nvml.nvmlDeviceGetName(gpu))),
    ("uuid", uuid),
    ("pci_address", pci_address),
    ("memory", _memory),
    ("utilisation_share", utilisation_share),
    ("temperature_c", _temperature_c),
    ("power_w", lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000),
    (
        "compute_capability",
        lambda n, gpu: (*n.nvmlDeviceGetCudaComputeCapability(gpu),),
    ),
    ("compute_mode", lambda n, gpu: _COMPUTE_MODES[n.nvmlDeviceGetComputeMode(gpu)]),
    ("processes", _processes),
    ("mig_enabled", lambda n, gpu: n.nvmlDeviceGetMigMode(gpu)[0] == _MIG_ENABLED),
    ("mig", _mig),
)

_SLICE = (
    ("uuid", uuid),
    ("gpu_instance", lambda nvml, part: nvml.nvmlDeviceGetGpuInstanceId(part)),
    ("compute_instance", lambda nvml, part: nvml.nvmlDeviceGetComputeInstanceId(part)),
    ("memory", _memory),
    (  # if it is told, it is the one that counts
        "memory_total_bytes",
        lambda nvml, it: int(nvml.nvmlDeviceGetAttributes_v2(it).memorySizeMB * 2**20),
    ),
)


def read_inventory() -> Inventory:
    """The machine's GPUs now."""
    try:
        nvml = load_pynvml()
    except MissingPackage as missing:
        return Inventory(unasked=True, problem=missing.problem, hint=missing.hint)
    try:
        nvml.nvmlInit()
    except Exception as failure:  # noqa: BLE001 -- the contract: never raises
        return _unanswered(failure)
    try:
        return _inventory(nvml)
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()


def _inventory(nvml: Any) -> Inventory:
    versions = answers(_VERSIONS, [], nvml)
    try:
        gpus = tuple(_read_gpu(nvml, i) for i in range(nvml.nvmlDeviceGetCount()))
    except Exception as failure:  # noqa: BLE001 -- the contract: never raises
        return _unanswered(failure, **versions)
    return Inventory(**versions, gpus=gpus)


def _cuda_version(nvml: Any) -> str:
    number = first(
        nvml.nvmlSystemGetCudaDriverVersion_v2, nvml.nvmlSystemGetCudaDriverVersion
    )
    return f"{number // 1000}.{number % 1000 // 10}"


_VERSIONS = (
    ("driver_version", lambda nvml: text(nvml.nvmlSystemGetDriverVersion())),
    ("cuda_version", _cuda_version),
    ("nvml_version", lambda nvml: text(nvml.nvmlSystemGetNVMLVersion())),
)


# ---------------------------------------------------------------- the module


def load_pynvml() -> Any:
    """The module pynvml, if it is the one that nvidia-ml-py installs."""
    nvml: Any = sys.modules.get("pynvml")
    try:
        # Only for the first import: entering catch_warnings makes Python forget which
        # warnings it has shown, and the user would see them again.
        if nvml is None:
            with warnings.catch_warnings():
                # The deprecated distribution named pynvml works all the same.
                deprecated = "The pynvml package is deprecated"
                warnings.filterwarnings("ignore", deprecated, FutureWarning)
                nvml = importlib.import_module("pynvml")
    except Exception as failure:
        raise MissingPackage(
            f"the Python module pynvml cannot be imported: {failure}",
            "pip install nvidia-ml-py, then restart the kernel",
        ) from failure
    missing = [name for name in _NEEDED if not hasattr(nvml, name)]
    if missing:
        origin = getattr(nvml, "__file__", None) or "an unknown place"
        raise MissingPackage(
            f"the Python module pynvml from {origin} is not that of nvidia-ml-py 12 "
            f"or newer: it lacks {missing[0]}",
            "rename that file if it is yours; else pip uninstall pynvml nvidia-ml-py3, "
            "pip install --force-reinstall nvidia-ml-py, and restart the kernel",
        )
    return nvml


def _unanswered(failure: Exception, **versions: Any) -> Inventory:
    why = explain(failure, _DRIVER_FAILURES, "the NVIDIA driver cannot be asked")
    absent = _error_code(failure) == _LIBRARY_NOT_FOUND
    return Inventory(**versions, absent=absent, **why)


# ---------------------------------------------------------------- how busy it is

_OWN_NAMESPACE = Path("/proc/self/ns/pid")
_FIRST_NAMESPACE = "pid:[4026531836]"  # the machine's own; the number never changes

# Bits that are not here are no limits: an idle GPU, clocks that somebody has set.
_LIMITERS = (
    (0x4, "power limit"),
    (0x20 | 0x40, "heat"),
    (0x80, "power brake of the machine"),
    (0x8, "hardware slowdown"),
    (0x10, "a slower GPU that it is tied to (sync boost)"),
    (0x200, "board limit"),
    (0x400, "voltage kept reliable"),
)


class LoadReader:
    """Asks NVML again and again, and keeps it open meanwhile.

    It is asked before and after a cell, so it has to be quick. Only GPUs that this
    process uses are touched: another one may be asleep, and the driver would wake it,
    which takes a second.
    """

    def __init__(self) -> None:
        self._kept_open_in_pid: int | None = None

    def read(self, shown: Iterable[VisibleDevice]) -> tuple[GpuLoad, ...]:
        """The loads of these GPUs now; one that cannot be asked is left out."""
        with self._opened() as nvml:
            asked = [_asked(nvml, each, _LOAD) for each in shown]
            return tuple(GpuLoad(**known) for known in asked if "index" in known)

    def uses(self, shown: Sequence[VisibleDevice]) -> dict[int, dict[str, Any]]:
        """What `_USE` asks of these GPUs, by their place; cheap, and never raises."""
        with self._opened() as nvml:
            asked = [_asked(nvml, each, _USE) for each in shown]
        uuids = [known.pop("uuid", None) for known in asked]
        return {
            number: asked[number]
            for number, device in enumerate(shown)
            if same_uuid(uuids[number], device.uuid)
        }

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any | None]:
        """NVML, open for the length of a block; None where it cannot be opened."""
        try:
            nvml = load_pynvml()
            nvml.nvmlInit()
        except Exception:  # noqa: BLE001 -- the contract of those who ask: never raise
            yield None
            return
        try:
            # NVML counts who has opened it; so one more keeps it open.
            if self._kept_open_in_pid != os.getpid():
                with contextlib.suppress(Exception):
                    nvml.nvmlInit()
                    self._kept_open_in_pid = os.getpid()
                    weakref.finalize(self, _close, nvml, os.getpid())
            yield nvml
        finally:
            _close(nvml, os.getpid())


def same_uuid(nvml_uuid: str | None, bare: str | None) -> bool:
    """Whether NVML's UUID of a GPU or slice is that of a `VisibleDevice`.

    An unknown UUID is the same as none. So is the name of a slice of before driver
    470, which is made of its GPU's UUID and has none of its own.

    >>> same_uuid("MIG-aaaa1111-2222-4333-8444-555566667777",
    ...           "AAAA1111-2222-4333-8444-555566667777")
    True
    """
    if not nvml_uuid or not bare:
        return False
    return nvml_uuid.partition("-")[2].lower() == bare.lower()


def limiters(reasons: int) -> tuple[str, ...]:
    """What holds a clock down, in words, from the bits of NVML.

    >>> limiters(0x4 | 0x1)
    ('power limit',)
    """
    return tuple(word for bits, word in _LIMITERS if reasons & bits)


def count_others(pids: list[int], *, own_pid: int, in_container: bool) -> int | None:
    """How many of the processes on a GPU are not this one, which is on it as well."""
    if not pids:
        return None
    known = own_pid in pids or in_container
    return len(pids) - 1 if known else len(pids)


def in_container() -> bool:
    """Whether processes have other numbers here than the driver gives them."""
    try:
        return str(_OWN_NAMESPACE.readlink()) != _FIRST_NAMESPACE
    except OSError:  # this system has no such numbers
        return False


def _close(nvml: Any, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has not opened it
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()


def _asked(
    nvml: Any,
    device: VisibleDevice,
    questions: tuple[tuple[str, Callable[..., Any]], ...],
) -> dict[str, Any]:
    """What NVML tells of a GPU; nothing where it cannot be asked."""
    with contextlib.suppress(Exception):
        gpu = first(
            lambda: nvml.nvmlDeviceGetHandleByPciBusId(device.pci_address),
            lambda: nvml.nvmlDeviceGetHandleByUUID(f"GPU-{device.uuid}"),
        )
        return answers(questions, [], nvml, gpu)
    return {}


def _limiters(nvml: Any, gpu: Any) -> tuple[str, ...]:
    # Drivers before 535 know the question by its former name only.
    reasons = first(
        lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu),
        lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu),
    )
    return limiters(int(reasons))


def _other_processes(nvml: Any, gpu: Any) -> int | None:
    pids = [int(row.pid) for row in running(nvml, gpu, "Compute")]
    return count_others(pids, own_pid=os.getpid(), in_container=in_container())


_USE = (
    ("uuid", uuid),
    ("busy_share", utilisation_share),
    ("used_bytes", lambda nvml, gpu: int(nvml.nvmlDeviceGetMemoryInfo(gpu).used)),
    ("total_bytes", lambda nvml, gpu: int(nvml.nvmlDeviceGetMemoryInfo(gpu).total)),
)
_LOAD = (
    ("index", lambda nvml, gpu: int(nvml.nvmlDeviceGetIndex(gpu))),
    ("uuid", uuid),
    ("limiters", _limiters),
    ("other_processes", _other_processes),
    ("pci_address", pci_address),
)
