"""`make quick` tests the rooms that it is given, or those that have changed."""

from __future__ import annotations

import pytest

from tests import quick


@pytest.mark.parametrize(
    ("files", "rooms"),
    [
        (["gpumagic/gpu_mem/view.py", "tests/report/test_log.py"], "gpu_mem report"),
        (["gpumagic/simulator/backend/kernels.py"] * 2, "simulator"),
        (["README.md", "gpumagic/errors.py", "tests/gallery/page.py"], ""),
    ],
)
def test_files_belong_to_the_rooms_whose_folder_they_lie_in(files, rooms):
    """In the package or among the tests; what lies elsewhere belongs to none."""
    assert quick.rooms_of(files) == rooms.split()


def test_a_room_that_is_none_is_refused():
    """Instead of testing nothing."""
    with pytest.raises(SystemExit, match="no room nothing_of_the_kind"):
        quick.main(["nothing_of_the_kind"])
