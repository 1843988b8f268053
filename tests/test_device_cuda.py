"""What can be said of the CUDA device without one: it starts nothing, and it calls the driver as it should.

The driver is a little C library under the name of torch's own, loaded as torch loads its own.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from arena import MessageQueue
from arena.device import cuda
from arena.device.cuda import CudaDevice
from arena.errors import DeviceBusy, DeviceError

pytestmark = pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has the real library loaded")

DRIVER = r"""
#include <stddef.h>
#include <unistd.h>

unsigned long long last_address, last_nbytes;
unsigned last_flags;
int last_error, answer, mode, mode_in_call, drained;
volatile int entered, go_on = 1;

static int call(void *address, size_t nbytes, unsigned flags) {
    last_address = (unsigned long long)address; last_nbytes = nbytes; last_flags = flags; mode_in_call = mode;
    entered = 1;
    while (!go_on) usleep(1000);
    if (answer) last_error = answer;
    return answer;
}
int cudaHostRegister(void *address, size_t nbytes, unsigned flags) { return call(address, nbytes, flags); }
int cudaHostUnregister(void *address) { return call(address, 0, 0); }
int cudaGetLastError(void) { int error = last_error; last_error = 0; drained++; return error; }
const char *cudaGetErrorString(int code) { return code == 2 ? "out of memory" : 0; }
int cudaThreadExchangeStreamCaptureMode(int *m) { int before = mode; mode = *m; *m = before; return 0; }
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER)
    library = folder / "libc10_cuda.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, folder / "driver.c"], check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture
def device(driver: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaDevice]:
    """A device in a process that uses number 3 of them."""

    @contextmanager
    def current(index: int) -> Iterator[None]:
        currents.append(index)
        yield

    currents: list[int] = []
    monkeypatch.setattr(cuda, "_is_initialized", lambda: True)
    monkeypatch.setattr(cuda, "_used_devices", lambda: [3, 5])
    monkeypatch.setattr(torch.cuda, "device", current)
    write(driver, answer=0, last_error=0, go_on=1, entered=0, mode=0, drained=0)
    yield CudaDevice()
    assert set(currents) <= {3}
    assert read(driver, "mode") == 0  # as it was found


def read(driver: ctypes.CDLL, name: str) -> int:
    kind = ctypes.c_ulonglong if name in ("last_address", "last_nbytes") else ctypes.c_int
    return int(kind.in_dll(driver, name).value)


def write(driver: ctypes.CDLL, **values: int) -> None:
    for name, value in values.items():
        ctypes.c_int.in_dll(driver, name).value = value


def stream_on(index: int) -> torch.cuda.Stream:
    """What is looked at of one, where there is none."""
    device = torch.device("cuda", index)
    return cast(torch.cuda.Stream, SimpleNamespace(device=device, stream_id=17, device_index=index, device_type=1))


def test_importing_and_asking_initialises_nothing() -> None:
    code = (
        "import torch\n"
        "from arena.device.cuda import CudaDevice\n"
        "assert CudaDevice().unavailable() == 'this process has not initialised CUDA'\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert 'libcuda.so' not in open('/proc/self/maps').read()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_process_without_cuda_gets_an_error_and_not_a_context() -> None:
    with pytest.raises(DeviceError, match="has not initialised CUDA"):
        CudaDevice().register(0, 4096)


def test_a_process_without_a_context_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_is_initialized", lambda: True)
    monkeypatch.setattr(cuda, "_used_devices", list)
    assert "no CUDA context" in str(CudaDevice().unavailable())


def test_a_runtime_that_is_not_loaded_is_a_reason_and_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_is_initialized", lambda: True)
    monkeypatch.setattr(cuda, "_used_devices", lambda: [0])
    monkeypatch.setattr(torch.version, "hip", "6.0", raising=False)
    device = CudaDevice()
    assert (
        device.unavailable()
        == device.unavailable()
        == ("torch's CUDA runtime cannot be reached: libc10_hip.so is not loaded")
    )
    with pytest.raises(DeviceError, match=r"libc10_hip\.so is not loaded"):
        device.drain_error()


def test_a_copy_to_a_device_that_this_torch_does_not_know_is_a_device_error() -> None:
    with MessageQueue(1, 1, arena=None) as writer, MessageQueue.create_from_handle(writer.export_handle(), 0) as reader:
        with pytest.raises(DeviceError, match=r"current stream of 'cuda': .*CUDA"):
            reader.to_device(torch.ones(3), "cuda")
        with pytest.raises(ValueError, match="tensor='x': must be a tensor"):
            reader.to_device("x", "cuda")  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ["empty_like", "copy", "record", "used_streams"])
def test_whatever_torch_says_of_the_device_is_a_device_error(
    call: str, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of memory, say; the stream's own device may be at fault too."""

    def refuse(*arguments: object, **options: object) -> None:
        raise RuntimeError("CUDA out of memory")

    device.unavailable()
    for name in ("stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    tensor, stream = torch.ones(3), stream_on(3)
    calls: dict[str, Callable[[], object]] = {
        "empty_like": lambda: device.empty_like(tensor, "cuda", stream),
        "copy": lambda: device.copy(tensor, tensor, stream),
        "record": lambda: device.record(stream),
        "used_streams": device.used_streams,
    }
    with pytest.raises(DeviceError, match="CUDA out of memory"):
        calls[call]()


def test_register_passes_all_64_bits_and_the_right_flags(device: CudaDevice, driver: ctypes.CDLL) -> None:
    assert device.unavailable() is None
    device.register(0x7F12_3456_7000, 64 << 30)
    assert [read(driver, name) for name in ("last_address", "last_nbytes", "last_flags")] == [
        0x7F12_3456_7000,
        64 << 30,
        1,
    ]
    device.register(0x7F12_3456_7000, 4096, read_only=True)
    assert read(driver, "last_flags") == 9
    device.unregister(0x7FFF_FFFF_F000)
    assert read(driver, "last_address") == 0x7FFF_FFFF_F000


def test_a_refusal_has_the_driver_s_code_and_words_and_leaves_its_error_to_be_drained(
    device: CudaDevice, driver: ctypes.CDLL
) -> None:
    write(driver, answer=2)
    with pytest.raises(DeviceError, match=r"cudaHostRegister of 4096 bytes at 0x1000: out of memory \(2\)") as error:
        device.register(0x1000, 4096)
    assert error.value.code == 2
    assert read(driver, "drained") == 0
    assert device.drain_error() == 2
    assert device.drain_error() == 0


def test_a_code_without_words_is_reported_all_the_same(device: CudaDevice, driver: ctypes.CDLL) -> None:
    write(driver, answer=999)
    with pytest.raises(DeviceError, match=r"cudaHostUnregister at 0x1000: unknown error \(999\)"):
        device.unregister(0x1000)


def test_a_capture_in_another_thread_stays_valid(device: CudaDevice, driver: ctypes.CDLL) -> None:
    device.register(0x1000, 4096)
    assert read(driver, "mode_in_call") == 2  # relaxed


def test_other_python_threads_run_while_the_driver_works(device: CudaDevice, driver: ctypes.CDLL) -> None:
    """The driver does not return before this thread, a Python thread, lets it: with the GIL held it never would."""
    write(driver, go_on=0)
    thread = threading.Thread(target=device.register, args=(0x1000, 4096), daemon=True)
    thread.start()
    while not read(driver, "entered"):
        threading.Event().wait(0.001)
    assert thread.is_alive()
    write(driver, go_on=1)
    thread.join()


def test_an_error_of_torch_becomes_a_device_error(device: CudaDevice) -> None:
    class Broken:
        def query(self) -> bool:
            raise RuntimeError("CUDA error: context is destroyed")

    device.unavailable()
    with pytest.raises(DeviceError, match="event query: CUDA error: context is destroyed"):
        device.query(Broken(), 3)


def test_a_driver_that_cannot_say_what_is_used_is_a_reason_and_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an illegal access: a message is received all the same."""

    def refuse(index: int) -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(cuda, "_is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", refuse, raising=False)
    assert "illegal memory access" in str(CudaDevice().unavailable())
    with pytest.raises(DeviceError, match="illegal memory access"):
        CudaDevice().used_streams()


@pytest.mark.parametrize("where", [torch.device("cuda", 1), "cuda:1", "cpu"])
def test_a_stream_of_another_device_is_refused(where: Any, device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch would copy on that device's current stream, and the event would stand in this one."""
    monkeypatch.setattr(torch, "empty_like", lambda *arguments, **options: pytest.fail("memory was taken"))
    with pytest.raises(ValueError, match=f"must be a stream of the device that is copied to, {where}"):
        device.empty_like(torch.ones(3), where, stream_on(3))


@pytest.mark.parametrize("where", [torch.device("cuda", 3), "cuda:3", "cuda"])
def test_a_stream_of_the_device_is_taken(where: Any, device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch, "empty_like", lambda source, device: device)
    assert device.empty_like(torch.ones(3), where, stream_on(3)) == where


def test_a_stream_of_torch_s_general_kind_becomes_one_of_cuda(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older torch records an event in the other kind by reading memory that is not the stream's."""
    monkeypatch.setattr(torch, "Stream", SimpleNamespace)
    monkeypatch.setattr(cuda, "_new_stream", lambda **of: of)
    assert device.stream_of(stream_on(3)) == {"stream_id": 17, "device_index": 3, "device_type": 1}
    for wrong in (5, None, SimpleNamespace(device=torch.device("cpu"))):
        with pytest.raises(ValueError, match="must be a stream of the device cuda"):
            device.stream_of(wrong)


@pytest.mark.parametrize("call", ["empty_like", "copy", "record", "query"])
def test_work_in_a_stream_makes_no_context_on_device_0(
    call: str, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a thread that has chosen no device, as the one that waits for gates: torch's way back from a stream of another
    device makes number 0 current, and with it a context there, while its way back from a device makes none.  A call of
    the runtime may make one wherever the thread is."""
    now: list[int] = [0]
    called_on: list[int] = []

    @contextmanager
    def on_device(index: int) -> Iterator[None]:
        before, now[0] = now[0], index
        yield
        now[0] = before

    @contextmanager
    def in_stream(stream: torch.cuda.Stream) -> Iterator[None]:
        assert now == [stream.device_index]
        yield

    monkeypatch.setattr(torch.cuda, "device", on_device)
    monkeypatch.setattr(torch.cuda, "stream", in_stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(cuda, "_new_event", lambda: SimpleNamespace(record=lambda stream: None))
    monkeypatch.setattr(torch, "empty_like", lambda source, device: source)
    assert device.unavailable() is None
    monkeypatch.setattr(device._runtime, "exchange_capture_mode", lambda mode: called_on.append(now[0]))
    calls: dict[str, Callable[[], object]] = {
        "empty_like": lambda: device.empty_like(torch.ones(3), "cuda", stream_on(3)),
        "copy": lambda: device.copy(torch.ones(3), torch.ones(3), stream_on(3)),
        "record": lambda: device.record(stream_on(3)),
        "query": lambda: device.query(SimpleNamespace(query=lambda: True), 3),
    }
    calls[call]()
    assert now == [0]
    assert set(called_on) <= {3}


@pytest.mark.parametrize("code", [900, 906, 908])
def test_what_a_graph_capture_forbids_is_not_a_failure(
    code: int, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another stream's capture, for which the default stream would have to wait: a slot must not be lost for that."""

    def refuse() -> bool:
        raise error

    error = RuntimeError("CUDA error: operation would make the legacy stream depend on a capturing blocking stream")
    error.error_code = code  # type: ignore[attr-defined]  # as torch's own has it
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", refuse)
    with pytest.raises(DeviceBusy):
        device.record(stream_on(3))
    error.error_code = 700  # type: ignore[attr-defined]
    with pytest.raises(DeviceError) as raised:
        device.record(stream_on(3))
    assert not isinstance(raised.value, DeviceBusy)
