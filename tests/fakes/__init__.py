"""Fake NVIDIA libraries, and how to run Python on the machines they make up."""
