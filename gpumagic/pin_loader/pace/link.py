"""The way from host to device: what the standard allows, and what is reached."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpumagic.devices.in_use import link_in_use
from gpumagic.pin_loader.records.rates import Link
from gpumagic.pin_loader.records.remark import Remark
from gpumagic.report.units import share_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from gpumagic.devices.protocols import Driver, GpuLink, Runtime

# One way, of one lane, after the encoding of the bytes.
_LANE_BYTES_PER_S = {
    1: 0.25e9,
    2: 0.5e9,
    3: 0.985e9,
    4: 1.969e9,
    5: 3.938e9,
    6: 7.563e9,
}
_C2C_BYTES_PER_S = 450e9
_LEAST_SHARE = 0.7  # sound links reach 77 to 91 %

_NODES = Path("/sys/devices/system/node")


def link_of(
    driver: Driver, runtime: Runtime, device: int, during: Callable[[], object]
) -> GpuLink | None:
    """What the driver tells of a link at work: an idle one goes down to the first.

    Args:
        driver: Is asked.

        runtime: The device's kind.

        device: Its number.

        during: Submits copies that are still under way when it returns.
    """
    runtime.synchronize()
    during()
    try:
        return link_in_use(driver, runtime, device)
    finally:
        runtime.synchronize()


def described(
    told: GpuLink | None,
    ceiling_bytes_per_s: float | None = None,
    *,
    own_nodes: Collection[int] | None = None,
) -> Link:
    """A link with what a reader has to know of it.

    Args:
        told: By the driver, while copies ran.

        ceiling_bytes_per_s: What one large pinned copy reached.

        own_nodes: The memory nodes whose processors this process may use.
    """
    if told is None:
        return Link(ceiling_bytes_per_s=ceiling_bytes_per_s)
    name, theory = name_and_theory(told)
    return Link(
        name=name,
        theory_bytes_per_s=theory,
        ceiling_bytes_per_s=ceiling_bytes_per_s,
        generation=told.generation,
        width=told.width,
        most_generation=told.most_generation,
        most_width=told.most_width,
        numa_node=told.numa_node,
        remarks=(
            *(() if told.c2c else _downgrades(told)),
            *_far_away(told, own_nodes),
            *_slow(name, theory, ceiling_bytes_per_s),
        ),
    )


def name_and_theory(told: GpuLink) -> tuple[str | None, float | None]:
    """What a link is called, and how many bytes it may carry in a second, one way."""
    if told.c2c:
        return "NVLink-C2C", _C2C_BYTES_PER_S
    if told.generation is None:
        return None, None
    lane = _LANE_BYTES_PER_S.get(told.generation)
    if told.width is None:
        return f"PCIe Gen{told.generation}", None
    name = f"PCIe Gen{told.generation} x{told.width}"
    return name, None if lane is None else lane * told.width


def own_nodes(nodes: Path = _NODES) -> frozenset[int] | None:
    """The memory nodes whose processors this process may use; None where unknown.

    Args:
        nodes: The folder where Linux lists them.
    """
    try:
        allowed = os.sched_getaffinity(0)
        return frozenset(_nodes_with(allowed, nodes)) or None
    except (OSError, ValueError, AttributeError):  # another system than Linux
        return None


def _nodes_with(processors: set[int], nodes: Path) -> Iterator[int]:
    for folder in sorted(nodes.glob("node[0-9]*")):
        if processors & set(_numbers((folder / "cpulist").read_text())):
            yield int(folder.name.removeprefix("node"))


def _numbers(text: str) -> Iterator[int]:
    """What `0-3,8` lists."""
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            yield from range(int(first), int(last or first) + 1)


# ------------------------------------------------------------------- remarks


def _downgrades(told: GpuLink) -> Iterator[Remark]:
    if told.width and told.most_width and told.width < told.most_width:
        yield Remark(
            f"the link uses {told.width} of {told.most_width} lanes",
            "move the card to another slot or seat it anew: a riser, or a second card "
            "on the same lanes, can take them",
        )
    now, most = told.generation, told.most_generation
    if now and most and now < most:
        yield Remark(
            f"the link runs at Gen{now} while copying, and could run at Gen{most}",
            "look at the speed of the slot in the BIOS, and at `nvidia-smi -q` for "
            "what holds the link down",
        )


def _far_away(told: GpuLink, own: Collection[int] | None) -> Iterator[Remark]:
    node = told.numa_node
    if node is None or own is None or node in own:
        return
    where = ", ".join(map(str, sorted(own)))
    yield Remark(
        f"this process runs on memory node {where}, and the GPU is attached to {node}",
        f"start Jupyter with numactl --cpunodebind={node} --membind={node}",
    )


def _slow(
    name: str | None, theory: float | None, ceiling: float | None
) -> Iterator[Remark]:
    if theory is None or ceiling is None or ceiling >= _LEAST_SHARE * theory:
        return
    share = share_text(ceiling / theory)
    yield Remark(
        f"one large pinned copy reaches {ceiling / 1e9:.3g} GB/s, {share} of what "
        f"{name} allows",
        "77 to 91 % is usual: look for other work on the same link, for a far memory "
        "node, and for limits of a virtual machine",
    )
