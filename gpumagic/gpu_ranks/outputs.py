"""Shows what a cell has printed and drawn on engines, the same thing once."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from IPython.display import display

from gpumagic.gpu_ranks.answers import MIME
from gpumagic.gpu_ranks.engines import metadata_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_STREAMS = ("stdout", "stderr")


def show_outputs(results: Mapping[int, Any]) -> None:
    """Show texts by engine, then what is more than text, then errors."""
    metadata = {engine: metadata_of(result) for engine, result in results.items()}
    for name in _STREAMS:
        _write(name, {engine: each.get(name) for engine, each in metadata.items()})
    for engine, each in metadata.items():
        for data, more in _shown(each):
            display({"text/plain": f"[output: {engine}]"}, raw=True)
            display(data, raw=True, metadata=more)
    _write("error", {engine: _traceback(each) for engine, each in metadata.items()})


def _write(name: str, texts: Mapping[int, str | None]) -> None:
    """Each text once, with the engines that it is of."""
    said: dict[str, list[int]] = {}
    for engine, text in texts.items():
        if text:
            said.setdefault(text, []).append(engine)
    stream = sys.stdout if name == "stdout" else sys.stderr
    for text, engines in said.items():
        between = "\n" if "\n" in text.rstrip() else " "
        stream.write(f"[{name}: {_numbers(engines)}]{between}{text.rstrip()}\n")


def _shown(metadata: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """What was displayed, and the value of the last line."""
    for output in (*metadata.get("outputs", ()), metadata.get("execute_result")):
        if output and MIME not in output.get("data", {}):
            yield output.get("data", {}), output.get("metadata", {})


def _traceback(metadata: Mapping[str, Any]) -> str | None:
    """Of the error that the cell ended with, as the engine's shell has drawn it."""
    said = getattr(metadata.get("error"), "traceback", None)
    return said if isinstance(said, str) else None


def _numbers(engines: list[int]) -> str:
    """0-3 for many in a row.

    >>> _numbers([0, 1, 2, 3]), _numbers([0, 2])
    ('0-3', '0,2')
    """
    if len(engines) > 2 and engines == list(range(engines[0], engines[-1] + 1)):
        return f"{engines[0]}-{engines[-1]}"
    return ",".join(map(str, engines))
