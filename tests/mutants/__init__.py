"""Faults planted one at a time, to learn which tests find them: `make mutants`."""
