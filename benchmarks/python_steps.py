"""`python -m benchmarks.python_steps [operations | NAME ...]`: which calls the native driver makes as steps in Python.

Of the models in `benchmarks.models` (all, or those named), at `tiny` scale, in inference and in training; or of torch's
samples of operations (`op_db`), with gradients. A line for each that has some, then all kinds with how many have them.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils import _pytree as pytree

import bolide
from benchmarks import models
from bolide.inductor.config import config
from bolide.inductor.plan import Call
from bolide.inductor.runtime.native.program import PythonStep, Writer


@contextmanager
def steps_in_python() -> Iterator[list[str]]:
    """The steps in Python of the native programs that are made inside, from the second call of a graph on."""
    found: list[str] = []
    python = Writer.python

    def noted(self: Writer, step: PythonStep) -> None:
        of = step.function._make.args[2]  # type: ignore[attr-defined]
        found.append(str(of.operator) if isinstance(of, Call) else type(of).__name__)
        python(self, step)

    with mock.patch.object(Writer, "python", noted), config.patch(native_after=2):
        yield found


def of_models(names: list[str]) -> Iterator[tuple[str, Callable[[], object]]]:
    """Calls of models, by name."""
    for name in names or [*models.BUILDERS]:
        for train in (False, True):
            made = models.build(name, "tiny")
            compiled = bolide.compile(made.module.train(train))

            def call(made: models.Workload = made, compiled: Any = compiled, train: bool = train) -> None:
                if train:
                    made.loss(compiled(**made.inputs, **made.targets)).backward()
                elif made.inference:
                    with torch.no_grad():
                        compiled(**made.inputs)

            yield f"{name} {'training' if train else 'inference'}", call


def of_operations() -> Iterator[tuple[str, Callable[[], object]]]:
    """Calls of torch's samples of operations: three for each."""
    from tests.opdb_tools import OPERATIONS  # takes seconds

    for operation in OPERATIONS:
        dtype = torch.float32 if torch.float32 in operation.dtypes else next(iter(operation.dtypes))
        grad = operation.supports_autograd and dtype.is_floating_point
        samples = list(operation.sample_inputs("cpu", dtype, requires_grad=grad))
        for sample in samples[:: max(1, len(samples) // 3)][:3]:

            def program(*args: Any, operation: Any = operation, **kwargs: Any) -> Any:
                return operation(*args, **kwargs)

            compiled = bolide.compile(program)

            def call(compiled: Any = compiled, sample: Any = sample) -> None:
                found = pytree.tree_leaves(compiled(sample.input, *sample.args, **sample.kwargs))
                losses = [each.abs().sum() for each in found if isinstance(each, torch.Tensor) and each.requires_grad]
                if losses:
                    torch.autograd.backward(losses)

            yield f"{operation.name} {operation.variant_test_name}".strip(), call


def main(arguments: list[str]) -> None:
    """Prints the lines."""
    warnings.simplefilter("ignore")
    kinds: Counter[str] = Counter()
    calls = of_operations() if arguments == ["operations"] else of_models(arguments)
    with steps_in_python() as found:
        for name, call in calls:
            found.clear()
            try:
                for _ in range(2):
                    call()
            except Exception as error:  # some samples are errors, some models have no training
                print(f"{name}: {type(error).__name__}")
            if found:
                print(f"{name}: {dict(Counter(found))}", flush=True)
            kinds.update(set(found))
            bolide.reset()
    for kind, count in kinds.most_common():
        print(f"{count:5} {kind}")


if __name__ == "__main__":
    main(sys.argv[1:])
