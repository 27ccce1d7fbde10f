"""What is said about values, names and cells that do not do what they seem to."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from IPython.core.inputtransformer2 import TransformerManager

from gpumagic.devices.protocols import Gpu, Inventory, MigSlice
from gpumagic.devices.visibility import seen_under
from gpumagic.gpu_select import linter
from gpumagic.gpu_select.linter import meant_to_be
from gpumagic.gpu_select.report import Severity, Variable
from gpumagic.gpu_select.variables import ORDER, VISIBLE

PROBLEM, WARNING, NOTE = Severity.PROBLEM, Severity.WARNING, Severity.NOTE


def gpu(index, name="NVIDIA H100", **known):
    """A GPU whose UUID begins with its number."""
    return Gpu(
        index,
        name=name,
        uuid=f"GPU-{index:08x}-aaaa-4aaa-8aaa-0123456789ab",
        pci_address=f"0000:{16 * index + 24:02x}:00.0",
        mig_enabled=False,
        **known,
    )


def machine(count):
    """A machine with so many GPUs, all alike."""
    return Inventory(gpus=tuple(gpu(index) for index in range(count)))


FOUR = machine(4)
MIXED = Inventory(gpus=(gpu(0), gpu(1, "NVIDIA T400")))


def variable(value, name=VISIBLE, **known):
    """A variable that is the same in Python and in C."""
    found = Variable(
        name, python=value, c=value, c_known=True, at_start=None, at_start_known=True
    )
    return dataclasses.replace(found, **known)


def lint(
    value=None, *, order="PCI_BUS_ID", on=FOUR, history=(), environment=None, **known
):
    """The remarks on a setting."""
    return linter.remarks(
        environment or {},
        variable(value, **known),
        variable(order, ORDER),
        on,
        history,
        seen_under(value, order, on),
    )


def only(remarks):
    """The one remark that there is."""
    (remark,) = remarks
    return remark


# ---------------------------------------------------------------- sound settings


@settings(deadline=None)
@given(st.data())
def test_a_sound_list_needs_no_remark(data):
    """Numbers or UUIDs of different GPUs that are there: nothing is said."""
    count = data.draw(st.integers(1, 16))
    chosen = data.draw(st.permutations(range(count)))
    kept = chosen[: data.draw(st.integers(1, count))]
    on = machine(count)
    by_number = ",".join(map(str, kept))
    by_uuid = ",".join(on.gpus[index].uuid for index in kept)

    assert lint(by_number, on=on) == ()
    assert lint(by_uuid, on=on) == ()


@pytest.mark.parametrize("value", [None, "-1", "0", " 1 , 0"])
def test_what_is_meant_as_it_is_read_needs_no_remark(value):
    """Not set, nothing at all by -1, one GPU, blanks between numbers."""
    assert lint(value) == ()
    assert lint(value, order=None) == ()


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("value", "severity", "said", "typed"),
    [
        ("3,2,9,1", WARNING, "the list ends at '9'", "type %gpu_select 3,2,1"),
        ("9", PROBLEM, "no GPU of this number", "type %gpu_select to see"),
        ("0,,1", WARNING, "the list ends at ''", "type %gpu_select 0,1"),
        ("0,1,0", PROBLEM, "'0' names a GPU again", "type %gpu_select 0,1"),
        ("0-2", PROBLEM, "no ranges", "type %gpu_select 0,1,2"),
        ("0-1000000", PROBLEM, "no ranges", "type %gpu_select 0,1,2,3"),
        ("3,0-1", PROBLEM, "no ranges", "type %gpu_select 3,0,1"),
        ('"0,2"', PROBLEM, "quotation marks", "type %gpu_select 0,2"),
        ("'1'", PROBLEM, "quotation marks", "type %gpu_select 1"),
        ("NoDevFiles", PROBLEM, "Slurm", "--gres=gpu:1"),
        ("none", WARNING, "hides every GPU", "%gpu_select none"),
        ("all", PROBLEM, "hides every GPU", "type %gpu_select all"),
        ("", WARNING, "hides every GPU", "%gpu_select none"),
        ("  ", WARNING, "hides every GPU", "%gpu_select none"),
        ("0 1", WARNING, "what follows the number", "type %gpu_select 0,1"),
        ("cuda:1", PROBLEM, "neither a number", "type %gpu_select 1"),
        ("GPU-0000", PROBLEM, "more than one GPU", "type %gpu_select to see"),
        ("GPU-00000002,1", WARNING, "another kind", "type %gpu_select GPU-00000002"),
    ],
)
def test_a_mistake_is_named_with_what_to_type(value, severity, said, typed):
    """One remark: how bad it is, the value as found, and the choice that was meant."""
    remarks = [each for each in lint(value) if each.severity is not NOTE]

    remark = only(remarks)
    assert remark.severity is severity
    assert said in remark.text
    assert repr(value) in remark.text
    assert typed in remark.next_step


def test_numbers_to_type_are_those_of_nvidia_smi():
    """CUDA does not count a GPU out of reach: its number 1 is GPU 2 then."""
    on = Inventory(gpus=(gpu(0), gpu(1, problem="no permission"), gpu(2)))

    assert only(lint("1,1", on=on)).next_step == "type %gpu_select 2"


def test_a_very_long_value_is_cut():
    """A value of a kilobyte does not fill the screen."""
    assert len(only(lint('"' + "0," * 5000)).text) < 300


def test_where_no_gpu_is_known_numbers_are_taken_as_they_are():
    """A driver that cannot be asked takes nothing from the advice."""
    blind = Inventory(unasked=True, problem="pynvml is missing")

    assert only(lint('"2"', on=blind)).next_step == "type %gpu_select 2"
    assert len(only(lint("0-999999999999", on=blind)).next_step) < 300


def test_numbers_on_a_mixed_machine_need_the_order():
    """Without CUDA_DEVICE_ORDER the fastest may come first, which is worth a word."""
    remark = only(lint("1", order=None, on=MIXED))

    assert remark.severity is WARNING
    assert "the fastest may come first" in remark.text
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in remark.next_step
    assert lint("1", on=MIXED) == ()


def test_a_gpu_in_slices_is_explained():
    """A whole GPU in MIG mode stands for its first slice."""
    parts = (MigSlice("MIG-aaaa", 1, 0, None), MigSlice("MIG-bbbb", 2, 0, None))
    sliced = dataclasses.replace(gpu(0), mig_enabled=True, mig=parts)

    remarks = lint("0", on=Inventory(gpus=(sliced,)))
    assert remarks[0].severity is NOTE
    assert "first slice" in remarks[0].text
    assert lint("MIG-bbbb", on=Inventory(gpus=(sliced,))) == ()


def test_doubts_of_the_prediction_come_with_a_choice_without_any():
    """A value that drivers may read in two ways is a note, with what to type."""
    doubts = [each for each in lint("0,4,4") if each.severity is NOTE]

    assert "may hide every GPU" in only(doubts).text
    assert only(doubts).next_step == "type %gpu_select 0, which drivers read alike"


# ---------------------------------------------------------------- two environments


def test_a_value_that_only_c_has_is_pointed_out():
    """os.putenv has told the driver something that Python does not know."""
    remark = only(lint("0", python="2"))

    assert "'2' to Python and '0' to C" in remark.text
    assert remark.next_step == "type %gpu_select 0, which sets both"


def test_the_value_that_c_has_is_the_one_that_is_examined():
    """The driver reads C's value; a mistake in Python's alone is only a difference."""
    assert len(lint("0", python="0-3")) == 1


def test_where_c_cannot_be_asked_nothing_is_said_to_differ():
    """An unknown value differs from nothing."""
    assert lint("2", c=None, c_known=False) == ()


@pytest.mark.parametrize("order", ["PCI", "pci_bus_id", '"PCI_BUS_ID"', ""])
def test_an_order_that_cuda_does_not_know_is_pointed_out(order):
    """Any other word counts as FASTEST_FIRST."""
    remark = only(lint("0", order=order))

    assert remark.severity is WARNING
    assert repr(order) in remark.text
    assert "FASTEST_FIRST" in remark.text


def test_a_list_from_the_start_is_named_as_the_limit():
    """A mask that came with the process limits the choice, and may be exceeded."""
    remark = only(lint("0", at_start="0,1"))

    assert remark.severity is NOTE
    assert f"{VISIBLE}=0,1" in remark.text
    assert "kernel.json" in remark.text
    assert "--force" in remark.next_step


def test_slurm_is_named_where_it_gave_the_list():
    """In a job of Slurm's the limit is Slurm's."""
    remark = only(lint("1", at_start="1", environment={"SLURM_JOB_ID": "42"}))

    assert "Slurm (job 42)" in remark.text


def test_numbers_under_mps_are_warned_about():
    """The MPS daemon numbers GPUs its own way; names are safe, and so is no GPU."""
    mps = {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"}

    remark = only(lint("2,0", environment=mps))
    assert remark.severity is WARNING
    assert remark.next_step == "type %gpu_select 2,0 --as uuid"
    assert lint(FOUR.gpus[2].uuid, environment=mps) == ()
    assert lint("-1", environment=mps) == ()


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    "name",
    [
        "CUDA_VISIBLE_DEVICE",
        "CUDA_VISIBLE",
        "VISIBLE_CUDA_DEVICES",
        "CUDA_VISIBLE_DEVICES ",
        "cuda_visible_devices",
        "CUDA_VISABLE_DEVICES",
        "CUDA_VISIBLE_DEVICESS",
        "CUDA-VISIBLE-DEVICES",
        "CUDAVISIBLEDEVICES",
        "CUDA_VISIBLE_GPUS",
        "CUDE_VISIBLE_DEVICES",
    ],
)
def test_a_slip_in_the_name_is_found(name):
    """A variable that is almost the right one is named, with what to type."""
    remark = only(lint(environment={name: "2", "PATH": "/bin"}))

    assert repr(name) in remark.text
    assert remark.next_step == "type %gpu_select 2"


@pytest.mark.parametrize(
    "name",
    [
        VISIBLE,
        ORDER,
        "NVIDIA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "AMD_VISIBLE_DEVICES",
        "ASCEND_RT_VISIBLE_DEVICES",
        "ASCEND_VISIBLE_DEVICES",
        "HABANA_VISIBLE_DEVICES",
        "MUSA_VISIBLE_DEVICES",
        "MTHREADS_VISIBLE_DEVICES",
        "MACA_VISIBLE_DEVICES",
        "MLU_VISIBLE_DEVICES",
        "XPU_VISIBLE_DEVICES",
        "GGML_VK_VISIBLE_DEVICES",
        "TPU_VISIBLE_CHIPS",
        "NEURON_RT_VISIBLE_CORES",
        "OLD_CUDA_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES_ORIG",
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_DEVICE_WAITS_ON_EXCEPTION",
        "CUDA_MODULE_LOADING",
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_HOME",
        "CUDA_VERSION",
        "NVIDIA_DRIVER_CAPABILITIES",
        "ZE_AFFINITY_MASK",
        "ONEAPI_DEVICE_SELECTOR",
        "GPU_DEVICE_ORDINAL",
        "SLURM_JOB_GPUS",
        "PYTORCH_NVML_BASED_CUDA_CHECK",
    ],
)
def test_names_that_other_programs_read_are_no_slips(name):
    """Variables of other tools and makers are left alone."""
    assert meant_to_be(VISIBLE, [name]) == []


# ---------------------------------------------------------------- cells


def as_run(cell):
    """The cell as IPython keeps it in In."""
    return TransformerManager().transform_cell(cell)


@pytest.mark.parametrize("form", [str, as_run])
@pytest.mark.parametrize(
    "cell",
    [
        "!export CUDA_VISIBLE_DEVICES=2",
        "import torch\n!export CUDA_VISIBLE_DEVICES='2'  # the free one",
        "!CUDA_VISIBLE_DEVICES=2",
        "done = !export CUDA_VISIBLE_DEVICES=2",
        "!set CUDA_VISIBLE_DEVICES=2",
        "%%bash\nexport CUDA_VISIBLE_DEVICES=2\necho $CUDA_VISIBLE_DEVICES",
        "%%sh\n# choose\nCUDA_VISIBLE_DEVICES=2\n",
    ],
)
def test_an_assignment_in_a_shell_that_is_gone_is_explained(cell, form):
    """It says in which cell, that nothing came of it, and what to type instead."""
    history = [(3, "1 + 1"), (4, form(cell)), (5, "%gpu_select")]

    remark = only(lint(history=history))

    assert remark.text.startswith("In[4] sets CUDA_VISIBLE_DEVICES=2 in a shell")
    assert remark.next_step == "type %gpu_select 2"


@pytest.mark.parametrize("form", [str, as_run])
@pytest.mark.parametrize(
    "cell",
    [
        "!CUDA_VISIBLE_DEVICES=2 python train.py",
        "!export CUDA_VISIBLE_DEVICES=2 && python train.py",
        "!echo $CUDA_VISIBLE_DEVICES",
        "%%bash\nexport CUDA_VISIBLE_DEVICES=2\npython train.py",
        "%env CUDA_VISIBLE_DEVICES=2",
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '2'",
        "# !export CUDA_VISIBLE_DEVICES=2",
        "CUDA_VISIBLE_DEVICES = '\\d' +",
    ],
)
def test_a_cell_that_does_what_it_says_is_left_alone(cell, form):
    """A command that runs under the assignment has used it."""
    assert lint(history=[(4, form(cell))]) == ()


def test_an_assignment_that_was_set_right_since_is_forgotten():
    """Once the variable has been set in the process, the lost one does not matter."""
    history = [(1, "!export CUDA_VISIBLE_DEVICES=2")]

    assert lint("3", history=history) == ()


@pytest.mark.parametrize("form", [str, as_run])
def test_quotes_that_env_has_kept_are_traced_to_their_cell(form):
    """%env takes quotation marks as a part of the value; the cell is named."""
    history = [(2, form('%env CUDA_VISIBLE_DEVICES="0"'))]

    remark = only(lint('"0"', history=history))
    assert "by %env in In[2]" in remark.text
    assert remark.next_step == "type %gpu_select 0"


# ---------------------------------------------------------------- anything


@settings(deadline=None)
@given(
    st.none() | st.text(alphabet="0123-, \"'GPUMIx.;\ud800", max_size=24),
    st.none() | st.text(max_size=12),
    st.dictionaries(st.text(max_size=24), st.text(max_size=8), max_size=3),
    st.lists(st.tuples(st.integers(), st.text(max_size=40)), max_size=3),
)
def test_anything_at_all_is_examined_without_an_error(value, order, names, cells):
    """Whatever stands in the environment or in cells, remarks are sentences."""
    history = [(number, f"{cell}\n!export {VISIBLE}={cell}") for number, cell in cells]

    for remark in lint(value, order=order, environment=names, history=history):
        assert remark.text
        assert remark.next_step
