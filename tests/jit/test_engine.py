"""From program to entry: once per key, remembered errors, stores, processes without Numba."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from tileops import jit, settings
from tileops.errors import ColdKernelError, KernelCompileError
from tileops.jit import Program, _numba
from tileops.jit.cpu.elf import undefined_symbols
from tileops.jit.cpu.kernel import load_entry

BODIES = str(Path(__file__).parent / "bodies")


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """An empty store, and a process that has not seen any kernel."""
    jit.reset()
    with settings.scope(cache_dir=str(tmp_path / "cache")):
        yield
    jit.reset()


def _numbered(number: int) -> Program:
    return Program.of("jit_test_bodies:numbered", ["ptr"], number=number)


def _value(entry: jit.Entry) -> int:
    out = torch.zeros(1, dtype=torch.int64)
    entry.launch(0, 1, out.data_ptr())
    return int(out)


def test_a_launcher_keeps_what_it_needs():
    """The interpreter reads a built-in's definition when it collects garbage, long after its entry is gone."""
    launchers = []
    for number in range(40):
        launchers.append(jit.get_entry(_numbered(number % 4)).launch)
        if number % 4 == 3:
            jit.reset()
    gc.collect()
    # What was freed is used again, with bits that a collector would follow if it took them for a definition.
    filler = [bytes([255]) * size for size in range(16, 96, 8) for _ in range(2000)]
    gc.collect()
    out = torch.zeros(1, dtype=torch.int64)
    for number, launch in enumerate(launchers):
        launch(0, 1, out.data_ptr())
        assert int(out) == number % 4
        assert launch.__name__.startswith("numbered")
    del launchers
    gc.collect()
    assert len(filler) == 20_000


def test_compiled_once_then_memory_then_store():
    events = []
    stop = jit.on_compile(events.append)
    first = jit.get_entry(_numbered(1))
    assert jit.get_entry(_numbered(1)) is first
    assert _value(first) == 1
    assert (jit.stats().compiled, jit.stats().loaded) == (1, 0)
    assert [event.program for event in events] == [_numbered(1)]
    assert events[0].seconds > 0
    stop()
    jit.reset()
    again = jit.get_entry(_numbered(1))
    assert again is not first
    assert _value(again) == 1
    assert (jit.stats().compiled, jit.stats().loaded) == (0, 1)
    assert jit.stats().load_seconds > 0
    assert len(events) == 1


def test_targets_are_kept_apart(target):
    entry = jit.get_entry(_numbered(2), target)
    assert jit.get_entry(_numbered(2), target) is entry
    assert jit.get_entry(_numbered(2), jit.cpu_target("generic")) is not jit.get_entry(
        _numbered(2), jit.cpu_target("native")
    )


def test_eight_threads_build_once():
    barrier = threading.Barrier(8)
    entries: list[jit.Entry] = []

    def work() -> None:
        barrier.wait()
        entries.append(jit.get_entry(_numbered(3)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(entries) == 8
    assert len(set(map(id, entries))) == 1
    assert jit.stats().compiled == 1


def test_eight_threads_build_different_kernels():
    entries: dict[int, jit.Entry] = {}

    def work(number: int) -> None:
        entries[number] = jit.get_entry(_numbered(number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(10, 18)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: _value(entry) for number, entry in entries.items()} == {n: n for n in range(10, 18)}
    assert jit.stats().compiled == 8


@pytest.mark.parametrize(
    ("factory", "args", "message"),
    [
        ("jit_test_bodies:wrong_type", ["ptr"], "did not compile"),
        ("jit_test_bodies:printing", [], "may not raise"),
        ("jit_test_bodies:nothing_here", [], "did not compile.*nothing_here"),
        ("jit_test_no_such_module:body", [], "jit_test_no_such_module"),
    ],
)
def test_errors_are_remembered(factory, args, message):
    program = Program.of(factory, args)
    texts = []
    for _ in range(2):
        with pytest.raises(KernelCompileError, match=f"(?s){message}") as caught:
            jit.get_entry(program)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert jit.stats().failed == 1
    assert jit.stats().compiled == 0


def test_forbidden_compile_names_what_differs():
    jit.get_entry(_numbered(4))
    with settings.scope(jit="forbid"):
        assert _value(jit.get_entry(_numbered(4))) == 4
        with pytest.raises(ColdKernelError, match=r"numbered\(number=5\).*config.number: wanted 5, stored 4"):
            jit.get_entry(_numbered(5))
    # Not an error of the kernel: allowed again, it compiles.
    assert _value(jit.get_entry(_numbered(5))) == 5


def test_a_cold_kernel_is_refused_while_a_cuda_graph_is_captured(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: True)
    program = Program.of("jit_test_bodies:no_such_body", ["ptr"], device="cuda", block=128)
    for _ in range(2):
        with pytest.raises(ColdKernelError, match=r"no_such_body.* while a CUDA graph is captured; make this call"):
            jit.get_entry(program, jit.cuda_target("sm_90a"))


def test_a_store_entry_that_does_not_load_is_compiled_again():
    from tileops.errors import CacheWarning
    from tileops.jit.artifact import Artifact
    from tileops.jit.keys import key_for
    from tileops.jit.store import default_store

    program, key = _numbered(6), key_for(_numbered(6), jit.cpu_target())
    good = jit.compile_program(program)
    bad = Artifact({"kernel": good.parts["wrapper"], "wrapper": good.parts["wrapper"]}, good.facts)
    default_store().put(key, bad)
    with pytest.warns(CacheWarning, match="not used"):
        entry = jit.get_entry(program)
    assert _value(entry) == 6


def test_warm_fills_the_store_without_loading():
    assert jit.warm(_numbered(7))
    assert not jit.warm(_numbered(7))
    assert jit.stats().compiled == 1
    with settings.scope(jit="forbid"):
        assert _value(jit.get_entry(_numbered(7))) == 7


def test_objects_need_nothing_but_python_openmp_and_memory_functions(target):
    program = Program.of("jit_test_bodies:filled", ["ptr"], nbytes=4096)
    artifact = jit.compile_program(program, target)
    assert set(undefined_symbols(artifact.parts["kernel"])) <= {"memset", "memcpy", "memmove"}
    entry = load_entry(program, target, artifact)
    out = torch.ones(2 * 4096, dtype=torch.int64)
    entry.launch(2, 2, out.data_ptr())
    assert (out == 0).all()
    for factory, args, config in (
        (
            "maths",
            ["ptr", "ptr", "i64"],
            {"names": ("exp", "sin", "gelu", "log", "tanh", "erf", "floor", "rint")},
        ),
        ("convert", ["ptr", "ptr"], {"source": "f16", "destination": "bf16"}),
        ("convert", ["ptr", "ptr"], {"source": "bf16", "destination": "f16"}),
    ):
        artifact = jit.compile_program(Program.of(f"jit_test_bodies:{factory}", args, **config), target)
        assert undefined_symbols(artifact.parts["kernel"]) == (), (factory, str(target))


def _process(code: str, **environment: str) -> str:
    env = {**os.environ, "PYTHONPATH": BODIES, **environment}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert run.returncode == 0, run.stderr
    return run.stdout


_CALL = """
import sys, torch
from tileops import jit
entry = jit.get_entry(jit.Program.of("jit_test_bodies:row_sums", ["ptr", "ptr", "i64"], dtype="bf16"))
x = torch.arange(300.).bfloat16()
out = torch.empty(3)
entry.launch(2, 3, x.data_ptr(), out.data_ptr(), 100)
assert torch.equal(out, x.float().view(3, 100).sum(1)), out
print(jit.stats().compiled, jit.stats().loaded, "numba" in sys.modules)
"""


def _row_sums() -> None:
    entry = jit.get_entry(Program.of("jit_test_bodies:row_sums", ["ptr", "ptr", "i64"], dtype="bf16"))
    x, out = torch.arange(300.0).bfloat16(), torch.empty(3)
    entry.launch(2, 3, x.data_ptr(), out.data_ptr(), 100)
    assert torch.equal(out, x.float().view(3, 100).sum(1))


def test_a_second_process_imports_no_numba(tmp_path):
    cache = {"TILEOPS_CACHE_DIR": str(tmp_path / "cache"), "TILEOPS_CPU": "native"}
    with settings.scope(cpu="native"):
        _row_sums()
    assert (jit.stats().compiled, jit.stats().loaded) == (1, 0)
    assert _process(_CALL, **cache, TILEOPS_JIT="forbid").split() == ["0", "1", "False"]
    with settings.scope(cpu="generic"):
        _row_sums()
    assert (jit.stats().compiled, jit.stats().loaded) == (2, 0), "another CPU takes none of the first one's kernels"


def test_the_public_interface_of_numba_is_enough(tmp_path):
    """With every private name gone, kernels still compile, and run the same in another process."""
    code = "from tileops.jit import _numba\n_numba.private_names_fit = lambda: False\n" + _CALL
    assert _process(code, TILEOPS_CACHE_DIR=str(tmp_path / "cache")).split() == ["1", "0", "True"]
    with settings.scope(jit="forbid"):
        _row_sums()
    assert (jit.stats().compiled, jit.stats().loaded) == (0, 1)


def test_missing_private_names_are_noticed(monkeypatch, caplog):
    from numba.core import codegen

    for function in (_numba.private_names_fit, _numba._private_names, _numba._compiler):
        function.cache_clear()
    try:
        with monkeypatch.context() as patch:
            patch.delattr(codegen.AOTCPUCodegen, "_customize_tm_options")
            assert not _numba.private_names_fit()
        assert "_customize_tm_options" in caplog.text
        _numba.private_names_fit.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(_numba.numba, "__version__", "0.99.0")
            assert not _numba.private_names_fit()
    finally:
        for function in (_numba.private_names_fit, _numba._private_names, _numba._compiler):
            function.cache_clear()
    assert _numba.private_names_fit()


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_waits_for_the_end_of_a_compile(monkeypatch, enabled):
    make, seen = Program.make, []
    monkeypatch.setattr(Program, "make", lambda program: seen.append(gc.isenabled()) or make(program))
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        jit.compile_program(_numbered(9), jit.cpu_target("generic"))
        with pytest.raises(KernelCompileError):
            jit.compile_program(Program.of("jit_test_bodies:nothing", ["ptr"]), jit.cpu_target("generic"))
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
    assert seen == [False, False]


def test_an_interrupt_does_not_stop_a_compile_halfway(monkeypatch):
    """What Numba was about to register, or to import, would be missing from then on."""
    make, made = Program.make, threading.Event()

    def interrupted(program):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        made.wait(0.1)  # long enough for the handler, wherever it runs
        made.set()
        return make(program)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Program, "make", interrupted)
            with pytest.raises(KeyboardInterrupt):
                jit.get_entry(_numbered(10))
            assert made.wait(10)
    finally:
        signal.signal(signal.SIGINT, before)
    assert _value(jit.get_entry(_numbered(10))) == 10


def test_compiling_works_in_a_worker_process():
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_add_bodies) as pool:
        artifact = pool.submit(jit.compile_program, _numbered(8), jit.cpu_target("generic")).result(60)
    assert _value(load_entry(_numbered(8), jit.cpu_target("generic"), artifact)) == 8


def _add_bodies() -> None:
    sys.path.insert(0, BODIES)


def test_programs_are_plain_values():
    program = Program.of("a.b:c", ["ptr", "f32"], z=1, a=("x", 2.0, None), grain=4)
    assert program.config == (("a", ("x", 2.0, None)), ("z", 1))
    assert (program.source, program.name) == ("a.b", "c")
    assert hash(program) == hash(Program.of("a.b:c", ["ptr", "f32"], a=("x", 2.0, None), z=1, grain=4))
    assert str(program) == "a.b:c(a=('x', 2.0, None), z=1)"
    assert pickle.loads(pickle.dumps(program)) == program
    other = {Program.of("a.b:c", ["ptr", "f32"], z=z, a=("x", a, None), grain=4) for z in (1, True) for a in (2.0, 2)}
    assert len(other | {program}) == 4, "True, 1 and 1.0 are other code, as they are other keys on disk"
    for wrong in (
        lambda: Program.of("a.b.c", []),
        lambda: Program.of("a:b", ["i32"]),
        lambda: Program.of("a:b", [], grain=0),
        lambda: Program("a:b", (("z", 1), ("a", 2)), ()),
    ):
        with pytest.raises(ValueError, match=r"expected|sorted"):
            wrong()
    with pytest.raises(TypeError, match=r"x=\[1\] of type list"):
        Program.of("a:b", [], x=[1])
