"""The built-in function that does a whole call, as LLVM IR: one more function of every kernel's wrapper.

    result = direct(*tensors)

What it does for one call signature is a block of integers, the *descriptor*: how the output looks, how many units there
are and how many threads are useful, and for each argument of the kernel a constant or the tensor whose address it is.
Its ``self`` is a tuple that begins with the descriptor, a bytes object, and the Python function that serves what it
cannot.
"""

from __future__ import annotations

from collections.abc import Sequence

from tileops.jit.cpu._torch_tensors import HANDLE_OFFSET, TYPE_OFFSET

#: Name of the function in the wrapper's object.
ENTRY = "tileops_direct"
#: What the loader must supply besides `wrapper.PYTHON_SYMBOLS`, some of which it uses too.
PYTHON_SYMBOLS = ("PyTuple_GetItem", "PyBytes_AsString", "PyObject_Vectorcall", "Py_DecRef")
#: Types of a kernel's arguments by kind.
IR_TYPES = {"ptr": "i64", "i64": "i64", "f32": "float", "f64": "double"}
#: Words of a descriptor before those of the arguments: the number of tensors, bits of those that are used, units, the
#: limit of threads and the address of what limits those of this process (see `parallel`), facts of the output; then the
#: addresses of `TensorFunctions`.
WORDS = (
    *("count", "used", "units", "limit", "ceiling", "rank", "sizes", "strides", "dtype"),
    *("empty_strided", "wrap", "delete", "data_ptr", "get_num_threads", "tensor", "parameter"),
)


def direct_ir(args: Sequence[str]) -> str:
    """LLVM IR of the function, beside the definitions of `wrapper.wrapper_ir`.

    Args:
        args: kinds of the kernel's arguments.
    """
    at = {name: number for number, name in enumerate(WORDS)}
    lines = []
    passed = ""
    for number, kind in enumerate(args):
        lines.append(f"  %w{number} = call i64 @argument(ptr %words, i64 {number}, ptr %args, ptr %result, ptr %bad)")
        if kind == "f32":
            lines.append(f"  %n{number} = trunc i64 %w{number} to i32")
            lines.append(f"  %d{number} = bitcast i32 %n{number} to float")
        elif kind == "f64":
            lines.append(f"  %d{number} = bitcast i64 %w{number} to double")
        passed += f", {IR_TYPES[kind]} %{'d' if kind in ('f32', 'f64') else 'w'}{number}"
    arguments = "\n".join(lines)
    return f"""
declare ptr @PyTuple_GetItem(ptr, i64)
declare ptr @PyBytes_AsString(ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare void @Py_DecRef(ptr)
declare i64 @llvm.smin.i64(i64, i64)

define internal i64 @word(ptr %words, i64 %number) alwaysinline {{
  %place = getelementptr i64, ptr %words, i64 %number
  %word = load i64, ptr %place
  ret i64 %word
}}

; A constant, or the address of a tensor's elements; failures are counted in %bad.
define internal i64 @argument(ptr %words, i64 %number, ptr %args, ptr %result, ptr %bad) {{
  %twice = shl i64 %number, 1
  %at = add i64 %twice, {len(WORDS)}
  %next = add i64 %at, 1
  %source = call i64 @word(ptr %words, i64 %at)
  %value = call i64 @word(ptr %words, i64 %next)
  %constant = icmp slt i64 %source, 0
  br i1 %constant, label %given, label %tensor
given:
  ret i64 %value
tensor:
  %found = alloca i64
  store i64 0, ptr %found
  %count = call i64 @word(ptr %words, i64 {at["count"]})
  %made = icmp eq i64 %source, %count
  br i1 %made, label %ours, label %theirs
theirs:
  %slot = getelementptr ptr, ptr %args, i64 %source
  %object = load ptr, ptr %slot
  br label %ask
ours:
  br label %ask
ask:
  %whose = phi ptr [ %object, %theirs ], [ %result, %ours ]
  %handle = getelementptr i8, ptr %whose, i64 {HANDLE_OFFSET}
  %where = call i64 @word(ptr %words, i64 {at["data_ptr"]})
  %function = inttoptr i64 %where to ptr
  %status = call i32 %function(ptr %handle, ptr %found)
  %before = load i32, ptr %bad
  %after = or i32 %before, %status
  store i32 %after, ptr %bad
  %base = load i64, ptr %found
  %address = add i64 %base, %value
  ret i64 %address
}}

define ptr @{ENTRY}(ptr %self, ptr %args, i64 %given) {{
  %made = alloca ptr
  %bad = alloca i32
  %torchs = alloca i32
  store i32 0, ptr %bad
  %holder = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %words = call ptr @PyBytes_AsString(ptr %holder)
  %count = call i64 @word(ptr %words, i64 {at["count"]})
  %used = call i64 @word(ptr %words, i64 {at["used"]})
  %tensor_type = call i64 @word(ptr %words, i64 {at["tensor"]})
  %parameter_type = call i64 @word(ptr %words, i64 {at["parameter"]})
  %right = icmp eq i64 %given, %count
  br i1 %right, label %look, label %otherwise

look:
  %place = phi i64 [ 0, %0 ], [ %following, %good ]
  %through = icmp eq i64 %place, %count
  br i1 %through, label %allocate, label %one
one:
  %shifted = lshr i64 %used, %place
  %wanted = trunc i64 %shifted to i1
  br i1 %wanted, label %typed, label %good
typed:
  %slot = getelementptr ptr, ptr %args, i64 %place
  %object = load ptr, ptr %slot
  %type_at = getelementptr i8, ptr %object, i64 {TYPE_OFFSET}
  %type = load i64, ptr %type_at
  %is_tensor = icmp eq i64 %type, %tensor_type
  %is_parameter = icmp eq i64 %type, %parameter_type
  %known = or i1 %is_tensor, %is_parameter
  br i1 %known, label %good, label %otherwise
good:
  %following = add i64 %place, 1
  br label %look

allocate:
  %rank = call i64 @word(ptr %words, i64 {at["rank"]})
  %sizes = call i64 @word(ptr %words, i64 {at["sizes"]})
  %strides = call i64 @word(ptr %words, i64 {at["strides"]})
  %dtype = call i64 @word(ptr %words, i64 {at["dtype"]})
  %sizes_at = inttoptr i64 %sizes to ptr
  %strides_at = inttoptr i64 %strides to ptr
  %dtype32 = trunc i64 %dtype to i32
  %empty_word = call i64 @word(ptr %words, i64 {at["empty_strided"]})
  %empty = inttoptr i64 %empty_word to ptr
  %short = call i32 %empty(i64 %rank, ptr %sizes_at, ptr %strides_at, i32 %dtype32, i32 0, i32 0, ptr %made)
  %enough = icmp eq i32 %short, 0
  br i1 %enough, label %wrap, label %otherwise
wrap:
  %handle = load ptr, ptr %made
  %wrap_word = call i64 @word(ptr %words, i64 {at["wrap"]})
  %wrapper = inttoptr i64 %wrap_word to ptr
  %result = call ptr %wrapper(ptr %handle)
  %delete_word = call i64 @word(ptr %words, i64 {at["delete"]})
  %delete = inttoptr i64 %delete_word to ptr
  %deleted = call i32 %delete(ptr %handle)
  %wrapped = icmp ne ptr %result, null
  br i1 %wrapped, label %arguments, label %fail
arguments:
{arguments}
  %wrong = load i32, ptr %bad
  %found = icmp eq i32 %wrong, 0
  br i1 %found, label %launch, label %lost
lost:
  call void @Py_DecRef(ptr %result)
  br label %otherwise
launch:
  %units = call i64 @word(ptr %words, i64 {at["units"]})
  %limit = call i64 @word(ptr %words, i64 {at["limit"]})
  %release = icmp sgt i64 %limit, 0
  br i1 %release, label %free, label %hold
hold:
  %status0 = call i32 @run(i64 1, i64 %units{passed})
  br label %finished
free:
  %several = icmp sgt i64 %limit, 1
  br i1 %several, label %team, label %away
team:
  %ceiling_word = call i64 @word(ptr %words, i64 {at["ceiling"]})
  %ceiling_at = inttoptr i64 %ceiling_word to ptr
  %ceiling = load i64, ptr %ceiling_at
  %threads_word = call i64 @word(ptr %words, i64 {at["get_num_threads"]})
  %get_num_threads = inttoptr i64 %threads_word to ptr
  store i32 1, ptr %torchs
  %asked = call i32 %get_num_threads(ptr %torchs)
  %torchs32 = load i32, ptr %torchs
  %torchs64 = zext i32 %torchs32 to i64
  %allowed = call i64 @llvm.smin.i64(i64 %ceiling, i64 %torchs64)
  %least = call i64 @llvm.smin.i64(i64 %limit, i64 %allowed)
  br label %away
away:
  %threads = phi i64 [ 1, %free ], [ %least, %team ]
  %state = call ptr @PyEval_SaveThread()
  %status1 = call i32 @run(i64 %threads, i64 %units{passed})
  call void @PyEval_RestoreThread(ptr %state)
  br label %finished
finished:
  %status = phi i32 [ %status0, %hold ], [ %status1, %away ]
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %done, label %raised
raised:
  call void @Py_DecRef(ptr %result)
  %runtime = load ptr, ptr @PyExc_RuntimeError
  %ignored = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %runtime, ptr @raised_message)
  br label %fail
fail:
  ret ptr null
done:
  ret ptr %result

otherwise:
  %python = call ptr @PyTuple_GetItem(ptr %self, i64 1)
  %answer = call ptr @PyObject_Vectorcall(ptr %python, ptr %args, i64 %given, ptr null)
  ret ptr %answer
}}
"""
