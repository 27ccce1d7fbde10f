"""Tests of `%pin_loader`."""
