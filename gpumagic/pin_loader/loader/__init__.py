"""What a loader is set to do, and another that gives the same."""
