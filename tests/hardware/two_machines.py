"""Runs programs on one of two machines, and writes down what could be seen there.

`python -m tests.hardware.two_machines MACHINE FILE` takes programs as JSON as input.
MACHINE is "simulated", or "cuda" for torch's own CUDA over the runtime without a GPU,
whose clock is as virtual as the simulated one: a hundred seconds of work on a stream
take no time, and whoever waits for it is known by them.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import re
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.fakes.cuda import is_on
from tests.hardware.programs import STREAMS, names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MEMORY_MIB, CONTEXT_MIB = 1024, 396
# Work of one kernel, and what is told apart: who asks for it spends a 64th of the rest.
_BUSY_S, _TICK_S = 100.0, 50.0
_CLOCK_HZ = 1.98e9
_MANY = 100_000
_BY_POOL = "reserved_bytes_by_private_pools"  # told by torch 2.14 and later


class Machine:
    """One of both, on which programs run one after the other."""

    def __init__(
        self, now_s: Callable[[], float], go_on: Callable[[], None] = lambda: None
    ) -> None:
        import torch

        self._go_on = go_on

        torch.cuda.init()
        self._torch, self._now_s = torch, now_s
        self._streams = [
            torch.cuda.default_stream(),
            *(torch.cuda.Stream() for _ in range(STREAMS - 1)),
        ]
        self._handles = {each.cuda_stream: at for at, each in enumerate(self._streams)}
        self._names = names_of("cuda") | {
            "S": self._streams,
            "busy": self._busy,
            "apart": lambda one, other: round(one.elapsed_time(other) / 1000 / _TICK_S),
            "limit": self._limit,
        }
        # Its seed and offset are those of all later ones; none are simulated.
        if hasattr(torch, "sim"):
            kind = torch.int64
            self._state = [torch.empty(1, dtype=kind, device="cuda") for _ in range(2)]
        self._graph = torch.cuda.CUDAGraph()
        self._graph.register_generator_state(torch.cuda.default_generators[0])
        with torch.cuda.graph(self._graph):
            torch.rand(1, device="cuda")
        self._total_bytes = torch.cuda.mem_get_info()[1]
        self._clean()

    def run(self, steps: Sequence[Sequence[Any]], *, reads: bool) -> list[Any]:
        """What was seen at the beginning, after each step, and at the end."""
        torch = self._torch
        names = dict(self._names)
        event = torch.cuda.Event
        names["E"] = [event(enable_timing=True) for _ in range(3)] + [event()]
        torch.cuda.memory._record_memory_history(None)
        torch.cuda.memory._record_memory_history(context=None, max_entries=_MANY)
        self._births: dict[int, tuple[int, int]] = {}
        self._pools: dict[Any, int] = {}
        self._born = self._told = 0
        for segment in sorted(torch.cuda.memory_snapshot(), key=_whose):
            self._bear(segment["address"], segment["total_size"])
        seen = [self._look({})]
        for _, stream, line in steps:
            began_s = self._now_s()
            said = self._do(line, self._streams[stream], names)
            said["waited"] = round((self._now_s() - began_s) / _TICK_S)
            self._go_on()
            seen.append(self._look(said))
        torch.cuda.synchronize()
        seen.append({"names": self._read(names, reads=reads)})
        names.clear()
        self._clean()
        return seen

    def _do(self, line: str, stream: Any, names: dict[str, Any]) -> dict[str, Any]:
        """Run a line; what it said, or the type of its error."""
        try:
            code = compile(line, "<line>", "eval")
        except SyntaxError:
            code = compile(line, "<line>", "exec")
        try:
            with self._torch.cuda.stream(stream):
                value = eval(code, names)  # noqa: S307 -- the lines of our programs
        except Exception as error:  # noqa: BLE001 -- which it is is what is asked
            return {"error": type(error).__name__, "text": str(error)[:300]}
        made = re.match(r"(t\d+) = ", line)
        return {"value": self._tell(names[made[1]] if made else value)}

    def _tell(self, value: Any) -> Any:
        if isinstance(value, self._torch.Tensor):
            return self._shape(value)
        if isinstance(value, (list, tuple)):
            return [self._tell(each) for each in value]
        if isinstance(value, (int, float, bool, str)):
            return value
        return type(value).__name__

    def _look(self, said: dict[str, Any]) -> dict[str, Any]:
        """What the books of the allocator say now, and what has come to them."""
        snapshot = self._torch.cuda.memory._snapshot()
        trace = snapshot["device_traces"][0][self._told :]
        self._told += len(trace)
        said["trace"] = _in_order([self._event(each) for each in trace])
        said["segments"] = sorted(self._segment(each) for each in snapshot["segments"])
        stats = self._torch.cuda.memory_stats()
        said["stats"] = {
            name: each
            for name, each in stats.items()
            if each and not name.startswith(_BY_POOL)
        }
        said["free"] = self._torch.cuda.mem_get_info()[0]
        return said

    def _event(self, entry: Mapping[str, Any]) -> list[Any]:
        """An entry of the history, without what differs from run to run."""
        action, size = entry["action"], entry["size"]
        address = entry.get("addr", entry.get("device_free"))
        if action == "segment_alloc":
            self._bear(address, size)
        place: Any = address
        if action not in {"oom", "snapshot"}:
            place = self._place(address)
        if action == "segment_free":
            del self._births[address]
        stream = self._handles.get(entry["stream"], -1)
        return [action, place, size, stream, self._pool(entry["pool_id"])]

    def _segment(self, segment: Mapping[str, Any]) -> list[Any]:
        blocks = [
            [each["size"], each["state"], each["requested_size"] * _owned(each)]
            for each in segment["blocks"]
        ]
        told = ("total_size", "allocated_size", "active_size", "requested_size")
        return [
            self._place(segment["address"]),
            *(segment[each] for each in told),
            segment["segment_type"],
            self._handles.get(segment["stream"], -1),
            self._pool(segment["segment_pool_id"]),
            blocks,
        ]

    def _bear(self, address: int, size: int) -> None:
        self._births[address] = self._born, size
        self._born += 1

    def _place(self, address: int) -> list[int] | None:
        """The number of the segment, by the order of birth, and the bytes before it."""
        for start, (number, size) in self._births.items():
            if start <= address < start + size:
                return [number, address - start]
        return None

    def _pool(self, identity: Any) -> int:
        return self._pools.setdefault(tuple(identity), len(self._pools))

    def _read(self, names: Mapping[str, Any], *, reads: bool) -> dict[str, Any]:
        """Where each tensor lies, and what is in it."""
        tensors = {
            name: each
            for name, each in names.items()
            if isinstance(each, self._torch.Tensor)
        }
        told = {}
        for name, each in tensors.items():
            place = None
            if each.is_cuda and each.untyped_storage().nbytes():
                place = self._place(each.untyped_storage().data_ptr())
            numbers = each.cpu().tolist() if reads else None
            shape = self._shape(each) if reads else None
            told[name] = [shape, place, repr(numbers)]
        return told

    @staticmethod
    def _shape(tensor: Any) -> list[Any]:
        return [
            str(tensor.dtype),
            list(tensor.shape),
            list(tensor.stride()),
            tensor.storage_offset(),
            tensor.untyped_storage().nbytes(),
            tensor.device.type,
        ]

    def _clean(self) -> None:
        torch = self._torch
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()

    def _busy(self, stream: Any) -> None:
        with self._torch.cuda.stream(stream):
            self._torch.cuda._sleep(int(_BUSY_S * _CLOCK_HZ))

    def _limit(self, nbytes: int) -> None:
        share = nbytes / self._total_bytes
        self._torch.cuda.set_per_process_memory_fraction(share)


def _whose(segment: Mapping[str, Any]) -> tuple[bool, bool, int]:
    """An order of those that were there before, whatever their addresses."""
    private = tuple(segment["segment_pool_id"]) != (0, 0)
    return private, segment["stream"] != 0, segment["total_size"]


def _in_order(entries: list[list[Any]]) -> list[list[Any]]:
    """What goes at a time is in the order of handles and hashes, that of no rule."""
    loose = ("free_completed", "segment_free")
    runs = itertools.groupby(entries, lambda each: each[0] in loose and each[0])
    ordered = [
        sorted(run, key=str) if completed else list(run) for completed, run in runs
    ]
    return [entry for run in ordered for entry in run]


def _owned(block: Mapping[str, Any]) -> bool:
    """What was asked for where nothing is now is of an earlier program."""
    return bool(block["state"] != "inactive")


def clock_without_a_gpu() -> Callable[[], float] | None:
    """The host's clock of the runtime in this process; None if it is another."""
    if not is_on():
        return None
    now_ns = ctypes.PyDLL("libcuda.so.1").machine_now_ns
    now_ns.restype = ctypes.c_int64
    return lambda: float(now_ns()) / 1e9


def pass_us(microseconds: int) -> None:
    """Let time go by on the host's clock, by its model."""
    let_pass = ctypes.PyDLL("libcuda.so.1").machine_pass
    let_pass(ctypes.c_int64(microseconds * 1000))


def _simulated() -> tuple[Any, Callable[[], float]]:
    import gpumagic

    box = gpumagic.simulate("h100", as_cuda=True, memory=f"{MEMORY_MIB}MiB")
    return box, lambda: box.time_s


def main(which: str, file: str) -> None:
    """Run what comes in, and write what was seen."""
    warnings.simplefilter("ignore")
    box = None
    if which == "simulated":
        box, now_s = _simulated()
    else:
        import torch  # noqa: F401 -- brings the library in

        found = clock_without_a_gpu()
        assert found is not None, "no runtime of ours is in this process"
        now_s = found
    # Longer than an event takes on a stream that has nothing to do.
    machine = Machine(now_s) if box else Machine(now_s, lambda: pass_us(20))
    gc.freeze()  # each program ends with a collection
    seen = []
    for each in json.load(sys.stdin):
        races = len(box.races) if box is not None else 0
        found_here = machine.run(each["steps"], reads=each["reads"])
        found_here[-1]["races"] = len(box.races) - races if box is not None else 0
        seen.append(found_here)
    Path(file).write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
