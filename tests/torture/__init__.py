"""Faults injected into the product, and what it must still keep: see docs/reliability.md."""
