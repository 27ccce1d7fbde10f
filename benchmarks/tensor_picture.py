"""What it takes to show a tensor, and how large the output is, beside our peers.

None of the peers shows strides or storage, so this compares what a user waits for
and what the notebook file grows by, not what is learnt. Peers that are not installed
are left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.runner import Comparison, side_by_side, timed
from gpumagic.tensor_info import describe

if TYPE_CHECKING:
    from collections.abc import Callable


def run(rounds: int = 30) -> Comparison:
    """Show small and large tensors; the notes say how many bytes each shows."""
    small = torch.arange(24.0).reshape(4, 6).t()
    large = torch.zeros(4096, 4096).t()
    huge = torch.empty(2**15, 2**15, device="meta").t()
    shows: dict[str, Callable[[], str]] = {
        "gpumagic, 6 x 4": lambda: _bundle(describe(small)),
        "gpumagic, 4096 x 4096": lambda: _bundle(describe(large)),
        "gpumagic, 2^15 x 2^15 on meta": lambda: _bundle(describe(huge)),
        **_treescope("6 x 4", small),
        **_treescope("4096 x 4096", large),
        **_tensor_layouts(),
        **_torchinfo(),
        **_lovely("6 x 4", small),
        **_lovely("4096 x 4096", large),
    }
    subjects = {name: timed(show) for name, show in shows.items()}
    found = side_by_side("tensor_picture", subjects, rounds=rounds)
    notes = {name: f"{len(show().encode()):,} bytes" for name, show in shows.items()}
    return dataclasses.replace(found, notes=notes)


def _bundle(report: Any) -> str:
    return "".join(report._repr_mimebundle_().values())


def _treescope(what: str, tensor: torch.Tensor) -> dict[str, Callable[[], str]]:
    if importlib.util.find_spec("treescope") is None:
        return {}
    treescope = importlib.import_module("treescope")
    array = tensor.numpy()  # it asks tensors for names, which torch 2.13 has not

    draw = treescope.ArrayAutovisualizer()

    def show() -> str:
        with treescope.active_autovisualizer.set_scoped(draw):
            return str(treescope.render_to_html(array))

    return {f"treescope, {what}": show}


def _tensor_layouts() -> dict[str, Callable[[], str]]:
    """The layout is typed in: it takes no live tensor of two dims."""
    with contextlib.suppress(ImportError):
        layouts = importlib.import_module("tensor_layouts")
        viz = importlib.import_module("tensor_layouts.viz")

        def show() -> str:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "layout.svg"
                viz.draw_layout(layouts.Layout((6, 4), (1, 6)), filename=str(file))
                return file.read_text()

        return {"tensor-layouts, 6 x 4": show}
    return {}


def _torchinfo() -> dict[str, Callable[[], str]]:
    """It shows modules, with the shapes of their parameters."""
    with contextlib.suppress(ImportError):
        torchinfo = importlib.import_module("torchinfo")
        layer = torch.nn.Linear(6, 4)
        return {"torchinfo, a layer": lambda: str(torchinfo.summary(layer, verbose=0))}
    return {}


def _lovely(what: str, tensor: torch.Tensor) -> dict[str, Callable[[], str]]:
    with contextlib.suppress(ImportError):
        lovely = importlib.import_module("lovely_tensors")
        return {f"lovely-tensors, {what}": lambda: str(lovely.lovely(tensor))}
    return {}
