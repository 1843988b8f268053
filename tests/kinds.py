"""Every kind of object that a message may hold, and the oracle of what arrives."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

from kinds_of_objects import OBJECTS
from kinds_of_tensors import TENSORS

KINDS = TENSORS | OBJECTS


def make(name: str) -> Any:
    """An object of that kind; what torch says while making an unusual one is no concern of these tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return KINDS[name]()


def plain_pickle(value: Any) -> Any:
    """The oracle: what a plain pickle of protocol 5 makes of a value."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pickle.loads(pickle.dumps(value, protocol=5))
