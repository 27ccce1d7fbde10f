"""Looking at memory runs nothing of the user's."""

from __future__ import annotations

import pytest

from gpumagic.devices.storages import stored_by, stored_in, without_overrides

torch = pytest.importorskip("torch")


def test_a_subclass_that_answers_for_itself_is_not_asked():
    """Torch's own functions tell where a tensor lies, whatever its class defines."""

    def never(*_, **__):
        pytest.fail("code of the user's has run")

    words = ("untyped_storage", "storage_offset", "element_size", "data_ptr", "numel")
    tensors = type("Tensor", (torch.Tensor,), dict.fromkeys(words, never))
    storages = type(
        "Storage",
        (torch.UntypedStorage,),
        {"nbytes": never, "data_ptr": never, "device": property(never)},
    )
    plain = torch.ones(5)

    with without_overrides(torch):
        expected = stored_by(torch, plain)
        assert stored_by(torch, plain[1:].as_subclass(tensors)) == expected
        assert stored_in(plain.untyped_storage()) == expected
        assert stored_in(storages(8)).nbytes == 8
