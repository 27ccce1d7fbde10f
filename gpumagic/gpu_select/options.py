"""The options of a choice, said once for the magic, the command and `select`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

    from gpumagic.gpu_select.situation import Witness


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options as they are said: of the magic, the command and `select` alike."""

    n: int | None = None
    min_free: str | int | None = None
    max_util: float | None = None
    name: str | None = None
    exclude: str | int | Iterable[str | int] = ()
    mine_ok: bool = False
    wait: str | float = 0.0
    as_: str | None = None
    dry_run: bool = False
    verify: bool = False
    force: bool = False

    @classmethod
    def typed(cls, words: argparse.Namespace) -> Options:
        """What a parser has read, which may know more options or fewer."""
        said = {each.name: getattr(words, each.name, None) for each in fields(cls)}
        return cls(**{name: value for name, value in said.items() if value is not None})

    @property
    def any_said(self) -> bool:
        """Whether any of them needs to be told which GPUs."""
        return any(value not in (None, False, ()) for value in vars(self).values())


@dataclass(frozen=True)
class How:
    """Where a choice is asked for: a notebook shows more than a script."""

    # called while waiting with the seconds since the last call and what is still in
    # the way
    waiting: Callable[[float, str], object] | None = None
    witness: Witness | None = None
    shell: Any = None
