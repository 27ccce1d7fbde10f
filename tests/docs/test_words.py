"""The page of words is the program's own, and each word is explained shortly."""

from __future__ import annotations

import pytest

from docs_build.words import PAGE, page
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_doctor import words
from gpumagic.report.words import WORDS
from tests.gallery.samples import MEMORY_MEANT, TIMES_MEANT

MOST_WORDS = 20
TERMS = [(group, term) for group, terms in WORDS.items() for term in terms]
# The kinds of pictures, each of which has one colour everywhere.
KINDS = {*TIMES_MEANT, *MEMORY_MEANT}


def test_the_page_has_the_words_of_the_program():
    """`make words` writes it: whoever adds a word is told that the page is stale."""
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize(("group", "term"), TERMS)
def test_each_word_has_one_short_sentence(group, term):
    """At most twenty words, from a capital letter or a figure to a full stop."""
    sentence = WORDS[group][term]

    assert len(sentence.split()) <= MOST_WORDS
    assert sentence.endswith((".", ")."))
    assert sentence[0].isupper() or sentence[0].isdigit() or sentence[:5] == "torch"


def test_a_word_stands_in_one_group_and_is_found_by_its_letters():
    """Nothing is explained twice, and each group is in the order of letters."""
    names = [term.casefold() for _, term in TERMS]

    assert len(set(names)) == len(names)
    for terms in WORDS.values():
        assert list(terms) == sorted(terms, key=str.casefold)


def test_every_kind_of_the_pictures_is_explained():
    """What a legend says can be looked up by the same words."""
    assert KINDS - {term for _, term in TERMS} == set()


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("kernel", ["kernel"]),
        ("Kernels", ["kernel"]),
        ("synchronize", ["synchronise"]),
        ("pin", ["pinned"]),
        ("mig slice", ["MIG slice"]),
        ("loaders", list(WORDS["loaders"])),
        ("", [term for _, term in TERMS]),
    ],
)
def test_a_word_is_found_as_people_type_it(asked, found):
    """Plural, spelling, size of letters and a part of a word do not matter."""
    assert [each.term for each in words(asked).terms] == found


def test_one_word_is_answered_in_one_line():
    """The sentence is the answer, and nothing stands beneath it."""
    assert str(words("launch")) == f"launch: {WORDS['time']['launch']}"


def test_a_word_that_is_not_there_is_met_with_those_that_are():
    """Two lines: what is wrong, and what was perhaps meant."""
    with pytest.raises(GpuMagicError) as refused:
        words("cachedx")

    assert "no term 'cachedx'" in refused.value.problem
    assert "cached" in refused.value.hint
