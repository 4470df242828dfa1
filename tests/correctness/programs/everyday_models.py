"""Small programs of every day about modules, layers, tensors that are written to and objects that are kept, as data."""

from __future__ import annotations

TOPICS = {
    "modules and layers": r"""
class Blk(nn.Module):

    def __init__(self):
        super().__init__()
        self.l = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.d = nn.ModuleDict({'a': nn.ReLU(), 'b': nn.Tanh()})
        self.p = nn.ParameterList([nn.Parameter(torch.ones(4))])
        self.register_buffer('buf', torch.zeros(4))
        self.pd = nn.ParameterDict({'q': nn.Parameter(torch.ones(1))})
        self.cache = {}
        self.hist = []
        self.n = 0

    def forward(self, x, mode='a'):
        for i, l in enumerate(self.l):
            x = self.d[mode](l(x)) + i
        self.buf.add_(x.detach().mean(0))
        self.n += 1
        self.hist.append(x.shape[0])
        self.cache[x.shape] = self.n
        self.last = x.detach()
        return (x * self.p[0] * self.pd['q'], len(self.l), list(self.d.keys()), [n for n,
            _ in self.named_parameters()], self.training, [type(m).__name__ for m in self.modules()], self.n,
            'a' in self.d, self.l[-1] is self.l[1], len(list(self.children())), [n for n,
            _ in self.named_children()], self.get_parameter('p.0').shape, self.l[:1].__class__.__name__,
            sum((p.numel() for p in self.parameters())), list(self.state_dict()),
            self.get_submodule('l.0') is self.l[0], self.hist[:], sorted(map(str, self.cache)), repr(self.d['a']),
            self.extra_repr())
class Par(nn.Module):

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))
        self.sub = nn.Linear(4, 4)

    def forward(self, x, *a, scale=1, **k):
        return (self.sub(x) * self.w * scale + sum(a), k)
class Chi(Par):

    def forward(self, x, **k):
        y, k2 = super().forward(x, 1, 2, **k)
        return (y + 1, k2, super().__class__.__name__, isinstance(self, Par))
class Obj:

    def __init__(self, v):
        self.v = v
@case(lambda n: torch.randn(2, n, 4, dtype=torch.float64))  # rows of four may be nearly constant
def reformer(x):
    outs = [F.layer_norm(y, (4,)) for y in x.chunk(2, 0)]
    h, a = outs
    return (torch.cat([a, h], -1), [t.shape for t in outs])
@fresh(T)
def modules_with_state():
    torch.manual_seed(0)
    m = Blk()

    def f(x):
        a = m(x)
        m.train(not m.training)
        b = m(x, mode='b')
        return (a, b, m.last, m.buf.clone())
    return f
@fresh(T)
def module_compiled():
    torch.manual_seed(0)
    return Blk()
@fresh(T)
def hooks():
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    log = []
    m[0].register_forward_hook(lambda mod, i, o: (log.append('f'), o * 2)[1])
    m[0].register_forward_pre_hook(lambda mod, i: (log.append('p'), (i[0] + 1,))[1])
    m.register_forward_hook(lambda mod, a, k, o: log.append(sorted(k)), with_kwargs=True)

    def f(x):
        return (m(x), list(log))
    return f
@case(lambda n: torch.randn(n, n))
def linalg(x):
    a = x @ x.T + torch.eye(x.shape[0])
    return (torch.linalg.cholesky(a), torch.linalg.solve(a, x), torch.linalg.norm(x), torch.linalg.det(a),
        torch.logdet(a), torch.linalg.eigvalsh(a.detach()), torch.trace(x), a.inverse(),
        torch.linalg.matrix_norm(x), torch.triu(x, 1), torch.diag(x), torch.outer(x[0], x[1]),
        torch.einsum('ij,kj->ik', x, x), torch.einsum('...i,i', x, x[0]), torch.tensordot(x, x, 1),
        torch.linalg.multi_dot([x, x, x]), torch.block_diag(x, x), torch.cdist(x, x + 1), torch.kron(x[:2, :2],
        x[:2, :2]))
@fresh(T)
def inherit():
    torch.manual_seed(0)
    m = Chi()
    return lambda x: (m(x, scale=2, z=3), m(x), m.sub.weight.shape, m.w is m._parameters['w'], hasattr(m, 'nope'),
        getattr(m, 'w').shape)
@fresh(T)
def train_step():
    torch.manual_seed(0)
    m = nn.Linear(4, 2)
    o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)

    def f(x):
        o.zero_grad()
        l = (m(x.detach()) ** 2).mean()
        l.backward()
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        o.step()
        return (l.detach(), m.weight.detach().clone(), m.weight.grad.clone())
    return f
@case(lambda n: torch.randn(2, 3, n + 5, n + 5))
def convs(x):
    return (F.conv2d(x, torch.ones(4, 3, 3, 3) * 0.1, padding=1), F.max_pool2d(x, 2), F.adaptive_avg_pool2d(x, 2),
        F.interpolate(x, scale_factor=2.0), F.pad(x, (1, 1), mode='reflect'), F.batch_norm(x, torch.zeros(3),
        torch.ones(3)), F.group_norm(x, 3), F.pixel_shuffle(x.repeat(1, 4, 1, 1)[:, :4], 2), F.unfold(x, 2),
        x.mean((2, 3)), x.flip(-1), torch.roll(x, 1, 2), x.to(memory_format=torch.channels_last) + 1,
        F.grid_sample(x, torch.zeros(2, 2, 2, 2), align_corners=False), F.avg_pool2d(x, 3, 1, 1), F.normalize(x,
        dim=1), x.var(1), x.std(1), x.amax((1, 2)), x.logsumexp(1), F.softplus(x), F.gelu(x), F.silu(x),
        F.hardtanh(x), F.elu(x), x.norm(dim=1), F.cosine_similarity(x, x + 1, dim=1))
@case(T, lambda n: torch.arange(n) % 4)
def losses(x, t):
    return (F.cross_entropy(x, t), F.nll_loss(x.log_softmax(1), t), F.mse_loss(x, x * 2), F.l1_loss(x, x + 1),
        F.smooth_l1_loss(x, x * 0), F.binary_cross_entropy_with_logits(x, (x > 0).float()),
        F.kl_div(x.log_softmax(1), x.softmax(1)), F.huber_loss(x, x * 0), F.cosine_embedding_loss(x, x + 1,
        torch.ones(x.shape[0])), F.margin_ranking_loss(x[:, 0], x[:, 1], torch.ones(x.shape[0])), F.embedding(t,
        torch.ones(4, 3)), F.triplet_margin_loss(x, x + 1, x - 1), F.cross_entropy(x, t, reduction='none',
        label_smoothing=0.1), F.cross_entropy(x, x.softmax(1)), F.poisson_nll_loss(x, x.exp()),
        F.gaussian_nll_loss(x, x * 0, x.exp()), F.multi_margin_loss(x, t), F.ctc_loss(x.log_softmax(1)[:, None],
        torch.tensor([[1]]), (x.shape[0],), (1,)))
""",
    "state and data": r"""
@case()
def setitems(x):
    y = x.clone()
    y[0] = 1
    y[:, 1] = x[:, 0]
    y[y > 1] = 0
    y[-1, ...] += 2
    y[[0, 1], [1, 2]] = 5
    z = torch.zeros(3, 4)
    z[:2] = y[:2]
    z[1:, 2:].mul_(3)
    z.T[0] = 7
    w = y.detach().clone()
    w[torch.arange(2)] = x.detach()[:2]
    w[None, 0] = 9
    y2 = y.view(-1)
    y2[0] = 100
    q = z.unbind(0)[0]
    q.add_(1)
    return (y, z, w, y2)
@case(grad=False)
def written_arguments(x):
    x.add_(1)
    v = x[0]
    v.mul_(2)
    x.t_()
    x.t_()
    x[1:] = 0
    x.unsqueeze_(0)
    x.squeeze_(0)
    return (v, x.sum(), x)
@case(T, lambda n: {'a': torch.randn(n, 2), 'b': [torch.randn(2), n]})
def dict_mut(x, d):
    d['c'] = x * 2
    d['b'].append(x.sum())
    d['a'] = d['a'] + 1
    del d['b'][0]
    d.setdefault('z', []).append((n := len(d)))
    d.update(q=n)
    return d['c'].sum()
@case()
def returns_same(x):
    y = x * 2
    l = [y]
    return (y, y, l, l, (l, y), {'a': l})
@case()
def alias_in(x):
    return (x, x.view(-1), x[0], x.T, x.detach() is x, x.data.sum(), x)
@case(lambda n: torch.randn(n, 6))
def arithmetic_of_sizes(x):
    b, c = x.shape
    h = c // 2
    y = x.view(b, 2, h).transpose(1, 2).reshape(b * h, 2)
    z = y.new_zeros(b + 1, c - 1)
    m = torch.arange(b)[None] < torch.arange(b)[:, None]
    pad = F.pad(x, (0, 8 - c, 0, (4 - b % 4) % 4))
    i = torch.arange(b * c).view(b, c) % b
    s = math.ceil(b / 2)
    idx = torch.linspace(0, b - 1, 3).long()
    return (y, z, m, pad, i, x[:s], x[idx], x[b // 2:], x.split([1, b - 1]), x.tensor_split(2), torch.full((b,),
        c / b), b * c, b / c, f'{b}x{c}', x.repeat(2, b).shape, x.unfold(1, 2, 2), x.as_strided((b, 2), (6, 1)), (b,
        c) == x.shape, x.new_tensor([b, c]), torch.tensor([b, c / 2]), x.expand(b, b, c).shape if False else 0,
        max(b, c) - min(b, c), range(b)[-1], [j for j in range(0, c, h)], b if b > 4 else -b, int(b ** 0.5),
        round(b * 1.5), b % 2 == 0 and 'even' or 'odd', x.flatten().shape[0] // b, x.numel(), len(x))
@case()
def scalars(x):
    s = x.sum().item()
    t = x.detach().mean().item()
    k = int(x.detach().abs().sum().item())
    l = x.detach()[0].tolist()
    return (x * s, torch.tensor(t), x + k % 3, l, s > 0, k // 2, float(k), [v * 2 for v in l], torch.tensor(l), max(l),
        sum(l), math.floor(t), str(k), torch.tensor(x.shape[0] * s), torch.full((2,), t), {'s': torch.tensor(s)})
@case()
def data_if(x):
    y = x * 2
    if x.sum() > 0:
        y = y + 1
    else:
        y = y - 1
    while y.detach().abs().max() > 3:
        y = y / 2
    for v in x.detach()[:, 0].tolist():
        if v > 0.5:
            y = y + v
            continue
        if v < -1:
            break
    return (y if y.detach().mean() > 0 else -y, bool((x > 0).any()), (x > 0).all().item() and 1,
        torch.nonzero(x.detach() > 0), x[x.detach() > 0], torch.masked_select(x, x > 0),
        torch.unique(x.detach().round()), torch.where(x.detach() > 0)[0])
@case()
def randoms(x):
    return (F.dropout(x, 0.0) + 0, torch.zeros_like(x).bernoulli_(1.0), torch.rand(2).shape,
        torch.randn_like(x).dtype, torch.randperm(4).sort().values, F.dropout(x, 0.5, training=False),
        torch.Generator().manual_seed(3).initial_seed(), torch.initial_seed() >= 0)
@fresh(T)
def lists_state():
    st = {'n': 0, 'l': [], 't': torch.zeros(4), 'd': collections.defaultdict(int), 's': set(),
        'q': collections.deque(maxlen=2)}

    def f(x):
        st['n'] += 1
        st['l'].append(st['n'])
        st['t'] = st['t'] + x.detach().sum(0)
        st['d'][x.shape[0]] += 1
        st['s'].add(x.shape[0])
        st['q'].append(st['n'])
        bolide.graph_break() if st['n'] == 2 else None
        return (x * st['n'], list(st['l']), st['t'], dict(st['d']), sorted(st['s']), list(st['q']))
    return f
@fresh(T)
def lru_state():
    calls = []

    @functools.lru_cache(maxsize=2)
    def slow(k):
        calls.append(k)
        return k * 2

    @functools.cache
    def c2(a, b=1):
        calls.append((a, b))
        return a + b

    class K:

        @functools.cached_property
        def v(self):
            calls.append('v')
            return 5
    o = K()

    def f(x):
        return (x * slow(x.shape[0]) + c2(1) + o.v, list(calls), slow.cache_info().misses)
    return f
@fresh(T)
def weak():

    class K:
        pass
    k = K()
    k.v = 3
    r = weakref.ref(k)
    p = weakref.proxy(k)
    w = weakref.WeakKeyDictionary({k: 5})
    wv = weakref.WeakValueDictionary(a=k)

    def f(x):
        return (x * r().v + p.v, r() is k, w[k], wv['a'] is k, k in w, len(w), weakref.getweakrefcount(k) > 0)
    return f
@case()
def protocol(x):

    class P(typing.Protocol):

        def run(self):
            ...

    class Q:

        def run(self):
            return 3

    @typing.runtime_checkable
    class R(typing.Protocol):

        def run(self):
            ...

    class TD(TypedDict):
        a: int
    T_ = TypeVar('T_')

    class G(Generic[T_]):

        def __init__(self, v: T_):
            self.v = v
    from abc import ABC, abstractmethod

    class A(ABC):

        @abstractmethod
        def f(self):
            ...

        @property
        @abstractmethod
        def g(self):
            ...

    class B(A):

        def f(self):
            return 1
        g = 5
    try:
        A()
    except TypeError as e:
        m = 'abstract' in str(e)
    return (x + 1, isinstance(Q(), R), TD(a=1), G[int](3).v, B().f(), m, isinstance(B(), A), isinstance([],
        collections.abc.MutableSequence), typing.NamedTuple('N', [('a', int)])(1).a, isinstance(3,
        (int, str)), isinstance(3, int | str))
@case()
def logs(x):
    logging.getLogger('zz').debug('x %s', x.shape)
    warnings.warn('w') if False else None
    print('p', x.shape[0], end='')
    print(f'{x.mean().item():.1f}'[:0])
    return x + 1
@case(T, lambda n: torch.arange(n), lambda n: torch.rand(n) > 0.5, lambda n: torch.randn(n, 4,
    dtype=torch.complex64), lambda n: torch.randn(n, 4).bfloat16(), grad=False)
def dtypes(x, i, m, c, h):
    return (x + i[:, None], i * 2.5, i / 2, i // 2, i % 2, -i, i ** 2, m & ~m, m | m, m ^ m, m.sum(),
        m.float().mean(), x * m[:, None], c.abs(), c.real, c * c.conj(), torch.view_as_real(c), h + 1, h * x,
        h.float(), i.float().softmax(0), x.to(torch.int64), x.bool(), i.bitwise_and(1), i << 1,
        x.long().bincount(minlength=3) if False else 0, i.max(), m.any(), m.all(), ~m, m * i, torch.where(m, i, -i),
        torch.where(m[:, None], x, 0.0), i == 1, x >= 0, (x > 0).int(), x.half().float(), i.to(torch.uint8),
        torch.promote_types(i.dtype, h.dtype), x.double().sum(), i.sum(), i.prod(), i.cumsum(0), i.argmax(),
        x.argmax(1), x.sort(1), x.topk(2), torch.bucketize(x, torch.tensor([0.0, 1.0])), F.one_hot(i), i.tolist(),
        m.tolist())
@fresh(T)
def swap_attr():
    o = Obj(1)
    p = Obj(2)
    o.nxt = p
    p.nxt = o

    def f(x):
        o.v, p.v = (p.v, o.v)
        o.nxt.v += x.shape[0]
        q = Obj(o)
        q.self = q
        o.lst = [q, p]
        return (x * o.v, p.v, q.self is q, o.nxt.nxt is o, q)
    return f
@fresh(T)
def global_flag():
    g = {'flag': True, '__builtins__': __builtins__, 'torch': torch}
    text = '''
def f(x):
    global flag, cnt
    flag = not flag
    cnt = globals().get('cnt', 0) + 1
    return (x + 1 if flag else x - 1), cnt, flag
'''
    exec(text, g)
    return g['f']
@case(T, lambda n: [None, 0, False, '', [], {}, 1, 'a'][n], sizes=range(8))
def falsy(x, v):
    return (x + (1 if v else 2), v is None, v == 0, bool(v), v or 5, v and 6, not v, v if v is not None else 7,
        [v] == [0], v in (0, ''), type(v))
@case(lambda n: [torch.randn(3), None, 2, 2.5, 's', [torch.ones(2)], (1, torch.ones(2)), {'k': torch.ones(2)}][n],
    sizes=range(8))
def anykind(v):
    if isinstance(v, torch.Tensor):
        return v + 1
    if isinstance(v, (list, tuple)):
        return type(v)((w + 1 if torch.is_tensor(w) else w for w in v))
    if isinstance(v, dict):
        return {k: w * 2 for k, w in v.items()}
    return v
@case(T, lambda n: (torch.ones(n), [n, {'a': torch.zeros(n)}]))
def starargs(x, pack):

    def g(a, *r, k=2, **kw):
        return a.sum() + sum((t.sum() if torch.is_tensor(t) else t for t in r)) + k + len(kw)
    t, (n, d) = pack
    return (x + g(x, *[1, t], k=n, **d), g(*[x]), g(x, **{'k': 3}), g(*(x,), *[1], **{'z': 1}, **{'y': 2}))
""",
}
