"""Fuzzing, one door: ``python -m fuzz TARGET [--seed N] [--seconds S | --runs N]``; ``python -m fuzz list`` lists them."""
