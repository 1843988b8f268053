"""`arena bench`: the figures that the package promises, as ratios to peers measured in the same run."""
