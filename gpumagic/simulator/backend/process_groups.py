"""Lets torch.distributed make groups on the simulated GPU, where NCCL is meant."""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.group import group_class
from gpumagic.simulator.backend.registration import NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.simulator.backend.simulation import Simulation

_OURS = "gpumagic_simulated"  # what torch knows our groups by while it makes one
_NCCL_VERSION = (2, 27, 7)  # whose times the model has
_TIMEOUT = dt.timedelta(minutes=10)  # as NCCL's in torch


def process_groups(simulation: Simulation) -> Iterator[tuple[Any, str, Any]]:
    """What to put in the place of torch's own while on: object, name, replacement."""
    torch = simulation.torch
    distributed = torch.distributed
    if not distributed.is_available():
        return
    groups = distributed.distributed_c10d
    make = groups._new_process_group_helper
    kind = group_class(simulation)
    yield groups, "_new_process_group_helper", _making(groups, make, kind)
    yield distributed, "is_nccl_available", lambda: True
    yield torch.cuda.nccl, "version", lambda: _NCCL_VERSION
    yield groups, "default_pg_nccl_timeout", _TIMEOUT
    placed = groups._get_object_coll_device
    yield groups, "_get_object_coll_device", _with_index(simulation, placed)
    for module in (distributed, groups):
        yield module, "ProcessGroupNCCL", _ProcessGroupNCCL


def _with_index(
    simulation: Simulation, placed: Callable[..., str]
) -> Callable[..., str]:
    """Where pickled objects go: the current GPU, which `.to("sim")` does not know."""

    def device(group: Any = None) -> str:
        kind = placed(group)
        if kind not in {NAME, simulation.shown_type}:
            return kind
        return f"{simulation.shown_type}:{simulation.gpu().index}"

    return device


class _Options:
    """What programs set of NCCL; nothing here depends on it."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        import types

        self.is_high_priority_stream = is_high_priority_stream
        self.config = types.SimpleNamespace()


class _ProcessGroupNCCL:
    """What torch's own functions look for, where NCCL is said to be there."""

    Options = _Options


def _making(groups: Any, make: Callable[..., Any], kind: type) -> Callable[..., Any]:
    """Makes groups, ours where NCCL is meant."""

    def new_process_group(
        group_size: int,
        group_rank: int,
        ranks: Any,
        backend: Any,
        store: Any,
        *args: Any,
        **options: Any,
    ) -> Any:
        said = str(backend).lower()
        undecided = said == groups.Backend.UNDEFINED
        if "nccl" not in said and not undecided:
            return make(group_size, group_rank, ranks, backend, store, *args, **options)
        options.pop("backend_options", None)
        on_host = undecided or "gloo" in said
        with _known_to_torch(groups, kind, on_host=on_host):
            group, of_group = make(
                group_size, group_rank, ranks, _OURS, store, *args, **options
            )
        if isinstance(group, kind):
            bound: Any = group
            bound.bound_device_id = options.get("device_id")
            world = groups._world
            world.pg_map[group] = (groups.Backend(said), of_group)
            known = {"cpu": "gloo", NAME: "nccl"} if on_host else {NAME: "nccl"}
            listed = ",".join(f"{device}:{name}" for device, name in known.items())
            world.pg_backend_config[group] = listed
        return group, of_group

    return new_process_group


@contextlib.contextmanager
def _known_to_torch(groups: Any, kind: Any, *, on_host: bool) -> Iterator[None]:
    """Let torch make our groups, for as long as it makes one."""

    def create(given: Any, options: Any) -> Any:
        del options
        return kind(given, on_host=on_host)

    backend = groups.Backend
    backend.register_backend(_OURS, create, extended_api=True, devices=["cpu", NAME])
    try:
        yield
    finally:
        delattr(backend, _OURS.upper())
        backend._plugins.pop(_OURS.upper(), None)
        backend.backend_list.remove(_OURS)
        backend.backend_capability.pop(_OURS, None)
        backend.backend_type_map.pop(_OURS, None)
        _without_ours(backend.default_device_backend_map)


def _without_ours(backends: dict[str, str]) -> None:
    for device in [each for each, name in backends.items() if name == _OURS]:
        del backends[device]
