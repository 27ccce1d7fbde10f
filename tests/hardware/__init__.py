"""What only a real GPU can show. `pytest -m hardware` runs it; elsewhere it skips."""
