"""Who made torch look for GPUs, in the user's words, and whether in vain."""

from __future__ import annotations

import pytest

from tests.gpu_select.watched import watched

CALLS = [
    ("torch.cuda.is_available()", "torch.cuda.is_available()"),
    ("import torch as t; t.cuda.is_available()", "torch.cuda.is_available()"),
    ("torch.zeros(3, device='cuda')", "torch.zeros(3, device='cuda')"),
    ("x = torch.Tensor().cuda()", "x = torch.Tensor().cuda()"),
    ("model = torch.nn.Module().cuda()", "torch.nn.Module.cuda()"),
    ("import library", "import library"),
    ("import package.part", "import package"),
]
MODULES = {
    "library.py": "import torch\nready = torch.cuda.is_available()",
    "package/__init__.py": "",
}
MODULES["package/part.py"] = "import torch\ntorch.cuda.is_available()"


@pytest.mark.parametrize(("line", "by"), CALLS)
def test_a_look_is_named_as_the_user_would_write_it(line, by):
    """The cell, its line and the function of torch, or the import, are named."""
    seen, look, told = watched(
        f"""
        watch()
        run("import torch")
        run("x = 1\\n" + {line!r})
        show(watcher.start(), watcher.torch_look().name, len(told))
        """,
        MODULES,
        torch=True,
    ).json()

    assert (seen["cell"], seen["line"], seen["by"]) == (2, 2, by)
    assert (look, told) == ("FOUND", 1)


def test_a_look_in_vain_is_remembered():
    """Where torch finds no GPU, CUDA has not started, but torch will not look again."""
    seen, look, told, error = watched(
        """
        watch()
        run("import torch")
        run("x = 1\\ntorch.cuda.is_available()")
        error = run("torch.zeros()").error_in_exec
        show(watcher.start(), watcher.torch_look().name, told, str(error))
        """,
        torch=True,
        env={"CUDA_VISIBLE_DEVICES": ""},
    ).json()

    assert (seen["cell"], seen["line"]) == (2, 2)
    assert seen["by"] == "torch.cuda.is_available()"
    assert (look, told) == ("IN_VAIN", [])
    assert error == "no GPUs"


def test_a_look_before_the_loading_is_known_by_torch_alone():
    """Torch tells whether it has started CUDA; of a look in vain nobody has noted."""
    found = watched(
        """
        run("import torch")
        watch()
        looks = [watcher.torch_look().name]
        sys.modules["torch"].cuda.is_initialized = lambda: True
        looks.append(watcher.torch_look().name)
        del sys.modules["torch"]._C._cuda_getDeviceCount
        looks.append(watcher.torch_look().name)
        show(*looks)
        """,
        torch=True,
    ).json()

    assert found == ["NONE", "FOUND", "NONE"]


def test_the_simulator_in_the_place_of_cuda_is_not_in_the_way():
    """Watcher and simulator can be switched on and off in either order."""
    pytest.importorskip("torch")
    watched(
        """
        import torch, gpumagic
        names = ("_cuda_getDeviceCount", "_cuda_init")  # a build without CUDA has none
        own = {name: getattr(torch._C, name, lambda: 4) for name in names}
        for name, plain in own.items():
            setattr(torch._C, name, plain)

        def wrapped():
            return [getattr(torch._C, name) is not plain for name, plain in own.items()]

        def simulate():
            return gpumagic.simulate("h100", as_cuda=True)

        watch()
        box = simulate()
        assert torch.ones(2, device="cuda").sum().item() == 2
        undo.close()
        assert wrapped() == [False, False]
        assert torch.ones(2, device="cuda").sum().item() == 2
        watcher = Watcher(driver.cuda_started, on_start=print)
        watch()
        assert wrapped() == [True, True]
        box.off()
        assert wrapped() == [True, True]
        undo.close()
        assert wrapped() == [False, False]
        """,
        load=(),  # beside a real GPU there is no simulator
    )
