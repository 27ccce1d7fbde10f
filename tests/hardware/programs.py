"""Random programs for two machines, as plain lines of Python that can be printed.

A line is run as it stands, on a stream: `torch`, the streams `S`, `GPU` and a few words
of `machines.py` are its names. Every program is free of races, so that all machines
owe it the same: where a stream uses what another one has used, it waits for it.
"""

from __future__ import annotations

import contextlib
import math
import random
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STREAMS = 4  # the default one, and three beside it
KIB, MIB = 1 << 10, 1 << 20
_LEFT_OUT = 0.85  # of what fails on the CPU
_SHAPES = ("6", "2, 3", "3, 2", "4, 6", "1, 3", "2, 1", "24", "0", "3, 3", "2, 2, 6")
_DTYPES = ("float32", "float32", "float64", "int64", "int32", "uint8", "bool")


def names_of(device: str) -> dict[str, Any]:
    """The names that lines use whatever the machine is."""
    import torch

    def index(*places: int) -> Any:
        return kept.setdefault(places, torch.tensor(places, device=device))

    kept: dict[tuple[int, ...], Any] = {}
    for places in ((0,), (1, 0), (1, 2, 0), (0, 0)):  # before any program begins
        index(*places)
    return {
        "torch": torch,
        "GPU": device,
        "index": index,
        "count": lambda *shape: math.prod(shape),
    }


_BESIDES = (
    r"\.sum\(|torch\.sum|\.mean|\.std|cumsum|sort|unique|nonzero|masked_select|softmax|"
    r"\[\w+ > \d\]|bincount|repeat_interleave|square|pow\(|2 \*\* |argmax|max\(|any\(|"
    r"einsum|equal|prod|index_add|repr|take\(|linalg"
)


@dataclass(frozen=True)
class Step:
    """One line of a program.

    Attributes:
        kind: What it is counted as.

        stream: The number of the stream that is the current one.

        line: Python.
    """

    kind: str
    stream: int
    line: str

    def __str__(self) -> str:
        return f"S[{self.stream}]  {self.line}"

    @property
    def takes_memory_besides(self) -> bool:
        """Whether torch's kernel for CUDA takes memory besides that of its results.

        The simulated one does not, so the books of a program are compared up to here.
        """
        return re.search(_BESIDES, self.line) is not None


@dataclass
class Program:
    """Some steps, and what they are about."""

    name: str
    steps: list[Step] = field(default_factory=list)
    reads: bool = True  # whether its tensors are looked at when it has ended

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))


@dataclass
class _Tensor:
    """What the writer of a program knows of a name."""

    root: str  # whose memory it is
    on_gpu: bool = True


class _Writer:
    """Writes one program, step by step, and keeps it free of races.

    Each step is tried on the CPU, and most of those that fail there are left out.
    """

    def __init__(self, name: str, seed: int) -> None:
        self.chance = random.Random(f"{name} {seed}")
        self.program = Program(f"{name} {seed}")
        self.tensors: dict[str, _Tensor] = {}
        self._tried = names_of("cpu")
        self._stream_of: dict[str, int] = {}  # who used this memory last
        self._recorded: set[tuple[str, int]] = set()
        self._home: dict[str, int | None] = {}
        self._names = 0

    def any_stream(self) -> int:
        """Mostly the default one."""
        return self.chance.choice((0, 0, 0, 1, 2, 3))

    def new(self) -> str:
        """A name that nothing has."""
        self._names += 1
        return f"t{self._names}"

    def one(self, *, on_gpu: bool = True) -> str | None:
        """Some tensor that there is."""
        there = [each for each, of in self.tensors.items() if of.on_gpu is on_gpu]
        return self.chance.choice(there) if there else None

    def make(self, kind: str, stream: int, code: str, *, on_gpu: bool = True) -> str:
        """A tensor with memory of its own."""
        name = self.new()
        self._works(f"{name} = {code}")
        self.add(kind, stream, f"{name} = {code}")
        self.tensors[name] = _Tensor(name, on_gpu)
        self._stream_of[name], self._home[name] = stream, stream
        return name

    def derive(self, kind: str, stream: int, code: str, *names: str) -> None:
        """A tensor that may have memory of its own, or that of the first of others."""
        name = self.new()
        if self.use(kind, stream, f"{name} = {code}", *names):
            self.tensors[name] = self.tensors[names[0]]
            self._home[self.tensors[name].root] = None

    def use(self, kind: str, stream: int, line: str, *names: str, into: str = "") -> bool:
        """Work with tensors, after those who have used them; whether it can work.

        Args:
            kind: What the step is counted as.

            stream: Where it runs.

            line: What it is.

            names: What it needs, read or written.

            into: What may get other memory by it.
        """
        if into and self.shares_with_any(into) and self._grows(line, into):
            return False  # a storage that grows under its views is another matter
        works = self._works(line)
        if not works and self.chance.random() < _LEFT_OUT:
            return False
        used = [*names, into] if into else [*names]
        roots = [self.tensors[each].root for each in used if self.tensors[each].on_gpu]
        for other in {self._stream_of[each] for each in roots} - {stream}:
            self.add("wait_stream", stream, f"S[{stream}].wait_stream(S[{other}])")
        self.add(kind, stream, line)
        if into:
            changed = self.tensors[into].root
            self._home[changed] = None
            self._recorded -= {
                each for each in self._recorded if self._root(each[0]) == changed
            }
        for name in used:
            root = self._root(name)
            if root is None:
                continue
            self._stream_of[root] = stream
            if self._home[root] != stream and (name, stream) not in self._recorded:
                self._recorded.add((name, stream))
                self.add("record_stream", stream, f"{name}.record_stream(S[{stream}])")
        return works

    def join(self, name: str, other: str) -> None:
        """From now on a name may be another one for the memory of the other."""
        root, gone = self.tensors[other].root, self.tensors[name].root
        for each in self.tensors.values():
            if each.root == gone:
                each.root = root
        self._home[root] = None

    def _root(self, name: str) -> str | None:
        """Whose memory on the GPU it is."""
        tensor = self.tensors.get(name)
        return tensor.root if tensor is not None and tensor.on_gpu else None

    def shares_with_any(self, name: str) -> bool:
        """Whether other tensors lie in its memory."""
        others = [each for each in self.tensors if each != name]
        return self._tried[name]._base is not None or self.shares(name, *others)

    def _grows(self, line: str, name: str) -> bool:
        """Whether a tensor gets a larger storage by this."""
        names = dict(self._tried)
        names[name] = tensor = names[name].detach().clone()
        before = tensor.untyped_storage().nbytes()
        with contextlib.suppress(Exception):
            exec(line, names)  # noqa: S102 -- lines of this file
        return bool(tensor.untyped_storage().nbytes() > before)

    def _works(self, line: str) -> bool:
        try:
            exec(line, self._tried)  # noqa: S102 -- lines of this file
        except Exception:  # noqa: BLE001 -- whatever it is, both machines shall raise it
            return False
        return True

    def shares(self, name: str, *others: str) -> bool:
        """Whether a tensor lies in the memory of others."""
        root = self.tensors[name].root
        return any(self.tensors[each].root == root for each in others)

    def forget(self, name: str) -> None:
        """Delete a name."""
        del self.tensors[name]
        self._tried.pop(name, None)
        self.add("del", 0, f"del {name}")

    def add(self, kind: str, stream: int, line: str) -> None:
        """A step as it is."""
        self.program.steps.append(Step(kind, stream, line))


def programs(each: int) -> list[Program]:
    """So many programs of each family; always the same ones."""
    return [
        write(seed) for write in (memory, copies, values, graphs) for seed in range(each)
    ] + [Program(f"error: {line}", [Step("error", 0, line)]) for line in ERRORS]


# ----------------------------------------------------------------------- memory

_SIZES: tuple[Callable[[random.Random], int], ...] = (
    lambda chance: chance.randint(1, 4 * KIB),
    lambda chance: chance.randint(1, 64) * 512,
    lambda chance: chance.randint(1, MIB),
    lambda chance: chance.randint(MIB - KIB, MIB + KIB),
    lambda chance: chance.randint(1, 10) * MIB,
    lambda chance: chance.randint(9 * MIB, 11 * MIB),
    lambda chance: chance.randint(10 * MIB, 60 * MIB),
    lambda chance: chance.randint(60 * MIB, 300 * MIB),
)


def memory(seed: int) -> Program:
    """Memory that comes and goes on several streams, until there is none left."""
    writer = _Writer("memory", seed)
    writer.program.reads = False
    chance = writer.chance
    large = chance.random() < 0.4  # a program that is sure to run out
    sizes = _SIZES[3:] if large else _SIZES[:7]
    # Some come again, so that free blocks are equal.
    again = [chance.choice(sizes)(chance) for _ in range(3)]
    for _ in range(chance.randint(15, 60)):
        name = writer.one()
        stream = writer.any_stream()
        draw = chance.random()
        if draw < 0.45 or name is None:
            nbytes = chance.choice((chance.choice(again), chance.choice(sizes)(chance)))
            code = f"torch.empty({nbytes}, dtype=torch.uint8, device=GPU)"
            writer.make("empty", stream, code)
        elif draw < 0.65:
            writer.forget(name)
        elif draw < 0.73:
            writer.add("record_stream", stream, f"{name}.record_stream(S[{stream}])")
        elif draw < 0.8:
            writer.add("busy", stream, f"busy(S[{stream}])")
        elif draw < 0.84:
            writer.derive("view", stream, f"{name}[{chance.randint(0, 9)}:]", name)
        elif draw < 0.88:
            nbytes = chance.choice(sizes)(chance)
            if not writer.shares_with_any(name):
                writer.add("resize", stream, f"{name}.resize_({nbytes})")
        else:
            writer.add(*chance.choice(_MANAGING(chance, stream)))
    return writer.program


def _MANAGING(chance: random.Random, stream: int) -> Sequence[tuple[str, int, str]]:
    event = f"E[{chance.randint(0, 3)}]"
    return (
        ("empty_cache", stream, "torch.cuda.empty_cache()"),
        ("empty_cache", stream, "torch.cuda.empty_cache()"),
        ("synchronize", stream, "torch.cuda.synchronize()"),
        ("synchronize", stream, f"S[{stream}].synchronize()"),
        ("peak", stream, "torch.cuda.reset_peak_memory_stats()"),
        ("peak", stream, "torch.cuda.reset_accumulated_memory_stats()"),
        ("limit", stream, f"limit({chance.randint(50, 700)} << 20)"),
        ("event", stream, f"{event}.record(S[{stream}])"),
        ("event", stream, f"S[{stream}].wait_event({event})"),
        ("event", stream, f"{event}.synchronize()"),
        ("event", stream, f"{event}.query()"),
        ("event", stream, f"apart(E[0], {event})"),
        ("wait_stream", stream, f"S[{stream}].wait_stream(S[{chance.randint(0, 3)}])"),
        ("query", stream, f"S[{stream}].query()"),
    )


# ----------------------------------------------------------------------- copies


def copies(seed: int) -> Program:
    """Numbers between host and device, with and without pinning, and who waits."""
    writer = _Writer("copies", seed)
    chance = writer.chance
    _fill(writer, 2)
    for _ in range(2):
        _host(writer)
    for _ in range(chance.randint(12, 30)):
        stream = writer.any_stream()
        if chance.random() < 0.35:
            writer.add("busy", stream, f"busy(S[{stream}])")
        draw = chance.random()
        device, host = writer.one(), writer.one(on_gpu=False)
        if draw < 0.1 or device is None or host is None:
            _fill(writer, 1)
            _host(writer)
        elif draw < 0.6:
            _copy(writer, stream, device, host)
        elif draw < 0.72:
            asked = chance.choice(_ASKING).format(device)
            writer.use("ask", stream, asked, device)
        elif draw < 0.8:
            writer.forget(chance.choice((device, host)))
        else:
            writer.add(*chance.choice(_MANAGING(chance, stream)))
    return writer.program


_ASKING = (
    "{}.item()",
    "{}.tolist()",
    "bool({}.sum() > 3)",
    "{}.sum().item()",
    "{}.nonzero().shape",
    "{0}[{0} > 2].shape",
    "torch.equal({0}, {0})",
    "repr({})[:6]",
    "{}.cpu().tolist()",
    "{}.to('cpu', non_blocking=True).shape",
    "float({}.max())",
    "torch.unique({}).shape",
    "torch.masked_select({0}, {0} > 1).shape",
    "{0}.repeat_interleave(2).shape",
    "torch.is_nonzero({}[:1].sum())",
)


def _host(writer: _Writer) -> None:
    pinned = writer.chance.choice(("", "", ".pin_memory()"))
    dtype = writer.chance.choice(_DTYPES)
    shape = writer.chance.choice(_SHAPES[:4])
    code = f"torch.arange(count({shape})).view({shape}).to(torch.{dtype}){pinned}"
    writer.make("host", 0, code, on_gpu=False)


def _copy(writer: _Writer, stream: int, device: str, host: str) -> None:
    """A copy; one that goes on while the host does is waited for before it is read."""
    chance = writer.chance
    later = chance.random() < 0.5
    how = f"non_blocking={later}"
    draw = chance.random()
    if draw < 0.3:
        code = f"{host}.to(GPU, {how})"
        writer.make("to_device", stream, code)
        writer.add("synchronize", stream, f"S[{stream}].synchronize()")
    elif draw < 0.55:
        writer.use("to_device", stream, f"{device}.copy_({host}, {how})", device)
        writer.add("synchronize", stream, f"S[{stream}].synchronize()")
    elif draw < 0.8:
        writer.use("to_host", stream, f"{host}.copy_({device}, {how})", device)
        writer.add("synchronize", stream, f"S[{stream}].synchronize()")
    else:
        other = writer.one() or device
        line = f"{device}.copy_({other}, {how})"
        writer.use("on_device", stream, line, device, other)


# ----------------------------------------------------------------------- values


def _fill(writer: _Writer, count: int) -> None:
    """Tensors of small whole numbers, of which every sum is exact."""
    chance = writer.chance
    for _ in range(count):
        shape, dtype = chance.choice(_SHAPES), chance.choice(_DTYPES)
        code = f"torch.arange(count({shape}), device=GPU).view({shape}).to(torch.{dtype})"
        writer.make("make", writer.any_stream(), code)


def values(seed: int) -> Program:
    """Operators on tensors and views of them, into new memory, in place and `out=`."""
    writer = _Writer("values", seed)
    chance = writer.chance
    _fill(writer, 3)
    for _ in range(chance.randint(10, 25)):
        stream = writer.any_stream()
        x, y, z = (writer.one() or "" for _ in range(3))
        if chance.random() < 0.3:  # noqa: PLR2004
            writer.add("busy", stream, f"busy(S[{stream}])")
        draw = chance.random()
        if draw < 0.1:
            _fill(writer, 1)
        elif draw < 0.25:
            writer.derive("view", stream, chance.choice(_VIEWS).format(x), x)
        elif draw < 0.6:
            apart = [each for each in writer.tensors if not writer.shares(each, x, y)]
            if not apart:
                continue
            z = chance.choice(apart)  # torch refuses what the CPU cannot see here
            line = chance.choice(_OUT).format(x=x, y=y, z=z)
            names = [each for each in (x, y) if f"{each}" in line]
            writer.use("out", stream, line, *names, into=z)
        elif draw < 0.75:
            line = chance.choice(_IN_PLACE).format(x=x, y=y)
            writer.use("in_place", stream, line, x, y, into=x)
            if ".set_(" in line or ".data =" in line:
                writer.join(x, y)
        else:
            code = chance.choice(_NEW).format(x=x, y=y)
            writer.derive("new", stream, code, x, y)
    return writer.program


_VIEWS = (
    "{}.view(-1)", "{}[0]", "{}[:1]", "{}[..., 1:]", "{}.t()", "{}.unsqueeze(0)",
    "{}[..., ::2]", "{0}.expand(2, *{0}.shape)", "{}.flatten()", "{}.diagonal()",
    "{}.detach()", "{}.squeeze()", "{}.transpose(0, -1)", "{}.as_strided((2,), (1,), 1)",
)  # fmt: skip
_OUT = (
    "torch.add({x}, {y}, out={z})", "torch.mul({x}, 2, out={z})", "torch.neg({x}, out={z})",
    "torch.arange(6, out={z})", "torch.arange(24, out={z})", "torch.cat([{x}, {y}], out={z})",
    "torch.stack([{x}, {x}], out={z})", "torch.sum({x}, 0, out={z})", "torch.abs({x}, out={z})",
    "torch.zeros(3, out={z})", "torch.ones(2, 3, out={z})", "torch.full((6,), 2, out={z})",
    "torch.zeros(3, device=GPU, out={z})", "torch.eye(3, out={z})", "torch.empty(4, out={z}).fill_(2)",
    "torch.linspace(0, 4, 5, out={z})", "torch.where({x} > 1, {x}, {x}, out={z})",
    "torch.index_select({x}, 0, index(1, 0), out={z})",
    "torch.mm({x}, {y}, out={z})", "torch.cumsum({x}, 0, out={z})", "torch.eq({x}, {y}, out={z})",
    "torch.sort({x}, 0, out=({z}, torch.empty(0, dtype=torch.int64, device=GPU)))", "torch.max({x}, 0, out=({z}, torch.empty(0, dtype=torch.int64, device=GPU)))",
    "torch.masked_select({x}, {x} > 1, out={z})", "torch.clamp({x}, 1, 3, out={z})",
    "torch.gather({x}, 0, index(0), out={z})", "torch.take({x}, index(1, 2, 0), out={z})",
    "torch.sub({x}, {y}, alpha=2, out={z})", "torch.maximum({x}, {y}, out={z})",
    "torch.tril({x}, out={z})", "torch.any({x}, 0, out={z})",
    "torch.full((2, 3), 4., out={z})", "torch.logical_not({x}, out={z})", "torch.range(0, 5, out={z})",
    "torch.cat([{x}, {x}], -1, out={z})", "torch.empty(2, 3, device=GPU, out={z}).fill_(1)",
    "torch.mv({x}, {y}, out={z})", "torch.addmm({x}, {y}, {y}, out={z})", "torch.roll({x}, 1)",
    "torch.square({x}, out={z})", "torch.sqrt({x}, out={z})",
)  # fmt: skip
_IN_PLACE = (
    "{x}.add_({y})", "{x}.mul_(2)", "{x}.zero_()", "{x}.fill_(3)", "{x}.copy_({y})",
    "{x}.copy_(3.0)", "{x}[0] = 5", "{x}[..., 0] = {y}", "{x}.masked_fill_({x} > 1, 7)",
    "{x}.index_fill_(0, index(0), 9)", "{x}.t_()", "{x}.squeeze_()", "{x}.unsqueeze_(0)",
    "{x}.resize_(2, 2).fill_(4)", "{x}.resize_(40).fill_(1)", "{x}.clamp_(1, 3)", "{x}.sub_({y}, alpha=2)",
    "torch._foreach_add_([{x}, {x}], 1)", "torch._foreach_mul_([{x}], [{y}])",
    "torch._foreach_copy_([{x}], [{y}])", "{x}.set_({y})", "{x}.data = {y}", "{x}.data.copy_(2)",
    "torch._foreach_copy_([{x}], [torch.ones({x}.shape)])", "{x}.index_add_(0, index(0), {y})",
    "torch._foreach_copy_([torch.ones({x}.shape)], [{x}])", "{x}[{x} > 2] = 1", "{x}.cumsum_(0)",
    "{x}.resize_as_({y}).fill_(2)", "{x}.scatter_(0, index(0), 1)", "{x}.neg_()", "{x}.swapaxes_(0, -1)",
)  # fmt: skip
_NEW = (
    "torch.add({x}, {y})", "torch.add(1., {x})", "torch.sub(1, {x})", "torch.mul(2., {x})",
    "torch.div(6., {x} + 1)", "torch.subtract(3, {x})", "torch.multiply(2, {x})", "1 - {x}",
    "2 ** {x}", "{x} @ {y}", "{x} * {y}", "{x}.sum(0)", "{x}.max()", "{x}.argmax()",
    "{x}.sort(0).values", "{x}.cumsum(0)", "{x}.unique()", "{x}.clone()",
    "{x}.t().contiguous()", "{x}[index(0, 0)]", "{x}[{x} > 1]", "torch.cat([{x}, {y}])",
    "torch.where({x} > 1, {x}, 0)", "{x}.to(torch.float64)", "{x}.bool()", "{x}.mean(0)",
    "torch.zeros_like({x})", "{x}.new_ones(3)", "{x}.flip(0)", "torch.stack([{x}, {y}])",
    "{x}.repeat(2, *[1] * ({x}.dim() - 1))", "{x}.float().softmax(-1).round()", "{x}.any()",
    "{x}.tril()", "torch.bincount({x}.flatten())", "torch.full({x}.shape, 2, device=GPU)",
    "{x}.float().std() > 0", "torch.einsum('i...,i...->i', {x}, {x})", "{x}.cpu().to(GPU)",
    "torch._foreach_add([{x}, {y}], 1)[1]", "torch.add({x}, 1., alpha=2)", "torch.rsub({x}, 1)",
    "torch.true_divide(1., {x} + 1)", "torch.floor_divide({x}, 2)", "torch.remainder({x}, 3)",
    "torch.remainder(7, {x} + 1)", "torch.pow(2, {x})", "torch.eq({x}, 1)", "torch.maximum({x}, {y})",
    "{x} << 1", "{x} & {y}", "~{x}", "-{x}", "abs({x})", "{x} // 2", "{x} % 2", "{x} == {y}",
)  # fmt: skip


# ----------------------------------------------------------------------- graphs


def graphs(seed: int) -> Program:
    """Work that is captured once and replayed, with memory of its own."""
    writer = _Writer("graphs", seed)
    chance = writer.chance
    graph_count = 0
    gone: set[int] = set()
    x = writer.make("make", 0, f"torch.arange({chance.choice((6, 5000, 400000))}., device=GPU)")
    kept = [x]
    for _ in range(chance.randint(5, 14)):
        draw = chance.random()
        stream = writer.any_stream()
        if draw < 0.3 or not graph_count:
            graph_count += 1
            made = [writer.new() for _ in range(chance.randint(1, 4))]
            lines = [
                f"    {name} = {chance.choice(_CAPTURED).format(chance.choice(kept + made[:place]))}"
                for place, name in enumerate(made)
            ]
            pool = chance.choice(("", "", f", pool=g{chance.randint(1, graph_count)}.pool()"))
            if any(f"g{each}." in pool for each in (graph_count, *gone)):
                pool = ""
            if chance.random() < 0.3:
                lines.append(f"    del {made.pop(0)}")
            where = f"with torch.cuda.graph(g{graph_count}{pool}):"
            writer.add("capture", 0, "\n".join((f"g{graph_count} = torch.cuda.CUDAGraph()", where, *lines)))
            kept += made
        elif draw < 0.6:
            which = chance.randint(1, graph_count)
            if which not in gone:
                writer.add("replay", 0, f"g{which}.replay()")
        elif draw < 0.68:
            writer.add("busy", 0, "busy(S[0])")
        elif draw < 0.76:
            writer.add("in_place", 0, f"{x}.add_(1)")
        elif draw < 0.82 and len(kept) > 1:
            writer.add("del", 0, f"del {kept.pop()}")
        elif draw < 0.9:
            which = chance.randint(1, graph_count)
            if which not in gone:
                writer.add("replay", 0, f"g{which}.replay()")
                writer.add("reset", 0, f"g{which}.reset()")
            gone.add(which)
        else:
            writer.add(*chance.choice(_MANAGING(chance, stream)))
    for which in range(1, graph_count + 1):  # in the order of capture: pools are shared
        if which not in gone:
            writer.add("replay", 0, f"g{which}.replay()")
    return writer.program


_CAPTURED = (
    "{} * 2", "{} + 1", "{}.clone()", "{}.neg().relu()", "{}.add_(1)", "torch.zeros_like({})",
    "torch.ones(300000, device=GPU)", "torch.empty(5, device=GPU).fill_(2)", "{}[:3]",
)  # fmt: skip

# ----------------------------------------------------------------------- errors

_X, _H = "torch.ones(2, 3, device=GPU)", "torch.ones(2, 3)"
_CAPTURED_WRONGLY = (
    "x.sum().item()", "torch.cuda.synchronize()", "x.cpu()",
    "x.nonzero()", "torch.ones(3).to(GPU)", "E[0].record(); E[0].synchronize()",
    "S[2].wait_stream(S[0]); S[0].query()", "raise KeyError", "x.to('cpu', non_blocking=True)",
    "torch.cuda.CUDAGraph().capture_begin()",
)  # fmt: skip
ERRORS = (
    f"{_X} + {_H}", f"{_H} + {_X}", f"torch.cat([{_X}, {_H}])", f"torch.mm({_X}, {_H}.t())",
    f"torch.where({_X} > 0, {_H}, 0)", f"torch.stack([{_H}, {_X}])", f"{_H}.add_({_X})",
    f"{_X}.add_({_H})", f"torch.add({_X}, {_X}, out={_H})", f"torch.add({_H}, {_H}, out={_X})",
    "torch.nn.functional.linear(torch.ones(2, 3, device=GPU), torch.ones(4, 3))",
    "torch.nn.functional.embedding(torch.tensor([1]), torch.ones(4, 3, device=GPU))",
    "torch.nn.functional.cross_entropy(torch.ones(2, 3, device=GPU), torch.tensor([1, 2]))",
    "torch.nn.Linear(3, 2)(torch.ones(2, 3, device=GPU))", f"{_H}[{_X} > 0]", f"{_X}[{_H} > 0]",
    f"{_X} @ {_X}", f"{_X} + torch.ones(4, device=GPU)", f"{_X}.view(7)", f"{_X}.copy_(torch.ones(4))",
    f"torch.ones(4).copy_({_X})", f"{_X}[5]", f"{_X}[:, 7]", f"{_X}.sum(4)", f"{_X}.expand(3, 3)",
    f"{_X}.numpy()", f"{_X}.__array__()", f"{_X}.pin_memory()", f"{_X}.item()", f"bool({_X})",
    f"int({_X})", f"{_X}.to('cuda:7')", "torch.ones(2, device='cuda:3')", "torch.cuda.set_device(5)",
    "torch.cuda.get_device_properties(4)", "torch.cuda.Stream(device=9)", "torch.cuda.memory_stats(7)",
    "torch.cuda.synchronize(3)", "torch.cuda.get_device_name(2)",
    "torch.rand(3, generator=torch.Generator(), device=GPU)", f"{_X}.cuda(6)", "torch.device('cuda:x')",
    "torch.rand(3, generator=torch.Generator('cuda'))", "torch.empty(2, device=GPU, pin_memory=True)",
    "torch.empty(1 << 40, device=GPU)", "torch.empty(1 << 62, device=GPU)", "torch.empty(-1, device=GPU)",
    "torch.ones(1 << 33, device=GPU)", f"{_X}.expand(1 << 30, 2, 3).clone()", f"{_X}.resize_(1 << 35)",
    "torch.linalg.inv(torch.zeros(2, 2, device=GPU))", "torch.linalg.cholesky(-torch.eye(2, device=GPU))",
    "torch.linalg.solve(torch.zeros(2, 2, device=GPU), torch.ones(2, device=GPU))",
    f"{_X}.requires_grad_().add_(1)", f"{_X}.requires_grad_().numpy()", f"({_X}.requires_grad_() * 2).backward()",
    f"{_X}.backward()", "E[0].elapsed_time(E[1])", "E[3].record(); E[3].elapsed_time(E[3])",
    "E[0].record(); busy(S[0]); E[1].record(); E[0].elapsed_time(E[1])", "E[0].record(); E[3].record(); E[0].elapsed_time(E[3])",
    "torch.cuda.Event(foo=1)", "S[1].wait_event(None)", "S[1].wait_stream(None)", f"{_H}.record_stream(S[1])",
    f"{_X}.record_stream(3)", "torch.cuda.CUDAGraph().replay()", "torch.cuda.CUDAGraph().capture_begin()",
    "torch.cuda.CUDAGraph().pool()", "torch.cuda.CUDAGraph().reset()",
    "torch.cuda.set_per_process_memory_fraction(2.0)", "torch.cuda.set_per_process_memory_fraction('a')",
    "torch.tensor(['a'], device=GPU)", "torch.bmm(torch.ones(2, 3, device=GPU), torch.ones(2, 3, device=GPU))",
    f"torch.index_select({_X}, 0, torch.ones(1, device=GPU))", f"torch.gather({_X}, 0, torch.ones(1, device=GPU))",
    f"{_X}.half() @ {_X}.t()", f"{_X}.long() @ {_X}.long().t()", f"torch.conv2d({_X}, {_X})",
    "torch.conv2d(torch.ones(1, 1, 3, 3, device=GPU), torch.ones(1, 1, 2, 2))", f"{_X}.as_strided((9, 9), (9, 1))",
    f"{_X}.set_({_H})", f"{_X}.data = {_H}", f"torch.from_numpy({_X})", f"torch.frombuffer({_X}, dtype=torch.uint8)",
    f"{_X}.untyped_storage().resize_(4); 3", f"{_X}.squeeze(5)", f"{_X}.t().view(-1)", f"{_X}.apply_(abs)",
    f"{_X}.map_({_X}, max)", f"torch.quantile({_X}.long(), 0.5)", f"torch.svd({_X}.long())", f"{_X}.bool() - {_X}.bool()",
    f"~{_X}", f"{_X} << 1.5", f"{_X}.bernoulli_(2)", "torch.arange(3, 1, device=GPU)", "torch.arange(1, 3, -1, device=GPU)",
    "torch.eye(-1, device=GPU)", "torch.randint(3, 1, (2,), device=GPU)", "torch.multinomial(torch.zeros(0, device=GPU), 1)",
    f"torch.mean({_X}.long())", f"torch.std({_X}.long())", f"{_X}.softmax(7)", f"{_X}.long().softmax(0)",
    f"torch.nn.functional.dropout({_X}, 2)", f"torch.nn.functional.pad({_X}, (1,))", f"torch.stack([{_X}, torch.ones(3, device=GPU)])",
    f"torch.split({_X}, -1)", f"{_X}.repeat(2)", f"torch.einsum('ij,jk->ik', {_X}, {_X})", f"torch.add({_X}, {_X}, out={_X}[:1].expand(2, 3))",
    f"torch.nonzero({_X}, out={_X})", f"torch.sort({_X}, out=({_X}, {_X}))", f"torch.add({_X}, 1, out={_X}.long())",
    *(f"x = {_X}\nwith torch.cuda.graph(torch.cuda.CUDAGraph()):\n    {line}" for line in _CAPTURED_WRONGLY),
)  # fmt: skip
