"""One claim on a GPU: who holds it, since when; as text, and as a file holds it."""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.gpu_select.identity import Process
from gpumagic.report.units import seconds_text

if TYPE_CHECKING:
    from collections.abc import Iterable

_MINUTE_S = 60
_LONGEST_NAME = 32


@dataclass(frozen=True)
class Claim:
    """That a process has chosen a GPU, or a slice of one.

    Attributes:
        uuid: What is claimed.

        holder: The process.

        user: Whose process it is.

        when: Since when, in seconds since 1970.

        out_of_sight: Whether it comes from another container, so that its process
            can be neither seen nor found by its number.
    """

    uuid: str
    holder: Process
    user: str
    when: float
    out_of_sight: bool = False

    def text(self, now: float) -> str:
        """Who holds it and since when, at a time in seconds since 1970.

        >>> Claim("GPU-1a2b", Process(4242), "anna", when=1000.0).text(now=1190.0)
        'pid 4242 of anna, 3 min ago'
        """
        place = " in another container" if self.out_of_sight else ""
        return f"pid {self.holder.pid} of {self.user}{place}, {_ago(now - self.when)}"

    def __str__(self) -> str:
        return self.text(time.time())


def written(uuids: Iterable[str], holder: Process, when: float) -> str:
    """What the file of a process says that claims these GPUs."""
    return json.dumps(
        {
            "uuids": list(uuids),
            "pid": holder.pid,
            "start_ticks": holder.start_ticks,
            "boot": holder.boot,
            "namespace": holder.namespace,
            "user": _user(),
            "when": when,
        }
    )


def parsed(text: str) -> list[Claim]:
    """The claims of a file.

    Raises:
        ValueError: It is not such a file; anybody can have written it.
    """
    try:
        match json.loads(text):
            case {
                "uuids": [*uuids],
                "pid": int(pid),
                "start_ticks": int() | None as start_ticks,
                "boot": str() | None as boot,
                "namespace": str() | None as namespace,
                "user": str(user),
                "when": int() | float() as when,
            } if pid > 0 and math.isfinite(when) and all(map(_is_word, uuids)):
                holder = Process(pid, start_ticks, boot, namespace)
                name = _plain(user)
                return [Claim(uuid, holder, name, float(when)) for uuid in uuids]
    except (RecursionError, OverflowError) as error:
        raise ValueError(text) from error
    raise ValueError(text)


def _ago(seconds: float) -> str:
    """Whole seconds, from a minute on whole minutes."""
    whole = max(int(seconds), 0)
    if whole >= _MINUTE_S:
        whole -= whole % _MINUTE_S
    return f"{seconds_text(whole)} ago" if whole else "just now"


def _user() -> str:
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):
        return f"user {os.getuid()}" if hasattr(os, "getuid") else "an unknown user"


def _is_word(value: Any) -> bool:
    return isinstance(value, str)


def _plain(name: str) -> str:
    """A name that does nothing to a screen."""
    letters = "".join(letter for letter in name if letter.isprintable())
    return letters[:_LONGEST_NAME] or "an unknown user"
