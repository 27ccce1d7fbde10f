"""Made-up consumers of a prefetcher, and prefetchers with the known mistakes.

Each is right with batches that `.to(device)` makes on the current stream, as a plain
loop does. So whatever goes wrong with a prefetcher is the prefetcher's fault.
"""

# ruff: noqa: ARG002 -- a mistake is often something that is not asked

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch

from gpumagic.pin_loader.batch import to_device

STREAMS = 3
ROUNDS = 2  # how often a program goes through the loader
BUSY = 64  # the size of a product that keeps a stream busy


@dataclass(frozen=True)
class Step:
    """What is done with one batch."""

    numbers: int = 64  # in each of its two tensors
    stream: int = 0  # which one is current when it is asked for, and from then on
    before: int = 0  # products that keep the stream busy before the batch is used
    after: int = 0  # and behind it
    keep: int = 0  # for so many more steps it is kept, and then used once more
    elsewhere: int | None = None  # on which stream memory of its size is taken
    drop_soon: bool = False  # the loop lets go of it before it asks for the next
    pause_us: int = 0  # how long the host is busy with something else


@dataclass(frozen=True)
class Program:
    """A whole consumer."""

    steps: tuple[Step, ...]  # one for each batch of the loader
    leave_after: int | None = None  # so many batches of the first round


class Fresh:
    """A loader that pins new memory for every batch."""

    def __init__(self, program):
        self.program = program

    def __len__(self):
        return len(self.program.steps)

    def __iter__(self):
        for number, step in enumerate(self.program.steps):
            first, second = values_of(number, step)
            yield {"first": first.pin_memory(), "rest": [second.pin_memory(), number]}


class Pooled(Fresh):
    """A loader whose batches are views of one pinned pool, each of another part."""

    def __iter__(self):
        sizes = [step.numbers for step in self.program.steps]
        pool = torch.empty(2 * sum(sizes)).pin_memory()
        parts = iter(pool.split([size for size in sizes for _ in range(2)]))
        for number, step in enumerate(self.program.steps):
            values = values_of(number, step)
            first, second = (next(parts).copy_(each) for each in values)
            yield {"first": first, "rest": [second, number]}


def values_of(number, step):
    """What is in a batch of the loader."""
    first = torch.arange(float(step.numbers)) + 1000 * number
    return first, -first


class Consumer:
    """Runs a program on the simulated device and remembers what it saw."""

    def __init__(self, box, program):
        self.box = box
        self.program = program
        default = torch.sim.default_stream()
        self.streams = [default, *(torch.sim.Stream() for _ in range(STREAMS - 1))]
        self.factor = torch.ones(BUSY, BUSY, device="sim")
        torch.sim.synchronize()  # what is made here is there for all streams
        self.seen = []  # (number, first, second, how they were computed)
        self.kept = []  # (until when, number, batch, stream)

    def run(self, batches):
        """Go through the batches of some prefetcher, twice; say what was wrong."""
        before = len(self.box.races)
        for turn in range(ROUNDS):
            self._round(batches, self.program.leave_after if turn == 0 else None)
        for _, *kept in self.kept:
            self._use(*kept)
        self.kept.clear()
        torch.sim.synchronize()
        return self._wrong() + list(self.box.races[before:])

    def _round(self, batches, leave_after):
        batch = None
        iterator = iter(batches)
        for step in (*self.program.steps, None):
            if step is not None:
                torch.sim.set_stream(self.streams[step.stream])
            try:
                batch = next(iterator)
            except StopIteration:
                break
            number = batch["rest"][1]
            self._step(number, batch, step)
            if step.drop_soon:
                batch = None
            self.box.pass_time(step.pause_us / 1e6)
            if leave_after is not None and number + 1 >= leave_after:
                break
        del iterator
        torch.sim.set_stream(self.streams[0])

    def _step(self, number, batch, step):
        stream = self.streams[step.stream]
        self._keep_busy(step.before)
        self._use(number, batch, stream)
        self._keep_busy(step.after)
        if step.keep:
            self.kept.append((number + step.keep, number, batch, stream))
        if step.elsewhere is not None:
            with torch.sim.stream(self.streams[step.elsewhere]):
                for _ in range(2):
                    torch.full((step.numbers,), 7.0, device="sim").add_(1)
        for each in [each for each in self.kept if each[0] <= number]:
            self._use(*each[1:])
            self.kept.remove(each)

    def _use(self, number, batch, stream):
        with torch.sim.stream(stream):
            first, second = batch["first"], batch["rest"][0]
            self.seen.append((number, first + 1, second * 2))

    def _keep_busy(self, times):
        for _ in range(times):
            self.factor @ self.factor

    def _wrong(self):
        """The numbers of batches that were not what the loader gave."""
        wrong = []
        for number, first, second in self.seen:
            right, rest = values_of(number, self.program.steps[number])
            if not (
                torch.equal(first.cpu(), right + 1)
                and torch.equal(second.cpu(), rest * 2)
            ):
                wrong.append(number)
        return wrong


class Wrong:
    """Fetches one batch ahead on a stream of each iteration."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        stream = self.stream()
        ahead = None
        for batch in self.loader:
            if ahead is not None:
                self.before_sending(stream)
            with torch.sim.stream(stream):
                there = to_device(batch, torch.device("sim", 0))
            arrival = stream.record_event()
            if ahead is not None:
                yield self.handed_out(stream, *ahead)
            ahead = there, arrival
            del there
        if ahead is not None:
            yield self.handed_out(stream, *ahead)

    def stream(self):
        """The stream to copy on."""
        return torch.sim.Stream()

    def before_sending(self, stream):
        """What the copy stream waits for before memory is taken for the next batch."""

    def handed_out(self, stream, batch, arrival):
        """The batch, and who waits for what."""
        torch.sim.current_stream().wait_event(arrival)
        return batch


class NoLifetimeRule(Wrong):
    """Memory is used again without asking its last user, as in timm before 2026."""

    def handed_out(self, stream, batch, arrival):
        """The consumer waits for the copy; nobody waits for the consumer."""
        torch.sim.current_stream().wait_stream(stream)
        return batch


class NoWaitAtAll(Wrong):
    """A stream for each epoch, and no order between it and the consumer."""

    def handed_out(self, stream, batch, arrival):
        """Nobody waits."""
        return batch


class WaitsTooEarly(Wrong):
    """The consumer waits for the copy stream before the batch's copy is on it."""

    def __iter__(self):
        stream = torch.sim.Stream()
        for batch in self.loader:
            torch.sim.current_stream().wait_stream(stream)
            stream.wait_stream(torch.sim.current_stream())
            with torch.sim.stream(stream):
                there = to_device(batch, torch.device("sim", 0))
            yield there


class WaitsForTheOneBefore(Wrong):
    """The event that is waited for belongs to the batch before."""

    def __init__(self, loader):
        super().__init__(loader)
        self.arrivals = deque()

    def before_sending(self, stream):
        """Its memory rule is right."""
        stream.wait_stream(torch.sim.current_stream())

    def handed_out(self, stream, batch, arrival):
        """It waits, but for what arrived before."""
        self.arrivals.append(arrival)
        if len(self.arrivals) > 1:
            torch.sim.current_stream().wait_event(self.arrivals.popleft())
        return batch


class AsksTheCurrentStreamOnly(Wrong):
    """Only the current stream is waited for, not those of earlier batches."""

    def __init__(self, loader):
        super().__init__(loader)
        self.one = torch.sim.Stream()

    def stream(self):
        """One for all iterations."""
        return self.one

    def before_sending(self, stream):
        """Its memory may still be used on a stream that was current before."""
        stream.wait_stream(torch.sim.current_stream())


class RemembersTheConsumer(Wrong):
    """The stream that was current when the iteration began is the one that waits."""

    def __iter__(self):
        self.consumer = torch.sim.current_stream()
        yield from super().__iter__()

    def before_sending(self, stream):
        """Its memory rule is right."""
        stream.wait_stream(torch.sim.current_stream())

    def handed_out(self, stream, batch, arrival):
        """The batch may go to another stream by now."""
        self.consumer.wait_event(arrival)
        return batch


class OneHostBuffer(Wrong):
    """Batches go through one pinned buffer, filled again while it is being read."""

    def __init__(self, loader):
        super().__init__(Restaged(loader))

    def before_sending(self, stream):
        """Its memory rule on the device is right."""
        stream.wait_stream(torch.sim.current_stream())


class Restaged:
    """A loader whose batches all lie in the same pinned memory."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        buffer = torch.empty(0)
        for batch in self.loader:
            first = batch["first"]
            if buffer.numel() < first.numel():
                buffer = torch.empty(first.numel(), pin_memory=True)
            buffer[: first.numel()].copy_(first)
            yield {**batch, "first": buffer[: first.numel()]}


WRONG = (
    NoLifetimeRule,
    NoWaitAtAll,
    WaitsTooEarly,
    WaitsForTheOneBefore,
    AsksTheCurrentStreamOnly,
    RemembersTheConsumer,
    OneHostBuffer,
)
