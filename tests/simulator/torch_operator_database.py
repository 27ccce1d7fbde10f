"""torch's own operator database, on the simulated GPU beside the CPU.

torch keeps a list of nearly all of its operators with inputs to try them on. Each is
run on both devices from one seed; whatever can be seen of the results must agree.
"""

from __future__ import annotations

import contextlib
import random
import string
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import gpumagic
from gpumagic.simulator.backend import call, kernels

if TYPE_CHECKING:
    from collections.abc import Iterator

# The inputs of the database provoke what torch warns about.
pytestmark = pytest.mark.filterwarnings("ignore")

SAMPLES = 12  # of each variant, the first ones
FEW = 4
LITTLE = 4096  # bytes, of which nobody runs out
MODULES = ("fft", "linalg", "masked", "nn.functional", "signal", "special", "torch")
FOREACH = "foreach"  # over lists of tensors: what optimisers are made of
GROUPS = (*string.ascii_lowercase, *MODULES, FOREACH, "other")
NARROW = (torch.float16, torch.bfloat16, torch.int64, torch.uint8)
FLOAT32_BYTES = 4
NOT_IN_HALF = (
    "jiterator",  # compiles CUDA's language
    "fft.",  # of halves
    "histc",  # of integers
    "sparse",
    "to_sparse",
    "as_strided.partial_views",
    "tensor_split",
    "torch.ops.aten._flash_attention_forward",  # beneath what programs call
    "torch.ops.aten._efficient_attention_forward",
)
# Their numbers are whatever was in the memory.
UNINITIALISED = (
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
)
EXCEPTIONS = {
    "as_strided.partial_views": "what is moved has a storage of its own, and no base",
    "sparse.mm.reduce": "sparse tensors are not simulated",
    "sparse.sampled_addmm": "sparse tensors are not simulated",
    "tensor_split": "a tensor of places to split at is wanted on the CPU, also by CUDA",
    "to_sparse": "sparse tensors are not simulated",
}


@pytest.fixture(scope="module")
def machine():
    """A simulated machine for the whole file: the operators leave nothing on it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for tensors as small as these, several are slower
    with gpumagic.simulate("h100") as box:
        yield box
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def operators() -> dict[str, list[Any]]:
    """The database, by groups."""
    pytest.importorskip(
        "expecttest", reason="torch's operator database needs the package expecttest"
    )
    from torch.testing._internal import common_methods_invocations as database
    from torch.testing._internal import common_utils
    from torch.testing._internal.opinfo import core

    # With each sample it looks for a unittest up the stack, and seeds all devices.
    for module in (common_utils, core):
        module.extract_test_fn = lambda: None
    common_utils.set_rng_seed = seed

    groups: dict[str, list[Any]] = {group: [] for group in GROUPS}
    for operator in database.op_db:
        groups[group_of(operator.name)].append(operator)
    for kind in ("unary", "binary", "pointwise", "reduce", "other"):
        groups[FOREACH] += getattr(database, f"foreach_{kind}_op_db")
    return groups


@pytest.mark.parametrize("group", GROUPS)
def test_operators_do_on_the_gpu_what_they_do_on_the_cpu(group, operators, machine):
    """Values, shapes, strides, types, views, gradients and the device are right."""
    found = {
        full_name(operator): difference
        for operator in operators[group]
        if (difference := first_difference(operator))
    }

    unexpected = {name: what for name, what in found.items() if name not in EXCEPTIONS}
    assert not unexpected


@pytest.mark.parametrize("group", GROUPS)
def test_an_exception_that_is_none_any_more_is_taken_off_the_list(
    group, operators, machine
):
    """Whatever stands on the list of exceptions does differ."""
    listed = [each for each in operators[group] if full_name(each) in EXCEPTIONS]

    assert [full_name(each) for each in listed if not first_difference(each)] == []


@pytest.mark.parametrize("group", [each for each in GROUPS if each != FOREACH])
def test_types_that_cuda_computes_are_computed(group, operators, machine):
    """What runs in half precision on CUDA, or on integers, does so here."""
    missing = {}
    for operator in operators[group]:
        for dtype in {*NARROW} & {*(operator.dtypesIfCUDA or ())}:
            if dtype not in operator.dtypes or dtype.itemsize < FLOAT32_BYTES:
                name = f"{full_name(operator)} {dtype}"
                missing[name] = failure(operator, dtype)

    found = {name: why for name, why in missing.items() if why}
    assert {n: w for n, w in found.items() if not n.startswith(NOT_IN_HALF)} == {}


def failure(operator: Any, dtype: torch.dtype) -> str:
    """Why the first samples in a type do not run on the device; empty if they do."""
    try:
        samples = operator.sample_inputs("cpu", dtype)
        few = [sample for _, sample in zip(range(FEW), samples, strict=False)]
    except RuntimeError:
        return ""  # the CPU cannot make them
    for sample in few:
        there = tree_map(moved, (sample.input, sample.args, sample.kwargs))
        try:
            run(operator, there, "sim")
        except Exception as error:  # noqa: BLE001 -- every failure is a finding
            return f"{type(error).__name__}: {error}"[:200]
    return ""


@pytest.mark.parametrize("group", GROUPS)
def test_no_operator_makes_more_than_is_foreseen(
    group, operators, machine, monkeypatch
):
    """What is made is no more than the meta device says, and that than the formula."""
    wrong = set()

    def judge(simulation, _, operation, inner, named):
        if not operation.makes:
            return
        at_most = call.at_most_bytes(operation, inner, named)
        exactly = call.bytes_by_shapes(operation, inner, named)
        made = bytes_made(operation, inner, named)
        if made is not None and made > min(exactly or made, at_most) + LITTLE:
            wrong.add(f"{operation.name}: {made} made, {exactly} of {at_most} foreseen")

    for module in (call, kernels):
        monkeypatch.setattr(module, "foresee", judge)
    monkeypatch.setattr(kernels, "_FEW_PAIRS", -1)
    monkeypatch.setattr(call, "_SMALL_BYTES", -1)
    for operator in operators[group]:
        for _, sample in zip(range(FEW), samples_of(operator), strict=False):
            here = (sample.input, sample.args, sample.kwargs)
            with contextlib.suppress(Exception):  # some samples are there to fail
                run(operator, tree_map(moved, here), "sim")

    assert sorted(wrong) == []


def bytes_made(operation: Any, inner: Any, named: Any) -> int | None:
    """What an operation makes of tensors that are like these; None if it fails."""
    try:
        made = operation.call(*tree_map(alike, inner), **tree_map(alike, named))
    except Exception:  # noqa: BLE001 -- some samples are there to fail
        return None
    return sum(each.nbytes for each in tree_leaves(made) if is_tensor(each))


def alike(value: Any) -> Any:
    """The same, and a tensor or generator of its own."""
    if isinstance(value, torch.Generator):
        return torch.Generator()
    return value.clone() if is_tensor(value) else value


def is_tensor(value: Any) -> bool:
    """Whether there are bytes to count."""
    return isinstance(value, torch.Tensor)


def group_of(name: str) -> str:
    """One group for each module, and one for each letter of what is in none."""
    module = name.rpartition(".")[0]
    if module:
        return module if module in MODULES else "other"
    return name[0] if name[0] in GROUPS else "other"


def full_name(operator: Any) -> str:
    """The name of a variant, unlike that of any other."""
    variant = operator.variant_test_name
    return f"{operator.name}.{variant}" if variant else operator.name


def first_difference(operator: Any) -> str:
    """What the first sample shows that does not agree; empty if all agree."""
    for number, sample in enumerate(samples_of(operator)):
        difference = difference_in(operator, sample)
        if difference:
            return f"sample {number}: {difference}"
    return ""


def samples_of(operator: Any) -> Iterator[Any]:
    """The first samples, with gradients where the operator has any."""
    if not operator.dtypes:
        return  # it is for other devices alone
    single = torch.float32 in operator.dtypes
    dtype = torch.float32 if single else min(operator.dtypes, key=str)
    samples = operator.sample_inputs(
        "cpu", dtype, requires_grad=single and operator.supports_autograd
    )
    for _, sample in zip(range(SAMPLES), samples, strict=False):
        yield sample


def difference_in(operator: Any, sample: Any) -> str:
    """Run one sample on both devices; samples that the CPU refuses say nothing."""
    here = (sample.input, sample.args, sample.kwargs)
    there = tree_map(moved, here)
    try:
        expected = run(operator, here, "cpu")
    except Exception:  # noqa: BLE001 -- some samples are for other devices
        return ""
    try:
        got = run(operator, there, "sim")
    except Exception as error:  # noqa: BLE001 -- every failure is a finding
        return f"{type(error).__name__}: {error}"[:300]
    numbers = operator.name not in UNINITIALISED
    return difference_between(expected, got, numbers=numbers) or (
        difference_of_gradients(here, expected, there, got) if numbers else ""
    )


def moved(value: Any) -> Any:
    """The same on the simulated GPU; what is no tensor and no device stays."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("sim").requires_grad_(value.requires_grad)
    return "sim" if isinstance(value, str) and value == "cpu" else value


def run(operator: Any, sample: tuple[Any, Any, Any], device: str) -> Any:
    """Run an operator from a fixed seed; a sample that names a device gets this one."""
    first, args, options = sample
    if "device" in options:
        options = {**options, "device": device}
    seed(0)
    return operator(first, *args, **options)


def seed(number: int = 1234) -> None:
    """What `torch.manual_seed` does, which keeps the stack for devices not started."""
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002 -- the database draws from it
    torch.default_generator.manual_seed(number)
    torch.sim.manual_seed_all(number)


def difference_between(expected: Any, got: Any, *, numbers: bool) -> str:
    """What can be seen of two results that does not agree."""
    ours, theirs = tree_leaves(got), tree_leaves(expected)
    if len(ours) != len(theirs):
        return f"{len(ours)} results for {len(theirs)}"
    for mine, cpus in zip(ours, theirs, strict=True):
        if not isinstance(cpus, torch.Tensor):
            continue
        if not isinstance(mine, torch.Tensor) or mine.device.type != "sim":
            return f"is not on the device: {mine}"
        if seen(mine) != seen(cpus):
            return f"{seen(mine)} for {seen(cpus)}"
        if numbers and not close(mine, cpus):
            return f"{mine} for {cpus}"
    return ""


def seen(tensor: torch.Tensor) -> dict[str, Any]:
    """What a tensor shows, its numbers apart."""
    return {
        "shape": (*tensor.shape,),
        "stride": (*tensor.stride(),) if tensor.layout is torch.strided else None,
        "dtype": tensor.dtype,
        "view": tensor._is_view(),
        "gradient": tensor.requires_grad,
    }


def close(mine: torch.Tensor, cpus: torch.Tensor) -> bool:
    """Whether the numbers agree; two NaN do."""
    if cpus.layout is not torch.strided:
        return mine.layout is cpus.layout
    mine, cpus = mine.detach().cpu(), cpus.detach()
    if cpus.dtype is torch.float32 and torch.equal(mine, cpus):  # as nearly all are
        return True
    wide = torch.complex128 if cpus.is_complex() else torch.float64
    return torch.allclose(
        mine.to(wide),
        cpus.to(wide),
        rtol=1e-4,
        atol=1e-4,
        equal_nan=True,
    )


def difference_of_gradients(here: Any, expected: Any, there: Any, got: Any) -> str:
    """What does not agree when the sum of the results is differentiated."""
    try:
        theirs = gradients(here, expected)
    except Exception:  # noqa: BLE001 -- there is no derivative
        return ""
    try:
        ours = gradients(there, got)
    except Exception as error:  # noqa: BLE001 -- every failure is a finding
        return f"backward: {type(error).__name__}: {error}"[:300]
    for mine, cpus in zip(ours, theirs, strict=True):
        if (mine is None) != (cpus is None):
            return f"gradient {mine} for {cpus}"
        if cpus is not None and not close(mine, cpus):
            return f"gradient {mine} for {cpus}"
    return ""


def gradients(inputs: Any, outputs: Any) -> list[torch.Tensor | None]:
    """The gradients of all inputs that want one."""
    leaves = [each for each in tree_leaves(inputs) if wants_gradient(each)]
    results = [
        each.abs().sum() for each in tree_leaves(outputs) if wants_gradient(each)
    ]
    if not leaves or not results:
        return []
    return [*torch.autograd.grad(sum(results), leaves, allow_unused=True)]


def wants_gradient(value: Any) -> bool:
    """Whether there is something to differentiate, or by which."""
    return isinstance(value, torch.Tensor) and value.requires_grad
