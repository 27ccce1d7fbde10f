"""All names under which a notebook, or a script, may hold memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.gpu_mem.error_holders import (
    errors_in_variables,
    held_errors,
    stray_errors,
)
from gpumagic.gpu_mem.output_holders import output_places
from gpumagic.gpu_mem.roots import Sources

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpumagic.gpu_mem.error_frames import Error


class KnownNames:
    """Gathers names anew each time it is asked, and keeps none of their values.

    Args:
        namespace: The user's names: the very dict that the code runs in.

        shell: The IPython shell with its outputs and errors; None where there is none.
    """

    def __init__(self, namespace: Mapping[str, Any], shell: Any | None = None) -> None:
        self.namespace = namespace
        self.shell = shell

    def sources(
        self,
        kind: str,
        shown: Mapping[str, Any] | None = None,
        error: BaseException | None = None,
    ) -> Sources:
        """Where to look for what holds memory of this kind of device.

        Args:
            kind: The word in front of the colon of the torch device.

            shown: What IPython is about to keep besides, by the names it will have.

            error: What it is about to keep as the last error.
        """
        outputs = {place.name: place.value for place in output_places(self.shell)}
        held = tuple(each.error for each in held_errors(self.shell))
        errors = held if error is None else (error, *held)
        return Sources(
            self.namespace,
            kind,
            outputs=outputs | dict(shown or {}),
            errors=errors,
            stray_errors=lambda: stray_errors((*errors, *self._in_variables())),
        )

    def _in_variables(self) -> Iterator[Error]:
        for errors in errors_in_variables(self.shell).values():
            yield from errors
