"""Inductive invariants of the slot protocols, decided by z3 for any number of slots, readers and messages."""
