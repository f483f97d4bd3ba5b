"""The code around a kernel body: split of the units over threads, and the Python calling convention.

Both are the same for every kernel up to the kinds of the arguments, so they are LLVM IR text, compiled to an
object of its own, once a process for all kernels of the same kinds: the loader supplies what names the kernel, and
the body has one name in every kernel. A loaded kernel is a built-in function of Python
(``METH_FASTCALL``):

    launch(threads, n, *args)

runs ``body(begin, end, tid, *args)`` over the units ``[0, n)``: with ``threads = 0`` here and now, with the
GIL held; with ``threads = k >= 1`` the GIL is released and a team of at most k threads shares the units, in
contiguous chunks whose bounds are multiples of the grain. What a body computes for a unit must not depend on
the chunk it is in.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

import llvmlite.binding as llvm

from tileops.jit.cpu.direct_ir import IR_TYPES, direct_ir
from tileops.jit.cpu.target import CpuTarget, target_machine

#: Name of the Python-callable function in the wrapper's object.
ENTRY = "tileops_launch"
#: Name of the compiled body in the kernel's object.
BODY = "tileops_body"

#: What the loader must supply: the C API of Python, and an OpenMP runtime (GNU entry points).
PYTHON_SYMBOLS = (
    "PyLong_AsLongLong",
    "PyFloat_AsDouble",
    "PyErr_Occurred",
    "PyErr_Format",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "Py_IncRef",
    "PyExc_TypeError",
    "PyExc_RuntimeError",
    "_Py_NoneStruct",
)
PARALLEL_SYMBOLS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


@functools.lru_cache(maxsize=256)
def wrapper_object(args: tuple[str, ...], grain: int, convention: Literal["numba", "c"], target: CpuTarget) -> bytes:
    """The object of a wrapper; see `wrapper_ir`."""
    return compile_ir(wrapper_ir(args, grain, convention), target_machine(target))


def wrapper_ir(args: Sequence[str], grain: int, convention: Literal["numba", "c"]) -> str:
    """LLVM IR of a wrapper.

    Args:
        args: kinds of the arguments after ``begin, end, tid``.
        grain: bounds of a thread's units are multiples of this.
        convention: how the body is called; see `CompiledFunction`.
    """
    types = [IR_TYPES[kind] for kind in args]
    declared = ", ".join(["i64", "i64", "i64", *types])
    passed = "".join(f", {type_} %a{i}" for i, type_ in enumerate(types))
    formal = "".join(f", {type_} %a{i}" for i, type_ in enumerate(types))
    block = "{ " + ", ".join(["i64", *types, "i32"]) + " }"

    if convention == "numba":
        declaration = f"declare i32 @{BODY}(ptr, ptr, {declared})"
        call = f"""
  %result = alloca ptr
  %error = alloca ptr
  %status = call i32 @{BODY}(ptr %result, ptr %error, i64 %begin, i64 %end, i64 %tid{passed})
  ret i32 %status"""
    else:
        declaration = f"declare void @{BODY}({declared})"
        call = f"""
  call void @{BODY}(i64 %begin, i64 %end, i64 %tid{passed})
  ret i32 0"""

    unpack = "".join(
        f"  %p{i} = getelementptr {block}, ptr %block, i32 0, i32 {i + 1}\n  %a{i} = load {type_}, ptr %p{i}\n"
        for i, type_ in enumerate(types)
    )
    pack = "".join(
        f"  %p{i} = getelementptr {block}, ptr %block, i32 0, i32 {i + 1}\n  store {type_} %a{i}, ptr %p{i}\n"
        for i, type_ in enumerate(types)
    )
    return f"""
declare i64 @PyLong_AsLongLong(ptr)
declare double @PyFloat_AsDouble(ptr)
declare ptr @PyErr_Occurred()
declare ptr @PyErr_Format(ptr, ptr, ...)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
@PyExc_TypeError = external global ptr
@PyExc_RuntimeError = external global ptr
@_Py_NoneStruct = external global i8
@message = external global i8
@raised_message = external global i8
{declaration}

define internal i32 @body(i64 %begin, i64 %end, i64 %tid{formal}) {{{call}
}}

; One thread of the team: the units [tid * chunk, min((tid + 1) * chunk, n)).
define internal void @member(ptr %block) {{
  %tid32 = call i32 @omp_get_thread_num()
  %count32 = call i32 @omp_get_num_threads()
  %tid = sext i32 %tid32 to i64
  %count = sext i32 %count32 to i64
  %n = load i64, ptr %block
  %whole = mul i64 %count, {grain}
  %padded = add i64 %n, %whole
  %padded1 = sub i64 %padded, 1
  %grains = sdiv i64 %padded1, %whole
  %chunk = mul i64 %grains, {grain}
  %begin = mul i64 %tid, %chunk
  %far = add i64 %begin, %chunk
  %within = icmp slt i64 %far, %n
  %end = select i1 %within, i64 %far, i64 %n
  %any = icmp slt i64 %begin, %end
  br i1 %any, label %work, label %out
work:
{unpack}  %status = call i32 @body(i64 %begin, i64 %end, i64 %tid{passed})
  %good = icmp eq i32 %status, 0
  br i1 %good, label %out, label %failed
failed:
  %verdict = getelementptr {block}, ptr %block, i32 0, i32 {len(types) + 1}
  store i32 %status, ptr %verdict
  br label %out
out:
  ret void
}}

define internal i32 @run(i64 %threads, i64 %n{formal}) {{
  %block = alloca {block}, align 16
  %alone = icmp sle i64 %threads, 1
  br i1 %alone, label %one, label %team
one:
  %status = call i32 @body(i64 0, i64 %n, i64 0{passed})
  ret i32 %status
team:
  store i64 %n, ptr %block
{pack}  %verdict = getelementptr {block}, ptr %block, i32 0, i32 {len(types) + 1}
  store i32 0, ptr %verdict
  %threads32 = trunc i64 %threads to i32
  call void @GOMP_parallel(ptr @member, ptr %block, i32 %threads32, i32 0)
  %worst = load i32, ptr %verdict
  ret i32 %worst
}}

{_python_function(args, passed)}
{direct_ir(args)}
"""


@functools.cache
def messages(name: str, args: tuple[str, ...]) -> dict[str, bytes]:
    """The texts that a wrapper refers to, by symbol, for the kernel `name`. They live as long as the process."""
    kinds = "".join(f", {kind}" for kind in args)
    wrong = f"{name}: launch(threads, n{kinds}) takes {len(args) + 2} arguments, got %zd"
    return {"message": wrong.encode(), "raised_message": f"{name}: the kernel raised an exception".encode()}


def _python_function(args: Sequence[str], passed: str) -> str:
    """The METH_FASTCALL function: converts the arguments, runs, returns None."""
    kinds = ["i64", "i64", *args]
    names = ["%threads", "%n", *(f"%a{i}" for i in range(len(args)))]
    lines = []
    for i, (kind, name) in enumerate(zip(kinds, names, strict=True)):
        lines.append(f"  %slot{i} = getelementptr ptr, ptr %args, i64 {i}\n  %object{i} = load ptr, ptr %slot{i}")
        if kind in ("ptr", "i64"):
            lines.append(f"  {name} = call i64 @PyLong_AsLongLong(ptr %object{i})")
            lines.append(f"  %odd{i} = icmp eq i64 {name}, -1")
        else:
            wide = name if kind == "f64" else f"%wide{i}"
            lines.append(f"  {wide} = call double @PyFloat_AsDouble(ptr %object{i})")
            if kind == "f32":
                lines.append(f"  {name} = fptrunc double {wide} to float")
            lines.append(f"  %odd{i} = fcmp oeq double {wide}, -1.0")
        # -1 is also what the conversion returns for an error.
        lines.append(f"  br i1 %odd{i}, label %suspect{i}, label %next{i}\nsuspect{i}:")
        lines.append(f"  %error{i} = call ptr @PyErr_Occurred()\n  %good{i} = icmp eq ptr %error{i}, null")
        lines.append(f"  br i1 %good{i}, label %next{i}, label %fail\nnext{i}:")
    conversion = "\n".join(lines)
    return f"""
define ptr @{ENTRY}(ptr %self, ptr %args, i64 %given) {{
  %right = icmp eq i64 %given, {len(kinds)}
  br i1 %right, label %convert, label %wrong
wrong:
  %type = load ptr, ptr @PyExc_TypeError
  %ignored = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %type, ptr @message, i64 %given)
  br label %fail
fail:
  ret ptr null
convert:
{conversion}
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %go, label %done
go:
  %release = icmp sgt i64 %threads, 0
  br i1 %release, label %free, label %hold
free:
  %state = call ptr @PyEval_SaveThread()
  %status1 = call i32 @run(i64 %threads, i64 %n{passed})
  call void @PyEval_RestoreThread(ptr %state)
  br label %finished
hold:
  %status0 = call i32 @run(i64 1, i64 %n{passed})
  br label %finished
finished:
  %status = phi i32 [ %status1, %free ], [ %status0, %hold ]
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %done, label %raised
raised:
  %runtime = load ptr, ptr @PyExc_RuntimeError
  %ignored1 = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %runtime, ptr @raised_message)
  br label %fail
done:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
}}
"""


def compile_ir(text: str, machine: llvm.TargetMachine) -> bytes:
    """Optimises IR text and emits an object.

    Raises:
        RuntimeError: the text is not valid IR.
    """
    module = llvm.parse_assembly(text)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    return machine.emit_object(module)
