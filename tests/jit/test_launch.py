"""Launching loaded kernels: arguments, threads, launchers, fork."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import threading
import time
import traceback

import pytest
import torch

from tileops import jit, settings
from tileops.errors import LauncherWarning
from tileops.jit import Program, engine, parallel
from tileops.jit.cpu import kernel
from tileops.jit.cpu import parallel as parallel_module
from tileops.jit.cpu.kernel import load_entry

_RECORD = ["ptr", "i64", "f32", "f64"]


def _record(grain: int = 1) -> jit.Entry:
    return jit.get_entry(Program.of("jit_test_bodies:record", _RECORD, grain=grain))


@pytest.mark.parametrize("grain", [1, 16])
@pytest.mark.parametrize("threads", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 100])
def test_every_unit_runs_once_in_chunks_of_the_grain(threads, n, grain):
    out = torch.full((n + 1, 6), -7)
    _record(grain).launch(threads, n, out.data_ptr(), 11, 0.75, 2.25)
    assert (out[n] == -7).all()
    tid, begin, end = out[:n, 0], out[:n, 1], out[:n, 2]
    assert (out[:n, 3] == 11).all()
    assert (out[:n, 4] == 3).all()
    assert (out[:n, 5] == 9).all()
    unit = torch.arange(n)
    assert ((begin <= unit) & (unit < end) & (end <= n)).all()
    assert (begin % grain == 0).all()
    assert ((end % grain == 0) | (end == n)).all()
    assert (tid >= 0).all()
    assert (tid < max(threads, 1)).all()
    assert len(set(begin.tolist())) == len(set(tid.tolist()))


def test_arguments_are_checked():
    launch = _record().launch
    out = torch.zeros(1, 6, dtype=torch.int64)
    with pytest.raises(TypeError, match=r"record: launch\(threads, n, ptr, i64, f32, f64\) takes 6 arguments, got 3"):
        launch(0, 1, 2)
    for bad in [(None, 1, 1.0, 1.0), (out.data_ptr(), 1.5, 1.0, 1.0), (out.data_ptr(), 1, "x", 1.0)]:
        with pytest.raises(TypeError):
            launch(0, 1, *bad)
    with pytest.raises(OverflowError):
        launch(0, 1, 1 << 70, 1, 1.0, 1.0)
    assert (out == 0).all()
    # -1 is also what the C API returns for an error.
    launch(0, 1, out.data_ptr(), -1, -1.0, -1.0)
    assert out[0, 3:].tolist() == [-1, -4, -4]
    launch(0, -5, 0, 0, 0.0, 0.0)


def test_a_kernel_that_raises_is_an_error():
    launch = jit.get_entry(Program.of("jit_test_bodies:raising", ["ptr"])).launch
    out = torch.zeros(16, dtype=torch.int64)
    launch(0, 4, out.data_ptr())
    for threads in (0, 1, 2):
        with pytest.raises(RuntimeError, match="raising: the kernel raised an exception"):
            launch(threads, 16, out.data_ptr())
    assert out[:7].tolist() == list(range(7))


def test_arguments_may_be_of_any_number_type():
    import numpy as np

    out = torch.zeros(1, 6, dtype=torch.int64)
    _record().launch(True, np.int64(1), np.uint64(out.data_ptr()), np.int32(3), np.float32(0.5), 2)
    assert out[0, 3:].tolist() == [3, 2, 8]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_results_do_not_depend_on_the_number_of_threads(target, dtype):
    entry = jit.get_entry(Program.of("jit_test_bodies:row_sums", ["ptr", "ptr", "i64"], dtype=dtype), target)
    x = torch.randn(37, 1111).to({"f32": torch.float32, "bf16": torch.bfloat16}[dtype])
    results = []
    for threads in (0, 1, 2, 3, 7):
        out = torch.empty(37)
        entry.launch(threads, 37, x.data_ptr(), out.data_ptr(), 1111)
        results.append(out)
    torch.testing.assert_close(results[0], x.float().sum(1), rtol=1e-4, atol=1e-3)
    assert all(torch.equal(results[0], other) for other in results)


def test_python_threads_launch_at_the_same_time():
    entry = jit.get_entry(Program.of("jit_test_bodies:row_sums", ["ptr", "ptr", "i64"], dtype="f32"))
    wrong = []

    def work(seed: int) -> None:
        x = torch.randn(64, 512, generator=torch.Generator().manual_seed(seed))
        want, out = torch.empty(64), torch.empty(64)
        entry.launch(0, 64, x.data_ptr(), want.data_ptr(), 512)
        for _ in range(100):
            out.zero_()
            entry.launch(2, 64, x.data_ptr(), out.data_ptr(), 512)
            if not torch.equal(out, want):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_gil_is_released_for_one_thread_and_more():
    entry = jit.get_entry(Program.of("jit_test_bodies:row_sums", ["ptr", "ptr", "i64"], dtype="f32"))
    x, out = torch.randn(2000, 8192), torch.empty(2000)
    steps, during = 0, []
    done = threading.Event()

    def work() -> None:
        nonlocal steps
        while not done.is_set():
            steps += 1
            time.sleep(1e-5)  # the only place where it gives the GIL away

    other = threading.Thread(target=work)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)  # nobody is asked to give it away: a launch that kept it would see no step
    try:
        other.start()
        for _ in range(500):  # many on a machine that has no processor for the other thread at the moment
            start = steps
            entry.launch(1, 2000, x.data_ptr(), out.data_ptr(), 8192)
            during.append(steps - start)
            if during[-1] > 20:
                break
    finally:
        done.set()
        other.join()
        sys.setswitchinterval(before)
    assert during[-1] > 20, f"the other thread took at most {max(during)} steps during a launch"


_PAGE = 4096


def _reserve(size: int) -> int:
    """The address of memory that nobody can touch, from where the system takes it; it costs address space only."""
    nobody, without_backing = 0, 0x4000  # PROT_NONE, MAP_NORESERVE
    address = _libc.mmap(None, size, nobody, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | without_backing, -1, 0)
    assert address not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
    return address


def _take_all_above(bottom: int) -> int:
    """Reserves what is free above an address; a page of it."""
    page = 0
    for size in (1 << 30, 1 << 24, 1 << 20, 1 << 16, _PAGE):
        while (found := _reserve(size)) > bottom:
            page = found
        _libc.munmap(found, size)
    return page


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_code_and_constants_stay_together_where_weights_lie_between_free_places():
    """With a gap of a page on one side of 5 GiB and all other room on the other side, each section of an object goes
    where it fits, unless they are placed as one.
    """
    program = Program.of("jit_test_bodies:record", _RECORD)
    artifact, out = jit.compile_program(program), torch.zeros(40, 6, dtype=torch.int64)
    child = os.fork()
    if child == 0:
        failure = 1
        try:
            bottom = _reserve(5 << 30)
            gap = _take_all_above(bottom)
            _libc.munmap(gap, _PAGE)
            alone = _reserve(_PAGE) == gap and _reserve(_PAGE) < bottom
            _libc.munmap(gap, _PAGE)
            entry = load_entry(program, jit.cpu_target(), artifact)
            entry.launch(0, 40, out.data_ptr(), 1, 0.0, 0.0)
            failure = 0 if (out[:, 3] == 1).all() and alone else 3
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(failure)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_limit_and_team():
    before = torch.get_num_threads()
    try:
        with settings.scope(launcher="auto"):
            assert parallel.limit(100.0) == 0
            assert parallel.limit(1e9) >= 1
            if parallel.launcher().name != "serial":
                limit = parallel.limit(1e9)
                torch.set_num_threads(1)
                assert parallel.team(limit) == 1
                torch.set_num_threads(2)
                assert parallel.team(limit) == 2
            assert parallel.team(0) == 0
            assert parallel.team(1) == 1
            assert parallel.threads(100.0) == 0
        with settings.scope(launcher="serial"):
            assert parallel.limit(1e9) == 1
            assert parallel.limit(1e3) == 0
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("choice", ["torch", "system", "serial"])
def test_every_launcher_gives_the_same_result(choice):
    program = Program.of("jit_test_bodies:record", _RECORD)
    with settings.scope(launcher=choice):
        try:
            launcher = parallel.launcher()
        except LauncherWarning:
            pytest.skip(f"no {choice} OpenMP runtime here")
        assert launcher.name == choice
        entry = load_entry(program, jit.cpu_target(), jit.compile_program(program))
        out = torch.zeros(40, 6, dtype=torch.int64)
        entry.launch(4, 40, out.data_ptr(), 1, 0.0, 0.0)
    assert (out[:, 3] == 1).all()
    if choice == "serial":
        assert (out[:, 0] == 0).all()


def test_a_missing_runtime_warns_once_and_runs_serial(monkeypatch):
    monkeypatch.setattr(parallel_module, "_from_loaded_libraries", lambda: None)
    monkeypatch.setattr(parallel_module, "_from_system", lambda: None)
    parallel_module._launcher.cache_clear()
    try:
        with settings.scope(launcher="auto"):
            with pytest.warns(LauncherWarning, match="CPU kernels run on one thread"):
                assert parallel_module.launcher().name == "serial"
            assert parallel_module.launcher().name == "serial"
    finally:
        parallel_module._launcher.cache_clear()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_waits_for_a_compile_in_another_thread():
    compiling, compiled = threading.Event(), threading.Event()
    slot = engine._Slot()
    engine._slots["held", None] = slot

    def compile_slowly():
        with slot.lock:
            with kernel._compile_lock:
                compiling.set()
                time.sleep(0.2)
                compiled.set()
            time.sleep(0.2)

    thread = threading.Thread(target=compile_slowly)
    thread.start()
    compiling.wait()
    child = os.fork()
    if child == 0:
        free = kernel._compile_lock.acquire(timeout=120) and slot.lock.acquire(timeout=120)
        os._exit(0 if free and compiled.is_set() else 3)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert kernel._compile_lock.acquire(timeout=120)
        kernel._compile_lock.release()
    finally:
        thread.join()
        del engine._slots["held", None]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_runs_serial():
    entry = _record()
    out = torch.zeros(64, 6, dtype=torch.int64)
    entry.launch(2, 64, out.data_ptr(), 1, 0.0, 0.0)  # the runtime's threads exist before the fork
    child = os.fork()
    if child == 0:
        team = parallel.team(8)
        entry.launch(team, 64, out.data_ptr(), 1, 0.0, 0.0)
        os._exit(0 if team == 1 and (out[:, 0] == 0).all() else 3)
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        finished, status = os.waitpid(child, os.WNOHANG)
        if finished:
            assert os.waitstatus_to_exitcode(status) == 0
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert parallel.team(2) == min(2, torch.get_num_threads())


def test_launcher_is_torch_s_own_runtime():
    code = (
        "import torch\nfrom tileops.jit import parallel\nprint(parallel.launcher())\n"
        "print(*(f'{a}={b}' for a, b in parallel.describe()))"
    )
    env = {**os.environ, "TILEOPS_LAUNCHER": "auto"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert run.stdout.startswith("torch (")
    assert "threads=" in run.stdout
