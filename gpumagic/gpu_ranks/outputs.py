"""Shows what a cell has printed and drawn on engines, the same thing once."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from IPython.display import display

from gpumagic.gpu_ranks.engines import MIME

if TYPE_CHECKING:
    from collections.abc import Mapping


def show_outputs(results: Mapping[int, Any]) -> None:
    """Show texts by engine, then what is more than text.

    Args:
        results: ipyparallel's own, by engine.
    """
    metadata = {engine: _metadata(result) for engine, result in results.items()}
    for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        said: dict[str, list[int]] = {}
        for engine, each in metadata.items():
            if text := each.get(name):
                said.setdefault(text, []).append(engine)
        for text, engines in said.items():
            stream.write(f"[{name}: {_numbers(engines)}] {text.rstrip()}\n")
    for engine, each in metadata.items():
        for output in each.get("outputs", ()):
            data = output.get("data", {})
            if MIME not in data:
                display({"text/plain": f"[output: {engine}]"}, raw=True)
                display(data, raw=True, metadata=output.get("metadata", {}))


def _metadata(result: Any) -> dict[str, Any]:
    metadata = result.metadata
    return metadata if isinstance(metadata, dict) else dict(metadata[0])


def _numbers(engines: list[int]) -> str:
    """0-3 for many in a row.

    >>> _numbers([0, 1, 2, 3]), _numbers([0, 2])
    ('0-3', '0,2')
    """
    if len(engines) > 2 and engines == list(range(engines[0], engines[-1] + 1)):
        return f"{engines[0]}-{engines[-1]}"
    return ",".join(map(str, engines))
