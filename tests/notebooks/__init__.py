"""Tests of the course: each notebook runs, and its checks know right from wrong."""
