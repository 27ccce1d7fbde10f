"""Registers the device with torch until the process ends: name, guard, `torch.sim`.

torch lets one device be registered from Python, once, under one name. So as little
as possible hangs on that: the module is a shell that answers with the names of the
simulation that is on, and a shell without names when none is.

torch's C++ asks a device guard written in Python for its `type()` from places that
must not throw: at every recorded operation, and around every node of a backward
pass. If an exception is pending there, or is raised there, the process ends.

Two things would do that. A hook of the user that raises leaves its exception
pending while torch unwinds through the guard. And looking up a Python method runs
signal handlers, of which the usual one raises KeyboardInterrupt.

So `type_` here is a chain of C iterators: no bytecode runs in it. It answers a
constant and, before that, moves a pending exception out of the way into a slot.
`restoring` puts it back where torch's Python side can raise it. The other half of
the cure, signal handlers that never raise, is in `interrupts.py`.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import operator
import os
import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# One backward pass unwinds through a handful of guards at once. The slots are used
# in turn and emptied at the end of the pass.
_SLOTS = 256
NAME = "sim"
MODULE = f"torch.{NAME}"
KEY = "PrivateUse1"  # of its operators, in torch's tables
_LAYOUTS = ("Sparse", "SparseCsr", "NestedTensor", "Quantized")
# What torch itself asks of a device module, wherever it goes through all of them.
_NAMES_WHEN_OFF: Mapping[str, Any] = types.MappingProxyType(
    {
        "is_available": lambda: False,
        "is_initialized": lambda: False,
        "device_count": lambda: 0,
        "current_device": lambda: 0,
        "manual_seed_all": lambda _: None,
        "_is_in_bad_fork": lambda: False,
        "get_amp_supported_dtype": list,
        "synchronize": lambda *_: None,
    }
)


def registered() -> SimulatedModule | None:
    """`torch.sim`, if this process has registered it; torch need not be loaded."""
    module: Any = sys.modules.get(MODULE)
    # By what it can do: after a reload its class is another one of the same name.
    return module if hasattr(module, "offer") else None


def register() -> SimulatedModule:
    """Register the device, or find it registered."""
    module = registered()
    if module:
        return module
    set_aside = SetAside()
    private_use_1 = torch._C._autograd.DeviceType.PrivateUse1

    class Guard(torch._C._acc.DeviceGuard):
        """The device's guard; the head of this file says why it looks like this."""

        type_ = set_aside.answering(private_use_1)

    module = SimulatedModule(set_aside)
    torch.utils.backend_registration._setup_privateuseone_for_python_backend(
        NAME, module, device_guard=Guard()
    )
    autograd: Any = torch.autograd
    run_backward = autograd._engine_run_backward
    autograd._engine_run_backward = restoring(run_backward, set_aside)
    _fence_storages(module)
    if hasattr(os, "register_at_fork"):  # Windows has no forks
        os.register_at_fork(after_in_child=module.forked)
    return module


class SimulatedModule(types.ModuleType):
    """`torch.sim`, whichever simulation is on, and also when none is."""

    # torch saves and restores the random state of initialised devices only.
    _initialized = True
    # the machine that is switched on; None while there is none
    simulated_box: Any = None
    # makes a storage of so many bytes on a device of this kind
    make_storage: Callable[[int, Any], Any] | None = None

    def __init__(self, set_aside: SetAside) -> None:
        super().__init__(MODULE, "The simulated GPU of gpumagic, as torch knows it.")
        self._set_aside = set_aside
        self._names: Mapping[str, Any] = _NAMES_WHEN_OFF
        # What torch may read as long as any simulated tensor lives.
        self.kept: list[bytearray] = []
        self.routes = Routes()

    def offer(self, box: Any, names: Mapping[str, Any] = _NAMES_WHEN_OFF) -> None:
        """Offer these names from now on."""
        self.simulated_box = box
        self._names = names

    def forked(self) -> None:
        """This process is a child; what its parent had started is lost here."""
        if self.simulated_box:
            self.simulated_box.lose_by_fork()

    def __getattr__(self, name: str) -> Any:
        if name not in self._names:
            raise AttributeError(f"module {MODULE!r} has no attribute {name!r}")
        return self._names[name]

    def __dir__(self) -> list[str]:
        return sorted(self._names)


class Routes(dict[str, Any]):
    """The kernels in use, by operator, or by the key of all that have none.

    torch's tables are filled once, with functions that look here: to fill them takes a
    tenth of a second, and to empty them half of that.
    """

    def __init__(self) -> None:
        super().__init__()
        self._make: Callable[[str], Callable[..., Any]] = _refusing
        self._libraries: tuple[Any, ...] = ()  # torch forgets what nobody holds

    def __missing__(self, name: str) -> Callable[..., Any]:
        made = self[name] = self._make(name)
        return made

    def lead(self, make: Callable[[str], Callable[..., Any]] | None = None) -> None:
        """Make each kernel by this when it is first needed; None: the simulator is off.

        Whatever is done with tensors that are left then says so.
        """
        self.clear()
        self._make = make or _refusing

    def put_in(self, names: Callable[[], Iterable[str]]) -> None:
        """Let torch come here for these operators, unless it does already."""
        if self._libraries:
            return
        # torch's own `Library` checks each name at three times the cost of registering
        # it; here the names come from torch itself.
        library = torch._C._dispatch_library("IMPL", "aten", KEY, "", 0)
        for name in names():
            library.impl(name.removeprefix("aten::"), KEY, self._kernel(name))
        others = torch.library.Library("_", "IMPL")
        others.fallback(torch.library.fallthrough_kernel, f"Autocast{KEY}")
        for key in (KEY, *(f"{layout}{KEY}" for layout in _LAYOUTS)):
            others.fallback(self._kernel(key), key)
        self._libraries = library, others

    def _kernel(self, name: str) -> Callable[..., Any]:
        def kernel(*args: Any, **options: Any) -> Any:
            __tracebackhide__ = True
            return self[name](*args, **options)

        return kernel


def _refusing(name: str) -> Callable[..., Any]:
    """What says of an operator, or of those that come to a key, that it is off."""

    def refuse(*args: Any, **_: Any) -> Any:
        operator = name.replace("::", ".") if "::" in name else args[0]
        raise DeviceError(
            f"the simulator is off, and {operator} was given a tensor that lies on it",
            'delete the tensor; or gpumagic.simulate("h100"), and make it again',
        )

    return refuse


def lies_there(storage: Any) -> bool:
    """Whether a storage is the simulated device's, whatever name that goes by."""
    return bool(torch._C.StorageBase.device.__get__(storage).type == NAME)


def _fence_storages(module: SimulatedModule) -> None:
    """Make storages that are asked for by hand, or refuse; also after switching off.

    The device has no allocator that torch's C++ could ask, and it would crash.
    """
    storage = torch.UntypedStorage
    make, new = storage.__new__, storage.new
    refusal = (
        "a storage cannot be made by hand on the simulated GPU",
        'make a tensor there, torch.empty(n, device="sim"), and take its storage',
    )

    def checked(cls: Any, *args: Any, **options: Any) -> Any:
        device = options.get("device")
        if device is None or torch.device(device).type != NAME:
            return make(cls, *args, **options)
        size = args[0] if args else options.get("size", 0)
        if not (module.make_storage and isinstance(size, int)):
            raise DeviceError(*refusal)
        return module.make_storage(size, torch.device(device))

    def checked_new(self: Any, *args: Any, **options: Any) -> Any:
        if lies_there(self):
            raise DeviceError(*refusal)
        return new(self, *args, **options)

    storage.__new__, storage.new = checked, checked_new


class SetAside:
    """Exceptions that were pending when the guard was asked."""

    def __init__(self) -> None:
        pointer = ctypes.c_void_p
        self._slots = [(pointer(), pointer(), pointer()) for _ in range(_SLOTS)]
        self._restore = ctypes.pythonapi["PyErr_Restore"]
        self._restore.argtypes = [ctypes.c_void_p] * 3
        self._restore.restype = None

    def answering(self, constant: Any) -> Callable[[], Any]:
        """A callable without bytecode: sets a pending exception aside, answers."""
        fetch = ctypes.pythonapi["PyErr_Fetch"]
        fetch.restype = None
        targets = [tuple(map(ctypes.byref, slot)) for slot in self._slots]
        fetched = itertools.starmap(fetch, itertools.cycle(targets))
        answers = zip(itertools.repeat(constant), fetched, strict=False)
        return map(operator.itemgetter(0), answers).__next__

    def take(self) -> BaseException | None:
        """The first exception that was set aside; forgets them all."""
        found: BaseException | None = None
        for slot in self._slots:
            pending = [pointer.value for pointer in slot]
            for pointer in slot:
                pointer.value = None
            try:
                if pending[0]:
                    self._restore(*pending)
            except BaseException as error:  # noqa: BLE001 -- it is handed to the caller
                found = error if found is None else found
        return found


def restoring(run_backward: Callable[..., Any], set_aside: SetAside) -> Any:
    """A backward pass that raises what a hook has raised in it."""

    @functools.wraps(run_backward)
    def run(*arguments: Any, **options: Any) -> Any:
        try:
            return run_backward(*arguments, **options)
        except SystemError:  # "returned NULL without setting an exception"
            error = set_aside.take()
            if error is None:  # whose own truth is the user's code
                raise
        # Out here, so that it keeps its own cause and context.
        raise error

    return run
