"""Sources of random numbers for the simulated device.

The numbers are made on the CPU, by a source for each GPU, so that drawing some on the
device leaves the CPU's own sequence alone, as on CUDA. As there, a generator holds a
state that others may share.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.simulator.backend.refusals import no_cuda, not_simulated

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.simulator.backend.simulation import Simulation

_STEP = 4  # by which a kernel of CUDA's moves the offset, whatever it draws at least
_OFFSET_BYTES = 8
# What draws random numbers, where it may be told a generator.
_FACTORIES = ("rand", "randn", "randint", "randperm", "normal")
_OF_A_TENSOR = ("bernoulli", "binomial", "multinomial", "poisson")
_METHODS = (
    "bernoulli",
    "bernoulli_",
    "cauchy_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "multinomial",
    "normal_",
    "random_",
    "uniform_",
)


class RandomState:
    """Where random numbers of a GPU come from; generators may share it.

    Attributes:
        offset: How far kernels have moved it since it was seeded, as CUDA counts.

    Args:
        source: What makes the numbers.

        offset: How far it has been moved before.
    """

    def __init__(self, source: Any = None, offset: int = 0) -> None:
        self._source = torch.Generator("cpu") if source is None else source
        self.offset = offset

    def draw(self) -> Any:
        """What a kernel takes its numbers from."""
        self.offset += _STEP
        return self._source

    def manual_seed(self, seed: int) -> None:
        """Begin the numbers of a seed."""
        self.offset = 0
        self._source.manual_seed(seed)

    def seed(self) -> int:
        """Begin the numbers of a seed that nobody knows."""
        self.offset = 0
        return int(self._source.seed())

    def initial_seed(self) -> int:
        """The seed that these numbers began with."""
        return int(self._source.initial_seed())

    def get_state(self) -> Any:
        """All of it, as bytes."""
        offset = torch.tensor([self.offset], dtype=torch.int64, device="cpu")
        return torch.cat((self._source.get_state(), offset.view(torch.uint8)))

    def set_state(self, state: Any) -> None:
        """Go on where another was."""
        self._source.set_state(state[:-_OFFSET_BYTES])
        self.offset = int(state[-_OFFSET_BYTES:].clone().view(torch.int64))

    def clone(self) -> RandomState:
        """One that goes on from here by itself."""
        return RandomState(self._source.clone_state(), self.offset)


class Generator(torch.Generator):
    """A source of random numbers, also for the simulated device.

    Args:
        device: Where the numbers are wanted.
    """

    _simulation: Simulation  # set in the subclass of each simulation
    _index: int
    state: RandomState | None = None  # None where they are wanted on another device

    def __new__(cls, device: Any = "cpu") -> Any:
        """Made by torch, with what the engine needs to know."""
        simulation, wanted = cls._simulation, torch.device(device)
        if wanted.type == simulation.device_type:
            return cls.on(simulation.gpu(wanted.index).index, RandomState())
        if wanted.type == "cuda":
            raise no_cuda(RuntimeError("there is no CUDA here"))
        return super().__new__(cls, wanted)

    def __init__(self, *args: Any, **options: Any) -> None:
        """Nothing is left to do."""

    @classmethod
    def on(cls, index: int, state: RandomState) -> Any:
        """One for a GPU, with a state that there is."""
        made = super().__new__(cls, "cpu")
        made._index, made.state = index, state
        own = cls._simulation.own_generators
        for address in [each for each, maker in own.items() if maker() is None]:
            del own[address]
        own[made._cdata] = weakref.ref(made)
        return made

    @property
    def device(self) -> Any:
        """Where the numbers are wanted."""
        if self.state is None:
            return super().device
        return torch.device(self._simulation.shown_type, self._index)

    def _source(self, of_torch: Any) -> Any:
        return self.state or of_torch

    def manual_seed(self, seed: int) -> Any:
        """Begin the numbers of a seed."""
        self._source(super()).manual_seed(seed)
        return self

    def seed(self) -> int:
        """Begin the numbers of a seed that nobody knows."""
        return int(self._source(super()).seed())

    def initial_seed(self) -> int:
        """The seed that these numbers began with."""
        return int(self._source(super()).initial_seed())

    def get_state(self) -> Any:
        """All that its numbers depend on, as bytes."""
        return self._source(super()).get_state()

    def set_state(self, state: Any) -> Any:
        """Go on where another was."""
        self._source(super()).set_state(state)
        return self

    def graphsafe_get_state(self) -> Any:
        """A generator that shares this one's state."""
        if self.state is None:
            return super().graphsafe_get_state()
        return self.on(self._index, self.state)

    def graphsafe_set_state(self, state: Any) -> Any:
        """Share the state of another generator from now on."""
        if self.state is None:
            return super().graphsafe_set_state(state)
        self.state = self._simulation.random_state(self._index, state)
        return self

    def clone_state(self) -> Any:
        """A generator that goes on from here by itself."""
        if self.state is None:
            return super().clone_state()
        return self.on(self._index, self.state.clone())

    def get_offset(self) -> int:
        """How far kernels have moved it; each moves it by the least that CUDA does."""
        return super().get_offset() if self.state is None else self.state.offset

    def set_offset(self, offset: int) -> Any:
        """Refused, but where it began and where it is: others are not to be found."""
        if self.state is None:
            return super().set_offset(offset)
        if offset not in {0, self.state.offset}:
            raise not_simulated("offsets of random numbers", "get_state() works")
        if offset == 0:
            self.state.manual_seed(self.state.initial_seed())
        return self

    def __reduce__(self) -> Any:
        if self.state is None:
            return super().__reduce__()
        return torch.Generator, (str(self.device),), self.get_state()

    def __setstate__(self, state: Any) -> None:
        if self.state is None:
            super().__setstate__(state)
        else:
            self.set_state(state)


def drawing_functions(simulation: Simulation) -> dict[str, Callable[..., Any]]:
    """Functions that do not take the device's generators for the CPU's, by name.

    torch's C++ cannot tell them: it makes no other generators than the CPU's here.
    """
    of_torch = simulation.torch
    return {
        name: _telling_generators(getattr(of_torch, name), simulation)
        for name in (*_FACTORIES, *_OF_A_TENSOR)
    }


def drawing_methods(simulation: Simulation) -> dict[str, Callable[..., Any]]:
    """Likewise the methods of a tensor."""
    tensor = simulation.torch.Tensor
    return {
        name: _telling_generators(getattr(tensor, name), simulation)
        for name in _METHODS
    }


def _telling_generators(
    draw: Callable[..., Any], simulation: Simulation
) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        given = options.get("generator")
        if given is not None and simulation.own_generator(given) is not None:
            where = _where(args, options)
            if where.type == "cpu":
                raise wrong_generator(where.type, simulation.shown_type)
        return draw(*args, **options)

    return call


def _where(args: Any, options: dict[str, Any]) -> torch.device:
    """Where numbers are drawn: at the tensors that are given, or as is said."""
    for each in (*args, *options.values()):
        if isinstance(each, torch.Tensor):
            return each.device
    return torch.device(options.get("device") or torch.get_default_device())


def wrong_generator(wanted: str, found: str) -> RuntimeError:
    """What torch says to a generator of another device."""
    return RuntimeError(
        f"Expected a '{wanted}' device type for generator but found '{found}'"
    )
