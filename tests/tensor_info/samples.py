"""Reports of tensors of every rank and every special case; no torch is needed.

Their figures come from the room's formulas, which other tests hold against torch
and against enumeration; what no formula gives is written down here.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

from gpumagic.tensor_info import geometry, overlap
from gpumagic.tensor_info.api import _report_of
from gpumagic.tensor_info.geometry import Geometry, fresh_strides
from gpumagic.tensor_info.read import Reading
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


def tensor(size, stride=None, offset=0, *, itemsize=4, stored_bytes=None, **others):
    """The report of a tensor with this geometry, in a storage that just fits."""
    size = tuple(size)
    g = Geometry(size, stride or fresh_strides(size), offset, itemsize)
    if stored_bytes is None:
        stored_bytes = 0 if g.last_element is None else (g.last_element + 1) * itemsize
    reading = Reading(
        kind="tensor",
        dtype="float32",
        device="cpu",
        itemsize=itemsize,
        size=g.size,
        geometry=g,
        start=ADDRESS,
        address=ADDRESS,
        storage_bytes=stored_bytes,
        is_view=stride is not None,
        requires_grad=False,
    )
    report = _report_of(reading, others.pop("expression", "x"))
    return dataclasses.replace(report, **others)


def viewed(report, shape):
    """The report of `.view(shape)`."""
    return ViewReport(**vars(geometry.view(report.geometry, shape)), tensor=report)


def pair(reports, first, second):
    """Two tensors of one storage beside each other."""
    one, other = (reports[at].geometry for at in (first, second))
    return Pair(
        **vars(overlap.shared(one, other, 0)),
        first=first,
        second=second,
        storage="same",
        same_layout=(one.size, one.stride) == (other.size, other.stride),
    )


def compared(*reports, **others):
    """Views of one storage beside each other."""
    pairs = itertools.combinations(range(len(reports)), 2)
    told = tuple(pair(reports, first, second) for first, second in pairs)
    return CompareReport(reports, told, **others)


X = tensor((4, 6))
TRANSPOSED = tensor((6, 4), (1, 6), expression="x.t()")
HALF = tensor((4, 3), (6, 2), stored_bytes=96, expression="x[:, ::2]")
EXPANDED = tensor((5, 4), (0, 1), expression="row.expand(5, 4)")
WINDOWS = tensor((4, 3), (1, 1), expression="x.unfold(0, 3, 1)")
NHWC = tensor((2, 3, 4, 5), (60, 1, 15, 3), expression="images", is_view=False)
SMALL_OF_BIG = tensor(
    (10,), (1,), 500_000, stored_bytes=4_000_000, expression="big[500000:500010]"
)
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
        1,
        1,
        1,
        -1.5,
        3.25,
        0.6875,
        (1, 0),
        (1, 2),
        HeatMap(
            (0, 1),
            (1, 1),
            ((-1.5, 0.0, 3.25), (None, 1.0, None)),
            (("", "", ""), ("NaN", "", "inf")),
        ),
    ),
)
SPARSE = TensorReport(
    "sparse tensor (COO)",
    "float32",
    "cpu",
    remarks=("it has no strides: x.to_dense() copies it into a plain tensor",),
    expression="x",
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
            freed_by_copies_bytes=3_999_880,
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
        ),
    ),
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
        module("head", "Linear", leaf("weight", (1000, 64)), same_as=""),
        tensors=39,
        parameters=314_304,
        elements=314_304,
        stored_bytes=1_257_216,
    ),
    Oddity("tied", (".head.weight",), 64_000, ".wte"),
)
BROKEN = model(
    module(
        "model",
        "Net",
        module(
            "body",
            "Sequential",
            leaf("weight", (512, 512), trainable=0, odd="frozen"),
            trainable=0,
        ),
        module(
            "head", "Linear", leaf("weight", (10, 512), device="cuda:0", nan_count=3)
        ),
        leaf("mask", (512,), kind="attribute", odd="not registered"),
    ),
    Oddity("NaN or inf", (".head.weight",), 5_120, "3 NaN"),
    Oddity("several devices", (".head.weight",), 5_120, "on cuda:0"),
    Oddity("not registered", (".mask",), 512, "not registered"),
    Oddity("frozen", (".body.weight",), 262_144, "frozen"),
    types=(
        Amount("float32 on cpu", 2, 262_656, 1_050_624),
        Amount("float32 on cuda:0", 1, 5_120, 20_480),
    ),
    values=True,
)
SAMPLES = (
    ("transposed", TRANSPOSED),
    ("slice-with-gaps", HALF),
    ("expanded", EXPANDED),
    ("windows", WINDOWS),
    ("small-of-big", SMALL_OF_BIG),
    ("images-channels-last", NHWC),
    ("parameter-with-values", VALUES),
    ("simulated", SIMULATED),
    ("sparse", SPARSE),
    ("hostile", tensor((2, 2), expression=HOSTILE, kind=HOSTILE, dtype=HOSTILE)),
    ("view-fails", viewed(TRANSPOSED, (24,))),
    ("compared", compared(X, TRANSPOSED, HALF)),
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
    ("aliases", GROUPS),
    ("model", TRANSFORMER),
    ("model-odd", BROKEN),
)
