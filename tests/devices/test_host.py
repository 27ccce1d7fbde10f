"""The RAM that is left, also within control groups."""

from __future__ import annotations

import pytest

from gpumagic.devices import host


@pytest.mark.parametrize(("outer", "inner"), [(3, 8), (8, 3)])
def test_of_nested_control_groups_the_tightest_limit_counts(tmp_path, outer, inner):
    """Where a group with a limit lies in one with a limit, the smaller room is left."""
    # Given a box in a pod, each with a limit and one byte used
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/pod/box\n")
    pod = tmp_path / "sys/fs/cgroup/pod"
    (pod / "box").mkdir(parents=True)
    for folder, limit in ((pod, outer), (pod / "box", inner)):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text("1\n")

    # When
    room = host.container_room(tmp_path)

    # Then
    assert room.nbytes == 2
    assert host.available_bytes(tmp_path) == 2
