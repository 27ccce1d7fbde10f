"""Loaders of other libraries: what is made of each, where the library is installed."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from gpumagic.pin_loader.loader import rebuild  # noqa: E402
from gpumagic.pin_loader.random_state import kept  # noqa: E402
from gpumagic.pin_loader.same import (  # noqa: E402
    difference,
    digest_of,
)
from gpumagic.pin_loader.trial import batches_of  # noqa: E402
from tests.pin_loader.loader_kinds import Numbers, seeded  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries' own


def batches_in(loader):
    """The batches of two epochs."""
    taken = []
    for _ in range(2):
        with batches_of(loader) as batches:
            taken.append(list(itertools.islice(batches, 30)))
    return taken


def assert_the_same(old, new):
    """Both give the same two epochs from the same random state."""
    with kept(old):
        expected = batches_in(old)
    with kept(new):
        got = batches_in(new)

    assert expected[0]
    assert difference(digest_of(expected), digest_of(got)) is None


# ------------------------------------------------------------------------ accelerate


def prepared(**words):
    """What accelerate makes of a loader in a single process."""
    library = pytest.importorskip("accelerate.data_loader")
    state = pytest.importorskip("accelerate.state")
    state.PartialState(cpu=True)
    loader = DataLoader(Numbers(), 4, shuffle=True, generator=seeded())
    return library.prepare_data_loader(
        loader, num_processes=1, process_index=0, **words
    )


def test_a_prepared_loader_stays_as_it_is():
    """It gives batches on the device already, and a new one would shard them again."""
    old = prepared(put_on_device=False)

    made = rebuild(old, pin_memory=True, workers=1)

    assert made.loader is None
    assert "accelerate has prepared it" in made.why_not.text
    assert "non_blocking=True" in made.why_not.hint


# ------------------------------------------------------------------- torch_geometric


def graphs():
    """A few small graphs."""
    data = pytest.importorskip("torch_geometric.data")
    edges = torch.tensor([[0, 1], [1, 0]])
    return [data.Data(x=torch.rand(2, 3), edge_index=edges) for _ in range(9)]


def test_a_loader_of_neighbours_is_copied():
    """What its samplers were made of cannot be known: a copy has them."""
    library = pytest.importorskip("torch_geometric.loader")
    sampling = pytest.importorskip("torch_geometric.sampler")

    class Alone(sampling.BaseSampler):
        """Every node is its own neighbourhood."""

        edge_permutation = None

        def sample_from_nodes(self, inputs):
            nothing = torch.empty(0, dtype=torch.long)
            about = (inputs.input_id, inputs.time)
            return sampling.SamplerOutput(
                inputs.node, nothing, nothing, nothing, metadata=about
            )

        sample_from_edges = None  # it has to have one

    old = library.NodeLoader(graphs()[0], Alone(), batch_size=1, shuffle=True)

    made = rebuild(old, pin_memory=True)

    assert (made.loader.pin_memory, old.pin_memory) == (True, False)
    assert made.loader.collate_fn.__self__ is made.loader
    assert_the_same(old, made.loader)
