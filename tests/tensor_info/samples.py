"""Reports of tensors of every rank and every special case; no torch is needed.

Their figures come from the room's formulas, which other tests hold against torch
and against enumeration; what no formula gives is written down here.
"""

from __future__ import annotations

import dataclasses
import math

from gpumagic.tensor_info import geometry, merging, overlap
from gpumagic.tensor_info.geometry import Geometry, fresh_strides
from gpumagic.tensor_info.report import (
    AliasReport,
    Amount,
    CompareReport,
    Group,
    HeatMap,
    ModelReport,
    Name,
    Node,
    Oddity,
    Pair,
    TensorReport,
    ValueSummary,
    ViewReport,
)

HOSTILE = "x['</td><script>alert(1)</script>\x1b[31m\u202e']"
ADDRESS = 0x7F0000000000


def tensor(  # noqa: PLR0913 - a report has many fields
    size,
    stride=None,
    offset=0,
    *,
    itemsize=4,
    stored_bytes=None,
    expression="x",
    dtype="float32",
    device="cpu",
    **others,
):
    """The report of a tensor with this geometry, in a storage that just fits."""
    size = tuple(size)
    g = Geometry(size, stride or fresh_strides(size), offset, itemsize)
    last = g.last_element
    if stored_bytes is None:
        stored_bytes = 0 if last is None else (last + 1) * itemsize
    inside, distinct = overlap.inside(g), overlap.distinct_elements(g)
    contiguous, order = geometry.is_contiguous(g), geometry.dim_order(g)
    touched_bytes = None if distinct is None else distinct * itemsize
    unused = None if touched_bytes is None else max(stored_bytes - touched_bytes, 0)
    report = TensorReport(
        expression=expression,
        kind="tensor",
        dtype=dtype,
        device=device,
        itemsize=itemsize,
        size=g.size,
        stride=g.stride,
        stride_bytes=g.stride_bytes,
        storage_offset=offset,
        numel=g.numel,
        is_contiguous=contiguous,
        strides_canonical=geometry.canonical(g),
        is_channels_last=geometry.is_channels_last(g),
        operators_treat_as=geometry.treat_as(g),
        format_ambiguous=geometry.ambiguity(g),
        dim_order=order,
        dim_order_unique=geometry.dim_order_unique(g),
        non_overlapping_and_dense=geometry.non_overlapping_and_dense(g),
        overlap=inside.verdict,
        overlap_why=inside.why,
        distinct_elements=distinct,
        first_element=g.first_element,
        last_element=last,
        holes_in_span=overlap.holes_in_span(g),
        logical_bytes=g.logical_bytes,
        touched_bytes=touched_bytes,
        span_bytes=g.span_bytes,
        storage_bytes=stored_bytes,
        unused_storage_bytes=unused,
        byte_offset_mod_16=offset * itemsize % 16,
        address=ADDRESS + offset * itemsize,
        contiguous_allocates_bytes=0 if contiguous else g.logical_bytes,
        free_merges=merging.merges(g),
        view_flat=merging.flat(g),
        is_view=stride is not None,
        neg_bit=False,
        conj_bit=False,
        requires_grad=False,
        warp_along_dim=geometry.warp_reads(g, ADDRESS),
    )
    return dataclasses.replace(report, **others)


def geometry_of(report):
    """What the formulas need of a report."""
    return Geometry(report.size, report.stride, report.storage_offset, report.itemsize)


def viewed(report, shape):
    """The report of `.view(shape)`."""
    finding = dataclasses.asdict(merging.view(geometry_of(report), shape))
    return ViewReport(tensor=report, **finding)


def pair(reports, first, second):
    """Two tensors of one storage beside each other."""
    both = [geometry_of(reports[at]) for at in (first, second)]
    shared = overlap.shared(*both, 0)
    return Pair(
        first,
        second,
        same_storage=True,
        storage_ranges_intersect=True,
        shared_bytes=shared.shared_bytes,
        elements_overlap=shared.elements_overlap == "yes",
        base_links_them=True,
        relation=shared.relation,
        same_layout=both[0].size == both[1].size and both[0].stride == both[1].stride,
    )


def compared(*reports, **others):
    """Views of one storage beside each other."""
    places = range(len(reports))
    pairs = tuple(
        pair(reports, first, second)
        for first in places
        for second in places
        if first < second
    )
    return CompareReport(reports, pairs, **others)


def unknown(kind, *remarks, **others):
    """A tensor of which little can be told."""
    report = TensorReport("x", kind, "float32", "cpu", remarks=remarks)
    return dataclasses.replace(report, **others)


X = tensor((4, 6))
TRANSPOSED = tensor((6, 4), (1, 6), expression="x.t()", base_shape=(4, 6))
HALF = tensor(
    (4, 3), (6, 2), stored_bytes=96, expression="x[:, ::2]", base_shape=(4, 6)
)
EXPANDED = tensor((5, 4), (0, 1), expression="row.expand(5, 4)", base_shape=(4,))
WINDOWS = tensor((4, 3), (1, 1), expression="x.unfold(0, 3, 1)", base_shape=(6,))
OFFSET = tensor(
    (2, 3), (5, 1), 6, stored_bytes=80, expression="x[1:3, 1:4]", base_shape=(4, 5)
)
PAGES = tensor((2, 3, 4))
MANY_PAGES = tensor((7, 3, 4), (1, 28, 7), expression="x.movedim(2, 0)")
NCHW = tensor((2, 3, 4, 5), expression="images")
NHWC = tensor(
    (2, 3, 4, 5),
    (60, 1, 15, 3),
    expression="images",
    is_view=False,
)
FIVE = tensor((2, 3, 4, 5, 6), (360, 4, 1, 72, 12), expression="volumes")
SIX = tensor((2, 3, 4, 2, 3, 2), (144, 48, 1, 24, 8, 4), expression="blocks")
TWELVE = tensor((2,) * 12, tuple(4**dim for dim in range(12)), expression="many")
HUGE = tensor(
    (2**15, 2**15),
    (1, 2**15),
    expression="x.t()",
    device="meta",
    base_shape=(2**15, 2**15),
    address=None,
    byte_offset_mod_16=None,
    warp_base="unknown",
    remarks=("a meta tensor has no memory: places are where elements would lie",),
)
SMALL_OF_BIG = tensor(
    (10,), (1,), 500_000, stored_bytes=4_000_000, expression="big[500000:500010]"
)
STEPPED = tensor((3, 4), (1000, 250), expression="x[::10, ::250]")
ODD = tensor((4, 1, 3), (3, 7, 1), expression="x[:, :1]")
EMPTY = tensor((0, 6), expression="x[4:]")
COMPLEX = tensor(
    (2, 3),
    (1, 2),
    itemsize=8,
    dtype="complex64",
    expression="z.mH",
    conj_bit=True,
    is_view=True,
)
BYTES = tensor(
    (24,),
    (1,),
    itemsize=1,
    dtype="uint8",
    expression="x.view(torch.uint8)",
    base_shape=(2, 3),
)
WORDS = tensor((2, 3), expression="x")
AMBIGUOUS = tensor((4, 1, 5, 5), expression="mask")
SIMULATED = tensor(
    (64, 64),
    (1, 64),
    expression="x.t()",
    device="sim:0",
    on_accelerator=True,
    simulated=True,
)
VALUES = tensor(
    (2, 3),
    expression="loss",
    kind="parameter",
    requires_grad=True,
    values=ValueSummary(
        -1.5,
        3.25,
        0.6875,
        1,
        1,
        1,
        None,
        ("-1.5", "0", "3.25"),
        0,
        (1, 0),
        (1, 2),
        HeatMap(
            (0,),
            (1,),
            (2, 3),
            (1, 1),
            ((-1.5, 0.0, 3.25), (None, 1.0, None)),
            (("", "", ""), ("nan", "", "inf")),
        ),
    ),
)
_WAVE = tuple(
    tuple(
        round(math.sin(row / 2) * math.cos(column / 5) / 40, 6) for column in range(32)
    )
    for row in range(12)
)
WEIGHTS = tensor(
    (64, 3, 7, 7),
    expression="model.conv1.weight",
    kind="parameter",
    requires_grad=True,
    values=ValueSummary(
        -0.17,
        0.1625,
        0.000172,
        0,
        0,
        0,
        None,
        ("-0.0123", "0.0071"),
        0,
        None,
        None,
        HeatMap((0,), (1, 2, 3), (64, 147), (6, 5), _WAVE[:11], (("",) * 32,) * 11),
    ),
)
COUNTS = tensor(
    (96,),
    expression="counts",
    dtype="int64",
    itemsize=8,
    values=ValueSummary(
        0.0,
        95.0,
        47.5,
        0,
        0,
        1,
        None,
        ("0", "1", "2", "3", "4", "5"),
        0,
        None,
        None,
        HeatMap(
            (),
            (0,),
            (1, 96),
            (1, 3),
            (tuple(3.0 * at + 1 for at in range(32)),),
            (("",) * 32,),
        ),
    ),
)
SPARSE = unknown(
    "sparse tensor (COO)",
    "a sparse tensor has no strides: %tensor_info x.values() shows what it stores",
    size=None,
)
NESTED = unknown(
    "nested tensor (jagged)",
    "each row has a size of its own",
    inner=(tensor((5, 3), expression="x.values()"),),
)

GROUPS = AliasReport(
    (
        Group(
            "cpu",
            4_000_000,
            60,
            3_999_940,
            (
                Name("small", "tensor", "float32", (10,), 40, 2_000_000, 2_000_040),
                Name(
                    "views['odd']", "tensor", "float32", (10,), 40, 2_000_004, 2_000_080
                ),
                Name(
                    "Out[7]",
                    "tensor",
                    "float32",
                    (10,),
                    40,
                    2_000_000,
                    2_000_040,
                    is_output=True,
                ),
            ),
            (
                Pair(0, 1, True, True, 20, "yes", True, "partial"),
                Pair(0, 2, True, True, 40, "yes", True, "identical"),
            ),
            hidden_holders=1,
            advice="small = small.clone() frees 3.81 MiB once the others are gone",
        ),
        Group(
            "cuda:0",
            256,
            256,
            0,
            (
                Name("weight", "parameter", "float16", (8, 16), 256, 0, 256),
                Name("numpy_view", "numpy array", "float16", (8, 16), 256, 0, 256),
            ),
            (Pair(0, 1, False, True, 256, "yes", False, "identical"),),
        ),
    ),
    alone=12,
    alone_bytes=1_234_567,
    complete=False,
    remarks=("the module model was searched for parameters and buffers only",),
)


def leaf(name, size, *, kind="parameter", dtype="float32", device="cpu", **others):
    """One tensor of a model."""
    elements = math.prod(size)
    of_parameters = elements if kind == "parameter" else 0
    return dataclasses.replace(
        Node(
            name,
            kind,
            1,
            elements,
            of_parameters,
            of_parameters,
            elements * (4 if dtype == "float32" else 2),
            (dtype,),
            (device,),
            size,
        ),
        **others,
    )


def module(name, kind, *children, **others):
    """A module of a model, with what its parts take together."""
    figures = ("tensors", "elements", "parameters", "trainable", "stored_bytes")
    sums = {each: sum(getattr(child, each) for child in children) for each in figures}
    dtypes = dict.fromkeys(each for child in children for each in child.dtypes)
    devices = dict.fromkeys(each for child in children for each in child.devices)
    node = Node(
        name,
        kind,
        **sums,
        dtypes=tuple(dtypes),
        devices=tuple(devices),
        children=children,
    )
    return dataclasses.replace(node, **others)


def model(root, *odd, kind="module (Net)", **others):
    """The report on a model of one dtype and device."""
    amount = Amount("parameters", root.tensors, root.parameters, root.stored_bytes)
    place = f"{root.dtypes[0]} on {root.devices[0]}"
    types = (Amount(place, root.tensors, root.elements, root.stored_bytes),)
    fields = {"roles": (amount,), "types": types, "odd": odd, **others}
    return ModelReport(root.name, kind, root, **fields)


def _block(number, **others):
    return module(
        str(number),
        "Block",
        module("attention", "Linear", leaf("weight", (64, 64), **others)),
        module(
            "mlp", "Linear", leaf("weight", (256, 64), **others), leaf("bias", (256,))
        ),
    )


TRANSFORMER = model(
    module(
        "model",
        "Decoder",
        leaf("wte", (1000, 64)),
        module("blocks", "ModuleList", *map(_block, range(12))),
        module("norm", "LayerNorm", leaf("weight", (64,)), leaf("bias", (64,))),
        module("head", "Linear", leaf("weight", (1000, 64), odd=()), same_as=""),
        tensors=39,
        parameters=314_304,
        elements=314_304,
        stored_bytes=1_257_216,
    ),
    Oddity("tied", (".head.weight",), 64_000, ("is .wte",)),
)
BROKEN = model(
    module(
        "model",
        "Net",
        module(
            "body",
            "Sequential",
            leaf("weight", (512, 512), trainable=0, odd=("frozen",)),
            trainable=0,
        ),
        module(
            "head", "Linear", leaf("weight", (10, 512), device="cuda:0", nan_count=3)
        ),
        leaf("mask", (512,), kind="attribute", odd=("not registered",)),
    ),
    Oddity("NaN or inf", (".head.weight",), 5_120, ("3 NaN",)),
    Oddity("several devices", (".head.weight",), 5_120, ("on cuda:0",)),
    Oddity("not registered", (".mask",), 512),
    Oddity("frozen", (".body.weight",), 262_144),
    types=(
        Amount("float32 on cpu", 2, 262_656, 1_050_624),
        Amount("float32 on cuda:0", 1, 5_120, 20_480),
    ),
    values=True,
)
STATE = model(
    module(
        "optimizer",
        "Adam",
        module("group 0", "", leaf("0", (512, 512)), leaf("1", (512,))),
        module("step", "", leaf("0", (), kind="state"), leaf("1", (), kind="state")),
        module("exp_avg", "", leaf("0", (512, 512), kind="state")),
        module("exp_avg_sq", "", leaf("0", (512, 512), kind="state")),
    ),
    kind="optimizer (Adam)",
    roles=(
        Amount("state", 4, 524_290, 2_097_160),
        Amount("parameters", 2, 262_656, 1_050_624),
    ),
)
LISTED = model(
    module(
        "batch",
        "list",
        leaf("[0]", (32, 3, 8, 8), kind="tensor"),
        leaf("[1]", (8, 32), kind="tensor", odd=("not contiguous",)),
    ),
    Oddity("not contiguous", ("[1]",), 256),
    kind="list",
)

SAMPLES = (
    ("0-d", tensor((), expression="loss")),
    ("1-d", tensor((8,))),
    ("1-d-stepped", tensor((5,), (3,), 2, expression="x[2::3]")),
    ("2-d", X),
    ("transposed", TRANSPOSED),
    ("slice-with-gaps", HALF),
    ("stepped-far", STEPPED),
    ("expanded", EXPANDED),
    ("windows", WINDOWS),
    ("offset", OFFSET),
    ("small-of-big", SMALL_OF_BIG),
    ("3-d", PAGES),
    ("3-d-permuted", MANY_PAGES),
    ("images-nchw", NCHW),
    ("images-channels-last", NHWC),
    ("5-d", FIVE),
    ("6-d", SIX),
    ("12-d", TWELVE),
    ("huge-transposed", HUGE),
    ("size-1-odd-stride", ODD),
    ("one-channel", AMBIGUOUS),
    ("empty", EMPTY),
    ("conjugated", COMPLEX),
    ("dtype-view", BYTES),
    ("resized-to-0", tensor((4, 6), stored_bytes=0, touched_bytes=96)),
    (
        "numpy-backwards",
        tensor(
            (6,),
            (-1,),
            5,
            expression="a[::-1]",
            kind="numpy array",
            requires_grad=None,
            remarks=("torch has no negative strides: torch.flip copies",),
        ),
    ),
    ("parameter-with-values", VALUES),
    ("simulated", SIMULATED),
    ("sparse", SPARSE),
    ("nested", NESTED),
    ("hostile", tensor((2, 2), expression=HOSTILE, kind=HOSTILE, dtype=HOSTILE)),
    ("view-fails", viewed(TRANSPOSED, (24,))),
    ("view-fails-huge", viewed(HUGE, (2**30,))),
    ("view-works", viewed(HALF, (12,))),
    ("view-of-no-shape", viewed(X, (5, 5))),
    ("compared", compared(X, TRANSPOSED, HALF)),
    (
        "compared-simulated",
        compared(
            tensor((64, 64), device="sim:0", on_accelerator=True, simulated=True),
            SIMULATED,
        ),
    ),
    ("compared-dtypes", compared(WORDS, BYTES)),
    (
        "compared-large",
        compared(
            tensor((1024, 1024), expression="big"),
            tensor(
                (1024, 512),
                (1024, 1),
                512,
                stored_bytes=2**22,
                expression="big[:, 512:]",
            ),
            warp=True,
            remarks=("nope: name 'nope' is not defined",),
        ),
    ),
    ("warp-row-and-column", CompareReport((tensor((64, 64)),), (), warp=True)),
    (
        "one-with-view",
        CompareReport((TRANSPOSED,), (), (viewed(TRANSPOSED, (2, 3, 4)),)),
    ),
    ("aliases", GROUPS),
    ("no-aliases", AliasReport((), 3, 300)),
    ("values-weights", WEIGHTS),
    ("values-counts", COUNTS),
    ("model", TRANSFORMER),
    ("model-deep", dataclasses.replace(TRANSFORMER, depth=3)),
    ("model-odd", BROKEN),
    ("model-optimizer", STATE),
    ("model-list", LISTED),
)
