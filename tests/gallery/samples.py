"""Every part of a drawing with its edge cases, and every room's own samples.

All numbers are fixed here, so that golden files differ only where a view does.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.drawing import (
    Areas,
    Badge,
    Branch,
    Column,
    Curve,
    Details,
    Drawing,
    Grid,
    Lane,
    Layer,
    Meter,
    Note,
    Paragraph,
    Span,
    Stack,
    Stacks,
    Table,
    Timeline,
    Tree,
)
from gpumagic.report.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Callable

MS = 1e-3
GIB = 2**30
SIMULATED = "simulated H100 SXM"
HOSTILE = "<script>alert(1)</script>&\"'</td>\x1b[31m\u202eevil\nnext line"
LONG = "encoder.layers.11.self_attention.output.projection.weight_quantized_" * 3
WIDE = "データ転送 → 显存 🚀"

_GPUS = Table(
    "8 GPUs of this machine, 2 shown",
    (
        Column("GPU"),
        Column("Model"),
        Column("Memory in use"),
        Column("Power", number=True),
        Column("State"),
    ),
    (
        (
            "0",
            "NVIDIA H100 80GB HBM3",
            Meter(0.63, "50.4 of 80.0 GiB"),
            "310 W",
            Badge("busy", "warning"),
        ),
        (
            "1",
            "NVIDIA H100 80GB HBM3",
            Meter(0.001, "0.1 of 80.0 GiB"),
            None,
            Badge("free", "ok"),
        ),
    ),
    total_rows=8,
)

_TIMES = Stacks(
    "What a clock around the call says, and what the GPU did",
    (
        Stack("without waiting", (("host code", 0.000104),), seconds_text(0.000104)),
        Stack("until the GPU is done", (("kernel", 0.0123),), seconds_text(0.0123)),
    ),
    (("host code", ""), ("kernel", "")),
)


def _kernels(count, every_s, busy_s, kind="kernel"):
    return tuple(
        Span(at * every_s, at * every_s + busy_s, f"gemm {at}", kind)
        for at in range(count)
    )


_OVERLAP = Timeline(
    "Copies beside kernels",
    (
        Lane("compute", _kernels(4, 1.0 * MS, 0.9 * MS)),
        Lane(
            "copy",
            (
                Span(0.0, 0.3 * MS, "in", "copy"),
                Span(1.0 * MS, 1.4 * MS, "in", "copy"),
                Span(3.1 * MS, 3.9 * MS, "out", "copy"),
            ),
        ),
        Lane("host", (Span(0.3 * MS, 1.0 * MS, "wait", "waiting"),)),
    ),
)

_MANY = Timeline(
    "More spans than there are pixels",
    (
        Lane("compute", _kernels(5000, 20e-6, 8e-6)),
        Lane("copy", _kernels(40, 2.5 * MS, 0.4 * MS, "copy")),
    ),
)


TIMES_MEANT = (
    *("host code", "launch", "host waits", "kernel", "copy", "communication"),
    *("waits for others", "perhaps busy"),
)
MEMORY_MEANT = ("in use", "cached", "others", "perhaps busy", "free")
_WITHOUT_MEANING = tuple(f"kind {at}" for at in range(6))


def _all_of(caption, kinds):
    """A bar with a piece of each kind, and what they are called."""
    pieces = tuple((kind, 1.0) for kind in kinds)
    return Stacks(
        caption,
        (Stack("all", pieces, f"{len(kinds)} kinds"),),
        tuple((kind, "") for kind in kinds),
    )


_PALETTE = (
    _all_of("Time", TIMES_MEANT),
    _all_of("Memory", MEMORY_MEANT),
    _all_of("What has no meaning of those", _WITHOUT_MEANING),
    Timeline(
        "Beside and below each other",
        tuple(
            Lane(
                kind, tuple(Span(at, at + 0.7, kind, kind) for at in (n / 4, n / 4 + 1))
            )
            for n, kind in enumerate(TIMES_MEANT)
        ),
    ),
)


_USES = (("Hardly any", 16 * 2**20), ("Much", 40 * GIB), ("No", 0))


def _memory(caption, used):
    """A bar of a GPU's memory with an axis."""
    pieces = (
        ("in use", used * 0.75),
        ("cached", used * 0.25),
        ("free", 80 * GIB - used),
    )
    return Stacks(
        caption,
        (Stack("cuda:0", pieces, bytes_text(used)),),
        (("in use", bytes_text(used * 0.75)), ("cached", ""), ("free", "")),
    )


def _one(title, *parts, label=""):
    return Drawing(title, parts, label)


def _rising(period, gib, begin=0):
    """What is made piece by piece, and gone at once: as in forward and backward."""
    return tuple(
        int(gib * GIB * ((at - begin) % period) / period) if at >= begin else 0
        for at in range(240)
    )


_LAYERED = Areas(
    "In use on cuda:0, by line",
    (
        Layer("attention.py, line 88", _rising(80, 4)),
        Layer("model.py, line 12", (2 * GIB,) * 240),
        Layer("optim.py, line 9", (0,) * 80 + (GIB,) * 160),
        *(Layer(f"mlp.py, line {at}", _rising(80, 0.2, at)) for at in range(5, 9)),
        Layer("there before", (GIB,) * 240, "before"),
        Layer("all others", _rising(20, 0.1), "together"),
    ),
    ("event 1", "event 18,300"),
    "peak 8.77 GiB at event 12,161",
    text_of=bytes_text,
    told_elsewhere=frozenset(range(9)) - {6, 7},
)
_MODEL = Tree(
    "Parameters and bytes of each part, and its share of the bytes",
    ("parameters", ""),
    Branch(
        "model GPT",
        ("123,651,840", "437 MiB"),
        1.0,
        below=(
            Branch("embedding Embedding", ("38,597,376", "147 MiB"), 0.337),
            Branch(
                "blocks ModuleList",
                ("85,054,464", "290 MiB"),
                0.663,
                below=tuple(
                    Branch(
                        f"block {at} Block",
                        ("42,527,232", "145 MiB"),
                        0.332,
                        below=(
                            Branch("attention", ("2,362,368", "4.51 MiB"), 0.01),
                            Branch("mlp", ("40,164,864", "140 MiB"), 0.32, "frozen"),
                        ),
                    )
                    for at in range(2)
                ),
                is_open=True,
            ),
            Branch(LONG, ("1", ""), 0.0, HOSTILE, (Branch(HOSTILE, ("", ""), 0.0),)),
        ),
        is_open=True,
    ),
)

PARTS: tuple[tuple[str, Drawing], ...] = (
    (
        "whole",
        _one(
            "The cell took 12.3 ms on the GPU, 118 times what a clock around it said.",
            _TIMES,
            _OVERLAP,
            _GPUS,
            Note("warning", "The clock was read before the GPU was done."),
            Note(
                "note",
                "Two streams ran side by side.",
                "%cuda_sync_time --streams",
            ),
            Details("How it was measured", (Grid("", (("runs", "100"),)),)),
            label=SIMULATED,
        ),
    ),
    ("palette", _one("One colour, one meaning.", *_PALETTE)),
    (
        "stacks",
        _one(
            "16 MiB is in use on a GPU of 80 GiB.",
            *(_memory(f"{name} use of a GPU", used) for name, used in _USES),
            Stacks(
                "Without an axis",
                (
                    Stack("the run", (("host code", 1.0), ("host waits", 9.0)), "10 s"),
                    Stack("cuda:0", (("", 1.0), ("perhaps busy", 8.0)), "8 s"),
                    Stack("nothing", (), "unknown"),
                ),
                (("host code", "1 s"), ("host waits", "9 s"), ("perhaps busy", "")),
            ),
        ),
    ),
    ("table", _one("GPU 1 is free.", _GPUS)),
    (
        "table-200-rows",
        _one(
            "200 tensors hold 100 MiB.",
            Table(
                "Tensors",
                (Column("name"), Column("dtype"), Column("size", True)),
                tuple(
                    (f"layer.{at}.weight", "float32", bytes_text(2048 * 2**at))
                    for at in range(20)
                )
                * 10,
            ),
        ),
    ),
    (
        "table-hostile",
        _one(
            HOSTILE,
            Table(
                HOSTILE,
                (Column(HOSTILE), Column("size", number=True)),
                ((HOSTILE, "1 B"), (Badge(HOSTILE, "problem"), HOSTILE)),
            ),
            label=HOSTILE,
        ),
    ),
    (
        "table-wide-unicode",
        _one(
            WIDE,
            Table(
                WIDE,
                (Column("名前"), Column("大きさ", number=True)),
                ((WIDE, "1.00 GiB"), ("é̄ combining", "22.0 MiB"), ("plain", "3 B")),
            ),
        ),
    ),
    (
        "grid",
        _one(
            "A contiguous tensor on GPU 0.",
            Grid(
                "Tensor",
                (
                    ("shape", "64 x 1024 x 1024"),
                    ("size", "256 MiB"),
                    ("pinned", None),
                    ("layout", Badge("contiguous", "ok")),
                    ("share of the GPU", Meter(0.003, "0.3 %")),
                    ("comment", "A value that is long enough to be wrapped. " * 4),
                ),
            ),
        ),
    ),
    (
        "meters",
        _one(
            "From empty to too full.",
            Grid(
                "Meters",
                tuple(
                    (name, Meter(share, text))
                    for name, share, text in (
                        ("empty", 0.0, "0 B of 80.0 GiB"),
                        ("nearly empty", 0.0001, "8.19 MiB of 80.0 GiB"),
                        ("half", 0.5, "40.0 of 80.0 GiB"),
                        ("nearly full", 0.9999, "79.99 of 80.0 GiB"),
                        ("full", 1.0, "80.0 of 80.0 GiB"),
                        ("oversubscribed", 1.3, "104 of 80.0 GiB"),
                        ("unknown", None, "unknown"),
                    )
                ),
            ),
        ),
    ),
    (
        "curves",
        _one(
            "Memory was highest in the backward pass.",
            Curve(
                "In use, step by step",
                tuple((at if at < 120 else 190 - at) * GIB // 12 for at in range(171)),
                ("start", "170 steps"),
                "peak 9.92 GiB: activations 6.00 GiB, model 3.00 GiB",
                text_of=bytes_text,
            ),
            Curve(
                "Up and down within one stretch: the scale begins at 40",
                (60, 60, 80, 50, 50),
                ("start", "5 steps"),
                "peak 80",
                lowest=(60, 41, 50, 44, 50),
                floor=40,
            ),
            Curve("Flat", (7,), ("start", "1 step"), "peak 7"),
            Curve("Nothing", (0, 0), ("start", "1 step"), "never in use"),
            Curve("No values", (), ("", ""), "nothing recorded"),
        ),
    ),
    (
        "areas",
        _one(
            "Most of the peak is made in attention.py, line 88.",
            _LAYERED,
            Table(
                "What these lines hold",
                (Column("Line"), Column("At the peak", number=True)),
                tuple(
                    (key, bytes_text(layer.levels[159]))
                    for key, layer in zip(_LAYERED.keys, _LAYERED.layers, strict=True)
                ),
            ),
            Areas(
                "One, and many together",
                (Layer("a", (1, 4, 2)), Layer("the rest", (1, 1, 1), "together")),
                ("start", "3 steps"),
                "",
            ),
            Areas("Nothing", (Layer("a", (0, 0)),), ("", ""), "never in use"),
            Areas("No layers", (), ("", ""), "nothing recorded"),
        ),
    ),
    (
        "trees",
        _one(
            "The model has 124 million parameters in 2 blocks.",
            _MODEL,
            Details(
                "The whole tree",
                (replace(_MODEL, whole=True),),
                "tree",
                in_text_only=True,
            ),
            Tree("One line", (), Branch("nothing inside", (), 0.0)),
        ),
    ),
    ("timeline-many", _one("5,000 kernels kept the GPU 40 % busy.", _MANY)),
    (
        "timeline-edges",
        _one(
            "Timelines that show little.",
            Timeline("No lanes", ()),
            Timeline("An empty lane", (Lane("stream 7"),)),
            Timeline("A moment", (Lane("stream 7", (Span(5.0, 5.0, "mark"),)),)),
            Timeline(
                "Broken times, a long name, six kinds",
                (
                    Lane("reversed", (Span(2.0, 1.0), Span(float("nan"), 1.0))),
                    Lane(LONG, (Span(0.0, 2.0, LONG, "kind 0"),)),
                    Lane(
                        HOSTILE,
                        tuple(
                            Span(at, at + 1, HOSTILE, f"kind {at}") for at in range(6)
                        ),
                    ),
                ),
            ),
        ),
    ),
    (
        "notes",
        _one(
            "PyTorch cannot use this GPU.",
            Note("problem", "The driver is older than CUDA 13 needs.", "pip install x"),
            Note("warning", "GPU 0 is shared. " + "Words that wrap. " * 8),
            Note("note", HOSTILE, HOSTILE),
            Paragraph("A paragraph of two lines:\nthis is the second one."),
        ),
    ),
    (
        "details",
        _one(
            "More is below.",
            Details("Devices", (_GPUS, Note("note", "Inside."))),
            Details("Outer", (Details("Inner", (Paragraph("deep"),)),)),
        ),
    ),
)


# Samples that are pictures, and may be larger than the habit of 10 KB.
PICTURES = (  # how the names of those with a picture begin
    "whole",
    "areas",
    "timeline-",
    "palette",
    "stacks",
    "trees",  # all levels, behind a click
    "tensor_info-",
    "cuda_sync_time-profile",
    "cuda_sync_time-lines",
    "cuda_sync_time-every",
    "cuda_sync_time-simulated",
    "cuda_sync_time-syncs",
    "cuda_sync_time-tail",
    "cuda_sync_time-turns",
    "cuda_sync_time-small-work",
    "cuda_sync_time-hostile",
    "gpu_open-",  # timelines, and all figures behind clicks
    "gpu_ranks-",  # likewise, and the seats of all ranks
    "gpu_doctor-words",  # a hundred of them, behind a click
    "gpu_mem-map",
    "gpu_open-snapshot",
    "gpu_select-sixteen",  # the GPUs in sight, and all of them behind a click
    "gpu_mem-cell-lines",
    "gpu_mem-balance",  # a picture with patterns, names and counters behind clicks
    "pin_loader-fixed",  # bars, a timeline, and all figures behind a click
    "pin_loader-diagnosed",
    "pin_loader-nothing",
    "pin_loader-refused-different",
)


# Views whose HTML is held to the letter, beside that of each part: every line that
# draws the HTML of any sample draws that of a part or of one of these.
RICHEST = (
    "cuda_sync_time-repeated-noisy",
    "cuda_sync_time-faster",
    "gpu_doctor-eight-gpus",
    "gpu_doctor-mixed-and-out-of-reach",
    "gpu_open-rank-loader",
    "gpu_open-ranks-straggler",
    "gpu_ranks-seats-shared",
    "gpu_ranks-times-straggler",
    "gpu_mem-map-two-devices",
    "gpu_select-sixteen-gpus",
    "gpu_select-slurm",
    "pin_loader-fixed",
    "simulator-four-at-work",
    "simulator-switched-off",
    "tensor_info-simulated",
    "tensor_info-compared-large",
    "tensor_info-expanded",
    "tensor_info-windows",
)


@cache
def views() -> tuple[tuple[str, Drawing], ...]:
    """Each room's samples, drawn; a room with `samples.py` is found by its folder."""
    return tuple((name, drawn()[name].drawing) for name in view_names())


@cache
def view_names() -> tuple[str, ...]:
    """What they are called, for which none needs to be drawn."""
    return tuple(_views_to_draw())


@cache
def _views_to_draw() -> dict[str, Callable[[], Drawing]]:
    tests = Path(__file__).parents[1]
    rooms = sorted(path.parent.name for path in tests.glob("*/samples.py"))
    return {
        f"{room}-{name}": make
        for room in rooms
        if room != "gallery"
        for name, make in _of_room(room)
    }


def _of_room(room):
    samples = importlib.import_module(f"tests.{room}.samples").SAMPLES
    return [(name, report.drawing) for name, report in samples]


@cache
def everything() -> tuple[tuple[str, Drawing], ...]:
    """All that the gallery shows, and that golden files hold."""
    return (*PARTS, *views())


class Drawn:
    """A sample that is drawn once, and when asked, however many tests look at it."""

    def __init__(self, make: Callable[[], Drawing]) -> None:
        self._make = make
        self._texts: dict[int, str] = {}

    @cached_property
    def drawing(self) -> Drawing:
        """The drawing itself."""
        return self._make()

    @cached_property
    def _whole(self) -> Drawn:
        return Drawn(self.drawing.whole)

    @cached_property
    def _html(self) -> str:
        return self.drawing.html()

    def whole(self) -> Drawn:
        """The same with all that is folded away."""
        return self._whole

    def html(self) -> str:
        """The HTML form."""
        return self._html

    def text(self, width: int = 88) -> str:
        """The text form, so many columns wide."""
        if width not in self._texts:
            self._texts[width] = self.drawing.text(width)
        return self._texts[width]

    def __getattr__(self, name: str) -> Any:
        """All else is the drawing's own."""
        return getattr(self.drawing, name)


@cache
def drawn() -> dict[str, Drawn]:
    """Every sample by its name."""
    parts = {name: Drawn(lambda part=part: part) for name, part in PARTS}
    return parts | {name: Drawn(make) for name, make in _views_to_draw().items()}
