"""What the words of a request mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select.request import Kind, Request, read


@pytest.mark.parametrize(
    ("what", "names"),
    [
        (" 2 , 0,", ("2", "0")),
        ("0-3", ("0", "1", "2", "3")),
        ("'2,0'", ("2", "0")),
        ("[2, 0]", ("2", "0")),
        ("gpu-1A2b", ("GPU-1A2b",)),
        ("MIG-GPU-2222/1/0", ("MIG-GPU-2222/1/0",)),
        (2, ("2",)),
        ([3, "GPU-1a2b"], ("3", "GPU-1a2b")),
        (("0-1", ["4"]), ("0", "1", "4")),
    ],
)
def test_names_are_understood_in_every_spelling(what, names):
    """Numbers, ranges and UUIDs are read as text, numbers or lists."""
    request = read(what)
    assert request.kind is Kind.NAMED
    assert request.names == names
    assert request.text == ",".join(names)


@pytest.mark.parametrize("kind", [Kind.NONE, Kind.ALL, Kind.FREE])
def test_three_words_name_no_gpu_themselves(kind):
    """None, all and free stand for themselves, in any letters."""
    word = kind.name.lower()
    assert read(word) == read(word.upper()) == Request(kind, (), word)


@pytest.mark.parametrize(
    ("what", "problem", "hint"),
    [
        ("cuda:1", "name inside of one process", "type %gpu_select 1"),
        ("cuda", "name inside of one process", "type %gpu_select free"),
        ("-1", "'-1' names no GPU", "type %gpu_select none"),
        ("fre", "'fre' names no GPU", "did you mean free?"),
        ("GPU-", "names no GPU", "type a number"),
        ("", "no GPU is named", "type %gpu_select none"),
        (None, "no GPU is named", "type %gpu_select none"),
        ("3-0", "names no GPUs", "lower number first"),
        ("0-99999", "names no GPUs", "one by one"),
        ("none,1", "'none' cannot stand among", "%gpu_select none alone"),
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
    ("what", "options", "problem", "hint"),
    [
        ("free", {"n": 0}, "-n 0 asks for no GPU", "%gpu_select none"),
        ("free", {"min_free": "much"}, "'much' is not a size", "20GiB"),
        ("free", {"wait": "soon"}, "soon", "10m"),
        ("free", {"wait": float("nan")}, "nan", "10m"),
        ("2", {"n": 2}, "-n chooses among free GPUs", "%gpu_select free -n 2"),
        ("all", {"min_free": "1GiB"}, "--min-free", "%gpu_select free --min-free 1GiB"),
        ("none", {"wait": "10m"}, "--wait", "%gpu_select free --wait 10m"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(what, options, problem, hint):
    """Limits that can never hold, and filters beside names."""
    with pytest.raises(GpuMagicError) as caught:
        read(what, **options)
    assert problem in caught.value.problem
    assert hint in caught.value.hint


@given(
    st.none() | st.integers(1, 16),
    st.none() | st.integers(1, 2**40) | st.sampled_from(["20GiB", "1.5 GB"]),
    st.booleans(),
)
def test_the_text_of_a_request_means_the_same_request(n, size, force):
    """What a request calls itself can be typed again, and gives the same request."""
    request = read("free", n=n, min_free=size, force=force)
    words = request.text.split()
    typed = dict(zip(words[1::2], words[2::2], strict=True))

    again = read(
        words[0],
        n=int(typed["-n"]) if "-n" in typed else None,
        min_free=typed.get("--min-free"),
        force=force,
    )

    assert again == request
