"""Where ops meet the tuner: which config a kernel is built with, and `Op.autotune`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tileops import autotune, backend
from tileops.autotune.problem import kernel_name, problem_class, record_key
from tileops.autotune.record import default_records
from tileops.jit.artifact import ArtifactKey
from tileops.kernels.base import CallSpec, Config, Kernel
from tileops.ops import observing

if TYPE_CHECKING:
    from tileops.ops.base import Op


class _Wanted(NamedTuple):
    """Something to tune: a kernel for one call, with the contents of its integer tensors where they are
    known.
    """

    kernel: type[Kernel]
    call: CallSpec
    values: dict[str, torch.Tensor]


def config_for(op: Op, kernel: type[Kernel], call: CallSpec, compile_class: Hashable = None) -> Config:
    """The tile parameters that `kernel` is built with for `call`.

    A tuning record of the problem wins, from whichever process it comes; without one an op in tuned mode
    searches first (where measuring is allowed), any other takes the default. What an op found stays with it,
    also where nothing could be recorded.

    Args:
        op: the op.
        kernel: a kernel of it.
        call: the facts of a call.
        compile_class: its compile class, or None.
    """
    if kernel.tile_space is None:
        return kernel.default_config(call)
    if op._chosen:
        chosen = op._chosen.get(_key(op, kernel, call, compile_class).digest)
        if chosen is not None and kernel.tile_space.is_valid(chosen, call):
            return dict(chosen)
    if op.tune:
        with observing.counting_tunes(type(op).__name__):
            config = autotune.config_for(kernel, call, True, op=type(op).__name__)
        if autotune.tuning_refusal() is None:
            op._chosen[_problem(kernel, call)] = config
        return config
    if default_records().may_hold(op._tunable):
        found = autotune.lookup(kernel, call, _key(op, kernel, call, compile_class))
        return found or kernel.default_config(call)
    return kernel.default_config(call)


def tune_op(
    op: Op, examples: Sequence[Any], calls: Iterable[CallSpec] | None, options: dict[str, Any]
) -> autotune.Report:
    """See `Op.autotune`."""
    name = type(op).__name__
    reports = []
    done: set[tuple[type[Kernel], str]] = set()
    delegates = op.kernel_delegates()
    if delegates:
        for tensors in _each_call(examples):  # builds what the call needs, here and in the delegates
            with torch.no_grad():
                op(*tensors)
        examples = ()
    own, delegated = _divided(op, delegates, list(calls or ()))
    wanted_kernels = [*_built(op), *_of_examples(op, examples), *_of_calls(op, own)]
    for wanted in wanted_kernels:
        if wanted.kernel.tile_space is None:
            continue
        problem = _problem(wanted.kernel, wanted.call)
        if (wanted.kernel, problem) in done:
            continue
        done.add((wanted.kernel, problem))
        with observing.counting_tunes(name):
            report = autotune.tune(wanted.kernel, wanted.call, op=name, values=wanted.values, **options)
        reports.append(report)
        for result in report.kernels:
            op._chosen[problem] = dict(result.best)
    for delegate, its_calls in zip(delegates, delegated, strict=True):
        reports.append(delegate.autotune(calls=its_calls, **options))
    op.request_tune()
    op._forget_kernels()
    if reports:
        return autotune.Report.merge(reports)
    if wanted_kernels:
        return autotune.Report(note=f"{name}: the kernels of these calls have no tile parameters")
    return autotune.Report(
        note=f"{name} has built no kernel yet, so nothing was tuned: call the op first, or pass example "
        f"tensors or call specs to autotune. Kernels that it builds from now on are tuned"
    )


def may_differ(op: Op) -> bool:
    """Whether calls of one compile class may have different tile parameters: those found for some of its sizes. Where
    nothing was ever recorded for the op's kernels, a new call is not slowed down by looking for it.
    """
    return bool(op._chosen) or default_records().may_hold(op._tunable)


def tunable(kernels: Iterable[type[Kernel]]) -> frozenset[str]:
    """Names of those kernels that records may be about."""
    return frozenset(kernel_name(kernel) for kernel in kernels if kernel.tile_space is not None)


#: Problems that an op remembers the keys of.
_PROBLEMS = 1024


def _key(op: Op, kernel: type[Kernel], call: CallSpec, compile_class: Hashable) -> ArtifactKey:
    """`record_key`. The compile class stands for the programs, which take longest to find out."""
    if compile_class is None:
        return record_key(kernel, call)
    problem = kernel, compile_class, problem_class(kernel, call)
    key = op._problems.get(problem)
    if key is None:
        if len(op._problems) >= _PROBLEMS:
            op._problems.clear()
        key = op._problems[problem] = record_key(kernel, call)
    return key


def _problem(kernel: type[Kernel], call: CallSpec) -> str:
    return record_key(kernel, call).digest


def _built(op: Op) -> Iterator[_Wanted]:
    for kernels in op._built.values():
        for built in list(kernels.values()):
            yield _Wanted(type(built.kernel), built.call, {})


def _each_call(examples: Sequence[Any]) -> Sequence[Any]:
    """The tensors of each call: the examples are those of one call, or several calls each as a tuple of tensors."""
    several = all(isinstance(item, (tuple, list)) for item in examples)
    return examples if several else (examples,)


def _divided(op: Op, delegates: Sequence[Op], calls: Sequence[CallSpec]) -> tuple[list[CallSpec], list[list[CallSpec]]]:
    """The calls that are the op's own, and those of each delegate: of the first that has a call site for them."""
    own: list[CallSpec] = []
    delegated: list[list[CallSpec]] = [[] for _ in delegates]
    for call in calls:
        takers = [place for place, delegate in enumerate(delegates) if _site_of(delegate, call) is not None]
        (own if _site_of(op, call) is not None or not takers else delegated[takers[0]]).append(call)
    return own, delegated


def _site_of(op: Op, call: CallSpec) -> str | None:
    return next((site for site, face in op.interfaces.items() if isinstance(call, face.call_spec)), None)


def _of_examples(op: Op, examples: Sequence[Any]) -> Iterator[_Wanted]:
    for tensors in _each_call(examples):
        missing = len(op._input_names) - len(tensors)
        facts = op._facts_of((*tensors, *[None] * missing))
        call = op._call_spec(facts)
        (site,) = op.interfaces
        integers = {
            name: tensor
            for name, tensor in zip(op._input_names, tensors, strict=False)
            if tensor is not None and tensor.dtype in (torch.int32, torch.int64)
        }
        yield _Wanted(op._choose(site, call), call, integers)


def _of_calls(op: Op, calls: Iterable[CallSpec]) -> Iterator[_Wanted]:
    for call in calls:
        site = _site_of(op, call)
        if site is None:
            raise TypeError(f"{type(op).__name__}.autotune: {type(call).__name__} is no call spec of this op")
        yield _Wanted(op._choose(site, call), call, {})


def refuse_foreign_target(op: Op) -> None:
    """Kernels of another target tune themselves, if at all.

    Raises:
        BackendError: the op was constructed for another target.
    """
    if op.target not in (None, backend.BUILTIN):
        raise backend.BackendError(
            f"{type(op).__name__}: kernels of target {op.target!r} cannot be tuned from here; tune them in "
            f"their own package"
        )
