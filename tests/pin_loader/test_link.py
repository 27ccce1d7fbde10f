"""The link: its name, what the standard allows, and what is said of it."""

from __future__ import annotations

import os

import pytest

from gpumagic.devices.protocols import GpuLink
from gpumagic.pin_loader.link import described, link_of, own_nodes


def told(**changes):
    """A sound link of an H100, with changes."""
    sound = {
        "generation": 5,
        "width": 16,
        "most_generation": 5,
        "most_width": 16,
        "numa_node": 0,
        "c2c": False,
    }
    return GpuLink(0, **sound | changes)


def texts(link):
    """What is said of a link."""
    return [remark.text for remark in link.remarks]


@pytest.mark.parametrize(
    ("changes", "name", "gigabytes"),
    [
        ({}, "PCIe Gen5 x16", 63.0),
        ({"generation": 4}, "PCIe Gen4 x16", 31.5),
        ({"generation": 3}, "PCIe Gen3 x16", 15.8),
        ({"generation": 4, "width": 4}, "PCIe Gen4 x4", 7.9),
        ({"generation": 1, "width": 1}, "PCIe Gen1 x1", 0.25),
        ({"c2c": True}, "NVLink-C2C", 450.0),
    ],
)
def test_the_standard_allows_for_so_much(changes, name, gigabytes):
    """Generation and lanes, or NVLink-C2C, give name and rate, one way."""
    link = described(told(**changes))

    assert link.name == name
    assert link.theory_bytes_per_s / 1e9 == pytest.approx(gigabytes, rel=0.01)


def test_what_is_unknown_stays_unknown():
    """Without a driver the rate alone is known; of a new generation the name."""
    assert described(None, 5e9).name is None
    assert described(None, 5e9).ceiling_bytes_per_s == 5e9
    assert described(told(generation=None)).name is None
    assert described(told(width=None)).name == "PCIe Gen5"
    assert described(told(generation=9)).theory_bytes_per_s is None


def test_a_sound_link_is_not_talked_about():
    """As fast as links of each generation were seen to be, on the own node: no word."""
    assert not described(told(), 57e9, own_nodes={0}).remarks
    assert not described(
        told(generation=4, most_generation=4), 25.1e9, own_nodes={0, 1}
    ).remarks
    assert not described(
        told(generation=3, most_generation=3), 12.2e9, own_nodes=None
    ).remarks


def test_a_slow_link_is_told_with_its_share():
    """14 of 63 GB/s, as the fourth GPU of one machine had it, is a remark."""
    link = described(told(), 14e9, own_nodes={0})

    assert texts(link) == [
        "one large pinned copy reaches 14 GB/s, 22.2 % of what PCIe Gen5 x16 allows"
    ]


def test_a_link_below_its_best_is_told():
    """Four lanes of sixteen, and the first generation under load, are two remarks."""
    link = described(told(width=4, generation=1), own_nodes={0})

    assert texts(link) == [
        "the link uses 4 of 16 lanes",
        "the link runs at Gen1 while copying, and could run at Gen5",
    ]


def test_bytes_over_nvlink_do_not_care_for_pci_express():
    """On a Grace Hopper the generation of PCIe says nothing about copies."""
    assert not described(told(c2c=True, generation=1), 400e9, own_nodes={0}).remarks


def test_a_process_on_a_far_memory_node_is_told_what_to_type():
    """The remark names both nodes, and the hint the command."""
    link = described(told(numa_node=3), own_nodes={0, 1})

    assert texts(link) == [
        "this process runs on memory node 0, 1, and the GPU is attached to 3"
    ]
    assert "numactl --cpunodebind=3 --membind=3" in link.remarks[0].hint


def test_the_nodes_of_this_process_are_those_of_its_processors(tmp_path):
    """A node counts if one of its processors may be used."""
    mine = min(os.sched_getaffinity(0))
    for node, processors in {0: f"{mine}", 1: "900-903,950", 2: ""}.items():
        folder = tmp_path / f"node{node}"
        folder.mkdir()
        (folder / "cpulist").write_text(f"{processors}\n")

    assert own_nodes(tmp_path) == {0}
    assert own_nodes(tmp_path / "absent") is None


class Asked:
    """A driver and a runtime in one, which write down the order of questions."""

    kind = "cuda"

    def __init__(self):
        self.order = []

    def started(self):
        """Always."""
        return True

    def synchronize(self):
        """Wait."""
        self.order.append("wait")

    def visible_devices(self):
        """One GPU."""
        return (GpuLink(0, uuid="1", pci_address="0000:18:00.0"),)

    def links(self):
        """Its link."""
        self.order.append("read")
        return (told(pci_address="0000:18:00.0"),)


def test_the_link_is_read_while_copies_run():
    """Between submitting copies and waiting for them, since an idle link goes down."""
    asked = Asked()

    found = link_of(asked, asked, 0, lambda: asked.order.append("copies"))

    assert asked.order == ["wait", "copies", "read", "wait"]
    assert found.generation == 5


def test_an_unknown_number_has_no_link():
    """A device that the driver does not show is not taken for another one."""
    asked = Asked()

    assert link_of(asked, asked, 1, lambda: None) is None
