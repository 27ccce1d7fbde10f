"""A training cell that is watched while it runs."""
