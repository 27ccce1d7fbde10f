"""Something that stands in for a loader and is asked for what the loader knows."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable


class LikeItsLoader:
    """Answers with the loader's length and attributes, and sets them there.

    A loader that can say where it stands (`state_dict`) is further than the batch in
    use if batches are fetched ahead. So what it says is kept with each batch.

    Args:
        loader: What gives the batches.
    """

    # What is kept here; all else is the loader's.
    kept_here: ClassVar[frozenset[str]] = frozenset({"loader", "_state"})

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._state: Any = None  # of the loader, behind the batch handed out last

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        # Without the second condition a copy that is not filled yet would ask itself.
        if name.startswith("__") or "loader" not in self.__dict__:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}"
            )
        found = getattr(self.loader, name)
        if name == "state_dict":
            return functools.partial(self._state_dict, found)
        if name == "load_state_dict":
            return functools.partial(self._load_state_dict, found)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.kept_here or hasattr(type(self), name):
            super().__setattr__(name, value)
        else:  # kept here, it would silently mean nothing
            setattr(self.loader, name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_state": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def _loader_in_words(self) -> str:
        dataset = getattr(self.loader, "dataset", None)
        name = type(self.loader).__name__
        return name if dataset is None else f"{name} of {type(dataset).__name__}"

    def _state_now(self) -> Any:
        """What the loader says just now, to be kept; None if it says nothing."""
        ask = getattr(self.loader, "state_dict", None)
        if ask is None:
            return None
        try:
            # A state may consist of things that go on changing with the loader.
            return copy.deepcopy(ask())
        except AttributeError:  # accelerate's has the word, and an answer not always
            return None

    def _state_dict(self, ask: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return ask(*args, **options) if self._state is None else self._state

    def _load_state_dict(
        self, load: Callable[..., Any], *args: Any, **options: Any
    ) -> Any:
        self._state = None
        return load(*args, **options)
