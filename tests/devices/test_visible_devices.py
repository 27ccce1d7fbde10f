"""What CUDA itself shows, once somebody has started it."""

import ctypes

import pytest

from gpumagic.devices.visible_devices import identities, same_uuid
from tests.devices.probing import NOTHING_LOADED, PREPARE
from tests.fakes.run import run_python

SHOW = """
    def visible(driver):
        found = driver.visible_devices()
        return None if found is None else [each.to_dict() for each in found]
"""


def test_nothing_is_shown_before_the_start():
    """Without a started CUDA it is unknown what it shows, and asking starts nothing."""
    run = run_python(
        PREPARE
        + SHOW
        + """
    driver = NvidiaDriver()
    absent = visible(driver)
    ctypes.CDLL("libcuda.so.1")
    show(absent, visible(driver))
    """,
        **NOTHING_LOADED,
    )

    assert run.json() == [None, None]
    assert run.cuinit_calls() == []


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


def test_a_forked_child_is_shown_nothing():
    """What the parent saw is lost in the child, so it is not told there."""
    run = run_python(
        PREPARE
        + SHOW
        + """
    driver = NvidiaDriver()
    initialise()
    driver.cuda_started()
    child = os.fork()
    if child == 0:
        show(visible(driver))
        os._exit(0)
    os.waitpid(child, 0)
    """
    )

    assert run.json() == [None]


# ---------------------------------------------------------------- in which form


class StandInLibrary:
    """A driver of one GPU, which answers what a test says, or a code."""

    def __init__(self, *, address=b"0000:3b:00.0", uuid=bytes(range(16)), lacks=()):
        self.answers = {
            "cuDeviceGetPCIBusId": address,
            "cuDeviceGetUuid": b"\xff" * 16,
            "cuDeviceGetUuid_v2": uuid,
            "cuDeviceGetName": b"NVIDIA H100",
        }
        self.lacks = lacks

    def cuDeviceGetCount(self, count):  # noqa: N802 -- the driver's own name
        """One."""
        count._obj.value = 1
        return 0

    def cuDeviceGet(self, device, ordinal):  # noqa: N802 -- likewise
        """The device of that number."""
        device._obj.value = ordinal
        return 1 if "cuDeviceGet" in self.lacks else 0

    def __getattr__(self, name):
        if name in self.lacks:
            raise AttributeError(name)

        def answer(buffer, *_):
            found = self.answers[name]
            if isinstance(found, int):
                return found
            ctypes.memmove(buffer, found, len(found))
            return 0

        return answer


@pytest.mark.parametrize(
    ("told", "address"),
    [
        (b"0000:3B:00.0", "0000:3b:00.0"),
        (b"00000000:3B:00.0", "0000:3b:00.0"),
        (b"10000:AF:1F.0", "10000:af:1f.0"),
        (b"3B:00.0", None),
        (b"nonsense", None),
        (b"", None),
        (999, None),
    ],
)
def test_an_address_is_written_as_that_of_an_inventory(told, address):
    """However the driver writes it, equal GPUs have equal addresses."""
    (found,) = identities(StandInLibrary(address=told))

    assert found["pci_address"] == address
    assert found["name"] == "NVIDIA H100"


def test_a_uuid_is_sixteen_bytes_of_which_any_may_be_zero():
    """A zero byte ends no UUID."""
    (found,) = identities(StandInLibrary(uuid=bytes(range(16))))

    assert found["uuid"] == "00010203-0405-0607-0809-0a0b0c0d0e0f"


@pytest.mark.parametrize("newer", [{"lacks": ["cuDeviceGetUuid_v2"]}, {"uuid": 999}])
def test_an_older_driver_is_asked_in_the_older_way(newer):
    """Without the newer question for the UUID there is the first one."""
    (found,) = identities(StandInLibrary(**newer))

    assert found["uuid"] == "ffffffff-ffff-ffff-ffff-ffffffffffff"


def test_what_a_driver_does_not_tell_is_unknown():
    """A question that is missing, or a GPU that cannot be asked, costs no more."""
    lacks = ["cuDeviceGetName", "cuDeviceGetUuid", "cuDeviceGetUuid_v2"]

    (silent,) = identities(StandInLibrary(lacks=lacks))
    (gone,) = identities(StandInLibrary(lacks=["cuDeviceGet"]))

    assert silent == {"name": None, "uuid": None, "pci_address": "0000:3b:00.0"}
    assert set(gone.values()) == {None}


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
