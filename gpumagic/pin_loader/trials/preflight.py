"""Whether what workers need can be sent to them, found out without starting one.

Forked workers have it all. Others are sent the dataset, the collate function and the
start function as a pickle; classes and functions are sent as names to import. Those of
a notebook cannot be imported: torch then says only that a worker "exited unexpectedly".
"""

from __future__ import annotations

import multiprocessing
import sys
from typing import TYPE_CHECKING, Any

from gpumagic.pin_loader.records.remark import Remark
from gpumagic.pin_loader.trials import pickle_trial

if TYPE_CHECKING:
    from collections.abc import Sequence

SENT = ("dataset", "collate_fn", "worker_init_fn")
_MOST_NAMED = 3
_FORK = (
    'or DataLoader(..., multiprocessing_context="fork"), if workers leave the GPU alone'
)


def unpicklable(loader: Any, start_method: str | None = None) -> Remark | None:
    """Why workers of this loader would fail; None if nothing is known against them.

    Nothing is started, and no default of `multiprocessing` is settled by asking. What
    is pickled is thrown away; tensors and arrays are not even looked at.

    Args:
        loader: The user's own; it is not iterated.

        start_method: How workers would start; None is as the loader has it.
    """
    method = start_method or start_method_of(loader)
    sent = {name: getattr(loader, name, None) for name in SENT}
    if method == "fork":
        return _on_device(sent)
    found = pickle_trial.attempt(sent)
    if found.culprit is not None:
        path, why = found.culprit
        return Remark(
            f"{path} {why}, which cannot be sent to workers started by {method}",
            f"define it at the top of a module and import it, {_FORK}",
        )
    if found.from_main and not _main_can_be_imported():
        return Remark(
            f"{_named(found.from_main)} in this notebook: workers started by {method} "
            "cannot import it",
            "write %%writefile ds.py on top of its cell and import it from ds, "
            f"{_FORK}",
        )
    return None


def start_method_of(loader: Any) -> str:
    """How its workers start: "fork", "spawn" or "forkserver"."""
    context = getattr(loader, "multiprocessing_context", None)
    if context is not None:
        return str(context.get_start_method())
    settled = multiprocessing.get_start_method(allow_none=True)
    return settled or multiprocessing.get_all_start_methods()[0]  # the default is first


def _on_device(sent: dict[str, Any]) -> Remark | None:
    path = pickle_trial.first_on_device(sent)
    if path is None:
        return None
    return Remark(
        f"{path} lies on a device, which forked workers cannot use",
        f"keep it on the host ({path} = {path}.cpu()) and move batches instead",
    )


def _main_can_be_imported() -> bool:
    """Whether a new process would run the main module again, as of a script."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    return spec is not None or getattr(main, "__file__", None) is not None


def _named(found: Sequence[Any]) -> str:
    words = [
        f"{'class' if isinstance(each, type) else 'function'} {each.__qualname__}"
        for each in found[:_MOST_NAMED]
    ]
    more = len(found) - len(words)
    if more:
        words.append(f"{more} more")
    if len(words) == 1:
        return f"{words[0]} is defined"
    return f"{', '.join(words[:-1])} and {words[-1]} are defined"
