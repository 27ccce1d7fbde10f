"""The few defaults worth keeping: `%config GpuMagic.html = False`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traitlets import Bool, Integer
from traitlets.config import Configurable

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.session import Session


class GpuMagic(Configurable):  # the name is what users type after %config
    """How gpumagic shows its reports in this shell."""

    html = Bool(
        default_value=True,
        help="Draw reports as HTML beside the text, where the front end can.",
    ).tag(config=True)
    width = Integer(
        default_value=88, min=40, help="The width of the text form in a notebook."
    ).tag(config=True)

    def __init__(
        self, session: Session, *, unload: Callable[[], None], **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.session = session
        self.unload = unload

    def was_shown(self, report: Any) -> bool:
        """Whether the running cell has displayed this report already."""
        return self.session.was_shown(report, self.parent.execution_count)
