import functools, pytest, torch, bolide
from tests.compiled_autograd_tools import assert_as_eager
import importlib.util, pathlib
def load(n):
    spec = importlib.util.spec_from_file_location(n, pathlib.Path(__file__).parent/"correctness/compiled_autograd"/f"{n}.py")
    m = importlib.util.module_from_spec(spec); spec.loader.exec_module(m); return m
P = [*load("test_hooks").PROGRAMS, *load("test_gradients").PROGRAMS]
@pytest.mark.parametrize("backend", ["eager","aot_eager", "inductor"])
@pytest.mark.parametrize("program", P, ids=lambda p: p.__name__)
def test(program, backend):
    bolide.reset()
    with bolide.dynamo.config.patch(suppress_errors=False):
        assert_as_eager(program, functools.partial(bolide.compile, backend=backend), rtol=1e-5, atol=1e-6)
