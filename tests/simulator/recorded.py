"""Kernels that others recorded in two training jobs on A100, as timings.

`recorded.json` has the operations with their sizes; the median of each is in whole
microseconds. Half of them, drawn by lot before the model was looked at, served to find
its constants; the other half is `HELD_OUT`.

What is left out, as it says nothing of a kernel's time:

- operations whose sizes are not in the recording (cat, zeros, full);
- copies over the link of more than 64 KiB: these go at the pace of that machine, 8 GB/s
  in one of the jobs and 20 in the other, where its model has 25.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random

from gpumagic.simulator.costs import Blocks
from gpumagic.simulator.operators import CAST, rule_for, strided_rule
from gpumagic.simulator.scheduler import Engine
from tests.simulator.timings import Copy, Kernel, Timing

SEED = 20
_FILE = Path(__file__).with_name("recorded.json")
_DEVICES = {"a100_40gb_job": "a100-40gb", "a100_80gb_job": "a100"}
_BYTES = {"float": 4, "int": 4, "long": 8, "double": 8, "bool": 1}
_WORDS = {"float": "tf32", "double": "fp64"}  # both jobs let products round
_LINK_BYTES = 64 << 10
_WITHOUT_SIZES = ("cat", "zeros", "full")
_BINARY = ("add", "sub", "mul", "div", "gt", "where", "add_")
_TOUCHED_ONCE = ("zero_", "fill_", "zeros_like", "ones_like", "sum", "mean")
_PRODUCTS = ("mm", "bmm", "linear")


def timings(device, rows):
    """A timing for each row that tells of a kernel."""
    for operation, sizes, types, measured_us, _, _, family in rows:
        name = operation.removeprefix("aten::")
        if name in _WITHOUT_SIZES:
            continue
        text = f"{name} {' '.join('x'.join(map(str, each)) for each in sizes if each)}"
        kernels, copies = (), ()
        if family in {"Memcpy HtoD", "Memcpy DtoH"}:
            nbytes = math.prod(sizes[0]) * _BYTES[types[0]]
            if nbytes > _LINK_BYTES:
                continue
            direction = Engine.H2D if "Hto" in family else Engine.D2H
            copies = (Copy(direction, nbytes, pinned=True),)
        else:
            kernels = (_kernel(name, sizes, types, family),)
        yield Timing(text, device, measured_us, "recorded", kernels, copies)


def _kernel(name, sizes, types, family):
    rule, word = rule_for(f"aten::{name}"), _WORDS.get(types[0], "fp32")
    item, first = _BYTES[types[0]], math.prod(sizes[0])
    if name in _PRODUCTS:
        *batch, rows, depth = sizes[0]
        columns = sizes[1][-2 if name == "linear" else -1]
        moved = first + math.prod(sizes[1]) + math.prod(batch) * rows * columns
        work = (*batch, rows, columns, depth)
        return Kernel(rule_for("aten::mm"), word, work, item * moved)
    if name == "to":  # of another type; all were made from or to 8 bytes
        return Kernel(CAST, word, 0, first * (item + 8))
    if name == "layer_norm":
        rows = first // math.prod(sizes[2])
        rule = rule_for("aten::native_layer_norm")
        return Kernel(rule, word, Blocks(0, rows), 2 * first * item)
    if family == "elementwise_kernel":
        rule = strided_rule(rule)
    return Kernel(rule, word, 0, _moved(name, rule, sizes, types))


def _moved(name, rule, sizes, types):
    """The bytes that an operation's own kernel would be costed by."""
    tensors = [
        math.prod(size) * _BYTES[kind]
        for size, kind in zip(sizes, types, strict=True)
        if kind in _BYTES
    ]
    first = tensors[0]
    if name in _TOUCHED_ONCE:
        return first
    if name == "gather":
        return 2 * math.prod(sizes[2]) * _BYTES[types[0]]
    if name == "index_copy_":
        return rule.moved_bytes(sum(tensors), first)
    if name == "bucketize":
        return sum(tensors) + 2 * first
    same = name in _BINARY and sizes[1] == sizes[0]
    return (3 if same or name.endswith("_backward") else 2) * first


def _halves():
    recorded = json.loads(_FILE.read_text(encoding="utf-8"))
    used, held_out = [], []
    for job, device in _DEVICES.items():
        rows = recorded[job]
        drawn = Random(SEED).sample(range(len(rows)), len(rows) // 2)  # noqa: S311
        held_out += timings(device, [rows[i] for i in sorted(drawn)])
        kept = sorted({*range(len(rows))} - {*drawn})
        used += timings(device, [rows[i] for i in kept])
    return tuple(used), tuple(held_out)


USED, HELD_OUT = _halves()
