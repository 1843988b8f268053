"""Exceptions at every place where a signal handler can raise one."""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from types import CodeType, FrameType
from typing import Any

from support import may_be_lost


class Cut(BaseException):
    """What a signal handler raises."""


@cache
def back_edges(code: CodeType) -> frozenset[int]:
    """Where loops go back."""
    names = {step.offset: step.opname for step in dis.get_instructions(code)}
    return frozenset(at for at, name in names.items() if "JUMP_BACKWARD" in name or name == "JUMP_ABSOLUTE")


sys._getframe().f_trace_opcodes = True  # Python 3.12 heeds it, in any frame, only if some frame had it when tracing began


def step_by_step(frame: FrameType, trace: Callable[[FrameType, str, Any], Any]) -> None:
    """Each instruction of a frame is an event; Python 3.13 heeds that only of a frame that has its function already."""
    frame.f_trace = trace
    frame.f_trace_opcodes, frame.f_trace_lines = True, False


def watched(call: Callable[[], object], trace: Callable[..., Any], profile: Callable[..., None]) -> None:
    """Calls a function under a tracer and a profiler, of which one may raise ``Cut``."""
    with may_be_lost(Cut), suppress(Cut):
        sys.settrace(trace)
        sys.setprofile(profile)
        try:
            call()
        finally:
            sys.setprofile(None)
            sys.settrace(None)


def cut() -> None:
    raise Cut


def interrupted_at(place: int, call: Callable[[], object], handler: Callable[[], object] = cut) -> bool:
    """Calls a function and has a handler run in it, or in what it calls, at the n-th such place; whether it came so far."""
    left = place

    def arrive() -> None:
        nonlocal left
        left -= 1
        if left == -1:
            handler()

    def profile(frame: FrameType, event: str, _: object) -> None:
        is_generators = event != "c_return" and frame.f_code.co_flags & inspect.CO_GENERATOR  # no handler runs in a close
        if event in ("call", "return", "c_return") and not is_generators and frame.f_code.co_filename != __file__:
            arrive()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        step_by_step(frame, trace)
        if event == "opcode" and frame.f_lasti in back_edges(frame.f_code):
            arrive()
        return trace

    watched(call, trace, profile)
    return left < 0
