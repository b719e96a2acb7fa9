"""Benchmarks, each beside its floor in the same run: a figure without one says nothing about another machine."""
