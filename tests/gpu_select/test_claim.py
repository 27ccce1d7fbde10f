from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpumagic.gpu_select.claims import Claim, claim_text, claims_in
from gpumagic.gpu_select.processes import Process, Standing, standing, this_process

ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.lists(st.text() | st.integers())
)
FIELDS = ("uuids", "pid", "start_ticks", "boot", "namespace", "user", "when")
SOUND = json.loads(claim_text(["GPU-1a2b"], this_process(), 0.0))


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, ANYTHING)))
@hypothesis_settings(deadline=None)
def test_any_content_is_either_claims_or_refused(changes):
    """Whatever stands in a file, reading it raises nothing but ValueError."""
    try:
        found = claims_in(json.dumps(SOUND | changes))
    except ValueError:
        return
    for claim in found:
        assert standing(claim.holder) in Standing
        assert claim.text(0.0).isprintable()


@given(
    st.lists(st.text()),
    st.builds(
        Process,
        st.integers(1, 2**22),
        st.none() | st.integers(0),
        st.none() | st.text(),
        st.none() | st.text(),
    ),
    st.floats(0, 1e12),
)
@hypothesis_settings(deadline=None)
def test_what_is_written_is_read_again(uuids, process, when):
    """A claim comes out of its file as it went in."""
    found = claims_in(claim_text(uuids, process, when))
    assert [claim.uuid for claim in found] == uuids
    assert all((claim.holder, claim.when) == (process, when) for claim in found)


@pytest.mark.parametrize(
    ("age_s", "words"),
    [(-5, "just now"), (0.4, "just now"), (42, "42.0 s ago"), (200, "3 min ago")],
)
def test_a_claim_says_how_old_it_is(age_s, words):
    """The age is rounded to what a reader wants to know."""
    claim = Claim("GPU-1a2b", Process(4242), "anna", when=1000.0)
    assert claim.text(1000.0 + age_s) == f"pid 4242 of anna, {words}"


def test_this_process_lives_and_others_of_its_number_do_not():
    """A process knows itself again by all that is known of it."""
    me = this_process()
    assert standing(me) is Standing.ALIVE
    assert standing(Process(2**40, None, me.boot, me.namespace)) is Standing.GONE
