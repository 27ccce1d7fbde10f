"""What `gpu_ranks.watch()` says of trainings that others' libraries start and run."""
