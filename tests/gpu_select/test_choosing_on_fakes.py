"""Free GPUs on machines as NVML describes them."""

import pytest

from tests.fakes.run import run_python

SNIPPET = """
    import json
    from gpumagic.devices.nvml import read_inventory
    from gpumagic.gpu_select.choice import NotEnough
    from gpumagic.gpu_select.free_gpus import freest
    from gpumagic.gpu_select.variables import mask_for as written
    from gpumagic.gpu_select.request import read

    inventory = read_inventory()
    try:
        choice = freest(
            read("free", **{options!r}),
            inventory,
            allowed=None,
            claimed={{}},
            is_mine=lambda pid: None,
            pick=min_by_number,
        )
        mask = written(choice.places, inventory, form=None, mps=False).value
    except NotEnough as error:
        choice, mask = error, error.problem
    print(json.dumps([mask, [each.why for each in choice.opinions]]))
"""
PICK = """
    def min_by_number(places):
        return min(places, key=lambda place: place.gpu.index)
"""


@pytest.mark.parametrize(
    ("scenario", "options", "mask", "said"),
    [
        ("four_gpus", {"n": 2}, "1,3", "40.0 of 79.6 GiB in use"),
        ("four_gpus", {"n": 3}, "3 GPUs were asked for, 2 are free", "2 processes"),
        ("container_foreign_pids", {}, "none is free", "that are not listed"),
        ("container_foreign_pids", {"min_free": "60GiB"}, "2", "60.0 GiB asked for"),
        ("wsl", {}, "none is free", "processes that are not listed"),
        ("wsl", {"min_free": "1GiB"}, "0", "processes not listed"),
        ("nothing_supported", {}, "0", "free memory unknown"),
        ("mixed_models", {"name": "t4"}, "GPU-44440044-", "NVIDIA RTX A6000"),
        ("no_permission", {}, "GPU-11111111-bbbb-", "no processes"),
        ("gpu_lost", {"n": 16}, "is out of reach", "fits"),
        ("mig_with_holes", {"n": 2}, "1,3", "one process sees one slice"),
        ("mig_with_holes", {"exclude": "0,1,3"}, "MIG-", "unknown"),
    ],
)
def test_the_free_ones_of_a_machine(scenario, options, mask, said):
    """What NVML tells of a machine is enough to choose well, and starts nothing."""
    run = run_python(PICK + SNIPPET.format(options=options), scenario=scenario)
    written, opinions = run.json()
    assert mask in written
    assert any(said in why for why in opinions), opinions
    assert run.cuinit_calls() == []
