"""What may stand behind `%gpu_ranks` is checked before anybody is asked."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpumagic.errors import UsageProblem
from gpumagic.gpu_ranks.notebook import _word_of

NOTHING = {
    "what": [],
    "on": None,
    "mem": False,
    "backend": None,
}


def options(*words, above_a_cell=False, **typed):
    """The word that is read of words and options."""
    every = SimpleNamespace(**NOTHING | typed | {"what": list(words)})
    return _word_of(every, above_a_cell=above_a_cell)


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ({"words": ["groups"]}, "no word groups"),
        ({"words": ["group", "now"]}, "one word too many"),
        ({"words": ["group"], "above_a_cell": True}, "no word group"),
        ({"words": [], "mem": True}, "--mem has no meaning here"),
        ({"words": ["select"], "backend": "nccl"}, "--backend has no meaning here"),
    ],
)
def test_what_does_not_belong_together_is_refused(typed, says):
    """It is said what is wrong, and what to type instead."""
    typed = dict(typed)
    with pytest.raises(UsageProblem, match=says) as refused:
        options(*typed.pop("words"), **typed)

    assert refused.value.hint
