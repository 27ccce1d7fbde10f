"""How tensors lie in memory: plain numbers, in elements and bytes.

Nothing here holds a tensor: a report may be kept without keeping memory alive.
What a kind of tensor does not have, or what cannot be told, is None.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpumagic.report.record import Record, Report
from gpumagic.tensor_info.geometry import Geometry, View
from gpumagic.tensor_info.overlap import WORTH_FREEING_BYTES, Shared

if TYPE_CHECKING:
    from gpumagic.tensor_info.geometry import WarpRead


@dataclass(frozen=True)
class Facts(Record):
    """What a tensor says of itself. Sizes and strides are in elements."""

    kind: str  # "tensor", "parameter", "numpy array", "sparse tensor (COO)" ...
    dtype: str = "unknown dtype"
    device: str = "unknown device"
    itemsize: int | None = None
    size: tuple[int, ...] | None = None
    geometry: Geometry | None = None  # None where strides do not tell where it lies
    storage_bytes: int | None = None
    is_view: bool | None = None
    requires_grad: bool | None = None
    on_accelerator: bool = False
    simulated: bool = False
    remarks: tuple[str, ...] = ()  # what could not be told, and why

    @property
    def is_numpy(self) -> bool:
        """Whether it has numpy's methods, and not torch's."""
        return self.kind.startswith("numpy")

    @property
    def stride(self) -> tuple[int, ...] | None:
        """The strides, where it has any."""
        return None if self.geometry is None else self.geometry.stride


@dataclass(frozen=True)
class TensorReport(Facts, Report):
    """One tensor. Places are in elements unless they say otherwise."""

    expression: str = "tensor"  # as the user typed it
    numel: int | None = None

    is_contiguous: bool | None = None  # as torch says
    is_channels_last: bool | None = None  # as torch says
    operators_treat_as: str | None = None  # the memory format of what they return
    dim_order: tuple[int, ...] = ()  # slowest first; empty if not dense

    # whether two indices lead to one element; None where that is not decided
    overlaps_itself: bool | None = None
    last_element: int | None = None  # its place in the storage, in elements
    holes_in_span: int | None = None

    logical_bytes: int | None = None
    touched_bytes: int | None = None
    span_bytes: int | None = None
    address: int | None = None  # of the first element; None where there is none

    view_flat: bool | None = None  # whether .view(-1) works

    warp_along_dim: tuple[WarpRead, ...] = ()  # none where its address is unknown

    values: ValueSummary | None = None  # only where they were asked for
    unread: str = ""  # why they could not be read, where they were
    inner: tuple[TensorReport, ...] = ()  # what a wrapper is made of

    def drawing(self) -> Any:
        """A picture, its dims, what to do."""
        from gpumagic.tensor_info import answer_tensor

        return answer_tensor.draw(self)


@dataclass(frozen=True)
class ValueSummary(Record):
    """The values themselves, read only on request: all of them.

    Minimum, maximum and mean are those of the finite values; of complex ones there are
    none. Infinities and NaNs are counted.
    """

    nan_count: int = 0
    inf_count: int = 0  # of both signs
    zero_count: int = 0
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    first_nan: tuple[int, ...] | None = None  # its index
    first_inf: tuple[int, ...] | None = None
    heat: HeatMap | None = None

    @property
    def not_finite(self) -> str:
        """How many NaNs and infinities there are, in words; empty without any."""
        found = (self.nan_count, "NaN"), (self.inf_count, "inf")
        return " and ".join(f"{n:,} {word}" for n, word in found if n)


@dataclass(frozen=True)
class HeatMap(Record):
    """The values as tiles: each the mean of the finite ones of a block."""

    dims: tuple[int, ...]  # that of the rows and that of the columns; a vector is a row
    block: tuple[int, int]  # the rows and columns of one tile
    means: tuple[tuple[float | None, ...], ...]  # None where nothing is finite
    marks: tuple[tuple[str, ...], ...]  # "NaN", "inf" where a block has any


@dataclass(frozen=True)
class ViewReport(View, Report):
    """The same of one tensor."""

    tensor: TensorReport = field(kw_only=True)
    remarks: tuple[str, ...] = ()  # on expressions that gave no tensor

    def drawing(self) -> Any:
        """Where it breaks, which shapes work, and why."""
        from gpumagic.tensor_info import answer_view

        return answer_view.draw(self)


@dataclass(frozen=True)
class Pair(Shared):
    """Two tensors beside each other, by their places in the comparison."""

    first: int = field(kw_only=True)
    second: int = field(kw_only=True)
    storage: str = "unknown"  # "same", "two", or "two over one memory"
    same_layout: bool | None = None


@dataclass(frozen=True)
class CompareReport(Report):
    """Several tensors beside each other."""

    tensors: tuple[TensorReport, ...]
    pairs: tuple[Pair, ...]
    warp: bool = False  # whether the warp view was asked for
    remarks: tuple[str, ...] = ()  # on expressions that gave no tensor

    def drawing(self) -> Any:
        """One tensor alone is drawn as one."""
        from gpumagic.tensor_info import answer_several, answer_tensor

        if len(self.tensors) == 1:
            (alone,) = self.tensors
            return answer_tensor.draw(alone, warp=self.warp, failures=self.remarks)
        return answer_several.draw_comparison(self)


@dataclass(frozen=True)
class Name(Record):
    """A name of the notebook, or a place in one, that holds memory."""

    name: str  # "x", "model.weight", "batch[0]", "Out[7]"
    kind: str
    dtype: str
    size: tuple[int, ...]
    touched_bytes: int
    first_byte: int  # in the memory of its group
    last_byte: int  # exclusive
    is_output: bool = False  # held by Out, _ or the like


@dataclass(frozen=True)
class Group(Record):
    """Names that share one piece of memory, or one that keeps some for nothing."""

    device: str
    stored_bytes: int
    used_bytes: int  # that some of the names reach
    kept_for_nothing_bytes: int
    names: tuple[Name, ...]
    # by copies in the place of all names; nothing where a parameter is among them
    freed_by_copies_bytes: int = 0

    @property
    def is_wasteful(self) -> bool:
        """Whether so much is kept for nothing that it is worth a word."""
        return self.kept_for_nothing_bytes >= WORTH_FREEING_BYTES


@dataclass(frozen=True)
class AliasReport(Report):
    """Which names of a namespace share memory, the largest first."""

    groups: tuple[Group, ...]
    complete: bool = True  # False where the search was cut short
    remarks: tuple[str, ...] = ()
    simulated: bool = False  # whether some of them lie on a simulated GPU

    def drawing(self) -> Any:
        """The largest piece of memory, all pieces in figures, and what frees some."""
        from gpumagic.tensor_info import answer_several

        return answer_several.draw_aliases(self)


@dataclass(frozen=True)
class Node(Record):
    """A module, a container or one tensor, with all that lies within.

    Memory that is reached in several ways within it is counted once.
    """

    name: str  # within what it lies in: "layer1", "[0]", "weight"
    kind: str  # "Conv2d", "dict", "parameter", "buffer", "tensor"
    tensors: int
    elements: int
    parameters: int  # elements of parameters
    trainable: int  # elements of parameters that require gradients
    stored_bytes: int
    dtypes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    size: tuple[int, ...] | None = None  # of a tensor
    odd: str = ""  # of a tensor: "frozen" or "not registered"
    nan_count: int | None = None  # where the values were asked for
    inf_count: int | None = None
    children: tuple[Node, ...] = ()
    same_as: str = ""  # where the same module or container came first

    @property
    def is_tensor(self) -> bool:
        """Whether it is one tensor."""
        return self.tensors == 1 and not self.children


@dataclass(frozen=True)
class Amount(Record):
    """What some of the tensors take together."""

    name: str  # "parameters", "buffers", "float32 on cuda:0"
    tensors: int
    elements: int
    stored_bytes: int


@dataclass(frozen=True)
class Oddity(Record):
    """Tensors with one thing about them that one may not expect."""

    kind: str  # "NaN or inf", "several devices", "not registered", "frozen", "tied"
    names: tuple[str, ...]
    elements: int
    said: str  # what is odd about the first; where it is tied, its other name


@dataclass(frozen=True)
class ModelReport(Report):
    """What a model, a state dict, an optimizer or a container holds."""

    expression: str
    kind: str  # "module (ResNet)", "state dict", "optimizer (Adam)", "list"
    root: Node
    roles: tuple[Amount, ...]  # parameters, buffers, state ...
    types: tuple[Amount, ...]  # by dtype and device
    odd: tuple[Oddity, ...] = ()
    values: int = 0  # of how many tensors the elements were read
    complete: bool = True  # False where the walk was cut short
    remarks: tuple[str, ...] = ()
    simulated: bool = False

    def drawing(self) -> Any:
        """The tree, what it takes, what to do."""
        from gpumagic.tensor_info import answer_model

        return answer_model.draw(self)
