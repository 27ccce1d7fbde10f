"""Traces code on any runtime, from all idle to all idle."""


def traced(runtime, code):
    """What is seen of some code."""
    with runtime.trace() as taken:
        runtime.synchronize()
        taken.begin()
        code()
        runtime.synchronize()
        taken.end()
    return taken


def of_kind(trace, *kinds):
    """The spans of some kinds, in order."""
    return [span for span in trace.spans if span.kind in kinds]
