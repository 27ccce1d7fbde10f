"""What tensors are used as: parameters, gradients, the memory of an optimizer."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.gpu_mem.walk import Walk


class Role(enum.IntEnum):
    """The first that applies to memory is what its bytes are counted as."""

    PARAMETER = 0
    GRADIENT = 1
    BUFFER = 2
    OPTIMIZER_STATE = 3
    OTHER = 4

    @property
    def words(self) -> str:
        """As it is shown."""
        return _WORDS[self]


_WORDS = {
    Role.PARAMETER: "parameters",
    Role.GRADIENT: "gradients",
    Role.BUFFER: "buffers",
    Role.OPTIMIZER_STATE: "optimizer state",
    Role.OTHER: "other tensors",
}


def role_of(torch: Any, tensor: Any) -> Role:
    """What a tensor's class says of it."""
    is_parameter = issubclass(type(tensor), torch.nn.Parameter)
    return Role.PARAMETER if is_parameter else Role.OTHER


def buffers_of(module: Any) -> list[Any]:
    """The buffers of a module, without those of the modules within it."""
    buffers: Any = _attributes(module).get("_buffers")
    return list(dict.values(buffers)) if issubclass(type(buffers), dict) else []


def state_of(optimizer: Any) -> Any:
    """What an optimizer remembers of its parameters."""
    return _attributes(optimizer).get("state")


def mark_optimizer_state(walk: Walk) -> None:
    """Tell the tensors that optimizers keep for themselves from others.

    The keys of that memory are the parameters: these are not theirs.
    """
    seen, waiting = set(walk.states), list(walk.states)
    while waiting:
        for child in walk.children[waiting.pop()]:
            if child in seen:
                continue
            seen.add(child)
            if not walk.is_tensor(child):
                waiting.append(child)
            elif walk.roles.get(child, Role.OTHER) is Role.OTHER:
                walk.roles[child] = Role.OPTIMIZER_STATE


def _attributes(thing: Any) -> dict[str, Any]:
    """The attributes that lie in the object itself; no property of the user's is run.

    A class may have replaced `__dict__` itself: then nothing is known of it.
    """
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}
