"""The numbers of a graph: each operator of a capture, to be computed again.

An operator is written down with the twins of its arguments and of its results, so a
replay is the same computation into the same memory. During the capture torch computes
as ever, for the shapes' sake; at its end everything that was there before is put back,
and what was made holds nothing.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.simulator.backend.recurrent import CELLS

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.simulator.backend.generators import RandomState
    from gpumagic.simulator.backend.simulation import Simulation

_HOST_ARGUMENTS_READ = ("copy_", "_to_copy")  # at each replay; else once, at capture
_NO_NUMBERS = frozenset(
    (
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "record_stream",
    )
)


class Step(NamedTuple):
    """One operator on twins, and where its results belong."""

    compute: Callable[..., Any]
    args: Any
    options: dict[str, Any]
    targets: tuple[tuple[int, Any], ...]  # by the place among all results


class Input(NamedTuple):
    """A storage that a capture has used and not made."""

    storage: weakref.ref[Any]
    address: int
    pool: tuple[int, int]


class Values:
    """What a capture computes.

    Attributes:
        inputs: What it has used and not made.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._torch = simulation.torch
        self._steps: list[Step] = []
        self._before: dict[int, tuple[Any, Any]] = {}  # a storage's bytes, a copy
        self._made: dict[int, Any] = {}
        self.inputs: dict[int, Input] = {}
        self._watching = True
        self._random: dict[RandomState, Any] = {}  # what each was like before
        for gpu in simulation.generators:
            self._keep_random(simulation.random_state(gpu))

    def watch(self, func: Any, args: Any, options: dict[str, Any]) -> Any:
        """Compute one operator as ever, and write it down."""
        from torch.utils import _pytree

        if not self._watching:  # another thread has ended it
            return func(*args, **options)
        inner, inner_options = self._twins(func, args, options)
        leaves = _pytree.tree_leaves((args, options))
        given = self._storages(leaves)
        for each in filter(self._is_ours, leaves):
            self._note_input(each)
        written = self._written(func, args, options)
        for each in written:
            self._keep(each)
        random = self._random_given(options)
        result = func(*args, **options)
        results = _pytree.tree_leaves(result)
        fresh = [
            (place, each)
            for place, each in enumerate(results)
            if isinstance(each, self._torch.Tensor)
            and self._cdata(each) not in given
            and (given or self._is_ours(each))
        ]
        name = func._schema.name.removeprefix("aten::")
        for _, each in fresh:
            if self._is_ours(each):
                self._made[self._cdata(each)] = self._bytes_of(each)
        ours = any(self._is_ours(each) for _, each in fresh) or bool(given)
        if ours and (fresh or written) and name not in _NO_NUMBERS:
            targets = tuple((place, self._twin(each)) for place, each in fresh)
            compute = self._replayed(func, name, results, random)
            self._steps.append(Step(compute, inner, inner_options, targets))
        return result

    def end(self) -> None:
        """Put back what was there; what was made holds nothing yet."""
        self._watching = False
        for now, before in self._before.values():
            now.copy_(before)
        for each in self._made.values():
            each.zero_()
        for random, state in self._random.items():
            random.set_state(state)
        self._random.clear()
        self._before.clear()
        self._made.clear()

    def replay(self) -> None:
        """Compute everything again, in order."""
        torch = self._torch
        # What is done here is the device's doing, also to the host's memory.
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            for step in self._steps:
                _compute(step)

    # --------------------------------------------------------------- arguments

    def _twins(
        self, func: Any, args: Any, options: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        from torch.utils import _pytree

        torch = self._torch
        name = func._schema.name.removeprefix("aten::")
        read_later = name in _HOST_ARGUMENTS_READ

        def twin(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                if self._is_ours(value):
                    return self._twin(value)
                # A number is handed to a kernel by value, once and for all.
                by_value = value.dim() == 0 and not read_later
                return value.clone() if by_value else value
            if isinstance(value, torch.device):
                return torch.device("cpu")
            return value

        options = {key: each for key, each in options.items() if key != "pin_memory"}
        inner, named = _pytree.tree_map(twin, (args, options))
        return inner, named

    def _written(self, func: Any, args: Any, options: dict[str, Any]) -> list[Any]:
        found: list[Any] = []
        for position, each in enumerate(func._schema.arguments):
            if each.alias_info is None or not each.alias_info.is_write:
                continue
            value = args[position] if position < len(args) else options.get(each.name)
            found += value if isinstance(value, (list, tuple)) else [value]
        return [each for each in found if each is not None]

    def _random_given(self, options: dict[str, Any]) -> RandomState | None:
        """What a generator of the device that is given draws from now."""
        given = options.get("generator")
        own = None if given is None else self._simulation.own_generator(given)
        if own is None or own.state is None:
            return None
        self._keep_random(own.state)
        return own.state

    def _keep_random(self, state: RandomState) -> None:
        if state not in self._random:
            self._random[state] = state.get_state()

    def _note_input(self, tensor: Any) -> None:
        key, life = self._cdata(tensor), self._simulation.tensors.claimed(tensor).life
        if key in self._made or key in self.inputs or life is None or not life.block:
            return
        storage, block = weakref.ref(tensor.untyped_storage()), life.block
        self.inputs[key] = Input(storage, block.address, block.pool.identity)

    def _keep(self, tensor: Any) -> None:
        key = self._cdata(tensor)
        if key in self._before or key in self._made:
            return
        now = self._bytes_of(tensor)
        self._before[key] = now, now.clone()

    # ---------------------------------------------------------------- computing

    def _replayed(
        self, func: Any, name: str, results: list[Any], random: RandomState | None
    ) -> Callable[..., Any]:
        """What to run on twins in the place of an operator."""
        own = self._own(name)
        if own is not None:
            return own
        takes = {each.name: each.kwarg_only for each in func._schema.arguments}
        seeded = self._torch.Tag.nondeterministic_seeded in func.tags
        if not seeded and "generator" not in takes:
            return func  # type: ignore[no-any-return]
        if random is None:
            ours = (each.get_device() for each in results if self._is_ours(each))
            gpu = next(ours, self._simulation.here.device)
            random = self._simulation.random_state(max(gpu, 0))
        return self._drawing(func, random, by_name=takes.get("generator", False))

    def _drawing(
        self, func: Any, random: RandomState, *, by_name: bool
    ) -> Callable[..., Any]:
        """Let an operator take its random numbers from where it did at capture."""
        default = self._torch.default_generator

        def compute(*args: Any, **options: Any) -> Any:
            source = random.draw()
            if by_name:
                return func(*args, **{**options, "generator": source})
            host = default.get_state()
            default.set_state(source.get_state())
            try:
                return func(*args, **options)
            finally:
                source.set_state(default.get_state())
                default.set_state(host)

        return compute

    def _own(self, name: str) -> Callable[..., Any] | None:
        """Operators that the CPU computes otherwise, or not at all."""
        torch = self._torch
        if name == "native_dropout":
            random = self._simulation.random_state(self._simulation.here.device)
            return lambda *args: _dropout(torch, random, *args)
        cell = CELLS.get(name)
        return None if cell is None else lambda *args: cell(torch, *args)

    # ------------------------------------------------------------------ storages

    def _is_ours(self, value: Any) -> bool:
        if not isinstance(value, self._torch.Tensor):
            return False
        return self._simulation.tensors.memory_of(value) is not None

    def _twin(self, tensor: Any) -> Any:
        if self._is_ours(tensor):
            return self._simulation.tensors.twin_of(tensor)
        return tensor

    def _bytes_of(self, tensor: Any) -> Any:
        torch = self._torch
        storage = self._twin(tensor).untyped_storage()
        nothing = torch.empty(0, dtype=torch.uint8, device="cpu")
        return nothing.set_(storage, 0, (storage.nbytes(),), (1,))

    def _storages(self, values: list[Any]) -> set[int]:
        return {self._cdata(each) for each in values if self._is_ours(each)}

    @staticmethod
    def _cdata(tensor: Any) -> int:
        return int(tensor.untyped_storage()._cdata)


def _compute(step: Step) -> None:
    from torch.utils import _pytree

    result = step.compute(*step.args, **step.options)
    if step.targets:
        results = _pytree.tree_leaves(result)
        for place, target in step.targets:
            target.copy_(results[place])


def _dropout(
    torch: Any, random: RandomState, source: Any, probability: float, train: Any
) -> tuple[Any, Any]:
    if train is False:
        return source.clone(), torch.ones_like(source, dtype=torch.bool)
    kept = 1 - probability
    mask = torch.empty_like(source)
    mask.bernoulli_(kept, generator=random.draw())
    scale = 1 / kept if kept else 0.0
    return source * mask * scale, mask.bool()
