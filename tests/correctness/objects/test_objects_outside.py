"""Objects of the outside world that are more than attributes: generators of random numbers, locks, loggers, weak
containers, dicts that are their own namespace."""

from __future__ import annotations

import builtins
import collections
import copy
import enum
import functools
import gc
import logging
import operator
import random
import threading
import weakref
from typing import Any

import pytest
import torch

import bolide
from bolide.support import events
from bolide.support.errors import Unsupported
from tests.object_tools import describe

X = torch.arange(6.0).view(2, 3)


class Box:
    def __init__(self: Any, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Options(dict):  # type: ignore[type-arg]
    """Items that are attributes."""

    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.__dict__ = self


def test_random_numbers_are_drawn_from_the_module_s_own_generator() -> None:
    def program(x: Any) -> Any:
        return x * random.random() + random.randint(1, 1000)

    compiled = bolide.compile(program, backend="eager")
    state = random.getstate()
    expected = [program(X) for _ in range(4)]
    after = random.getstate()
    random.setstate(state)
    assert all(torch.equal(compiled(X), each) for each in expected) and random.getstate() == after


def test_a_module_that_breaks_in_its_own_method_is_compiled() -> None:
    """A live variable named `self` becomes an input of the graph, whose function has a `self` of its own."""

    def program(x: Any, module: Any) -> Any:
        return copy.deepcopy(module)(x)

    module = torch.nn.Linear(3, 3)
    assert torch.equal(bolide.compile(program, backend="eager")(X, module), program(X, module))


def test_a_dict_that_is_its_own_namespace() -> None:
    def program(x: Any, options: Any) -> Any:
        options.count += 1
        options["y"] = x * options.scale
        made: Any = Options(a=x, b=2)
        made.c = made.a + made["b"]
        return options.y + options["count"], "missing" in options, hasattr(options, "missing"), made, made.c

    compiled = bolide.compile(program, backend="eager", fullgraph=True)
    ours, theirs = Options(scale=3, count=0), Options(scale=3, count=0)
    for _ in range(2):
        assert describe((compiled(X, ours), ours)) == describe((program(X, theirs), theirs))
    made = compiled(X, ours)[3]
    made["new"] = 1
    assert made.new == 1 and made.__dict__ is made


def test_weak_containers_are_read() -> None:
    box = Box(n=2)
    values, keys, method = weakref.WeakValueDictionary({"a": box}), weakref.WeakKeyDictionary({box: 3}), box.__str__

    def program(x: Any, box: Any, values: Any, keys: Any) -> Any:
        keys[box] = keys[box] + 1
        return x * keys[box], values["a"] is box, values.get("a") is box, values.get("b"), len(keys), method

    compiled = bolide.compile(program, backend="eager", fullgraph=True)
    for call in range(2):
        found = compiled(X, box, values, keys)
        assert torch.equal(found[0], X * (4 + call)) and found[1:] == (True, True, None, 1, method)


def test_a_break_inside_a_loop_over_a_weak_set() -> None:
    """The set counts its iterators by objects of its own."""
    boxes = [Box(n=i) for i in range(3)]
    found = weakref.WeakSet(boxes)

    def program(x: Any, found: Any) -> Any:
        for box in found:
            x = x + box.n
            bolide.graph_break()
        return x

    for _ in range(2):
        assert torch.equal(bolide.compile(program, backend="eager")(X, found), X + 3)
        assert not found._iterating  # type: ignore[attr-defined]


def test_locks_of_the_outside_are_held_for_real() -> None:
    lock, held = threading.Lock(), []

    def program(x: Any) -> Any:
        with lock:
            held.append(lock.locked())
            x = x * 2
        own = threading.RLock()
        with own:
            return x + 1

    compiled = bolide.compile(program, backend="eager")
    assert all(torch.equal(compiled(X), X * 2 + 1) for _ in range(3))
    assert held == [True] * 3 and not lock.locked()


class PerThread(threading.local):
    """Its state in a thread is made when the thread first asks for it."""

    kind = "per thread"

    def __init__(self, factor: float = 2.0) -> None:
        self.calls, self.factor = 0, factor


class PerThreadApart(PerThread):
    __slots__ = ()


class Asked(PerThread):
    def __getattr__(self, name: str) -> int:
        return len(name)


@pytest.mark.parametrize("make", [threading.local, PerThread, lambda: PerThread(3.0), PerThreadApart, Asked])
@pytest.mark.parametrize("dynamic", [None, True])
def test_variables_of_a_thread(make: Any, dynamic: bool | None) -> None:
    def program(local: Any, x: Any, new: bool) -> Any:
        local.calls = getattr(local, "calls", 0) + 1
        if new:
            local.last = x.detach() * local.scale
        seen = hasattr(local, "last"), sorted(vars(local)), getattr(local, "kind", "none")
        if not new and "last" in local.__dict__:
            del local.last
        own = type(local)()
        own.scale = local.scale + 1
        return x * own.scale * getattr(local, "factor", 1), seen, vars(own)["scale"]

    def run(program: Any) -> list[Any]:
        local, results = make(), []

        def work(scale: float) -> None:
            local.scale = scale
            for size in (2, 3, 5, 3):
                x = torch.arange(size * 1.0).requires_grad_()
                value, *seen = program(local, x, size < 5)
                value.square().sum().backward()
                results.append((value.detach(), x.grad, seen, local.calls, vars(local)))

        for scale in (1.5, 5.5):
            thread = threading.Thread(target=work, args=(scale,))
            thread.start()
            thread.join()
        work(2.5)
        return results

    expected = run(program)
    assert len(expected) == 12 and describe(run(bolide.compile(program, dynamic=dynamic, fullgraph=True))) == describe(
        expected
    )


def test_the_level_of_a_logger_is_guarded() -> None:
    logger = logging.getLogger("bolide.tests.level")
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)

    def program(x: Any) -> Any:
        logger.debug("shape %s", tuple(x.shape))
        return x + 1 if logging.getLogger("bolide.tests.level").isEnabledFor(logging.DEBUG) else x

    compiled = bolide.compile(program, backend="eager", fullgraph=True)
    for level in (logging.INFO, logging.DEBUG, logging.INFO):
        logger.setLevel(level)
        assert torch.equal(compiled(X), X + (level == logging.DEBUG))
    assert said == ["shape (2, 3)"]


def test_attributes_of_loggers_are_written_for_real_only() -> None:
    logger = logging.getLogger("bolide.tests.disabled")

    def program(x: Any) -> Any:
        logger.disabled = not logger.disabled
        return x + logger.disabled

    compiled = bolide.compile(program, backend="eager")
    assert [torch.equal(compiled(X), X + after) for after in (1, 0, 1, 0)] == [True] * 4


class Log(list):  # type: ignore[type-arg]
    """A list with a method, an attribute and its own way of growing."""

    added = 0

    def append(self, item: Any) -> None:
        self.added += 1
        super().append((self.added, item))


class Odd(list):  # type: ignore[type-arg]
    """A list that shows something else than it holds."""

    def __iter__(self) -> Any:
        return iter(["shown"])

    def __len__(self) -> int:
        return 77


class Recent(collections.deque):  # type: ignore[type-arg]
    pass


class Names(set):  # type: ignore[type-arg]
    pass


class Doubling(dict):  # type: ignore[type-arg]
    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value * 2)


def grow_a_log(x: Any, log: Any) -> Any:
    for i in range(3):
        log.append(x * i)
    log[0] = "first"
    log += [x]
    del log[1]
    return log.added, len(log), log[-1] is x, isinstance(log, Log), log[1:], [*log], log + [1], bool(log), log == [1]


def use_an_odd_list(x: Any, items: Any) -> Any:
    items.append(x)
    items.sort(key=id)
    return len(items), list(items), list.__len__(items), items[0] is x


def rotate(x: Any, queue: Any) -> Any:
    queue.append(x)
    queue.rotate(1)
    queue.appendleft(4)
    return queue[0], len(queue), queue.maxlen, list(queue)


def change_names(x: Any, names: Any) -> Any:
    names |= {"c"}
    names.discard("a")
    return "b" in names, len(names), sorted(names | {"z"}), names == {"b"}


def fill_doubling(x: Any, table: Any) -> Any:
    table["a"] = 3
    table["t"] = x
    table.setdefault("c", 5)
    return table["a"], list(table)


def change_bytes(x: Any, data: Any) -> Any:
    data.append(65)
    data[0] = 66
    data += b"q"
    return bytes(data), len(data), data[1]


@pytest.mark.parametrize(
    ("program", "make"),
    [
        (grow_a_log, Log),
        (use_an_odd_list, Odd),
        (rotate, lambda: Recent([1, 2, 3], maxlen=3)),
        (change_names, lambda: Names("ab")),
        (fill_doubling, Doubling),
        (change_bytes, lambda: bytearray(b"abc")),
    ],
)
def test_containers_of_classes_of_their_own(program: Any, make: Any) -> None:
    ours, theirs = make(), make()
    compiled = bolide.compile(program, backend="eager", fullgraph=True)
    for _ in range(3):
        assert describe((compiled(X, ours), ours)) == describe((program(X, theirs), theirs))
        if isinstance(ours, Odd):
            assert [torch.equal(item, X) for item in list.__iter__(ours)] == [True] * list.__len__(theirs)


def _worked_set(rng: random.Random) -> set[int]:
    """A set that things were added to and taken from."""
    made: set[int] = set()
    pool = [rng.getrandbits(40) for _ in range(rng.choice([3, 6, 12]))]
    for _ in range(rng.choice([3, 8, 20, 60])):
        (made.add if rng.random() < 0.65 else made.discard)(rng.choice(pool))
    return made


def test_what_was_taken_out_of_a_set_counts_in_its_order(seed: int) -> None:
    """Copies of such a set have another order. One of twenty orders is not found."""

    def program(x: Any, names: Any) -> Any:
        return list(names)

    rng = random.Random(seed)
    refused = 0
    for _ in range(100):
        names = Names(_worked_set(rng))
        for each in [*names][: rng.randrange(3)]:
            names.discard(each)
        try:
            assert bolide.compile(program, backend="eager", fullgraph=True)(X, names) == list(names)
        except Unsupported:
            refused += 1
    assert refused <= 12


def test_sets_of_objects() -> None:
    def program(x: Any, a: Any, found: Any) -> Any:
        found.discard(a)
        new = Box(n=5)
        found.add(new)
        return x * len(found), a in found, sum(box.n for box in found), new, new in found

    a, b = Box(n=1), Box(n=2)
    ours = {a, b}
    compiled = bolide.compile(program, backend="eager", fullgraph=True)
    found = compiled(X, a, ours)
    assert torch.equal(found[0], X * 2) and (found[1], found[2], found[4]) == (False, 7, True)
    assert ours == {b, found[3]}


SCALED: Any = None


def test_attributes_of_functions() -> None:
    global SCALED

    def scaled(x: Any) -> Any:
        scaled.calls = getattr(scaled, "calls", 0) + 1  # type: ignore[attr-defined]
        return x * scaled.calls * scaled.scale  # type: ignore[attr-defined]

    def program(x: Any) -> Any:
        SCALED.new = SCALED(x)
        y = SCALED.new
        del SCALED.new
        return y + SCALED(x), hasattr(SCALED, "new"), sorted(vars(SCALED))

    SCALED = scaled
    compiled = bolide.compile(program, backend="eager", fullgraph=True)
    for scale in (1, 3, 2):
        scaled.scale = scale  # type: ignore[attr-defined]
        scaled.calls = 0  # type: ignore[attr-defined]
        expected = program(X)
        assert scaled.calls == 2  # type: ignore[attr-defined]
        scaled.calls = 0  # type: ignore[attr-defined]
        assert describe(compiled(X)) == describe(expected) and scaled.calls == 2  # type: ignore[attr-defined]
    del scaled.scale  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="scale"):
        compiled(X)


def test_attributes_of_classes_are_deleted() -> None:
    class Base:
        def method(self) -> int:
            return 1

    class Derived(Base):
        def method(self) -> int:
            return 2

    def program(x: Any) -> Any:
        made = Derived()
        before = made.method()
        del Derived.method
        after = made.method()
        try:
            del Derived.method
        except AttributeError as error:
            return x, before, after, str(error)

    expected = bolide.compile(program, backend="eager", fullgraph=True)(X)
    assert expected[1:3] == (2, 1) and "method" in expected[3] and "method" not in vars(Derived)


class Output(collections.OrderedDict):  # type: ignore[type-arg]
    """Items that are attributes as well, kept in step by methods of its own."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __setattr__(self, key: str, value: Any) -> None:
        if key in self:
            super().__setitem__(key, value)
        super().__setattr__(key, value)


def test_items_and_attributes_that_write_each_other() -> None:
    def program(x: Any, output: Any) -> Any:
        output.state = x + 1
        output["extra"] = x * 2
        output.note = "no item"
        return output.state, list(output), output.extra is output["extra"]

    ours, theirs = Output(state=X), Output(state=X)
    compiled = bolide.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        assert describe((compiled(X, ours), ours)) == describe((program(X, theirs), theirs))


def test_values_die_when_the_program_drops_them(tmp_path: Any) -> None:
    """Capture, also one that is thrown away, leaves nothing behind that keeps the program's objects alive."""
    path = tmp_path / "lines"
    counts: list[int] = []

    def look() -> None:
        counts.append(len(path.read_text().split()))

    count_lines: Any = bolide.disable(look)  # type: ignore[arg-type]

    def program(x: Any, step: int) -> Any:
        y = x * 2
        open(path, "a").write(f"{step}\n")  # noqa: SIM115
        count_lines()
        return y

    compiled = bolide.compile(program, backend="eager")
    gc.disable()
    try:
        for step in range(5):
            assert torch.equal(compiled(X, step), X * 2)
    finally:
        gc.enable()
    assert counts == [1, 2, 3, 4, 5]


def test_a_loop_over_a_data_loader_is_compiled_once() -> None:
    items = torch.utils.data.TensorDataset(torch.randn(8, 3))
    loader = torch.utils.data.DataLoader(items, batch_size=2)
    model = torch.nn.Linear(3, 2)

    def program(loader: Any, model: Any) -> Any:
        total = torch.zeros(2)
        for (batch,) in loader:
            total = total + model(batch).sum(0)
        return total

    captured: list[Any] = []
    compiled = bolide.compile(program, backend="eager")
    for _ in range(2):
        with events.subscribed(lambda event: captured.append(event) if isinstance(event, events.Captured) else None):
            assert torch.equal(compiled(loader, model), program(loader, model))
    assert len(captured) <= 5


class Counted:
    """A descriptor that counts its writes, and reads through `super`."""

    writes = 0

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"_{name}"

    def __get__(self, owner: Any, cls: Any = None) -> Any:
        return self if owner is None else getattr(owner, self.name, 0)

    def __set__(self, owner: Any, value: Any) -> None:
        self.writes += 1
        setattr(owner, self.name, value)


class Pooled:
    """One instance for each key."""

    pool: dict[int, Any] = {}
    value = Counted()

    def __new__(cls, key: int) -> Any:
        if key not in cls.pool:
            cls.pool[key] = super().__new__(cls)
        return cls.pool[key]

    def __init__(self, key: int) -> None:
        self.key = key


class Deep(Pooled):
    @property
    def through(self) -> Any:
        return super().value


def test_descriptors_have_state_and_instances_are_made_past_new() -> None:
    class Mine(Deep):
        own = Counted()

    def program(x: Any) -> Any:
        class Local:
            own = Counted()

        Pooled.pool.clear()
        first, second = Mine(1), Mine(1)
        first.value = first.own = x
        local = Local()
        local.own = first.through + 1
        return first is second, second.value, local.own, vars(Local)["own"].writes, Mine.own.writes

    compiled = bolide.compile(program, backend="eager", fullgraph=True)
    for call in range(1, 4):
        before = Counted.writes, vars(Pooled)["value"].writes
        found = compiled(X)
        assert (found[0], found[3], found[4]) == (True, 1, call)
        assert torch.equal(found[1], X) and torch.equal(found[2], X + 1)
        assert (Counted.writes, vars(Pooled)["value"].writes) == (before[0], before[1] + 1)


def test_cached_predicates_of_libraries_are_constants() -> None:
    is_torch_available = pytest.importorskip("transformers.utils").is_torch_available
    compiled = bolide.compile(lambda x: x + is_torch_available(), backend="eager", fullgraph=True)
    assert hasattr(is_torch_available, "cache_info") and torch.equal(compiled(X), X + 1)


class Lazily:
    """Asks `__getattr__` for what is not there, and for what cannot be computed."""

    __slots__ = ("absent", "there")

    def __init__(self) -> None:
        self.there = 1

    def __getattr__(self, name: str) -> Any:
        if name.startswith("none"):
            raise AttributeError(f"no {name}")
        return len(name)

    @property
    def failing(self) -> Any:
        raise AttributeError("inside")

    @property
    def none_failing(self) -> Any:
        return self.none_there


class Layer(torch.nn.Module):
    @property
    def wrong(self) -> Any:
        return self.not_there


def _asked(x: torch.Tensor, lazily: Any) -> Any:
    found = [lazily.there, lazily.absent, lazily.failing, lazily.other, hasattr(lazily, "none"), hasattr(lazily, "w")]
    for name in ("none_failing", "none_at_all"):
        try:
            getattr(lazily, name)
        except AttributeError as error:
            found.append((str(error), repr(error.__context__)))
    return x + 1, found


@pytest.mark.parametrize("made", ["inside", "outside"])
def test_getattr_is_asked_for_attributes_whose_computation_raises(made: str) -> None:
    def program(x: torch.Tensor, lazily: Any) -> Any:
        return _asked(x, lazily if made == "outside" else Lazily())

    compiled = bolide.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        assert compiled(torch.ones(1), Lazily()) == program(torch.ones(1), Lazily())
    lazily = Lazily()
    lazily.absent = "set"  # type: ignore[attr-defined]
    assert compiled(torch.ones(1), lazily)[1] == program(torch.ones(1), lazily)[1]


def test_a_property_of_a_module_that_raises_says_that_the_module_does_not_have_it() -> None:
    def program(x: torch.Tensor, layer: Layer) -> Any:
        try:
            return layer.wrong
        except AttributeError as error:
            return x, str(error)

    expected = program(torch.ones(1), Layer())
    assert "wrong" in expected[1]
    assert bolide.compile(program, backend="eager", fullgraph=True)(torch.ones(1), Layer()) == expected


def test_the_marker_of_a_library_is_itself_across_a_break() -> None:
    def key(number: int) -> int:
        look()
        return -number

    @bolide.disable
    def look() -> None:
        pass

    def program(x: torch.Tensor, numbers: list[int]) -> Any:
        return x + max(numbers, key=key), min(iter([]), key=key, default=numbers[0])

    compiled = bolide.compile(program, backend="eager")
    for numbers in ([3, 1, 2], [1, 3, 2], [2, 3, 1]):
        assert compiled(torch.ones(1), numbers) == program(torch.ones(1), numbers)


class Meta(type):
    made = 0

    def __getattr__(cls, name: str) -> Any:
        if name == "nothing":
            raise AttributeError("no such thing")
        return cls.__name__, name


class Made(metaclass=Meta):
    code = 1


def test_attributes_of_metaclasses() -> None:
    def program(x: torch.Tensor) -> Any:
        Meta.made += 1
        return x + Made.made, Made.other, hasattr(Made, "nothing"), getattr(Made, "code", 5)  # type: ignore[attr-defined]

    compiled = bolide.compile(program, backend="eager", fullgraph=True)
    Meta.made = 0
    expected = [program(torch.ones(1)) for _ in range(3)]
    Meta.made = 0
    assert [compiled(torch.ones(1)) for _ in range(3)] == expected


class Level(enum.IntEnum):
    HIGH = 5


class Index:
    def __init__(self, n: int) -> None:
        self.n = n

    def __index__(self) -> int:
        return self.n % 3


def test_symbolic_numbers_meet_enumerations_and_objects_that_are_indices() -> None:
    def program(x: torch.Tensor, n: int) -> Any:
        items = [1, 2, 3, 4]
        return x + (Level.HIGH + n), n * Level.HIGH, items[Index(n)], items[Index(n) :], items[: Index(n + 1) : 2]

    compiled = bolide.compile(program, backend="eager", fullgraph=True)
    for n in (3, 4, 5, 6):
        found, expected = compiled(X, n), program(X, n)
        assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]


def test_division_by_an_integer_that_becomes_zero_raises() -> None:
    def program(x: torch.Tensor, n: int) -> Any:
        try:
            return x + 1, 1 / n
        except ZeroDivisionError as error:
            return x - 1, str(error)

    compiled = bolide.compile(program, backend="eager")
    for n in (3, 4, 0, 5, 0):
        assert compiled(X, n)[1] == program(X, n)[1]


@pytest.mark.parametrize("how", [operator.truediv, operator.floordiv, operator.mod])
def test_division_by_a_float_that_becomes_zero_raises(how: Any) -> None:
    def program(x: torch.Tensor, a: float) -> Any:
        try:
            return x * how(7.5, a)
        except ZeroDivisionError as error:
            return x - 1, str(error)

    compiled = bolide.compile(program, backend="eager")
    for a in (3.0, 4.0, 5.5, 0.0, 2.5, 0.0):
        assert describe(compiled(X, a)) == describe(program(X, a))


def test_what_stands_for_code_in_c_handles_no_exceptions() -> None:
    def taking(p: int, **more: int) -> int:
        return p + len(more)

    def program(x: torch.Tensor, numbers: list[int]) -> Any:
        log = []
        for action in (
            lambda: functools.reduce(operator.add, iter(numbers[:0])),
            lambda: list(zip(numbers, (i for i in range(1)), strict=True)),
            lambda: taking(1, **{1: 2}),  # type: ignore[misc]
        ):
            try:
                action()  # type: ignore[no-untyped-call]
            except (TypeError, ValueError) as error:
                log.append((str(error), repr(error.__context__)))
        return x + len(log), log

    compiled = bolide.compile(program, backend="eager", fullgraph=True)
    assert compiled(X, [1, 2])[1] == program(X, [1, 2])[1]


def test_weak_references_across_breaks() -> None:
    def program(x: torch.Tensor, numbers: list[int]) -> Any:
        log: list[Any] = []
        box, other = Box(n=1), Box(n=2)
        reference, proxied, late = weakref.ref(box), weakref.proxy(other), Box(n=3)
        gone = weakref.ref(Box(n=4))
        values = weakref.WeakValueDictionary({"a": late})
        keys, items = weakref.WeakKeyDictionary({late: 5}), weakref.WeakSet([late])
        items.add(box)
        log.append(len(items))
        bolide.graph_break()
        log.append((proxied.n, gone() is None, values["a"] is late, keys[late], late in items, reference() is box))
        watched = weakref.ref(late)
        bolide.graph_break()
        x = x + 1
        del late
        log.append((watched() is None, len(values), len(keys), len(items)))
        return x, log

    compiled = bolide.compile(program, backend="eager")
    for _ in range(2):
        assert compiled(X, [1])[1] == program(X, [1])[1]


class Breaking:
    """Items for a container that takes them one by one."""

    def __init__(self, *items: Any) -> None:
        self.given = items

    def items(self) -> Any:
        bolide.graph_break()
        return self.given


def test_a_break_inside_a_weak_container_is_one_in_front_of_it() -> None:
    held = Box(n=1)

    def program(x: torch.Tensor) -> Any:
        keys, values = weakref.WeakKeyDictionary({held: 1}), weakref.WeakValueDictionary()
        x = x + 1
        keys.update(Breaking((held, 2)))
        values.update(Breaking(("a", held)))
        return x, keys[held], len(keys), values["a"] is held

    compiled = bolide.compile(program, backend="eager")
    for _ in range(3):
        assert compiled(X)[1:] == program(X)[1:] == (2, 1, True)


def test_copies_across_breaks() -> None:
    class Copied:
        def __deepcopy__(self, memo: Any) -> Any:
            bolide.graph_break()
            return type(self)()

    def program(x: torch.Tensor, numbers: list[int]) -> Any:
        found = copy.deepcopy([numbers, x, Copied(), numbers, x])
        own: list[Any] = [1]
        own.append(own)
        bolide.graph_break()
        return x + len(own[1]), found[0] is found[3], found[1] is found[4], own[1] is own[1][1], len(found[0])

    compiled = bolide.compile(program, backend="eager")
    for numbers in ([1, 2], [1, 2], [3]):
        assert compiled(X, numbers)[1:] == program(X, numbers)[1:]


def test_a_group_of_exceptions_goes_on_behind_a_break() -> None:
    def program(x: torch.Tensor, group: Any) -> Any:
        error = group("g", [KeyError(1), group("h", [ValueError(2)])])
        bolide.graph_break()
        try:
            raise error
        except ValueError:
            pass
        except Exception as caught:
            bolide.graph_break()
            return x + 1, str(caught), [type(each).__name__ for each in caught.exceptions]  # type: ignore[attr-defined]

    group: Any = getattr(builtins, "ExceptionGroup", None)
    if group is None:  # before 3.11

        class Group(Exception):
            def __init__(self, text: str, exceptions: list[Any]) -> None:
                super().__init__(text, exceptions)
                self.exceptions = exceptions

        group = Group
    compiled = bolide.compile(program, backend="eager")
    for _ in range(2):
        assert compiled(X, group)[1:] == program(X, group)[1:]


class Updated:
    def __init__(self, log: list[Any], b: int) -> None:
        self.__dict__.update(log=log, b=paused(b))


@bolide.disable
def paused(b: int) -> int:
    return b


def test_the_namespace_of_a_new_object_is_its_own_behind_a_break() -> None:
    """Beside a function that holds itself, objects are made empty first and filled then."""

    def program(x: torch.Tensor, b: int) -> Any:
        def down(n: int) -> int:
            return down(n - 1) if n else b

        made = Updated([down(2)], b)
        return x + made.b, sorted(vars(made)), down(1)  # type: ignore[attr-defined]

    compiled = bolide.compile(program, backend="eager")
    for b in (1, 2, 3):
        assert compiled(X, b)[1:] == program(X, b)[1:]


class Watched:
    """Notes what is asked of its instances, natively and by the program alike."""

    def __getattribute__(self, name: str) -> Any:
        ASKED.append(name)
        return super().__getattribute__(name)


ASKED: list[str] = []


def test_nothing_but_the_program_asks_instances_for_attributes() -> None:
    def program(x: Any) -> Any:
        made = Watched()
        made.__dict__["a"] = x
        return super(Watched, made).__getattribute__("__dict__")["a"] + made.a

    ASKED.clear()
    expected, asked = program(X), list(ASKED)
    compiled = bolide.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        ASKED.clear()
        assert torch.equal(compiled(X), expected) and asked == ASKED


@functools.lru_cache
def doubled(n: int) -> int:
    bolide.graph_break()
    return n * 2


def test_a_break_inside_a_cached_function_is_one_in_front_of_it() -> None:
    def program(x: Any, n: int) -> Any:
        return x * 2 + doubled(n)

    compiled = bolide.compile(program, backend="eager")
    for n in (3, 4, 5, 3, 6):
        assert torch.equal(compiled(X, n), program(X, n))
