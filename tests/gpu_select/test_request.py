"""What the words of a request mean."""

import argparse
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select.options import Options
from gpumagic.gpu_select.request import Kind, Request, read

UUID = "GPU-11111111-aaaa-4aaa-8aaa-111111111111"


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("2", ("2",)),
        ("2,0", ("2", "0")),
        ("2 0", ("2", "0")),
        (" 2 , 0,", ("2", "0")),
        ("007", ("7",)),
        ("0-3", ("0", "1", "2", "3")),
        ("5,0-1", ("5", "0", "1")),
        ("'2,0'", ("2", "0")),
        ('"2","0"', ("2", "0")),
        ("gpu-1A2b", ("GPU-1A2b",)),
        (UUID, (UUID,)),
        ("MIG-aaaa1111", ("MIG-aaaa1111",)),
        ("MIG-GPU-2222/1/0", ("MIG-GPU-2222/1/0",)),
        ("PCI:3B:00.0", ("pci:3b:00.0",)),
        ("pci:3b", ("pci:3b",)),
        ("00000000:3B:00.0", ("pci:00000000:3b:00.0",)),
        (2, ("2",)),
        ([2, 0], ("2", "0")),
        ([3, "GPU-1a2b", "pci:3b"], ("3", "GPU-1a2b", "pci:3b")),
        (("0-1", ["4"]), ("0", "1", "4")),
        (range(2), ("0", "1")),
    ],
)
def test_names_are_understood_in_every_spelling(what, names):
    """Numbers, ranges, UUIDs and PCI addresses are read as text, numbers or lists."""
    request = read(what)
    assert request.kind is Kind.NAMED
    assert request.names == names
    assert request.text == ",".join(names)


@pytest.mark.parametrize(
    ("word", "kind", "text"),
    [
        ("none", Kind.NONE, "none"),
        ("ALL", Kind.ALL, "all"),
        ("free", Kind.FREE, "free"),
        ("auto", Kind.FREE, "free"),
        ('"free"', Kind.FREE, "free"),
        (["none"], Kind.NONE, "none"),
    ],
)
def test_three_words_name_no_gpu_themselves(word, kind, text):
    """None, all and free stand for themselves, in any letters and quotes."""
    assert read(word) == Request(kind, (), text)


def test_filters_are_kept_in_base_units():
    """A request for free GPUs holds bytes, a share of one, and names."""
    options = Options(
        n=2,
        min_free="20 GiB",
        max_util=30,
        name="H100 NVL",
        exclude="0-1,GPU-1a",
        mine_ok=True,
    )
    request = read("free", options)
    assert request == Request(
        Kind.FREE,
        (),
        "free -n 2 --min-free 20GiB --max-util 30 --name 'H100 NVL' "
        "--exclude 0,1,GPU-1a --mine-ok",
        count=2,
        min_free_bytes=20 * 2**30,
        max_util_share=0.3,
        model="H100 NVL",
        exclude=("0", "1", "GPU-1a"),
        mine_ok=True,
    )


@pytest.mark.parametrize(
    ("size", "text"),
    [(20 * 2**30, "20GiB"), (3 * 2**20, "3MiB"), (1000, "1000B"), (0, "0")],
)
def test_a_size_in_bytes_is_typed_again_without_rounding(size, text):
    """Bytes from Python become a word that means the same number."""
    request = read("free", Options(min_free=size))
    assert request.text == f"free --min-free {text}"
    assert request.min_free_bytes == size
    assert read("free", Options(min_free=text)).min_free_bytes == size


@pytest.mark.parametrize(
    ("what", "problem", "hint"),
    [
        ("cuda:1", "name inside of one process", "type %gpu_select 1"),
        ("cuda", "name inside of one process", "type %gpu_select free"),
        ("-1", "no GPU has the number -1", "type %gpu_select none"),
        (-1, "no GPU has the number -1", "type %gpu_select none"),
        ("fre", "'fre' names no GPU", "did you mean free?"),
        ("nonne", "'nonne' names no GPU", "did you mean none?"),
        ("xyz", "'xyz' names no GPU", "type a number, a UUID"),
        ("+1", "'+1' names no GPU", "type a number"),
        ("GPU-", "only the beginning", "nvidia-smi -L"),
        ("mig", "only the beginning", "nvidia-smi -L"),
        ("GPU-1a$b", "names no GPU", "type a number"),
        ("", "no GPU is named", "type %gpu_select none"),
        (" , ", "no GPU is named", "type %gpu_select none"),
        ([], "no GPU is named", "type %gpu_select none"),
        (None, "None names no GPU", "type %gpu_select none"),
        ([True], "True names no GPU", "type %gpu_select none"),
        (2.5, "'2.5' names no GPU", "type a number"),
        ("3-0", "counts down", "type 0-3"),
        ("0-99999", "longer than any machine", "%gpu_select all"),
        ("none,1", "'none' cannot stand among", "%gpu_select none alone"),
        ("all free", "'all' cannot stand among", "%gpu_select all alone"),
        ("free 2", "'free' cannot stand among", "%gpu_select free -n 2"),
    ],
)
def test_what_is_not_understood_says_what_to_type(what, problem, hint):
    """Words that mean nothing are an error with a next step."""
    with pytest.raises(GpuMagicError) as caught:
        read(what)
    assert problem in caught.value.problem
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ({"n": 0}, "-n 0 asks for no GPU"),
        ({"max_util": 101}, "--max-util 101 is no percentage"),
        ({"max_util": -1}, "--max-util -1 is no percentage"),
        ({"max_util": float("nan")}, "--max-util nan is no percentage"),
        ({"min_free": "much"}, "'much' is not a size"),
        ({"min_free": -5}, "--min-free -5 is less than nothing"),
        ({"name": " "}, "--name is empty"),
        ({"exclude": "free"}, "--exclude names GPUs"),
        ({"exclude": "zero"}, "'zero' names no GPU"),
    ],
)
def test_a_filter_that_can_never_hold_is_refused(option, problem):
    """Limits out of range are an error, not a request that nothing fits."""
    with pytest.raises(GpuMagicError) as caught:
        read("free", Options(**option))
    assert problem in caught.value.problem
    assert caught.value.hint


@pytest.mark.parametrize(
    ("option", "typed"),
    [
        ({"n": 2}, "-n 2"),
        ({"min_free": "1GiB"}, "--min-free 1GiB"),
        ({"max_util": 0}, "--max-util 0"),
        ({"name": "A100"}, "--name A100"),
        ({"exclude": 0}, "--exclude 0"),
        ({"mine_ok": True}, "--mine-ok"),
    ],
)
@pytest.mark.parametrize("what", ["2", "none", "all"])
def test_filters_go_with_free_alone(what, option, typed):
    """Beside names, none or all, a filter is an error that shows both ways out."""
    with pytest.raises(GpuMagicError) as caught:
        read(what, Options(**option))
    assert caught.value.problem.startswith(typed.split(maxsplit=1)[0])
    assert f"%gpu_select {what}," in caught.value.hint
    assert f"%gpu_select free {typed}" in caught.value.hint


names = st.one_of(
    st.integers(0, 99).map(str),
    st.from_regex(r"GPU-[0-9a-f]{1,8}", fullmatch=True),
    st.sampled_from(["pci:3b:00.0", "MIG-GPU-22/1/0"]),
)
models = st.text("AH100 '-tesla\"$", min_size=1).filter(str.strip)
free_requests = st.fixed_dictionaries(
    {"what": st.just("free")},
    optional={
        "n": st.integers(1, 16),
        "min_free": st.integers(0, 2**40) | st.sampled_from(["20GiB", "1.5 GB"]),
        "max_util": st.integers(0, 100) | st.just(33.3333333),
        "name": models,
        "exclude": st.lists(names, min_size=1),
        "mine_ok": st.booleans(),
    },
)
named_requests = st.fixed_dictionaries({"what": st.lists(names, min_size=1)})


def _typed(text):
    """A request as it is read from a line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="+")
    parser.add_argument("-n", type=int)
    parser.add_argument("--min-free")
    parser.add_argument("--max-util", type=float)
    parser.add_argument("--name")
    parser.add_argument("--exclude", default=())
    parser.add_argument("--mine-ok", action="store_true")
    return vars(parser.parse_args(shlex.split(text)))


def _read(said):
    what = said["what"]
    options = {name: each for name, each in said.items() if name != "what"}
    return read(what, Options(**options))


@given(free_requests | named_requests)
@settings(deadline=None)
def test_the_text_of_a_request_means_the_same_request(said):
    """What a request calls itself can be typed again, and gives the same request."""
    request = _read(said)
    assert _read(_typed(request.text)) == request
