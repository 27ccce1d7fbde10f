"""What gpumagic costs, beside its peers. `python -m benchmarks` runs all of it."""
