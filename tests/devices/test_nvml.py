"""The inventory, read by the real pynvml from fake NVIDIA libraries."""

from textwrap import dedent

import pytest

from tests.fakes.build import SCENARIOS
from tests.fakes.run import REPOSITORY, run_python

READ = """
    import json
    from gpumagic.devices.nvml import read_inventory
    print(json.dumps(read_inventory().to_dict()))
"""
MIB = 2**20
MEMORY = {f"memory_{part}_bytes" for part in ("total", "free", "used", "reserved")}


def inventory(scenario, before="", **options):
    """What is read on a machine, after a few lines of preparation there."""
    run = run_python(dedent(before) + dedent(READ), scenario=scenario, **options)
    assert (run.cuinit_calls(), run.stderr) == ([], "")
    return run.json()


def changed_machine(folder, scenario, *, machine="", gpu=""):
    """A scenario with more lines for the machine, or for its last GPU."""
    text = (SCENARIOS / f"{scenario}.txt").read_text()
    file = folder / "scenario.txt"
    file.write_text(f"{machine}\n{text}{gpu}\n")
    return file


# ---------------------------------------------------------------- all is well


def test_every_figure_of_a_gpu_is_read_in_base_units():
    """A GPU in use is a row of bytes, shares, degrees and watts."""
    found = inventory("one_gpu")

    assert (found["driver_version"], found["cuda_version"]) == ("580.65.06", "13.0")
    assert found["nvml_version"] == "13.580.65.06"
    assert found["problem"] is None
    assert found["gpus"] == [
        {
            "index": 0,
            "name": "NVIDIA H100 80GB HBM3",
            "uuid": "GPU-11111111-aaaa-4aaa-8aaa-111111111111",
            "pci_address": "0000:18:00.0",
            "memory_total_bytes": 81559 * MIB,
            "memory_free_bytes": (81559 - 559 - 20480) * MIB,
            "memory_used_bytes": 20480 * MIB,
            "memory_reserved_bytes": 559 * MIB,
            "utilisation_share": 0.37,
            "temperature_c": 41,
            "power_w": 118.25,
            "compute_capability": [9, 0],
            "compute_mode": "default",
            "processes": [{"pid": 4242, "used_bytes": 20000 * MIB, "kind": "compute"}],
            "mig_enabled": False,
            "mig": [],
            "problem": None,
            "hint": None,
        }
    ]


def test_gpus_keep_the_order_of_nvml():
    """The list follows NVML's own numbers, which are those of no one else."""
    found = inventory("mixed_models")["gpus"]

    assert [gpu["index"] for gpu in found] == [0, 1, 2]
    assert [gpu["pci_address"][5:7] for gpu in found] == ["b1", "17", "65"]
    assert len(inventory("sixteen_gpus")["gpus"]) == 16


def test_processes_are_told_apart_by_kind_and_a_size_may_be_unknown():
    """Memory that the driver cannot tell is unknown, not all ones; none is none."""
    busy, idle, *_ = inventory("four_gpus")["gpus"]

    assert busy["processes"] == [
        {"pid": 4242, "used_bytes": 40000 * MIB, "kind": "compute"},
        {"pid": 977, "used_bytes": None, "kind": "graphics"},
    ]
    assert idle["processes"] == []


def test_a_process_that_computes_and_draws_is_one_process(tmp_path):
    """A process in both of the driver's lists is listed once."""
    both = "process=compute 77 100\nprocess=graphics 77 100"
    machine = changed_machine(tmp_path, "four_gpus", gpu=both)

    *_, last = inventory(machine)["gpus"]

    assert last["processes"] == [
        {"pid": 77, "used_bytes": 100 * MIB, "kind": "compute"}
    ]


def test_the_compute_mode_is_a_word():
    """A GPU that only one process may use says so."""
    assert inventory("four_gpus")["gpus"][3]["compute_mode"] == "exclusive process"


def test_a_machine_without_gpus_is_no_problem():
    """A driver that lists nothing has been asked with success."""
    found = inventory("no_gpus")

    assert (found["gpus"], found["problem"], found["absent"]) == ([], None, False)
    assert found["driver_version"] == "580.65.06"


def test_slices_are_found_between_empty_places():
    """Empty places before and between MIG devices neither end nor spoil the list."""
    found = inventory("mig_with_holes")["gpus"]

    assert [gpu["mig_enabled"] for gpu in found] == [False, False, True, False]
    assert [gpu["mig"] for gpu in found if not gpu["mig_enabled"]] == [[], [], []]
    assert found[2]["mig"] == [
        {
            "uuid": "MIG-aaaa1111-2222-4333-8444-555566667777",
            "gpu_instance": 1,
            "compute_instance": 0,
            "memory_total_bytes": 9856 * MIB,
            "memory_free_bytes": 9856 * MIB,
            "memory_used_bytes": 0,
        },
        {
            "uuid": "MIG-bbbb1111-2222-4333-8444-555566667777",
            "gpu_instance": 2,
            "compute_instance": 0,
            "memory_total_bytes": 19968 * MIB,
            "memory_free_bytes": (19968 - 1536) * MIB,
            "memory_used_bytes": 1536 * MIB,
        },
    ]


def test_a_slice_whose_memory_is_not_told_has_the_size_it_was_made_with(tmp_path):
    """What is free and used is unknown then, and neither zero nor all."""
    untold = "fail=nvmlDeviceGetMemoryInfo 3\nfail=nvmlDeviceGetMemoryInfo_v2 3"
    machine = changed_machine(tmp_path, "mig_with_holes", machine=untold)

    part = inventory(machine)["gpus"][2]["mig"][1]

    assert part["memory_total_bytes"] == 19968 * MIB
    assert part["memory_free_bytes"] is part["memory_used_bytes"] is None


def test_an_older_driver_tells_the_memory_of_a_slice_as_well(tmp_path):
    """Without the second version of the question, and without a slice's attributes."""
    lacks = "hide=nvmlDeviceGetMemoryInfo_v2\nhide=nvmlDeviceGetAttributes_v2"
    machine = changed_machine(tmp_path, "mig_with_holes", machine=lacks)

    part = inventory(machine)["gpus"][2]["mig"][1]

    assert part["memory_total_bytes"] == 19968 * MIB
    assert part["memory_free_bytes"] == (19968 - 1536) * MIB


# ---------------------------------------------------------------- GPUs that keep silent


def test_what_is_not_supported_is_unknown_and_never_zero():
    """A GPU that answers nothing but who it is has no figures and no problem."""
    (gpu,) = inventory("nothing_supported")["gpus"]

    known = {name: value for name, value in gpu.items() if value not in (None, [])}
    assert known == {
        "index": 0,
        "name": "NVIDIA GB10",
        "uuid": "GPU-77777777-7777-4777-8777-777777777777",
    }
    assert gpu["processes"] is None


def test_a_gpu_that_claims_to_have_no_memory_does_not_know_it(tmp_path):
    """No GPU has no memory at all: nought bytes in total are an unknown total."""
    none = "total_mib=0\nreserved_mib=0\nused_mib=0"

    (gpu,) = inventory(changed_machine(tmp_path, "one_gpu", gpu=none))["gpus"]

    assert [gpu[each] for each in MEMORY] == [None] * 4


def test_under_wsl_processes_are_unknown_rather_than_none():
    """Where the driver lists no processes, the GPU is not thereby idle."""
    (gpu,) = inventory("wsl")["gpus"]

    assert gpu["processes"] is None
    assert gpu["utilisation_share"] is None
    assert gpu["memory_used_bytes"] == 1500 * MIB


def test_processes_outside_the_container_are_listed_as_they_come():
    """Foreign numbers stay, the number 0 is unknown, unlisted memory still counts."""
    foreign, hidden, unnumbered = inventory("container_foreign_pids")["gpus"]

    assert [each["pid"] for each in foreign["processes"]] == [3912345]
    assert hidden["processes"] == []
    assert hidden["memory_used_bytes"] == 30720 * MIB
    assert [each["pid"] for each in unnumbered["processes"]] == [None]


def test_a_gpu_without_permission_is_still_a_row():
    """A GPU that this user may not open is listed with the reason, others in full."""
    denied, usable = inventory("no_permission")["gpus"]

    assert (denied["index"], denied["uuid"]) == (0, None)
    assert "may not use" in denied["problem"]
    assert denied["hint"]
    assert (usable["index"], usable["problem"]) == (1, None)
    assert usable["memory_total_bytes"] == 81559 * MIB


def test_a_lost_gpu_is_still_a_row_with_what_is_known_of_it():
    """A GPU lost before or during the session says so; it keeps its name if known."""
    fine, lost_before, lost_since = inventory("gpu_lost")["gpus"]

    assert fine["problem"] is None
    assert "lost" in lost_before["problem"]
    assert "lost" in lost_since["problem"]
    assert "reboot" in lost_since["hint"]
    assert lost_since["uuid"] == "GPU-22222222-cccc-4ccc-8ccc-222222222222"
    assert lost_since["memory_total_bytes"] is None


def test_a_gpu_that_fails_in_a_new_way_shows_the_drivers_own_words(tmp_path):
    """A code without a sentence of ours is shown with the driver's text."""
    failure = "fail=nvmlDeviceGetHandleByIndex_v2 8"

    (gpu,) = inventory(changed_machine(tmp_path, "one_gpu", gpu=failure))["gpus"]

    assert "Insufficient External Power (NVML code 8)" in gpu["problem"]
    assert "nvidia-smi" in gpu["hint"]


@pytest.fixture(scope="module")
def sound():
    """The row of a GPU that answers everything."""
    (gpu,) = inventory("one_gpu")["gpus"]
    return gpu


@pytest.mark.parametrize(
    ("functions", "fields"),
    [
        (("nvmlDeviceGetName",), {"name"}),
        (("nvmlDeviceGetUUID",), {"uuid"}),
        (("nvmlDeviceGetPciInfo_v3",), {"pci_address"}),
        (("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"), MEMORY),
        (("nvmlDeviceGetUtilizationRates",), {"utilisation_share"}),
        (("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"), {"temperature_c"}),
        (("nvmlDeviceGetPowerUsage",), {"power_w"}),
        (("nvmlDeviceGetCudaComputeCapability",), {"compute_capability"}),
        (("nvmlDeviceGetComputeMode",), {"compute_mode"}),
        (
            (
                "nvmlDeviceGetComputeRunningProcesses_v2",
                "nvmlDeviceGetComputeRunningProcesses_v3",
            ),
            {"processes"},
        ),
        (
            (
                "nvmlDeviceGetGraphicsRunningProcesses_v2",
                "nvmlDeviceGetGraphicsRunningProcesses_v3",
            ),
            set(),
        ),
        (("nvmlDeviceGetMigMode",), {"mig_enabled"}),
    ],
)
@pytest.mark.parametrize("code", [3, 10, 999])
def test_a_call_that_fails_costs_its_own_field_only(
    tmp_path, sound, functions, fields, code
):
    """Whatever breaks one question leaves all other answers as they were."""
    failing = "\n".join(f"fail={each} {code}" for each in functions)

    (broken,) = inventory(changed_machine(tmp_path, "one_gpu", gpu=failing))["gpus"]

    assert broken == sound | dict.fromkeys(fields)


# ---------------------------------------------------------------- old and new drivers


def test_an_old_driver_is_asked_in_its_own_way():
    """Without the newer calls, memory and processes come by the older ones."""
    found = inventory("old_driver")
    (gpu,) = found["gpus"]

    assert (found["problem"], found["cuda_version"]) == (None, "11.0")
    assert gpu["memory_reserved_bytes"] is None
    assert gpu["memory_used_bytes"] == (8192 + 450) * MIB
    assert [each["pid"] for each in gpu["processes"]] == [4242]
    assert gpu["problem"] is None


def test_rows_of_an_unexpected_length_are_not_taken_for_processes():
    """Where version 3 of the process list is garbled, version 2 is believed."""
    (gpu,) = inventory("long_process_rows")["gpus"]

    assert [each["pid"] for each in gpu["processes"]] == [4242, 4243, 4244]


def test_a_driver_without_the_deprecated_temperature_call_is_asked_by_the_new(tmp_path):
    """The temperature survives the removal that is announced for CUDA 14."""
    newer = changed_machine(
        tmp_path, "one_gpu", machine="hide=nvmlDeviceGetTemperature"
    )

    assert inventory(newer)["gpus"][0]["temperature_c"] == 41


# ---------------------------------------------------------------- no answer at all


@pytest.mark.parametrize(
    ("scenario", "problem", "hint"),
    [
        ("driver_not_loaded", "kernel module is not loaded", "modprobe"),
        ("mismatch", "different versions", "reboot"),
        ("ancient_driver", "too old", "update the driver"),
    ],
)
def test_a_driver_that_does_not_start_is_a_problem_with_a_hint(scenario, problem, hint):
    """The reason is named in plain words, with what to do about it."""
    found = inventory(scenario)

    assert problem in found["problem"]
    assert hint in found["hint"]
    assert (found["gpus"], found["absent"]) == ([], False)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (4, "may not talk to the NVIDIA driver"),
        (999, "unknown error"),
        (25, "version of a call"),
        (11, "Interrupt Request Issue (NVML code 11)"),
        (4321, "NVML code 4321"),
    ],
)
def test_every_code_of_a_failing_start_has_a_sentence(tmp_path, code, problem):
    """Known codes have words of ours, others those of the driver and the number."""
    machine = changed_machine(tmp_path, "one_gpu", machine=f"init_error={code}")

    found = inventory(machine)

    assert problem in found["problem"]
    assert found["hint"]


def test_a_failure_that_is_not_nvmls_is_a_problem_too():
    """The inventory raises nothing, whatever goes wrong beneath it."""
    found = inventory(
        "one_gpu", before="import pynvml; pynvml.nvmlDeviceGetCount = lambda: 1 / 0"
    )

    assert found["problem"] == "the NVIDIA driver cannot be asked: division by zero"


def test_a_machine_without_a_driver_is_told_from_a_broken_one():
    """Where there is no library there is no driver, which is no fault."""
    found = inventory("one_gpu", load=())

    assert found["absent"] is True
    assert "no NVIDIA driver" in found["problem"]
    assert found["gpus"] == []


def test_versions_are_kept_when_the_gpus_cannot_be_counted(tmp_path):
    """A failure half-way is a problem beside what was read before it."""
    machine = changed_machine(
        tmp_path, "one_gpu", machine="fail=nvmlDeviceGetCount_v2 999"
    )

    found = inventory(machine)

    assert found["driver_version"] == "580.65.06"
    assert "unknown error" in found["problem"]


# ---------------------------------------------------------------- the module pynvml


def test_a_missing_pynvml_is_a_problem():
    """Without nvidia-ml-py the inventory says what to install."""
    found = inventory("one_gpu", before="import sys; sys.modules['pynvml'] = None")

    assert "pynvml cannot be imported" in found["problem"]
    assert "pip install nvidia-ml-py" in found["hint"]
    assert found["absent"] is False


def test_a_foreign_or_outdated_pynvml_is_named(tmp_path):
    """A module of that name without MIG is refused: it would hide slices."""
    (tmp_path / "pynvml.py").write_text(
        "class NVMLError(Exception): pass\n"
        "nvmlInit = nvmlShutdown = nvmlDeviceGetCount = 1\n"
        "nvmlDeviceGetHandleByIndex = 1\n"
    )

    found = inventory("one_gpu", env={"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"})

    assert str(tmp_path / "pynvml.py") in found["problem"]
    assert "lacks nvmlDeviceGetMigMode" in found["problem"]
    assert "nvidia-ml-py" in found["hint"]


def test_only_the_warning_of_the_deprecated_distribution_is_silenced(tmp_path):
    """Of the FutureWarnings at the import, one is expected and others are not."""
    (tmp_path / "pynvml.py").write_text(
        "import warnings\n"
        "warnings.warn('The pynvml package is deprecated. Please', FutureWarning)\n"
        "warnings.warn('something else', FutureWarning)\n"
    )

    found = inventory(
        "one_gpu",
        before="import warnings; warnings.simplefilter('error')",
        env={"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"},
    )

    assert found["problem"].endswith("cannot be imported: something else")


def test_names_may_come_as_bytes():
    """Early versions of pynvml give bytes; the record has text."""
    found = inventory(
        "one_gpu",
        before="""
    import pynvml
    pynvml.nvmlDeviceGetName = lambda handle: b"Tesla \\xff"
    pynvml.nvmlDeviceGetUUID = lambda handle: b"GPU-1"
    pynvml.nvmlSystemGetDriverVersion = lambda: b"450.1"
    """,
    )

    assert found["gpus"][0]["name"] == "Tesla \N{REPLACEMENT CHARACTER}"
    assert (found["gpus"][0]["uuid"], found["driver_version"]) == ("GPU-1", "450.1")


def test_an_unknown_size_is_unknown_also_where_pynvml_does_not_say_so():
    """All ones are no number of bytes, whether or not pynvml has replaced them."""
    found = inventory(
        "four_gpus",
        before="import pynvml; pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value = 1",
    )

    assert found["gpus"][0]["processes"][1] == {
        "pid": 977,
        "used_bytes": None,
        "kind": "graphics",
    }


def test_nvml_is_left_as_it_was():
    """What we start we stop, also after a failure; what the user started goes on."""
    run = run_python("""
        import json, pynvml
        from gpumagic.devices.nvml import read_inventory

        def answers():
            try:
                return pynvml.nvmlDeviceGetCount()
            except pynvml.NVMLError_Uninitialized:
                return None

        read_inventory()
        alone = answers()
        pynvml.nvmlInit()
        read_inventory()
        beside_the_user = answers()
        pynvml.nvmlShutdown()

        def fail(*_):
            raise KeyboardInterrupt

        pynvml.nvmlDeviceGetName = fail
        try:
            read_inventory()
        except KeyboardInterrupt:
            print(json.dumps([alone, beside_the_user, answers()]))
    """)

    assert run.json() == [None, 4, None]


def test_reading_is_cheap_to_import_and_imports_no_torch():
    """The module costs nothing heavy; even reading needs pynvml only."""
    run = run_python("""
        import json, sys
        import gpumagic.devices.nvidia
        before = "pynvml" in sys.modules
        gpumagic.devices.nvidia.NvidiaDriver().inventory()
        heavy = {"torch", "numpy", "rich", "IPython"} & set(sys.modules)
        print(json.dumps([before, "pynvml" in sys.modules, sorted(heavy)]))
    """)

    assert run.json() == [False, True, []]
