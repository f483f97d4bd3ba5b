"""The built-in function that does a whole call, as LLVM IR: two more functions of every kernel's wrapper.

    result = direct(*tensors)

runs one kernel after the other. What it does for one call is a block of integers, the *descriptor*: the number of units
of each kernel, how many threads are useful for it, integers that differ from call to call, and the extents of the
output. What calls have in common is another block, the *frame*: the facts of the output, addresses of functions, and
for each kernel a table that says what each of its arguments is,

    addresses[source] + constant + descriptor[word]

where the sources are zero, scratch memory, the tensors of the call, and the output. The *state* of a call is a tuple
that begins with the descriptor, a bytes object, and the Python function that serves what this one cannot. It is the
``self`` of the function; a further function gets it as its first argument, for calls that come once, as making a
function takes longer than many a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from tileops.jit.cpu._torch_tensors import HANDLE_OFFSET, TYPE_OFFSET

#: Names of the functions in the wrapper's object: a whole call, the same with its state passed, one kernel of a call.
ENTRY = "tileops_direct"
ENTRY_WITH_STATE = "tileops_direct_with_state"
STEP = "tileops_step"
FUNCTIONS = (ENTRY, ENTRY_WITH_STATE, STEP)
#: Tensors that a call may pass.
MAX_TENSORS = 8
#: What the loader must supply besides `wrapper.PYTHON_SYMBOLS`, some of which it uses too.
PYTHON_SYMBOLS = ("PyTuple_GetItem", "PyBytes_AsString", "PyObject_Vectorcall", "Py_DecRef")
#: Types of a kernel's arguments by kind.
IR_TYPES = {"ptr": "i64", "i64": "i64", "f32": "float", "f64": "double"}
#: Words of a frame before its tables: the number of tensors, bits of those that are used, facts of the output, the word
#: of a descriptor where its sizes begin, the word with the limit of the last kernel's threads, the number of kernels;
#: the addresses of what limits the threads of this process (see `parallel`) and of the scratch memory (see
#: `scratch`); then those of `TensorFunctions`.
FRAME = (
    *("count", "used", "rank", "dtype", "extents", "limit", "steps", "ceiling", "scratch"),
    *("empty_strided", "wrap", "delete", "data_ptr", "get_num_threads", "tensor", "parameter"),
)
#: Words of a descriptor before the kernels': the address of the frame, bytes of scratch memory, further ones for each
#: thread of the last kernel, and a zero.
HEAD = ("frame", "scratch", "per_thread", "zero")
#: Words of a kernel's table before those of its arguments: the function, the table's length, the word with its units;
#: that of its limit follows.
TABLE = ("function", "length", "units")
#: Words of an argument: source, constant, word.
ARGUMENT = 3
#: Sources that are no tensors.
NOTHING, SCRATCH = 0, 1
FIRST_TENSOR = 2


def direct_ir(args: Sequence[str]) -> str:
    """LLVM IR of the functions, beside the definitions of `wrapper.wrapper_ir`.

    Args:
        args: kinds of the kernel's arguments.
    """
    at = {name: number for number, name in enumerate(FRAME)}
    lines = []
    passed = ""
    for number, kind in enumerate(args):
        place = len(TABLE) + ARGUMENT * number
        lines.append(f"  %w{number} = call i64 @argument(ptr %words, ptr %table, i64 {place}, ptr %addresses)")
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
declare i64 @llvm.smax.i64(i64, i64)

define internal i64 @word(ptr %words, i64 %number) alwaysinline {{
  %place = getelementptr i64, ptr %words, i64 %number
  %word = load i64, ptr %place
  ret i64 %word
}}

define internal ptr @pointer(ptr %words, i64 %number) alwaysinline {{
  %word = call i64 @word(ptr %words, i64 %number)
  %pointer = inttoptr i64 %word to ptr
  ret ptr %pointer
}}

define internal i64 @argument(ptr %words, ptr %table, i64 %number, ptr %addresses) alwaysinline {{
  %second = add i64 %number, 1
  %third = add i64 %number, 2
  %source = call i64 @word(ptr %table, i64 %number)
  %constant = call i64 @word(ptr %table, i64 %second)
  %place = call i64 @word(ptr %table, i64 %third)
  %address = call i64 @word(ptr %addresses, i64 %source)
  %varying = call i64 @word(ptr %words, i64 %place)
  %moved = add i64 %address, %constant
  %value = add i64 %moved, %varying
  ret i64 %value
}}

; This kernel as part of a call: on as many threads as its limit and %most allow.
define i32 @{STEP}(ptr %words, ptr %table, ptr %addresses, i64 %most) {{
  %units_at = call i64 @word(ptr %table, i64 {TABLE.index("units")})
  %limit_at = add i64 %units_at, 1
  %units = call i64 @word(ptr %words, i64 %units_at)
  %limit = call i64 @word(ptr %words, i64 %limit_at)
  %threads = call i64 @llvm.smin.i64(i64 %limit, i64 %most)
{arguments}
  %status = call i32 @run(i64 %threads, i64 %units{passed})
  ret i32 %status
}}

define ptr @{ENTRY_WITH_STATE}(ptr %self, ptr %args, i64 %given) {{
  %state = load ptr, ptr %args
  %tensors = getelementptr ptr, ptr %args, i64 1
  %count = sub i64 %given, 1
  %result = call ptr @{ENTRY}(ptr %state, ptr %tensors, i64 %count)
  ret ptr %result
}}

define ptr @{ENTRY}(ptr %self, ptr %args, i64 %given) {{
  %made = alloca ptr
  %torchs = alloca i32
  %addresses = alloca [{FIRST_TENSOR + MAX_TENSORS + 1} x i64]
  %holder = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %words = call ptr @PyBytes_AsString(ptr %holder)
  %frame = call ptr @pointer(ptr %words, i64 {HEAD.index("frame")})
  %count = call i64 @word(ptr %frame, i64 {at["count"]})
  %used = call i64 @word(ptr %frame, i64 {at["used"]})
  %tensor_type = call i64 @word(ptr %frame, i64 {at["tensor"]})
  %parameter_type = call i64 @word(ptr %frame, i64 {at["parameter"]})
  %data_ptr = call ptr @pointer(ptr %frame, i64 {at["data_ptr"]})
  store i64 0, ptr %addresses
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
  br i1 %known, label %ask, label %otherwise
ask:
  %tensor_at = getelementptr i8, ptr %object, i64 {HANDLE_OFFSET}
  %number = add i64 %place, {FIRST_TENSOR}
  %found = getelementptr i64, ptr %addresses, i64 %number
  %answer = call i32 %data_ptr(ptr %tensor_at, ptr %found)
  %in_memory = icmp eq i32 %answer, 0
  br i1 %in_memory, label %good, label %otherwise
good:
  %following = add i64 %place, 1
  br label %look

allocate:
  %rank = call i64 @word(ptr %frame, i64 {at["rank"]})
  %extents = call i64 @word(ptr %frame, i64 {at["extents"]})
  %sizes = getelementptr i64, ptr %words, i64 %extents
  %strides = getelementptr i64, ptr %sizes, i64 %rank
  %dtype = call i64 @word(ptr %frame, i64 {at["dtype"]})
  %dtype32 = trunc i64 %dtype to i32
  %empty = call ptr @pointer(ptr %frame, i64 {at["empty_strided"]})
  %short = call i32 %empty(i64 %rank, ptr %sizes, ptr %strides, i32 %dtype32, i32 0, i32 0, ptr %made)
  %enough = icmp eq i32 %short, 0
  br i1 %enough, label %wrap, label %otherwise
wrap:
  %handle = load ptr, ptr %made
  %wrapper = call ptr @pointer(ptr %frame, i64 {at["wrap"]})
  %result = call ptr %wrapper(ptr %handle)
  %delete = call ptr @pointer(ptr %frame, i64 {at["delete"]})
  %deleted = call i32 %delete(ptr %handle)
  %wrapped = icmp ne ptr %result, null
  br i1 %wrapped, label %threads, label %fail

; The team of the last kernel is the largest.
threads:
  %ours = add i64 %count, {FIRST_TENSOR}
  %ours_at = getelementptr i64, ptr %addresses, i64 %ours
  %result_at = getelementptr i8, ptr %result, i64 {HANDLE_OFFSET}
  %made_status = call i32 %data_ptr(ptr %result_at, ptr %ours_at)
  %limit_at = call i64 @word(ptr %frame, i64 {at["limit"]})
  %limit = call i64 @word(ptr %words, i64 %limit_at)
  %several = icmp sgt i64 %limit, 1
  br i1 %several, label %team, label %alone
team:
  %ceiling_at = call ptr @pointer(ptr %frame, i64 {at["ceiling"]})
  %ceiling = load i64, ptr %ceiling_at
  %get_num_threads = call ptr @pointer(ptr %frame, i64 {at["get_num_threads"]})
  store i32 1, ptr %torchs
  %asked = call i32 %get_num_threads(ptr %torchs)
  %torchs32 = load i32, ptr %torchs
  %torchs64 = zext i32 %torchs32 to i64
  %allowed = call i64 @llvm.smin.i64(i64 %ceiling, i64 %torchs64)
  %least = call i64 @llvm.smin.i64(i64 %limit, i64 %allowed)
  %some = call i64 @llvm.smax.i64(i64 %least, i64 1)
  br label %alone
alone:
  %most = phi i64 [ 1, %threads ], [ %some, %team ]
  %fixed = call i64 @word(ptr %words, i64 {HEAD.index("scratch")})
  %each = call i64 @word(ptr %words, i64 {HEAD.index("per_thread")})
  %all = mul i64 %each, %most
  %need = add i64 %fixed, %all
  %memory = call ptr @pointer(ptr %frame, i64 {at["scratch"]})
  %busy_at = getelementptr i64, ptr %memory, i64 2
  %needs = icmp ne i64 %need, 0
  br i1 %needs, label %borrow, label %launch

; Nothing from here to the kernels lets another thread of Python in.
borrow:
  %kept = call i64 @word(ptr %memory, i64 1)
  %fits = icmp sle i64 %need, %kept
  %busy = load i64, ptr %busy_at
  %free = icmp eq i64 %busy, 0
  %ready = and i1 %fits, %free
  br i1 %ready, label %take, label %lost
lost:
  call void @Py_DecRef(ptr %result)
  br label %otherwise
take:
  store i64 1, ptr %busy_at
  %base = call i64 @word(ptr %memory, i64 0)
  %scratch_at = getelementptr i64, ptr %addresses, i64 {SCRATCH}
  store i64 %base, ptr %scratch_at
  br label %launch

launch:
  %steps = call i64 @word(ptr %frame, i64 {at["steps"]})
  %first = getelementptr i64, ptr %frame, i64 {len(FRAME)}
  %release = icmp sgt i64 %limit, 0
  br i1 %release, label %let_go, label %kernels
let_go:
  %saved = call ptr @PyEval_SaveThread()
  br label %kernels
kernels:
  %state = phi ptr [ null, %launch ], [ %saved, %let_go ]
  br label %kernel
kernel:
  %step = phi i64 [ 0, %kernels ], [ %next_step, %kernel ]
  %table = phi ptr [ %first, %kernels ], [ %next_table, %kernel ]
  %before = phi i32 [ 0, %kernels ], [ %status, %kernel ]
  %function = call ptr @pointer(ptr %table, i64 {TABLE.index("function")})
  %length = call i64 @word(ptr %table, i64 {TABLE.index("length")})
  %verdict = call i32 %function(ptr %words, ptr %table, ptr %addresses, i64 %most)
  %status = or i32 %before, %verdict
  %next_step = add i64 %step, 1
  %next_table = getelementptr i64, ptr %table, i64 %length
  %over = icmp eq i64 %next_step, %steps
  br i1 %over, label %ended, label %kernel
ended:
  br i1 %release, label %come_back, label %back
come_back:
  call void @PyEval_RestoreThread(ptr %state)
  br label %back
back:
  br i1 %needs, label %return, label %finished
return:
  store i64 0, ptr %busy_at
  br label %finished
finished:
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
  %theirs = call ptr @PyObject_Vectorcall(ptr %python, ptr %args, i64 %given, ptr null)
  ret ptr %theirs
}}
"""
