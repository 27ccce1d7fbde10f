"""Random programs for two machines, as plain lines of Python that can be printed.

What they are made of is in `lines.txt`. A line runs as it stands, on a stream; names
are `torch`, the streams `S`, `GPU` and a few words of `machines.py`. No program has a
race, so that all machines owe it the same: where a stream uses what another one has
used, it waits for it.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
    """One line of a program."""

    kind: str  # what it is counted as
    stream: int  # the number of the stream that is the current one
    line: str  # of Python

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
        self.chance = random.Random(f"{name} {seed}")  # noqa: S311
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

    def use(
        self, kind: str, stream: int, line: str, *names: str, into: str = ""
    ) -> bool:
        """Work with tensors, after those who have used them; whether it can work."""
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
        write(seed)
        for write in (memory, copies, values, graphs)
        for seed in range(each)
    ] + [Program(f"error: {line}", [Step("error", 0, line)]) for line in mistakes()]


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
            writer.add(*chance.choice(_managing(chance, stream)))
    return writer.program


def _managing(chance: random.Random, stream: int) -> Sequence[tuple[str, int, str]]:
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
        ("event", stream, f"apart(E[0], {event})"),
        ("wait_stream", stream, f"S[{stream}].wait_stream(S[{chance.randint(0, 3)}])"),
        ("query", stream, f"busy(S[{stream}]); S[{stream}].query()"),
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
            asked = chance.choice(_lines("asking")).format(x=device)
            writer.use("ask", stream, asked, device)
        elif draw < 0.8:
            writer.forget(chance.choice((device, host)))
        else:
            writer.add(*chance.choice(_managing(chance, stream)))
    return writer.program


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
        code = (
            f"torch.arange(count({shape}), device=GPU).view({shape}).to(torch.{dtype})"
        )
        writer.make("make", writer.any_stream(), code)


def values(seed: int) -> Program:
    """Operators on tensors and views of them, into new memory, in place and `out=`."""
    writer = _Writer("values", seed)
    chance = writer.chance
    _fill(writer, 3)
    for _ in range(chance.randint(10, 25)):
        stream = writer.any_stream()
        x, y, z = (writer.one() or "" for _ in range(3))
        if chance.random() < 0.3:
            writer.add("busy", stream, f"busy(S[{stream}])")
        draw = chance.random()
        if draw < 0.1:
            _fill(writer, 1)
        elif draw < 0.25:
            writer.derive("view", stream, chance.choice(_lines("views")).format(x=x), x)
        elif draw < 0.6:
            apart = [each for each in writer.tensors if not writer.shares(each, x, y)]
            if not apart:
                continue
            z = chance.choice(apart)  # torch refuses what the CPU cannot see here
            line = chance.choice(_lines("out")).format(x=x, y=y, z=z)
            names = [each for each in (x, y) if f"{each}" in line]
            writer.use("out", stream, line, *names, into=z)
        elif draw < 0.75:
            line = chance.choice(_lines("in place")).format(x=x, y=y)
            writer.use("in_place", stream, line, x, y, into=x)
            if ".set_(" in line or ".data =" in line:
                writer.join(x, y)
        else:
            code = chance.choice(_lines("new")).format(x=x, y=y)
            writer.derive("new", stream, code, x, y)
    return writer.program


# ----------------------------------------------------------------------- graphs


def graphs(seed: int) -> Program:
    """Work that is captured once and replayed, with memory of its own."""
    writer = _Writer("graphs", seed)
    chance = writer.chance
    size = chance.choice((6, 5000, 400000))
    x = writer.make("make", 0, f"torch.arange({size}., device=GPU)")
    kept, there, captured = [x], list[int](), 0
    for _ in range(chance.randint(5, 14)):
        draw = chance.random()
        if draw < 0.3 or not there:
            captured += 1
            _capture(writer, captured, kept, there)
            there.append(captured)
        elif draw < 0.6:
            writer.add("replay", 0, f"g{chance.choice(there)}.replay()")
        elif draw < 0.68:
            writer.add("busy", 0, "busy(S[0])")
        elif draw < 0.76:
            writer.add("in_place", 0, f"{x}.add_(1)")
        elif draw < 0.82 and len(kept) > 1:
            writer.add("del", 0, f"del {kept.pop()}")
        elif draw < 0.9:
            gone = there.pop(chance.randrange(len(there)))
            writer.add("replay", 0, f"g{gone}.replay()")
            writer.add("reset", 0, f"g{gone}.reset()")
        else:
            writer.add(*chance.choice(_managing(chance, writer.any_stream())))
    for each in there:  # in the order of capture, since pools are shared
        writer.add("replay", 0, f"g{each}.replay()")
    return writer.program


def _capture(writer: _Writer, number: int, kept: list[str], there: list[int]) -> None:
    """Capture a graph, in a pool of its own or that of a former one."""
    chance = writer.chance
    made, lines = list[str](), list[str]()
    for _ in range(chance.randint(1, 4)):
        code = chance.choice(_lines("captured")).format(x=chance.choice(kept + made))
        made.append(writer.new())
        lines.append(f"    {made[-1]} = {code}")
    if chance.random() < 0.3:
        lines.append(f"    del {made.pop(0)}")
    pool = chance.choice(("", "", *(f", pool=g{each}.pool()" for each in there[-1:])))
    where = f"with torch.cuda.graph(g{number}{pool}):"
    line = "\n".join((f"g{number} = torch.cuda.CUDAGraph()", where, *lines))
    writer.add("capture", 0, line)
    kept += made


# ----------------------------------------------------------------------- errors


def mistakes() -> Iterator[str]:
    """What goes wrong, each a program of one line or one capture."""
    for line in _lines("mistakes"):
        yield line.format(X="torch.ones(2, 3, device=GPU)", H="torch.ones(2, 3)")
    for line in _lines("mistakes in a capture"):
        yield (
            "x = torch.ones(2, 3, device=GPU)\n"
            f"with torch.cuda.graph(torch.cuda.CUDAGraph()):\n    {line}"
        )


@functools.cache
def _lines(section: str) -> tuple[str, ...]:
    """Those of a section of `lines.txt`."""
    text = (Path(__file__).parent / "lines.txt").read_text()
    return (*text.split(f"[{section}]\n")[1].split("\n\n")[0].splitlines(),)
