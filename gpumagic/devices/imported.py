"""What the notebook has imported already: nothing is imported to find out."""

from __future__ import annotations

import sys
from typing import Any


def loaded_torch() -> Any | None:
    """torch, if it has been imported, and not only in part."""
    torch: Any = sys.modules.get("torch")
    return torch if hasattr(torch, "cuda") else None
