"""Fused attention, as CUDA has it: a kernel forward, a kernel backward.

None of them keeps a matrix of all pairs, on the device or here: torch's own kernel for
the CPU goes through them in tiles. What it lacks (dropout, values of another size than
the keys, the gradient of a bias) is computed below for some rows at a time. Numbers are
float32 within, and rounded once at the end.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.attention_choice import FUSED, Entry
from gpumagic.simulator.backend.call import Call
from gpumagic.simulator.backend.operations import Operation
from gpumagic.simulator.kernel_times import Blocks, blocks_of_attention

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.simulator.backend.simulation import Simulation

    Kernel = Callable[..., Any]

_PAIRS_AT_ONCE = 1 << 22  # 16 MiB in single precision


def attention_kernels(simulation: Simulation) -> dict[str, Kernel]:
    """The fused kernels by the names of their operators."""
    kernels: dict[str, Kernel] = {"_fused_sdp_choice": Entry(simulation).choice}
    for name, forward in (
        ("flash", _Flash),
        ("efficient", _Efficient),
        ("cudnn", _Cudnn),
    ):
        fused = FUSED.format(name)
        kernels[fused] = forward(simulation, fused)
        kernels[f"{fused}_backward"] = _Backward(simulation, f"{fused}_backward")
    return kernels


class _Fused:
    """One fused kernel: computes on the twins, keeps the books.

    Attributes:
        products: How many matrix products go over the sizes of keys, and of values.
    """

    products = (1, 1)

    def __init__(self, simulation: Simulation, name: str) -> None:
        self._simulation = simulation
        self._torch = simulation.torch
        self._operation = Operation(simulation.torch, f"aten::{name}")
        schema = getattr(simulation.torch.ops.aten, name).default._schema
        self._names = [each.name for each in schema.arguments]
        self._defaults = {
            each.name: each.default_value
            for each in schema.arguments
            if each.has_default_value()
        }

    def __call__(self, *args: Any, **options: Any) -> tuple[Any, ...]:
        """Run it; the arguments are those that torch hands to a kernel."""
        __tracebackhide__ = True
        torch, simulation = self._torch, self._simulation
        named = zip(self._names, args, strict=False)
        given = {**self._defaults, **dict(named), **options}
        call = Call(simulation)
        twins = {
            name: call.twin(each, name) if isinstance(each, torch.Tensor) else each
            for name, each in given.items()
        }
        call.require_one_device()
        gpu = call.gpu
        if gpu is None:
            raise NotImplementedError(f"{self._operation.name} runs on a GPU alone")
        if simulation.poisons:
            for name, found in call.found.items():
                if simulation.reads_too_early(gpu, found):
                    twins[name] = simulation.poisoned(twins[name])
        if twins["dropout_p"] and "philox_seed" not in twins:
            own = simulation.random_state(gpu.index).draw()
            twins["philox_seed"] = torch.randint(1 << 62, (), generator=own)
        pairs = _Pairs.of(torch, twins)
        tensors = [each for each in given.values() if isinstance(each, torch.Tensor)]
        made, _ = simulation.launch(
            gpu,
            self._operation,
            self.fresh(pairs, twins),
            call.reads,
            [],
            call.nbytes,
            0,
            pairs.work(*self.products),
            pairs.dtype,
            None,
            torch.is_grad_enabled() and any(each.requires_grad for each in tensors),
        )
        return self.results(made, twins)

    def fresh(self, pairs: _Pairs, twins: dict[str, Any]) -> list[Any]:
        """What is computed, as it lies in the memory of the device."""
        raise NotImplementedError

    def results(self, made: list[Any], twins: dict[str, Any]) -> tuple[Any, ...]:
        """What the operator returns, of what was made."""
        raise NotImplementedError


class _Flash(_Fused):
    """Its output lies like the queries."""

    def fresh(self, pairs: _Pairs, twins: dict[str, Any]) -> list[Any]:
        """With them the state of the random numbers, on the device."""
        torch, (out, sums) = self._torch, pairs.forward()
        state = torch.zeros(2, dtype=torch.uint64, device="cpu")
        state[0] = pairs.seed
        unused = torch.zeros((), dtype=torch.uint64, device="cpu")
        debug = torch.empty(0, dtype=pairs.dtype, device="cpu")
        return [_like(self._torch, twins["query"], out), sums, state, unused, debug]

    def results(self, made: list[Any], twins: dict[str, Any]) -> tuple[Any, ...]:
        """The lengths of the sequences between the two halves."""
        lengths = twins["query"].size(2), twins["key"].size(2)
        return (*made[:2], None, None, *lengths, *made[2:])


class _Efficient(_Fused):
    """Its output has the heads of a row beside each other."""

    def fresh(self, pairs: _Pairs, twins: dict[str, Any]) -> list[Any]:
        """Sums are kept for a backward pass alone, in multiples of 32."""
        out, sums = pairs.forward()
        kept = -(-sums.size(2) // 32) * 32 * twins["compute_log_sumexp"]
        padded = sums.new_full((*sums.shape[:2], kept), self._torch.inf)
        padded[..., : sums.size(2)] = sums[..., :kept]
        return [_heads_together(out, pairs.dtype), padded]

    def results(self, made: list[Any], twins: dict[str, Any]) -> tuple[Any, ...]:
        """The state of the random numbers stays on the CPU."""
        return (*made, *_state(self._torch, twins))


class _Cudnn(_Fused):
    """Its output lies like the queries."""

    def fresh(self, pairs: _Pairs, twins: dict[str, Any]) -> list[Any]:
        """Sums have a dimension of their own."""
        out, sums = pairs.forward()
        return [_like(self._torch, twins["query"], out), sums.unsqueeze(-1)]

    def results(self, made: list[Any], twins: dict[str, Any]) -> tuple[Any, ...]:
        """The state of the random numbers stays on the CPU."""
        lengths = twins["query"].size(2), twins["key"].size(2)
        return (*made, None, None, *lengths, *_state(self._torch, twins), None)


class _Backward(_Fused):
    """The gradients of each of them; scores are computed anew."""

    products = (3, 2)

    def fresh(self, pairs: _Pairs, twins: dict[str, Any]) -> list[Any]:
        """They lie like what they are of, or as the output does."""
        wanted = twins.get("grad_input_mask")
        of_bias = bool(wanted and wanted[3] and pairs.bias is not None)
        sums = twins["logsumexp"].flatten(2)[..., : twins["query"].size(2)]
        grad = twins.get("grad_out", twins.get("grad_out_"))
        *grads, bias = pairs.backward(grad, twins["out"], sums, of_bias=of_bias)
        heads = twins["key"].size(1)
        grads[1:] = (each.unflatten(1, (heads, -1)).sum(2) for each in grads[1:])
        if wanted is None:
            of = (twins[name] for name in ("query", "key", "value"))
            return [_like(self._torch, *each) for each in zip(of, grads, strict=True)]
        laid_out = [_heads_together(each, pairs.dtype) for each in grads]
        return [*laid_out, *([bias.to(pairs.dtype)] if of_bias else [])]

    def results(self, made: list[Any], twins: dict[str, Any]) -> tuple[Any, ...]:
        """The efficient one has a place for that of the bias."""
        return (*made, None)[:4] if "grad_input_mask" in twins else (*made,)


def _like(torch: Any, tensor: Any, numbers: Any) -> Any:
    """Numbers in the type and the order of a tensor; its last size may be another."""
    if tensor.shape == numbers.shape:
        return torch.empty_like(tensor).copy_(numbers)
    return numbers.to(tensor.dtype).contiguous()


def _heads_together(numbers: Any, dtype: Any) -> Any:
    return numbers.transpose(1, 2).contiguous().to(dtype).transpose(1, 2)


def _state(torch: Any, twins: dict[str, Any]) -> tuple[Any, Any]:
    zero = torch.zeros((), dtype=torch.long, device="cpu")
    return twins.get("philox_seed", zero), zero


@dataclasses.dataclass(slots=True)
class _Pairs:
    """All queries against all keys, in single precision, some rows at a time."""

    torch: Any
    dtype: Any  # in which they are given, and results are wanted
    query: Any
    key: Any
    value: Any
    bias: Any  # what is added to each score; None for nothing
    dropout: float
    causal: bool
    scale: float
    seed: int  # of the random numbers that leave pairs out, the same in both passes

    @classmethod
    def of(cls, torch: Any, twins: dict[str, Any]) -> _Pairs:
        """Those of a kernel, by the names of its arguments."""
        query, key, value = (_single(twins[name]) for name in ("query", "key", "value"))
        bias = twins.get("attn_bias")
        shared = query.size(1) // key.size(1)
        if shared > 1:  # several heads of queries have the same keys
            key, value = (each.repeat_interleave(shared, 1) for each in (key, value))
        seed, scale = twins.get("philox_seed"), twins["scale"]
        return cls(
            torch,
            twins["query"].dtype,
            query,
            key,
            value,
            None if bias is None else _single(bias),
            twins["dropout_p"],
            twins["is_causal"],
            query.size(-1) ** -0.5 if scale is None else scale,
            0 if seed is None else int(seed.flatten()[0]),
        )

    def work(self, over_keys: int, over_values: int) -> Blocks:
        """What matrix products take, of those pairs that a causal mask leaves."""
        batch, heads, rows, size = self.query.shape
        columns, seen = self.key.size(2), rows * self.key.size(2)
        if self.causal:
            short = min(rows, columns)
            seen = short * (short + 1) / 2 + (rows - short) * columns
        sizes = over_keys * size + over_values * self.value.size(-1)
        flops = float(2 * batch * heads * seen * sizes)
        return Blocks(flops, batch * heads * blocks_of_attention(rows, columns))

    def forward(self) -> tuple[Any, Any]:
        """The output, and the logarithm of the sum of each row."""
        if self._torch_has_it:
            kernel = self.torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
            out, sums = kernel(
                self.query,
                self.key,
                self.value,
                0.0,
                self.causal,
                attn_mask=self.bias,
                scale=self.scale,
            )
            return out, sums
        out = self.query.new_empty((*self.query.shape[:3], self.value.size(-1)))
        sums = self.query.new_empty(self.query.shape[:3])
        for at, scores, kept in self._blocks():
            sums[at] = total = scores.logsumexp(-1)
            weights = (scores - total.unsqueeze(-1)).exp_().nan_to_num_(0.0)
            if kept is not None:
                weights *= kept
            out[at] = weights @ self.value[at[:2]]
        return out, sums

    def backward(
        self, grad_out: Any, out: Any, sums: Any, *, of_bias: bool
    ) -> tuple[Any, Any, Any, Any]:
        """The gradients of query, key, value and bias; None where it is not wanted."""
        grad_out, out = _single(grad_out), _single(out)
        given = (self.query, self.key, self.value)
        of_bias_too = self.torch.zeros(self.bias.shape) if of_bias else None
        if self._torch_has_it and not of_bias:
            name = "_scaled_dot_product_flash_attention_for_cpu_backward"
            kernel = getattr(self.torch.ops.aten, name)
            grads = kernel(
                grad_out,
                *given,
                out,
                sums,
                0.0,
                self.causal,
                attn_mask=self.bias,
                scale=self.scale,
            )
            return (*grads, None)
        of_query, of_key, of_value = map(self.torch.zeros_like, given)
        through = (grad_out * out).sum(-1, keepdim=True)
        for at, scores, kept in self._blocks():
            keys = at[:2]
            weights = (scores - sums[at].unsqueeze(-1)).exp_().nan_to_num_(0.0)
            seen = weights if kept is None else weights * kept
            of_value[keys] += seen.mT @ grad_out[at]
            of_weights = grad_out[at] @ self.value[keys].mT
            if kept is not None:
                of_weights *= kept
            of_scores = weights * (of_weights - through[at])
            if of_bias_too is not None:
                of_bias_too[at] = of_scores
            of_query[at] = of_scores @ self.key[keys] * self.scale
            of_key[keys] += of_scores.mT @ self.query[at] * self.scale
        return of_query, of_key, of_value, of_bias_too

    @property
    def _torch_has_it(self) -> bool:
        return not self.dropout and self.query.size(-1) == self.value.size(-1)

    def _blocks(self) -> Iterator[tuple[tuple[slice, ...], Any, Any]]:
        """Where each block lies, its scores, and by what its weights are multiplied."""
        torch = self.torch
        numbers = torch.Generator().manual_seed(self.seed)
        columns = torch.arange(self.key.size(2))
        for at in self._places():
            scores = self.query[at] @ self.key[at[:2]].mT * self.scale
            if self.bias is not None:
                scores += self.bias[at]
            if self.causal:
                rows = torch.arange(self.query.size(2))[at[2], None]
                scores.masked_fill_(columns > rows, -torch.inf)
            kept = None
            if self.dropout:
                kept = torch.empty_like(scores)
                kept.bernoulli_(1 - self.dropout, generator=numbers)
                kept /= 1 - self.dropout
            yield at, scores, kept

    def _places(self) -> Iterator[tuple[slice, slice, slice]]:
        """All at once, or some rows of each head."""
        batch, heads, rows = self.query.shape[:3]
        everything = slice(None)
        if batch * heads * rows * self.key.size(2) <= _PAIRS_AT_ONCE:
            yield everything, everything, everything
            return
        step = max(1, _PAIRS_AT_ONCE // self.key.size(2))
        for each in range(batch):
            for head in range(heads):
                for row in range(0, rows, step):
                    yield (
                        slice(each, each + 1),
                        slice(head, head + 1),
                        slice(row, row + step),
                    )


def _single(tensor: Any) -> Any:
    """In single precision; what is expanded stays so."""
    if tensor.element_size() == 4:
        return tensor
    once = tensor[(*(slice(None if step else 1) for step in tensor.stride()),)]
    return once.float().expand(tensor.shape)
