"""Training as people write it: loops of every style, optimizers, schedulers, hooks, checkpoints."""

from __future__ import annotations

import copy
import io

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler as LS

from tests.ordinary_tools import program


def mlp(i=6, o=3):
    return nn.Sequential(nn.Linear(i, 8), nn.ReLU(), nn.Linear(8, o))


def data(n, i=6, o=3, seed=0):
    g = torch.Generator().manual_seed(seed + n)
    return torch.randn(n, i, generator=g), torch.randint(0, o, (n,), generator=g)


NS = (4, 7, 3, 4)


@program
def plain_loop(C):
    m = mlp()
    cm = C(m)
    opt = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
    out = []
    for n in NS:
        x, y = data(n)
        opt.zero_grad()
        loss = F.cross_entropy(cm(x), y)
        loss.backward()
        opt.step()
        out.append(loss.item())
    return out, m


@program
def grad_accum(C):
    m = mlp()
    cm = C(m)
    opt = torch.optim.AdamW(m.parameters(), lr=0.01)
    out = []
    for step, n in enumerate(NS * 2):
        x, y = data(n, seed=step)
        loss = F.cross_entropy(cm(x), y) / 2
        loss.backward()
        if (step + 1) % 2 == 0:
            out.append(nn.utils.clip_grad_norm_(m.parameters(), 0.5).item())
            opt.step()
            opt.zero_grad(set_to_none=step % 4 == 1)
    return out, m


@program
def compiled_step(C):
    m = mlp()
    opt = torch.optim.Adam(m.parameters(), lr=0.01)

    @C
    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(m(x), y)
        loss.backward()
        opt.step()
        return loss.detach()

    return [step(*data(n)) for n in NS], m, opt.state_dict()


@program
def compiled_step_clip(C):
    m = mlp()
    opt = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2)

    @C
    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(m(x), y, label_smoothing=0.1)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(m.parameters(), max_norm=0.3)
        opt.step()
        return loss.item(), norm

    return [step(*data(n)) for n in NS], m


def sched(name, mk, metric=False):
    def run(C):
        m = mlp()
        cm = C(m)
        opt = torch.optim.SGD(m.parameters(), lr=0.1)
        s = mk(opt)
        out = []
        for n in NS * 2:
            x, y = data(n)
            opt.zero_grad()
            loss = F.cross_entropy(cm(x), y)
            loss.backward()
            opt.step()
            s.step(loss.item()) if metric else s.step()
            out.append((loss.item(), opt.param_groups[0]["lr"]))
        return out, m

    run.__name__ = "sched_" + name
    program(run)


sched("step", lambda o: LS.StepLR(o, 2, 0.5))
sched("cos", lambda o: LS.CosineAnnealingLR(o, 5))
sched("onecycle", lambda o: LS.OneCycleLR(o, 0.2, total_steps=20))
sched("plateau", lambda o: LS.ReduceLROnPlateau(o, patience=1), True)
sched("lambda", lambda o: LS.LambdaLR(o, lambda e: 0.9**e))
sched("seq", lambda o: LS.SequentialLR(o, [LS.LinearLR(o, 0.1, total_iters=2), LS.ExponentialLR(o, 0.9)], [2]))


def inner_sched(name, mk, mo):
    def run(C):
        m = mlp()
        opt = mo(m.parameters())
        s = mk(opt)
        out = []

        @C
        def step(x, y):
            opt.zero_grad(set_to_none=True)
            loss = F.cross_entropy(m(x), y)
            loss.backward()
            opt.step()
            s.step()
            return loss.detach(), opt.param_groups[0]["lr"]

        for n in NS:
            out.append(step(*data(n)))
        return out, m, s.last_epoch

    run.__name__ = "isched_" + name
    program(run)


inner_sched("step", lambda o: LS.StepLR(o, 2, 0.5), lambda p: torch.optim.SGD(p, lr=0.1))
inner_sched("cos", lambda o: LS.CosineAnnealingLR(o, 5), lambda p: torch.optim.AdamW(p, lr=0.1))
inner_sched("onecycle", lambda o: LS.OneCycleLR(o, 0.2, total_steps=20), lambda p: torch.optim.RMSprop(p, lr=0.1))
OPTS = {
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rmsprop": torch.optim.RMSprop,
    "rprop": torch.optim.Rprop,
    "asgd": torch.optim.ASGD,
}
for k, o in OPTS.items():

    def run(C, o=o):
        m = mlp()
        cm = C(m)
        opt = o(m.parameters(), lr=0.01)
        st = C(opt.step)
        out = []
        for n in NS:
            x, y = data(n)
            opt.zero_grad()
            loss = F.cross_entropy(cm(x), y)
            loss.backward()
            st()
            out.append(loss.item())
        return out, m

    run.__name__ = "opt_" + k
    program(run)


@program
def ema(C):
    m = mlp()
    e = copy.deepcopy(m)
    cm = C(m)
    opt = torch.optim.SGD(m.parameters(), lr=0.1)

    @C
    def update(decay):
        with torch.no_grad():
            for p, q in zip(m.parameters(), e.parameters()):
                q.mul_(decay).add_(p, alpha=1 - decay)

    for i, n in enumerate(NS):
        x, y = data(n)
        opt.zero_grad()
        F.cross_entropy(cm(x), y).backward()
        opt.step()
        update(min(0.9, (1 + i) / (10 + i)))
    return m, e


@program
def swa(C):
    m = mlp()
    cm = C(m)
    sw = torch.optim.swa_utils.AveragedModel(m)
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    for n in NS:
        x, y = data(n)
        opt.zero_grad()
        F.cross_entropy(cm(x), y).backward()
        opt.step()
        sw.update_parameters(m)
    return C(sw)(data(3)[0]), sw.n_averaged


@program
def autocast_loop(C):
    m = mlp()
    cm = C(m)
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    out = []
    for n in NS:
        x, y = data(n)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            o = cm(x)
            loss = F.cross_entropy(o.float(), y)
        loss.backward()
        opt.step()
        out.append((o.dtype, loss.dtype, o.detach()))
    return out


@program
def autocast_inside(C):
    m = mlp()

    @C
    def f(x, y, on):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
            h = m(x)
            s = h @ h.T
        return h, s, F.cross_entropy(h.float(), y)

    out = []
    for n, on in zip(NS, (True, False, True, False)):
        h, s, l = f(*data(n), on)
        l.backward()
        out.append((h, s, l))
    return out, [p.grad for p in m.parameters()]


@program
def grad_scaler(C):
    m = mlp()
    cm = C(m)
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    sc = torch.amp.GradScaler("cpu", init_scale=128.0)
    out = []
    for n in NS:
        x, y = data(n)
        opt.zero_grad()
        with torch.autocast("cpu"):
            loss = F.cross_entropy(cm(x).float(), y)
        sc.scale(loss).backward()
        sc.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        sc.step(opt)
        sc.update()
        out.append(sc.get_scale())
    return out


@program
def grad_scaler_inside(C):
    m = mlp()
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    sc = torch.amp.GradScaler("cpu", init_scale=128.0)

    @C
    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(m(x), y)
        sc.scale(loss).backward()
        sc.step(opt)
        sc.update()
        return loss.detach()

    return [step(*data(n)) for n in NS], m, sc.get_scale()


@program
def lbfgs(C):
    m = mlp()
    cm = C(m)
    opt = torch.optim.LBFGS(m.parameters(), lr=0.1, max_iter=4)
    out = []
    x, y = data(6)

    def closure():
        opt.zero_grad()
        l = F.cross_entropy(cm(x), y)
        l.backward()
        return l

    for _ in range(3):
        out.append(opt.step(closure).item())
    return out


@program
def lbfgs_inside(C):
    w = torch.zeros(5, requires_grad=True)
    opt = torch.optim.LBFGS([w], line_search_fn="strong_wolfe", max_iter=5)
    A = torch.randn(8, 5)
    b = torch.randn(8)

    @C
    def closure():
        opt.zero_grad()
        l = ((A @ w - b) ** 2).mean()
        l.backward()
        return l

    return [opt.step(closure) for _ in range(2)], w


@program
def param_groups(C):
    m = mlp()
    cm = C(m)
    decay = [p for n, p in m.named_parameters() if p.dim() > 1]
    no = [p for n, p in m.named_parameters() if p.dim() <= 1]
    opt = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": no, "weight_decay": 0.0, "lr": 0.1}], lr=0.01
    )
    st = C(opt.step)
    for _i, n in enumerate(NS):
        x, y = data(n)
        opt.zero_grad()
        F.cross_entropy(cm(x), y).backward()
        st()
        for g in opt.param_groups:
            g["lr"] *= 0.5
    return m


@program
def freeze(C):
    m = mlp()
    cm = C(m)
    out = []
    for i, n in enumerate(NS):
        for p in m[0].parameters():
            p.requires_grad_(i % 2 == 0)
        x, y = data(n)
        m.zero_grad()
        l = F.cross_entropy(cm(x), y)
        l.backward()
        out.append([None if p.grad is None else p.grad.clone() for p in m.parameters()])
    return out


@program
def tying(C):
    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(11, 6)
            self.h = nn.Linear(6, 11, bias=False)
            self.h.weight = self.e.weight

        def forward(self, t):
            return self.h(self.e(t).tanh())

    m = LM()
    cm = C(m)
    opt = torch.optim.SGD(m.parameters(), lr=0.5)
    out = []
    for n in NS:
        t = torch.arange(n * 4).view(n, 4) % 11
        opt.zero_grad()
        l = F.cross_entropy(cm(t[:, :-1]).transpose(1, 2), t[:, 1:])
        l.backward()
        opt.step()
        out.append(l.item())
    return out, m


@program
def checkpoint_resume(C):
    m = mlp()
    cm = C(m)
    opt = torch.optim.Adam(m.parameters(), lr=0.01)
    out = []
    for n in NS[:2]:
        x, y = data(n)
        opt.zero_grad()
        F.cross_entropy(cm(x), y).backward()
        opt.step()
    f = io.BytesIO()
    torch.save({"m": cm.state_dict(), "o": opt.state_dict(), "e": 2}, f)
    f.seek(0)
    ck = torch.load(f)
    keys = sorted(k.replace("_orig_mod.", "") for k in ck["m"])
    m2 = mlp()
    cm2 = C(m2)
    cm2(data(3)[0])
    cm2.load_state_dict(ck["m"])
    opt2 = torch.optim.Adam(m2.parameters(), lr=0.01)
    opt2.load_state_dict(ck["o"])
    for n in NS:
        x, y = data(n)
        opt2.zero_grad()
        l = F.cross_entropy(cm2(x), y)
        l.backward()
        opt2.step()
        out.append(l.item())
    return out, keys, m2


@program
def load_mid(C):
    m = mlp()
    cm = C(m)
    sd = {k: v.clone() for k, v in m.state_dict().items()}
    out = []
    for i, n in enumerate(NS):
        x, _y = data(n)
        out.append(cm(x))
        if i == 1:
            m.load_state_dict({k: v + 1 for k, v in sd.items()})
        if i == 2:
            m.load_state_dict({k: v * 2 for k, v in sd.items()}, assign=True)
    return out


@program
def trainer_class(C):
    class Trainer:
        def __init__(self, m):
            self.m = m
            self.model = C(m)
            self.opt = torch.optim.SGD(m.parameters(), 0.1)
            self.step = 0
            self.hist = []
            self.best = float("inf")
            self.meters = {"loss": [], "acc": []}

        def train_step(self, batch):
            self.m.train()
            x, y = batch
            o = self.model(x)
            l = F.cross_entropy(o, y)
            self.opt.zero_grad()
            l.backward()
            self.opt.step()
            self.step += 1
            self.meters["loss"].append(l.item())
            self.meters["acc"].append((o.argmax(1) == y).float().mean().item())
            if l.item() < self.best:
                self.best = l.item()
            return l

        @torch.no_grad()
        def evaluate(self, batches):
            self.m.eval()
            tot = cor = 0
            for x, y in batches:
                cor += (self.model(x).argmax(-1) == y).sum().item()
                tot += len(y)
            return cor / tot

    t = Trainer(mlp())
    for n in NS:
        t.train_step(data(n))
        t.hist.append(t.evaluate([data(k) for k in NS]))
    return t.hist, t.meters, t.best, t.step


@program
def trainer_compiled_method(C):
    class Trainer:
        def __init__(self, m):
            self.m = m
            self.opt = torch.optim.SGD(m.parameters(), 0.1)
            self.step = 0
            self.log = {"loss": [], "acc": []}
            self.best = None
            self.fn = C(self.train_step)

        def train_step(self, batch, *, verbose=False):
            self.m.train()
            x, y = batch["x"], batch["y"]
            o = self.m(x)
            l = F.cross_entropy(o, y)
            self.opt.zero_grad()
            l.backward()
            self.opt.step()
            self.step += 1
            self.log["loss"].append(l.item())
            acc = (o.argmax(1) == y).float().mean().item()
            self.log["acc"].append(acc)
            if self.best is None or acc > self.best:
                self.best = acc
            if verbose and self.step % 2 == 0:
                print(f"step {self.step}: loss={l.item():.4f} acc={acc:.2%}")
            return {"loss": l.detach(), "step": self.step}

    t = Trainer(mlp())
    r = [t.fn(dict(zip("xy", data(n))), verbose=True) for n in NS]
    return r, t.log, t.best, t.step


@program
def zero_grad_variants(C):
    m = mlp()
    cm = C(m)
    out = []
    for i, n in enumerate(NS):
        x, y = data(n)
        if i == 0:
            m.zero_grad()
        elif i == 1:
            m.zero_grad(set_to_none=False)
        elif i == 2:
            for p in m.parameters():
                p.grad = None
        else:
            for p in m.parameters():
                p.grad.zero_()
        F.cross_entropy(cm(x), y).backward()
        out.append([p.grad.clone() for p in m.parameters()])
    return out


@program
def zero_grad_inside(C):
    m = mlp()
    out = []

    @C
    def step(x, y, how):
        if how == "none":
            m.zero_grad()
        elif how == "zero":
            m.zero_grad(set_to_none=False)
        elif how == "detach":
            for p in m.parameters():
                if p.grad is not None:
                    p.grad.detach_().zero_()
        l = F.cross_entropy(m(x), y)
        l.backward()
        return l.detach()

    for n, h in zip(NS * 2, ["none", "zero", "keep", "detach", "none", "keep", "zero", "none"]):
        step(*data(n), h)
        out.append([p.grad.clone() for p in m.parameters()])
    return out


@program
def manual_sgd(C):
    w = torch.randn(6, 3, requires_grad=True)
    b = torch.zeros(3, requires_grad=True)

    @C
    def step(x, y, lr):
        l = F.cross_entropy(x @ w + b, y)
        l.backward()
        with torch.no_grad():
            for p in (w, b):
                p -= lr * p.grad
                p.grad.zero_()
        return l.item()

    return [step(*data(n), 0.1 / (i + 1)) for i, n in enumerate(NS)], w, b


@program
def autograd_grad(C):
    m = mlp()

    @C
    def f(x, y):
        l = F.cross_entropy(m(x), y)
        gs = torch.autograd.grad(l, list(m.parameters()))
        with torch.no_grad():
            for p, g in zip(m.parameters(), gs):
                p.sub_(g, alpha=0.1)
        return l, gs

    return [f(*data(n)) for n in NS], m


@program
def maml(C):
    m = mlp()
    out = []

    def inner(x, y):
        ps = dict(m.named_parameters())
        for _ in range(2):
            l = F.cross_entropy(torch.func.functional_call(m, ps, (x,)), y)
            gs = torch.autograd.grad(l, list(ps.values()), create_graph=True)
            ps = {k: p - 0.1 * g for (k, p), g in zip(ps.items(), gs)}
        return F.cross_entropy(torch.func.functional_call(m, ps, (x,)), y)

    f = C(inner)
    for n in NS:
        m.zero_grad()
        l = f(*data(n))
        l.backward()
        out.append((l, [p.grad for p in m.parameters()]))
    return out


@program
def gan(C):
    G = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 6), nn.Tanh())
    D = mlp(6, 1)
    og = torch.optim.Adam(G.parameters(), 1e-2, betas=(0.5, 0.999))
    od = torch.optim.Adam(D.parameters(), 1e-2)
    cG, cD = C(G), C(D)
    out = []
    bce = nn.BCEWithLogitsLoss()
    for n in NS:
        x, _ = data(n)
        z = torch.randn(n, 4)
        fake = cG(z)
        od.zero_grad()
        ld = bce(cD(x), torch.ones(n, 1)) + bce(cD(fake.detach()), torch.zeros(n, 1))
        ld.backward()
        od.step()
        og.zero_grad()
        lg = bce(cD(fake), torch.ones(n, 1))
        lg.backward()
        og.step()
        out.append((ld.item(), lg.item()))
    return out


@program
def early_stop(C):
    m = mlp()
    cm = C(m)
    opt = torch.optim.SGD(m.parameters(), 0.3)
    best = 1e9
    bad = 0
    state = None
    hist = []
    for e in range(12):
        x, y = data(NS[e % 4])
        opt.zero_grad()
        l = F.cross_entropy(cm(x), y)
        l.backward()
        opt.step()
        hist.append(round(l.item(), 4))
        if l < best - 1e-3:
            best = l.item()
            bad = 0
            state = copy.deepcopy(cm.state_dict())
        else:
            bad += 1
        if bad >= 3:
            break
    m.load_state_dict({k.replace("_orig_mod.", ""): v for k, v in state.items()})
    return hist, m


@program
def grad_hooks(C):
    m = mlp()
    seen = []
    for k, p in m.named_parameters():
        p.register_hook(lambda g, k=k: seen.append((k, g.norm().item())) or g * 0.5)
    cm = C(m)
    for n in NS:
        x, y = data(n)
        F.cross_entropy(cm(x), y).backward()
    return sorted(seen), [p.grad for p in m.parameters()]


@program
def post_acc_hook(C):
    m = mlp()
    opts = {p: torch.optim.SGD([p], 0.1) for p in m.parameters()}

    def hook(p):
        opts[p].step()
        opts[p].zero_grad()

    for p in m.parameters():
        p.register_post_accumulate_grad_hook(hook)
    cm = C(m)
    for n in NS:
        x, y = data(n)
        F.cross_entropy(cm(x), y).backward()
    return m, [p.grad for p in m.parameters()]


@program
def feature_hooks(C):
    m = mlp()
    feats = {}
    h = m[0].register_forward_hook(lambda mod, i, o: feats.__setitem__("l0", o.detach().mean().item()))
    cm = C(m)
    out = []
    for i, n in enumerate(NS):
        if i == 3:
            h.remove()
            feats.clear()
        out.append((cm(data(n)[0]), dict(feats)))
    return out


@program
def multi_loss_backward(C):
    m = nn.ModuleDict({"enc": mlp(6, 8), "a": nn.Linear(8, 2), "b": nn.Linear(8, 1)})

    @C
    def f(x):
        h = m["enc"](x)
        return m["a"](h), m["b"](h)

    out = []
    for n in NS:
        m.zero_grad()
        a, b = f(data(n)[0])
        a.pow(2).sum().backward(retain_graph=True)
        b.abs().sum().backward()
        out.append([p.grad.clone() for p in m.parameters()])
    return out


@program
def retain_grad_mid(C):
    @C
    def f(x):
        h = (x * 2).tanh()
        h.retain_grad()
        (h**2).sum().backward()
        return h, h.grad

    return [f(torch.randn(n, 3, requires_grad=True)) for n in NS]


@program
def train_eval_switch(C):
    m = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    cm = C(m)
    out = []
    for i, n in enumerate(NS * 2):
        m.train(i % 3 != 2)
        out.append(cm(data(n)[0]))
    return out, m


@program
def dataloader_loop(C):
    ds = torch.utils.data.TensorDataset(*data(10))
    dl = torch.utils.data.DataLoader(ds, batch_size=4)
    m = mlp()
    cm = C(m)
    opt = torch.optim.SGD(m.parameters(), 0.1)
    out = []
    for _e in range(2):
        for _i, (x, y) in enumerate(dl):
            opt.zero_grad()
            l = F.cross_entropy(cm(x), y)
            l.backward()
            opt.step()
            out.append(l.item())
    return out


@program
def whole_epoch_compiled(C):
    ds = [data(n) for n in NS]
    m = mlp()
    opt = torch.optim.SGD(m.parameters(), 0.1)

    @C
    def epoch(loader):
        tot = 0.0
        n = 0
        for x, y in loader:
            opt.zero_grad()
            l = F.cross_entropy(m(x), y)
            l.backward()
            opt.step()
            tot += l.item() * len(x)
            n += len(x)
        return tot / n

    return [epoch(ds), epoch(ds[:2]), epoch(iter(ds))], m


@program
def whole_epoch_dataloader(C):
    ds = torch.utils.data.TensorDataset(*data(10))
    m = mlp()
    opt = torch.optim.SGD(m.parameters(), 0.1)

    @C
    def epoch(dl):
        ls = []
        for _i, (x, y) in enumerate(dl):
            opt.zero_grad()
            l = F.cross_entropy(m(x), y)
            l.backward()
            opt.step()
            ls.append(l.detach())
        return torch.stack(ls).mean()

    return [epoch(torch.utils.data.DataLoader(ds, batch_size=b)) for b in (4, 5, 4)], m
