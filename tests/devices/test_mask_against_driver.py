"""The reader of CUDA_VISIBLE_DEVICES against the C fake's own, and against torch's."""

import pytest

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
OLD_NAMES = "drivers may read it otherwise"  # of slices, among others
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
    found = compared(scenario, "PCI_BUS_ID", 13_000, NUMBERS, OLD_NAMES)

    assert found["wrong"] == found["unexplained"] == []
    assert found["shown"] > 0.15  # otherwise nothing would have been compared
    assert found["certain"] > 0.75
    assert found["differing"] < 0.03


@pytest.mark.parametrize("order", [None, "pci_bus_id"])
def test_numbers_that_count_by_speed_are_never_called_certain(order):
    """On a machine of several models any other order leaves UUIDs as the sure names."""
    found = compared("mixed_models", order, 11_000, NUMBERS, FASTEST, OLD_NAMES)

    assert found["wrong"] == found["unexplained"] == []
    assert found["certain"] > 0.6
    assert found["differing"] > 0.1  # the order by speed is another one there
