"""How holders of memory are called: as the user would type them."""

from __future__ import annotations

import re
from typing import Any

from gpumagic.gpu_mem.records.names import Holder, HolderKind

UNATTRIBUTED = "unattributed"
WORKSPACES = "cuBLAS workspaces"

_SHOWN = re.compile(r"_{1,3}|_\d+")
_OF_THE_SHELL = re.compile(
    r"In|Out|_[ido]h|_i{1,3}|_i\d+|get_ipython|exit|quit|__\w+__"
)
_MOST_OF_A_KEY = 24  # characters


def is_shown_result(name: str) -> bool:
    """Whether IPython puts results under this name: `_`, `__`, `___`, `_3`."""
    return _SHOWN.fullmatch(name) is not None


def is_of_the_shell(name: str, value: Any) -> bool:
    """Whether a name is IPython's or Python's own, and has not been taken over."""
    if name in ("In", "Out"):
        return any(type(value) is each for each in (dict, list))
    return _OF_THE_SHELL.fullmatch(name) is not None


def output_name(places: list[str]) -> str:
    """The best known of the places that hold one result."""
    return min(places, key=lambda each: (not each.startswith("Out["), len(each)))


def graph_name(name: str, *, is_tensor: bool) -> str:
    """What the graph of a name is called: `loss.grad_fn`, `graphs in losses`.

    Args:
        name: The name.

        is_tensor: Whether it stands for a tensor, and not for what has some within.
    """
    if not is_tensor:
        return f"graphs in {name}"
    local, within, function = name.partition(" in ")
    return f"{local}.grad_fn{within}{function}"


def element_name(key: Any) -> str | None:
    """An element of a list or dict as a part is called: `["k"]`, `[3]`.

    None for a key whose own code would have to say how it is written.
    """
    if type(key) is int:
        return f"[{key}]"
    if type(key) is not str:
        return None
    short = key if len(key) <= _MOST_OF_A_KEY else f"{key[: _MOST_OF_A_KEY - 1]}…"
    quoted = short.replace("\\", "\\\\").replace('"', '\\"')
    return f'["{quoted}"]'


def key_of(holder: Holder) -> str:
    """What a holder is remembered by from one cell to the next."""
    return f"{holder.kind.name}:{holder.device}:{holder.name}"


def has_name(kind: HolderKind) -> bool:
    """Whether rows of this kind stand for names of the user's."""
    return kind not in (HolderKind.LIBRARY, HolderKind.UNATTRIBUTED)
