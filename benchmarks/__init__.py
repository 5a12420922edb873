"""Benchmarks of speed, growth and memory against hand-written loops and other libraries: see README.md for the method."""
