"""Message slots done wrong: each fault is a changed action, the property that it breaks, and how soon."""

from __future__ import annotations

from spec.model import Variant

VARIANTS: dict[str, Variant] = {}
