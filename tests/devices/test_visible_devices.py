"""What CUDA itself shows, once somebody has started it."""

import pytest

from gpumagic.devices.nvml import same_uuid
from tests.devices.probing import PREPARE
from tests.fakes.run import run_python

SHOW = """
    def visible(driver):
        found = driver.visible_devices()
        return None if found is None else [each.to_dict() for each in found]
"""


def test_what_cuda_shows_is_told_in_its_own_order():
    """cuda:0 is the first that was named at the start, whatever is set later."""
    run = run_python(
        PREPARE
        + SHOW
        + """
    driver = NvidiaDriver()
    initialise()
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    show(visible(driver))
    """,
        env={"CUDA_VISIBLE_DEVICES": "2,1"},
    )

    (found,) = run.json()
    assert found == [
        {
            "name": "NVIDIA H100 80GB HBM3",
            "uuid": "22222222-cccc-4ccc-8ccc-222222222222",
            "pci_address": "0000:86:00.0",
        },
        {
            "name": "NVIDIA H100 80GB HBM3",
            "uuid": "11111111-bbbb-4bbb-8bbb-111111111111",
            "pci_address": "0000:3b:00.0",
        },
    ]


def test_a_slice_shows_its_own_uuid_and_the_address_of_its_gpu():
    """A slice is told apart from its GPU by the UUID alone."""
    run = run_python(
        PREPARE + SHOW + "    initialise(); show(visible(NvidiaDriver()))",
        scenario="mig_with_holes",
        env={"CUDA_VISIBLE_DEVICES": "2"},
    )

    ((found,),) = run.json()
    assert found["uuid"] == "aaaa1111-2222-4333-8444-555566667777"
    assert found["pci_address"] == "0000:86:00.0"


# ---------------------------------------------------------------- in which form


BARE = "aaaa1111-2222-4333-8444-555566667777"


@pytest.mark.parametrize(
    ("nvml_uuid", "bare", "same"),
    [
        (f"GPU-{BARE}", BARE, True),
        (f"MIG-{BARE}", BARE, True),
        (f"GPU-{BARE.upper()}", BARE, True),
        (f"GPU-{BARE}", BARE[:-1], False),
        (f"GPU-{BARE[:-1]}", BARE, False),
        (f"MIG-GPU-{BARE}/1/0", BARE, False),
        (None, BARE, False),
        (f"GPU-{BARE}", None, False),
        (None, None, False),
        ("", "", False),
    ],
)
def test_uuids_of_both_libraries_are_compared_whole(nvml_uuid, bare, same):
    """The sort of thing is no part of the comparison, and unknown equals nothing."""
    assert same_uuid(nvml_uuid, bare) is same
