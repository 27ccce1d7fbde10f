"""Programs that nobody here wrote, on the simulated GPU; see README.md."""
