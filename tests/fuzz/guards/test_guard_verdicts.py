"""Whatever is changed between two calls: when the native check says that a call fits, the readable one says so too, and
both find the same objects."""

from __future__ import annotations

import collections
import contextlib
import gc
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import bolide
from bolide.dynamo.entry.replay import Entry
from bolide.dynamo.entry.versions import _all
from bolide.dynamo.native import native
from bolide.dynamo.native.check import Check
from bolide.dynamo.native.layout import layout

GAIN = 2.0
TABLE: dict[str, Any] = {"scale": 1.5, "unused": 0}


class Slotted:
    __slots__ = ("rate", "spare")

    def __init__(self, rate: float) -> None:
        self.rate = rate


class Options:
    """As configurations of model libraries: attributes are read by Python code of its own."""

    aliases: dict[str, str] = {}
    depth = 2

    def __init__(self) -> None:
        self.width = 3
        self.names = ["a", "b"]

    def __getattribute__(self, name: str) -> Any:
        aliases = object.__getattribute__(self, "__class__").aliases
        return object.__getattribute__(self, aliases.get(name, name))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.act: nn.Module = nn.Tanh()
        self.residual = True
        self.calls = 0
        self.pair = (1.0, nn.Identity())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.pair[1](self.act(self.norm(self.linear(x)))) * self.pair[0]
        return x + y if self.residual else y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(4) for _ in range(3)])
        self.options = Options()
        self.slotted = Slotted(0.5)
        self.extras: dict[Any, Any] = {"bias": torch.ones(4), 1: 2.0}
        self.order = collections.OrderedDict(a=1, b=2)
        self.many: nn.Parameter | None = nn.Parameter(torch.ones(1, 1, 1, 1, 1, 2, 4))

    def forward(self, x: torch.Tensor, *more: torch.Tensor, flag: bool = False, **named: Any) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        if hasattr(self.options, "extra") or "late" in self.extras:
            x = x + 1
        if flag:
            x = -x
        for value in more:
            x = x + value
        for key, value in named.items():
            x = x * (value if key == "by" else 1)
        x = x * self.options.width * self.options.depth * len(self.options.names) * self.slotted.rate
        x = x + self.extras["bias"] * self.extras[1] * GAIN * TABLE["scale"]
        for key in self.order:
            x = x + self.order[key] * (2 if key == "a" else 3)
        return x + self.many.sum() if self.many is not None else x


def other_class(cls: type) -> type:
    return type(cls.__name__, (cls,), {})


class World:
    """A model, the arguments of the next call, and the ways to change both."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.net = Net()
        self.kept: list[Any] = []
        self.handles: list[Any] = []
        self.args: list[Any] = [torch.randn(2, 4)]
        self.kwargs: dict[str, Any] = {}

    def module(self) -> nn.Module:
        return self.rng.choice(list(self.net.modules()))

    def tensor(self) -> torch.Tensor:
        return self.rng.choice([*self.net.parameters(), *self.net.buffers(), self.net.extras["bias"]])

    def holder(self) -> tuple[nn.Module, str]:
        return self.rng.choice([(m, name) for m in self.net.modules() for name in m._parameters])

    def mutate(self) -> str:
        name = self.rng.choice([*MUTATIONS, *MILD * 3])
        try:
            MUTATIONS[name](self)
        except (AttributeError, KeyError, RuntimeError, TypeError) as error:  # after what was changed before
            return f"{name} ({error})"
        return name


def assign_global(name: str, value: Any) -> None:
    globals()[name] = value


def replace_parameter(w: World) -> None:
    module, name = w.holder()
    old = module._parameters[name]
    fresh = None if old is None else nn.Parameter(torch.randn_like(old), requires_grad=w.rng.random() < 0.8)
    setattr(module, name, fresh)


def data_assigned(w: World) -> None:
    t = w.tensor()
    t.data = w.rng.choice([t.data.clone(), t.data.double(), t.data.reshape(1, *t.shape), torch.ones(3), t.data.t()])


def changed_hooks(w: World) -> None:
    module = w.module()
    register = w.rng.choice(
        [
            lambda: module.register_forward_hook(lambda m, a, out: None),
            lambda: module.register_forward_pre_hook(lambda m, a: None),
            lambda: module.register_full_backward_hook(lambda m, gi, go: None),
        ]
    )
    w.handles.append(register())


def remove_hook(w: World) -> None:
    if w.handles:
        w.handles.pop().remove()


def replace_block(w: World) -> None:
    index = w.rng.randrange(3)
    w.net.blocks[index] = Block(4)
    if w.rng.random() < 0.5:
        gc.collect()


def load_state(w: World) -> None:
    with contextlib.suppress(RuntimeError):  # sizes differ by now
        w.net.load_state_dict({k: torch.randn(v.shape).to(v.dtype) for k, v in w.net.state_dict().items()})


def swap_class(w: World) -> None:
    module = w.module()
    module.__class__ = type(module).__mro__[1] if w.rng.random() < 0.4 else other_class(type(module))


def replace_namespace(w: World) -> None:
    target = w.rng.choice([w.module(), w.net.options])
    target.__dict__ = dict(object.__getattribute__(target, "__dict__"))


def many_globals(w: World) -> None:
    for i in range(50):
        assign_global(f"filler{w.rng.randrange(200)}", i)


def new_argument(w: World) -> None:
    if w.rng.random() < 0.6:
        w.args[0] = torch.randn(2, 4)
        return
    shape = w.rng.choice([(2, 4), (2, 4), (3, 4), (4, 2)])
    x = torch.randn(shape, dtype=w.rng.choice([torch.float32, torch.float32, torch.float64]))
    x = x.t() if shape == (4, 2) else x
    if w.rng.random() < 0.3:
        x.requires_grad_()
        x = x if w.rng.random() < 0.5 else x * 2
    w.args[0] = x


def new_rest(w: World) -> None:
    w.args[1:], w.kwargs = [], {}
    if w.rng.random() < 0.6:
        return
    w.args[1:] = [w.rng.choice([torch.ones(4), torch.zeros(1), 1.0, 2]) for _ in range(w.rng.randrange(3))]
    w.kwargs = {k: v for k, v in (("flag", True), ("by", 2.0), ("with", 1)) if w.rng.random() < 0.4}


def use_slot(w: World) -> None:
    slotted = w.net.slotted
    slotted.rate = w.rng.choice([0.5, 0.25])
    slotted.spare = object()


def class_attribute(w: World) -> None:
    w.rng.choice([Options, Block, nn.Linear]).depth = w.rng.choice([2, 3])


def instance_attribute(w: World) -> None:
    target = w.rng.choice([w.net.options, w.module()])
    setattr(target, w.rng.choice(["extra", "depth", "width", "calls", "residual"]), w.rng.choice([1, 2, 3, True]))


def drop_attribute(w: World) -> None:
    target = w.rng.choice([w.net.options, w.module()])
    names = [n for n in ("extra", "depth", "calls") if n in object.__getattribute__(target, "__dict__")]
    for name in names:
        delattr(target, name)


MUTATIONS: dict[str, Callable[[World], Any]] = {
    "nothing": lambda w: None,
    "train": lambda w: w.module().train(w.rng.random() < 0.5),
    "parameter": replace_parameter,
    "data": data_assigned,
    "in place": lambda w: w.tensor().data.add_(1),
    "requires_grad": lambda w: w.rng.choice(list(w.net.parameters())).requires_grad_(w.rng.random() < 0.5),
    "resize": lambda w: w.tensor().data.resize_(2, 2),
    "to": lambda w: w.module().to(w.rng.choice([torch.float32, torch.float64])),
    "load": load_state,
    "hook": changed_hooks,
    "unhook": remove_hook,
    "unhook all": lambda w: [remove_hook(w) for _ in range(len(w.handles))],
    "block": replace_block,
    "append block": lambda w: w.net.blocks.append(Block(4)) if len(w.net.blocks) < 4 else None,
    "pop block": lambda w: w.net.blocks.__delitem__(3) if len(w.net.blocks) == 4 else None,
    "swap blocks": lambda w: w.net.blocks._modules.update({"0": w.net.blocks[1], "1": w.net.blocks[0]}),
    "class": swap_class,
    "namespace": replace_namespace,
    "forward": lambda w: w.module().__dict__.update(forward=lambda x: x),
    "no forward": lambda w: [m.__dict__.pop("forward", None) for m in w.net.modules()],
    "tie": lambda w: setattr(w.net.blocks[0].linear, "weight", w.net.blocks[1].linear.weight),
    "swap tensors": lambda w: torch.utils.swap_tensors(w.net.blocks[0].linear.weight, w.net.blocks[1].linear.weight),
    "submodule gone": lambda w: setattr(w.rng.choice(w.net.blocks), "act", None),
    "submodule": lambda w: setattr(w.rng.choice(w.net.blocks), "act", w.rng.choice([nn.Tanh, nn.ReLU])()),
    "pair": lambda w: setattr(w.rng.choice(w.net.blocks), "pair", (w.rng.choice([1.0, 2.0]), nn.Identity())),
    "buffer": lambda w: w.module().register_buffer("running_mean", torch.zeros(4)),
    "instance attribute": instance_attribute,
    "attribute gone": drop_attribute,
    "class attribute": class_attribute,
    "alias": lambda w: setattr(Options, "aliases", w.rng.choice([{}, {}, {"width": "depth"}])),
    "names": lambda w: w.net.options.names.append("c"),
    "names cut": lambda w: w.net.options.names.__delitem__(slice(2, None)),
    "slot": use_slot,
    "other slotted": lambda w: setattr(w.net, "slotted", Slotted(w.rng.choice([0.5, 0.25]))),
    "extras": lambda w: w.net.extras.update({w.rng.choice(["late", 1, "x"]): w.rng.choice([2.0, 3.0])}),
    "extras gone": lambda w: [w.net.extras.pop(key, None) for key in ("late", "x")],
    "extras tensor": lambda w: w.net.extras.update(bias=torch.ones(w.rng.choice([4, 1]))),
    "order": lambda w: w.net.order.update(a=w.net.order.pop("a")),
    "many": lambda w: setattr(w.net, "many", nn.Parameter(torch.ones(1, 1, 1, 1, 1, 2, w.rng.choice([4, 5])))),
    "many transposed": lambda w: setattr(w.net.many, "data", w.net.many.data.transpose(-1, -2)),
    "options": lambda w: setattr(w.net, "options", Options()),
    "global": lambda w: assign_global("GAIN", w.rng.choice([2.0, 2.0, 3.0])),
    "many globals": many_globals,
    "table": lambda w: TABLE.update({w.rng.choice(["scale", "unused"]): w.rng.choice([1.5, 2.5])}),
    "table object": lambda w: assign_global("TABLE", dict(TABLE)),
    "argument": new_argument,
    "rest": new_rest,
    "copy": lambda w: w.net.__dict__.update(__import__("copy").deepcopy(w.net).__dict__),
    "garbage": lambda w: gc.collect(),
    "gradients": lambda w: [p.grad for p in w.net.parameters() if p.requires_grad][:0],
}


MILD = ["nothing", "in place", "load", "argument", "rest", "many globals", "garbage", "gradients", "names cut"]
MILD += ["unhook all", "no forward", "attribute gone", "instance attribute", "extras", "slot", "other slotted", "table"]


def entries_of(net: nn.Module) -> list[Entry]:
    return [entry for versions in _all if versions.name == type(net).__qualname__ for entry in versions.entries]


def native_verdict(check: Check, values: tuple[Any, ...]) -> Any:
    """What the recorded programs alone say: the values found, or None."""
    found = layout()
    assert found is not None
    programs = [record.program for record in check.records]
    return native.make_check(found, len(check.names), programs, lambda *_: None)(*values)


def same(a: Any, b: Any) -> bool:
    """The same object, or a number (as a tensor) made of the same one."""
    return a is b or (type(a) is type(b) and bool(torch.as_tensor(a).dim() == 0 and a == b))


def compare(
    entry: Entry, values: tuple[Any, ...], done: list[str], verdicts: collections.Counter[tuple[bool, bool]]
) -> bool:
    """Compare the verdicts and what they found; whether the call fits."""
    fast, slow = native_verdict(entry.check, values), entry.check.readable(*values)
    one_by_one = entry.check.asked(*values)
    assert (one_by_one is None) == (slow is None), done
    assert slow is None or all(map(same, one_by_one, slow)), done
    verdicts[fast is not None, slow is not None] += 1
    if fast is not None:
        assert slow is not None, done
        assert len(fast) == len(slow), done
        assert all(map(same, fast, slow)), done
    return slow is not None


STATES: list[Callable[[], Any]] = [
    torch.no_grad,
    torch.inference_mode,
    lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    lambda: torch.device("meta"),
    lambda: torch.set_grad_enabled(True),
]


def restore_classes() -> None:
    Options.aliases = {}
    for cls in (Options, Block, nn.Linear):
        if "depth" in cls.__dict__:
            del cls.depth
    Options.depth = 2
    assign_global("GAIN", 2.0)
    TABLE.update(scale=1.5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(layout() is None, reason="this build keeps its objects elsewhere")
@pytest.mark.parametrize("seed", range(6))
def test_native_verdicts_are_sound(seed: int) -> None:
    rng = random.Random(seed)
    print("seed", seed)
    verdicts: collections.Counter[tuple[bool, bool]] = collections.Counter()
    for _ in range(10):
        one_life(rng, verdicts)
    print(verdicts)
    assert verdicts[True, True] > 20, "hardly a call was passed natively"
    assert verdicts[False, False] > 50, "hardly a change was seen"


def one_life(rng: random.Random, verdicts: collections.Counter[tuple[bool, bool]]) -> None:
    """Change one model again and again, compiling it anew when it no longer fits; count (native, readable) verdicts."""
    bolide.reset()
    restore_classes()
    w = World(rng)
    fast = bolide.compile(w.net, backend="eager", fullgraph=True)
    done = ["nothing"]
    for _ in range(30):
        values = (w.net, tuple(w.args), w.kwargs)
        entries = entries_of(w.net)
        fits = [entry for entry in entries if compare(entry, values, done, verdicts)]
        if not fits and len(entries) < 5:
            try:
                fast(*w.args, **w.kwargs)
            except Exception:
                return  # the model does not run as it is now
        for entry in entries:
            with rng.choice(STATES)():
                compare(entry, values, done, verdicts)
            for _ in range(rng.randrange(3)):
                entry.check.slow(*values)
            compare(entry, values, done, verdicts)
        done = [w.mutate() for _ in range(rng.choice([0, 1, 1, 2, 5]))]
