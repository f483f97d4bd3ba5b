"""The base of every op: construction, the plan of a new call, kernels, and what is known of the last call.

A concrete op is thin. It assigns its manifest parameters and calls ``super().__init__(target=target)``, names
its kernels and interfaces, and turns the facts of a checked call into a call spec:

    class RMSNormFwdOp(Op):
        kernel_types = {"cpu": RMSNormCpuKernel, "cuda": RMSNormCudaKernel}
        interfaces = {"rms_norm": RMSNormFwdInterface}

        def __init__(self, normalized_shape, eps=None, *, target=None):
            self.normalized_shape = normalized_shape
            self.eps = eps
            super().__init__(target=target)

        def _call_spec(self, facts):
            return RMSNormCall(facts["x"], facts["weight"], facts["output"], ..., device=facts.device)

Everything else (``__call__``, checks, the torch operator, fake function, roofline) is generated from the
manifest entry.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch

from tileops import autotune, backend, jit, manifest
from tileops.backend import registry
from tileops.errors import CheckError, DispatchError, OpNotAvailableError, TileOpsWarning
from tileops.jit.artifact import ArtifactKey
from tileops.jit.store import built_for
from tileops.kernels.base import CallSpec, DeviceFacts, Kernel, KernelInterface
from tileops.manifest.signature import OUT
from tileops.ops import (
    calling,
    dispatch,
    generation,
    observing,
    selection,
    targets,
    tuning,
)
from tileops.ops.boundary import Boundary
from tileops.ops.call_kinds import CallKind
from tileops.ops.composing import Composing
from tileops.ops.dtypes import candidate_dtypes
from tileops.ops.effects import Effects
from tileops.ops.facts import CallFacts
from tileops.ops.gradients import Gradient
from tileops.ops.graph_constants import Constructible
from tileops.ops.placing import Placing
from tileops.ops.planning import Planning, current_device
from tileops.ops.plans import CallRecord, Hot, Plan, PlanCache
from tileops.ops.selection import KnownKernels

_instances: weakref.WeakSet[Op] = weakref.WeakSet()


class Built(NamedTuple):
    """A kernel that an op holds, with the call that it was built for (plain values: it holds no tensor)."""

    kernel: Kernel
    call: CallSpec


class _PerThread(threading.local):
    """The only per-call state of an op. Written when a call succeeds, never pickled."""

    plan: Plan | None = None


class Op(Constructible, Planning, Boundary, Composing, Placing):
    """Base class of all operators.

    Construction checks parameters and fixes shape structure; it probes no device and compiles nothing. Dtypes
    and devices come with the tensors of each call. An op is safe to call from several threads, survives a
    fork, and pickles to its class, its parameters, its target and whether it is in tuned mode.

    Attributes:
        kernel_types: the in-tree implementations by key.
        interfaces: the kernel interface of each call site, in the order in which a call reaches them.
        delegate_types: sub-ops of a composite op by stage; empty for the others.
        injected_parameters: names of constructor parameters beyond the manifest's that inject implementation
            objects.
        compile_op_names: the torch operators of this class.
        gradient: the gradient formula; without one ``backward()`` through a call is an error.
        target: which set of kernels serves this instance; None decides by process default and device.
        tune: tuned mode: a kernel that is built for a new identity uses its tuning record, or is tuned first.
    """

    kernel_types: ClassVar[Mapping[str, type[Kernel]]] = MappingProxyType({})
    interfaces: ClassVar[Mapping[str, type[KernelInterface]]] = MappingProxyType({})
    delegate_types: ClassVar[Mapping[str, type[Op]]] = MappingProxyType({})
    injected_parameters: ClassVar[tuple[str, ...]] = ()
    compile_op_names: ClassVar[tuple[str, ...]] = ()
    gradient: ClassVar[Gradient | None] = None
    #: Axes, as (input, axis), whose extents the op's parameters fix; `_cache_key` leaves them out.
    _static_axes: ClassVar[frozenset[tuple[int, int]]] = frozenset()
    #: Input in whose place the buffer of a packed operand is launched; a class that sets it defines
    #: `_call_token`.
    _packed_input: ClassVar[str | None] = None

    entry: ClassVar[Any] = None
    _signature: ClassVar[Any] = None
    _operator: ClassVar[Any] = None
    _operators: ClassVar[dict[Effects, Any]] = {}
    #: One torch operator, which takes the inputs and returns the results: no effects, nothing held.
    _plain: ClassVar[bool] = True
    _slots: ClassVar[tuple[calling.Slot, ...]] = ()
    _held_slots: ClassVar[tuple[calling.Slot, ...]] = ()
    #: Names of the call-time tensors in forward order, ``out`` among them.
    _input_names: ClassVar[tuple[str, ...]] = ()

    target: str | None
    tune: bool

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        entry = cls.__dict__.get("entry") or manifest.try_load_entry(cls.__name__)
        if entry is not None:
            generation.generate(cls, entry)
        cls._one_site = cls._bind is Op._bind and len(cls.interfaces) == 1

    def __init__(self, *, target: str | None = None) -> None:
        registry.load_backends()
        cls = type(self)
        if cls._signature is None:
            raise TypeError(
                f"{cls.__name__} has no manifest entry: name the class like an entry of "
                f"tileops/manifest/spec, or set "
                f"{cls.__name__}.entry"
            )
        names = list(cls.entry.signature.params)
        construction = cls._signature.construct(**{name: getattr(self, name) for name in names})
        for name in names:
            object.__setattr__(self, name, construction.params[name])
        self.target = None if target is None else registry.check_target(target)
        self.tune = False
        self._construction = construction
        self._check_device_parameter()
        self._held = {slot.name: construction.params[slot.name] for slot in cls._held_slots}
        self._held_copies: dict[Hashable, torch.Tensor] = {}
        self._call = dispatch.encode(dispatch.travelling(construction, self._held), target)
        self._sites = selection.check_kernel_types(cls.__name__, self._all_kernel_types(), cls.interfaces)
        self._lock = threading.RLock()
        self._thread = _PerThread()
        self._kinds: dict[Hashable, CallKind] = {}
        self._known: dict[tuple[str, str, int], KnownKernels] = {}
        self._reset_plans()
        self._built: dict[str, dict[Hashable, Built]] = {site: {} for site in cls.interfaces}
        self._target_kernels: dict[Hashable, Callable[..., Any]] = {}
        self._chosen: dict[str, dict[str, Any]] = {}  # configs by tuning problem
        self._tunable = tuning.tunable(kernel for kernels in self._sites.values() for kernel in kernels)
        self._problems: dict[Hashable, ArtifactKey] = {}
        self._branches = {} if cls._plain else self._effect_branches()
        dispatch.remember(self)
        _instances.add(self)
        object.__setattr__(self, "_sealed", frozenset(names))

    def _all_kernel_types(self) -> dict[str, type[Kernel]]:
        cls = type(self)
        added = registry.kernel_types(cls.__name__)
        taken = sorted(added.keys() & cls.kernel_types.keys())
        if taken:
            raise backend.BackendError(
                f"{cls.__name__}: kernel types {taken} exist already; register them under other keys"
            )
        return {**cls.kernel_types, **added}

    def _reset_plans(self) -> None:
        self._plans = PlanCache()
        self._plan_of = self._plans.get
        self._hot = Hot()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in getattr(self, "_sealed", ()):
            raise AttributeError(
                f"{type(self).__name__}.{name} is fixed at construction; build another {type(self).__name__} "
                f"with the new value"
            )
        object.__setattr__(self, name, value)

    # Calls. `__call__`, `forward` and `_eager` are generated for each class with a manifest entry.

    def __call__(self, *tensors: torch.Tensor | None) -> Any:
        """Runs the op; each class has its own signature, generated from its manifest entry."""
        raise NotImplementedError(f"{type(self).__name__} has no manifest entry, so it cannot be called")

    def forward(self, *tensors: torch.Tensor | None) -> Any:
        """The same as calling the op."""
        return self(*tensors)

    def _require_tensors(self, tensors: Sequence[Any]) -> None:
        for slot, tensor in zip(self._slots, tensors, strict=True):
            if tensor is None and not slot.optional:
                raise CheckError(
                    type(self).__name__,
                    f"inputs.{slot.name}",
                    "the input is required, got None; pass a tensor",
                )
            if tensor is not None and not isinstance(tensor, torch.Tensor):
                raise CheckError(
                    type(self).__name__,
                    f"inputs.{slot.name}",
                    f"a torch.Tensor is needed, got {type(tensor).__name__}; convert it with torch.as_tensor",
                )

    def _explain(self, tensors: Sequence[Any]) -> None:
        """After a RuntimeError: raises the error that names the tensor at fault, if one is. A plan's key
        cannot tell a sparse tensor from a strided one, and finding out at every call would cost more than
        failing late.
        """
        self._call_device(tensors)

    # What a class says of its calls

    def _call_spec(self, facts: CallFacts) -> CallSpec:
        """The call spec of the op's interface. Ops with several call sites override `_bind` instead."""
        raise NotImplementedError(
            f"{type(self).__name__} does not say how a call becomes a call spec: define _call_spec"
        )

    def _bind(self, facts: CallFacts) -> Callable[..., None]:
        """Returns ``launch(*inputs, *held, *outputs)`` for calls with these facts: the call-time inputs in forward
        order (without ``out``), the construction-time tensors, and for each output the tensor to write, be it new,
        ``out`` or an input.
        """
        (site,) = self.interfaces
        call = self._call_spec(facts)
        return self.kernel_for(site, call).bind(call)

    # Kernels

    def _choose(self, interface: str, call: CallSpec) -> type[Kernel]:
        try:
            return selection.choose(type(self).__name__, interface, self._sites[interface], call)
        except (DispatchError, OpNotAvailableError):
            observing.count(type(self).__name__, "refused")
            raise

    def kernel_for(self, interface: str, call: CallSpec) -> Kernel:
        """The kernel that serves `call` at a call site; built on first need, one for each build identity.

        Args:
            interface: a key of `interfaces`.
            call: the facts of the call.

        Raises:
            OpNotAvailableError: no kernel runs on the device.
            DispatchError: every kernel refuses the call (with all reasons), or several accept it and none is
                preferred.
            KernelCompileError: the kernel does not compile.
        """
        known = self._known_at(interface, call.device)
        compile_class = known.classify(call)
        kernel = None if self.tune else self._known_kernel(known, compile_class, call)
        if kernel is not None:
            observing.count(type(self).__name__, "hits")
            return kernel
        kernel_type = self._choose(interface, call)
        with self._lock:
            config = tuning.config_for(self, kernel_type, call, compile_class)
            identity = kernel_type.identity(call, config)
            built = self._built[interface].get(identity)
            observing.count(type(self).__name__, "misses" if built is None else "hits")
            if built is None:
                with built_for(type(self).__name__):
                    built = Built(build(kernel_type, call, config), call)
                self._built[interface][identity] = built
            if compile_class is not None and not self.tune:
                known.chosen[compile_class] = kernel_type
                known.configured[compile_class, frozenset(config.items())] = built.kernel
                if config == kernel_type.default_config(call):
                    known.kernels[compile_class] = built.kernel
            return built.kernel

    def _known_kernel(self, known: KnownKernels, compile_class: Hashable, call: CallSpec) -> Kernel | None:
        """The kernel of a call of a class that is known; None where it is yet to be built."""
        if not tuning.may_differ(self):
            return known.kernels.get(compile_class)
        kernel_type = known.chosen.get(compile_class)
        if kernel_type is None:
            return None
        config = tuning.config_for(self, kernel_type, call, compile_class)
        return known.configured.get((compile_class, frozenset(config.items())))

    def _known_at(self, interface: str, device: DeviceFacts) -> KnownKernels:
        key = interface, device.type, device.index
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = KnownKernels(self._sites[interface], device.type)
        return known

    def get_or_build_kernel(self, name: str, inputs: Sequence[torch.Tensor | None]) -> Callable[..., Any] | Kernel:
        """The kernel for these inputs: a target's callable, or the in-tree kernel of a call site.

        Args:
            name: the call site, a key of `interfaces`.
            inputs: one tensor or None for each call-time input, in forward order.
        """
        tensors = tuple(inputs)
        facts = self._facts_of(tensors)
        device = self._call_device(tensors)
        target = registry.select_target(type(self).__name__, self.target, device)
        if target != backend.BUILTIN:
            return self._target_kernel(target, tensors, facts)
        with current_device(device):
            return self.kernel_for(name, self._call_spec(facts))

    def _target_kernel(self, target: str, tensors: Sequence[Any], facts: CallFacts) -> Callable[..., Any]:
        """The target's kernel; asks its builder once for each (device, dtypes, cache key of the shapes)."""
        builder = targets.builder_of(type(self).__name__, target)
        shapes = [tuple(tensor.shape) for tensor in tensors if tensor is not None]
        dtypes = tuple(None if tensor is None else tensor.dtype for tensor in tensors)
        key = (target, facts.device, dtypes, self._cache_key(*shapes))
        with self._lock:
            kernel = self._target_kernels.get(key)
            if kernel is None:
                specs = [facts[name] for name in self._input_names if name != OUT]
                kernel = targets.build(type(self).__name__, target, builder, specs, self._construction.params)
                self._target_kernels[key] = kernel
            return kernel

    def _cache_key(self, *input_shapes: tuple[int, ...]) -> Hashable:
        """What of the shapes decides which kernel a target builds; one build for each value.

        Default: every axis but those of `_static_axes`. Override it where kernels depend on less, for example
            on a product of axes.
        """
        static = self._static_axes
        if input_shapes and not static:
            _warn_full_shapes(type(self))
        return tuple(
            tuple(size for axis, size in enumerate(shape) if not {(i, axis), (i, axis - len(shape))} & static)
            for i, shape in enumerate(input_shapes)
        )

    def built_kernels(self, name: str) -> Mapping[Hashable, Kernel]:
        """The kernels built for a call site, by build identity. For inspection, never for dispatch."""
        return MappingProxyType({identity: built.kernel for identity, built in self._built[name].items()})

    def iter_kernels(self) -> Iterator[Kernel]:
        """Every kernel that the op holds, each once, through its delegates."""
        seen: set[int] = set()
        own = (built.kernel for kernels in self._built.values() for built in list(kernels.values()))
        delegated = (kernel for delegate in self.kernel_delegates() for kernel in delegate.iter_kernels())
        for kernel in (*own, *delegated):
            if id(kernel) not in seen:
                seen.add(id(kernel))
                yield kernel

    # Tuning

    def autotune(
        self, *example_inputs: Any, calls: Iterable[CallSpec] | None = None, **options: Any
    ) -> autotune.Report:
        """Tunes the kernels that the op has built and those that examples or calls need, and sets `tune`.

        Args:
            *example_inputs: tensors of one call, as passed to the op; or several such calls, each a tuple.
            calls: call specs to tune for, instead of or besides tensors.
            **options: passed on to `tileops.autotune.tune` (trials, budget, progress, ...).

        Returns:
            The tuning report. With nothing built and no examples it has no kernels and says what to pass.

        Raises:
            TuningError: every candidate of a kernel failed.
        """
        tuning.refuse_foreign_target(self)
        return tuning.tune_op(self, example_inputs, calls, options)

    def request_tune(self) -> None:
        """Puts the op in tuned mode: the next kernel that it builds uses its tuning record, or is tuned
        before its first launch.
        """
        tuning.refuse_foreign_target(self)
        self.tune = True
        for delegate in self.kernel_delegates():
            delegate.request_tune()

    def _forget_kernels(self) -> None:
        """Makes the next calls choose and build their kernels anew, as after tuning."""
        with self._lock:
            self._reset_plans()
            self._built = {site: {} for site in self.interfaces}
            self._known = {}
            self._kinds = {}

    # What is known of the last call on this thread

    @property
    def dtype(self) -> torch.dtype | None:
        """Dtype of the first tensor of this thread's last call; None before it."""
        plan = self._thread.plan
        return None if plan is None else plan.record.dtype

    @property
    def device(self) -> torch.device | None:
        """Device of this thread's last call; before it the ``device`` parameter of an op that has one, else None."""
        thread = self.__dict__.get("_thread")
        if thread is None or thread.plan is None:
            return self.__dict__.get("_device_parameter")
        return thread.plan.record.device

    @device.setter
    def device(self, value: torch.device | str | None) -> None:
        if "device" not in self.entry.signature.params:
            raise AttributeError(f"{type(self).__name__}.device is that of the last call; it cannot be set")
        object.__setattr__(self, "_device_parameter", value)

    def _last_call(self) -> CallRecord:
        plan = self._thread.plan
        if plan is None:
            raise RuntimeError(
                f"{type(self).__name__}: no call has completed yet on this thread; call the op before asking "
                f"for its cost"
            )
        return plan.record

    def eval_roofline(self) -> tuple[int, int]:
        """Floating-point operations and bytes of this thread's last completed call.

        Raises:
            RuntimeError: no call has completed yet.
        """
        return self._signature.roofline(self._last_call().checked)

    def eval_roofline_read_bytes(self) -> int:
        """Bytes that this thread's last completed call had to read.

        Raises:
            RuntimeError: no call has completed yet.
        """
        return self._signature.read_bytes(self._last_call().checked)

    def roof_key(self) -> str:
        """The unit whose peak bounds this op, as device profiles name it: that of an optimal implementation."""
        return "cuda_core.fp32"

    # For readers without tensors

    def _infer_output_shapes(self, *input_shapes: Sequence[int] | None) -> tuple[tuple[int, ...] | None, ...]:
        """Shapes of the outputs, from those of the inputs in forward order (None where absent). Needs no
        tensors.

        Raises:
            CheckError: the shapes violate the manifest entry.
        """
        failure: CheckError | None = None
        names = [name for name in self._input_names if name != OUT]
        shapes = dict(zip(names, input_shapes, strict=True))
        for dtypes in candidate_dtypes(self.entry, self._construction.values):
            tensors = tuple(
                None if shape is None else torch.empty(tuple(shape), dtype=dtypes[name], device="meta")
                for name, shape in ((name, shapes.get(name)) for name in self._input_names)
            )
            try:
                outputs = self._signature.check_call(self._construction, tensors).outputs
            except CheckError as error:  # perhaps of the dtypes that were tried: others may fit
                failure = failure or error
            else:
                return tuple(None if output is None else tuple(output.shape) for output in outputs)
        raise failure or CheckError(type(self).__name__, "inputs", "no dtypes fit the entry")

    def _validate_dtypes(self, *tensors: torch.Tensor | None) -> None:
        """Holds tensors, in forward order, to the entry as a call does; nothing runs.

        Raises:
            CheckError: a dtype, or another fact, violates the manifest entry.
        """
        self._require_tensors(tensors)
        self._signature.check_call(self._construction, tensors)

    # Copies

    def __reduce__(self) -> tuple[Callable[..., Op], tuple[Any, ...]]:
        return _rebuild, (type(self), dict(self._construction.params), self.target, self.tune)

    def __repr__(self) -> str:
        params = ", ".join(f"{name}={value!r}" for name, value in self._construction.params.items())
        target = "" if self.target is None else f"{', ' if params else ''}target={self.target!r}"
        return f"{type(self).__name__}({params}{target})"


def build(kernel_type: type[Kernel], call: CallSpec, config: Any) -> Kernel:
    """Compiles or loads everything that a kernel needs and makes the instance."""
    programs = kernel_type.programs(call, config)
    return kernel_type(config, {name: jit.get_entry(program) for name, program in programs.items()})


def _rebuild(cls: type[Op], params: dict[str, Any], target: str | None, tune: bool) -> Op:
    op = cls(**params, target=target)
    if tune:
        op.request_tune()
    return op


_warned_types: set[type] = set()


def _warn_full_shapes(cls: type[Op]) -> None:
    if cls not in _warned_types:
        _warned_types.add(cls)
        warnings.warn(
            f"{cls.__name__} has neither _static_axes nor its own _cache_key: its target builds one kernel "
            f"for each shape. Define one "
            f"of them on the class",
            TileOpsWarning,
            stacklevel=2,
        )


def _renew_locks() -> None:
    """In a forked child: a lock that another thread of the parent held would never be released."""
    for op in list(_instances):
        object.__setattr__(op, "_lock", threading.RLock())


def _ask_targets_again() -> None:
    """Another target may serve calls that were made before."""
    for op in list(_instances):
        with op._lock:
            op._reset_plans()


os.register_at_fork(after_in_child=_renew_locks)
registry.on_change(_ask_targets_again)
