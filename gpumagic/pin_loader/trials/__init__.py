"""Loaders that are tried out, what they take, and nothing left behind."""
