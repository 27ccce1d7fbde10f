"""The reader of CUDA_VISIBLE_DEVICES against the C fake's own, and against torch's."""

import itertools
import re

import pytest

from gpumagic.devices.protocols import Gpu
from gpumagic.devices.visibility import visible
from tests.devices.masks import masks
from tests.fakes.run import run_python

# Both readers in one process, over the machine that NVML describes there; it goes on
# from a line that sets count, seed, order and doubts.
COMPARE = """
    import ctypes, json, os
    from gpumagic.devices.nvml import read_inventory
    from gpumagic.devices.visibility import visible
    from tests.devices.masks import masks

    gpus = [gpu for gpu in read_inventory().gpus if gpu.problem is None]
    gpus.sort(key=lambda gpu: gpu.pci_address)
    uuids = {gpu.index: gpu.uuid for gpu in gpus}
    slices = {(gpu.index, i): part for gpu in gpus for i, part in enumerate(gpu.mig)}
    names = [*uuids.values(), *(part.uuid for part in slices.values())]
    for (index, _), part in slices.items():
        instances = f"{part.gpu_instance}/{part.compute_instance}"
        names.append(f"MIG-{uuids[index]}/{instances}")

    cuda, pairs = ctypes.CDLL("libcuda.so.1"), (ctypes.c_int * 64)()
    c_order = order.encode() if order else None

    def by_driver(mask):
        found = cuda.fake_visible(os.fsencode(mask), c_order, pairs)
        seen = zip(pairs[: 2 * found : 2], pairs[1 : 2 * found : 2])
        return [
            (gpu, uuids[gpu] if place < 0 else slices[gpu, place].uuid)
            for gpu, place in seen
        ]

    wrong, unexplained, shown, certain, differing = [], [], 0, 0, 0
    for mask in masks(names, count, seed):
        ours, theirs = visible(mask, gpus, order=order), by_driver(mask)
        shown += bool(theirs)
        certain += ours.certain
        if list(zip(ours.physical, ours.uuids)) == theirs:
            continue
        differing += 1
        found = [ascii(mask), ours.to_dict(), theirs]
        if ours.certain:
            wrong.append(found)
        elif not any(doubt in "; ".join(ours.reasons) for doubt in doubts):
            unexplained.append(found)
    print(json.dumps({
        "wrong": wrong[:5], "unexplained": unexplained[:5], "shown": shown / count,
        "certain": certain / count, "differing": differing / count,
    }))
"""

# Where the C reader is one of the drivers that read a value in another way.
NUMBERS = "drivers may read another number"  # a sign before a zero is no number there
FASTEST = "the fastest may come first"  # which is what the C reader's default does


def compared(scenario, order, count, *doubts):
    """How often the two readers differ on a machine, and where they must not."""
    settings = f"count, seed, order, doubts = {(count, 20, order, doubts)!r}"
    return run_python(f"    {settings}\n{COMPARE}", scenario=scenario).json()


@pytest.mark.parametrize(
    "scenario",
    [
        *("one_gpu", "four_gpus", "sixteen_gpus", "mig_with_holes"),
        *("mixed_models", "slurm_cgroup"),
    ],
)
def test_both_readers_see_the_same_gpus(scenario):
    """What is called certain is what the driver does; doubts are few, with causes."""
    found = compared(scenario, "PCI_BUS_ID", 13_000, NUMBERS)

    assert found["wrong"] == found["unexplained"] == []
    assert found["shown"] > 0.15  # otherwise nothing would have been compared
    assert found["certain"] > 0.75
    assert found["differing"] < 0.03


@pytest.mark.parametrize("order", [None, "pci_bus_id"])
def test_numbers_that_count_by_speed_are_never_called_certain(order):
    """On a machine of several models any other order leaves UUIDs as the sure names."""
    found = compared("mixed_models", order, 11_000, NUMBERS, FASTEST)

    assert found["wrong"] == found["unexplained"] == []
    assert found["certain"] > 0.6
    assert found["differing"] > 0.1  # the order by speed is another one there


# ---------------------------------------------------------------- torch's own reader

UUIDS = (
    "GPU-11111111-aaaa-4aaa-8aaa-111111111111",
    "GPU-11111111-bbbb-4bbb-8bbb-111111111111",
    "GPU-22222222-cccc-4ccc-8ccc-222222222222",
    "GPU-33333333-dddd-4ddd-8ddd-333333333333",
)
FOUR = tuple(Gpu(index, uuid=uuid) for index, uuid in enumerate(UUIDS))
RAISED = "raised"


def seen_by_torch(torch, mask, monkeypatch):
    """The numbers of the GPUs that torch expects, as its count by NVML finds them."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    try:
        named = torch.cuda._parse_visible_devices()
    except ValueError:
        return RAISED
    if named and isinstance(named[0], str):
        return tuple(torch.cuda._transform_uuid_to_ordinals(named, list(UUIDS)))
    return tuple(itertools.takewhile(lambda number: number < len(FOUR), named))


def has_foreign_digit(entry):
    """Whether Python finds a digit in it that is none to C."""
    return any(sign.isdigit() and not sign.isascii() for sign in entry)


# How torch reads an entry that every driver reads as we do.
DIFFERS = {
    "a sign without digits is an error to torch": lambda entry: re.match(
        r"\s*[+-](?![0-9])", entry
    ),
    "digits of other scripts are digits to torch": has_foreign_digit,
    "blanks of other scripts are blanks to torch": lambda entry: (
        entry.strip() != entry.strip(" \t\n\v\f\r")
    ),
}


def test_torch_differs_only_where_it_is_known_to(monkeypatch):
    """The parser of torch sees what we are certain of, but for some entries."""
    torch = pytest.importorskip("torch")
    for name in ("_parse_visible_devices", "_transform_uuid_to_ordinals"):
        if not hasattr(torch.cuda, name):
            pytest.skip(f"this torch has no {name}")
    monkeypatch.setattr(torch.version, "hip", None)
    met, unexplained, alike = set(), [], 0

    for mask in masks(UUIDS, 5_000, seed=21):
        ours = visible(mask, FOUR)
        if not ours.certain or mask.startswith("MIG-"):  # torch leaves those to CUDA
            continue
        theirs = seen_by_torch(torch, mask, monkeypatch)
        if theirs == ours.physical:
            alike += 1
            continue
        reasons = {
            reason
            for reason, applies in DIFFERS.items()
            if any(applies(entry) for entry in mask.split(","))
        }
        met |= reasons
        if not reasons:
            unexplained.append((mask, ours, theirs))

    assert unexplained == []
    assert met == set(DIFFERS)
    assert alike > 2_500
