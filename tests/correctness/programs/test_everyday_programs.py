"""Small programs of every day, by topic (`everyday_*.py`): what people write in and around models, each in eager and
compiled by the default backend, with sizes that change, gradients, state that is kept, and errors."""

from __future__ import annotations

import functools
import linecache
import sys
import types
import warnings

import pytest

from tests.correctness.programs import everyday_containers, everyday_functions, everyday_models, everyday_tensors
from tests.correctness.programs.everyday_prelude import PRELUDE
from tests.everyday_tools import Program, Table, matrix


def programs() -> Table:
    """The programs of all topics, in one module (their text is there for tracebacks and `inspect`)."""
    table = Table()
    module = types.ModuleType("everyday_programs")
    sys.modules[module.__name__] = module
    vars(module).update(case=table.program, fresh=functools.partial(table.program, made=True), T=matrix)
    texts = {"prelude": PRELUDE}
    for source in (everyday_containers, everyday_functions, everyday_tensors, everyday_models):
        texts.update(source.TOPICS)
    for topic, text in texts.items():
        name = f"<programs of every day: {topic}>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # mistakes that are meant
            exec(compile(text, name, "exec"), vars(module))
    return table


@pytest.mark.parametrize(**programs().params())
@pytest.mark.filterwarnings("ignore")
def test_everyday_programs(program: Program) -> None:
    program.check()
