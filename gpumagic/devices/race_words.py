"""A race between CUDA streams in words, as the simulated GPU tells of its own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gpumagic.observed import SeenRace
from gpumagic.places import code_line, place_text

if TYPE_CHECKING:
    from gpumagic.devices.race_watch import Access

_DEFAULT_STREAM = 0


def in_words(torch: Any, earlier: Access, later: Access) -> SeenRace:
    """What is wrong, with both places, and what to type where.

    Args:
        torch: The torch module itself.

        earlier: The access that was made first.

        later: The access that does not wait for it.
    """
    later_place, earlier_place = place_text(later.mark), place_text(earlier.mark)
    waiting, other = (_typed(torch, each.stream) for each in (later, earlier))
    return SeenRace(
        problem=(
            f"{later_place} {_verb(later)} memory on {_spoken(torch, later.stream)} "
            f"that {earlier_place} {_verb(earlier)} on "
            f"{_spoken(torch, earlier.stream)}, and nothing makes it wait"
        ),
        hint=f"{waiting}.wait_stream({other}) before {later_place}",
        earlier=code_line(earlier.mark),
        later=code_line(later.mark),
    )


def _typed(torch: Any, stream: int) -> str:
    """What to type for a stream; in angle brackets where it has no name."""
    if stream == _DEFAULT_STREAM:
        return "torch.cuda.default_stream()"
    return _variable_of(torch, stream) or f"<stream {stream:#x}>"


def _spoken(torch: Any, stream: int) -> str:
    if stream == _DEFAULT_STREAM:
        return "the default stream"
    return _variable_of(torch, stream) or f"stream {stream:#x}"


def _variable_of(torch: Any, stream: int) -> str | None:
    """The name that the user has given a stream, in the notebook or the script."""
    variables = vars(sys.modules["__main__"]).copy()
    streams = {
        value.cuda_stream: name
        for name, value in variables.items()
        if isinstance(value, torch.cuda.Stream) and name[0] != "_"
    }
    return streams.get(stream)


def _verb(access: Access) -> str:
    return "writes" if access.writes else "reads"
