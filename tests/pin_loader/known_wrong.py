"""Prefetchers with the known mistakes, each in as few lines as it takes."""

# ruff: noqa: ARG002 -- a mistake is often something that is not asked

from __future__ import annotations

from collections import deque

import torch

from gpumagic.pin_loader.batch import to_device


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
