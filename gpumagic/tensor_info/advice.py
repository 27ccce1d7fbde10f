"""What to type so that memory is freed which nothing reads; only where it is true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from gpumagic.tensor_info.storages import Holder

_NAMED_AT_MOST = 3


def advice_for(
    holders: list[Holder],
    stored_bytes: int,
    used_bytes: int | None,
    hidden_holders: int | None,
) -> str:
    """What frees memory of one group, or the empty string.

    A copy frees the whole only if every name lets go of it. `.contiguous()` is
    never advised: where a tensor is contiguous already it copies nothing.

    Args:
        holders: The names of the group.

        stored_bytes: What the group keeps alive.

        used_bytes: What its names reach.

        hidden_holders: How many others hold it; None if that cannot be told.
    """
    if hidden_holders:
        return ""
    if all(each.is_output for each in holders):
        return f"`%reset -f out` frees {bytes_text(stored_bytes)}" + _unless(holders)
    if used_bytes is None or used_bytes >= stored_bytes:
        return ""
    return _by_copies(holders, stored_bytes)


def _by_copies(holders: list[Holder], stored_bytes: int) -> str:
    copies = [_copy(each) for each in holders]
    freed = stored_bytes - sum(_copied_bytes(each) for each in holders)
    known = [copy for copy in copies if copy]
    if freed <= 0 or len(known) < len(copies) or len(known) > _NAMED_AT_MOST:
        return ""
    together = ", together" if len(known) > 1 else ""
    listed = " and ".join(f"`{copy}`" for copy in known)
    frees = "free" if together else "frees"
    return f"{listed}{together} {frees} {bytes_text(freed)}" + _unless(holders)


def _copy(holder: Holder) -> str:
    """The assignment that lets a name go; empty if there is none to advise."""
    reading = holder.reading
    is_parameter = reading.kind == "parameter"
    if holder.is_output or not holder.is_assignable or is_parameter:
        return ""
    name = holder.name
    if reading.kind.startswith("numpy"):
        return f"{name} = {name}.copy()"
    # A copy that autograd knows of leads back to the original and keeps it alive.
    detached = ".detach()" if reading.requires_grad else ""
    return f"{name} = {name}{detached}.clone()"


def _copied_bytes(holder: Holder) -> int:
    geometry = holder.reading.geometry
    return 0 if geometry is None else geometry.logical_bytes


def _unless(holders: list[Holder]) -> str:
    """A condition where torch cannot tell who else holds the memory."""
    known = all(each.memory.all_holders is not None for each in holders)
    return "" if known else ", unless something else holds it"
