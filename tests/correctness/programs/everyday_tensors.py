"""Small programs of every day about tensors and NumPy, as data."""

from __future__ import annotations

TOPICS = {
    "tensors": r"""
@case()
def tensor_of_tensor(a, b):
    c = torch.tensor(a.detach())
    return c.add_(b.detach(), alpha=5.0)
@case()
def addcdiv(a, b, c):
    return (torch.addcdiv(a, b, c.exp(), value=5.0), torch.addcmul(a, b, c, value=2), a.clone().addcmul_(b, c,
        value=3))
@case(lambda n: [torch.randn(2, n), torch.randn(n)], lambda n: [torch.randn(2, n), torch.randn(n)],
    lambda n: torch.tensor(0.5), grad=False)
def foreach_lerp(x, y, s):
    return torch._foreach_lerp_(x, y, s)
@case(lambda n: [torch.randn(2, n), torch.randn(n)], lambda n: [torch.randn(2, n), torch.randn(n)])
def foreach_many(x, y):
    return (torch._foreach_add(x, y, alpha=2), torch._foreach_mul(x, 2.0), torch._foreach_norm(x),
        torch._foreach_pow(2.0, torch._foreach_abs(y)), torch._foreach_maximum(x, y))
@case(lambda n: torch.rand(n, 2), lambda n: torch.randn(n, 2), lambda n: torch.randn(n, 2),
    lambda n: torch.tensor(0.3), grad=False)
def addcmul_tensor_value(x, y, z, s):
    return x.addcmul_(y, z, value=s)
@case()
def misc_torch_flags(x):
    return (x + 1, torch.onnx.is_in_onnx_export(), torch.jit.is_scripting(), torch.jit.is_tracing(),
        torch.distributed.is_available(), torch.distributed.is_initialized(), torch._C._is_any_autocast_enabled(),
        torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_autocast_enabled(),
        torch.get_autocast_dtype('cpu'), torch.is_inference_mode_enabled(),
        torch.are_deterministic_algorithms_enabled(), torch.backends.mkldnn.is_available(), torch.get_num_threads())
@case()
def catforms(a, b):
    kw = {"tensors": (a, b), 'dim': 0}
    return (torch.cat([a, b]), torch.cat((a, b), dim=0), torch.cat(**kw), torch.cat(tensors=[a, b], dim=1),
        torch.cat(*[(a, b)], **{'dim': 0}), torch.concat([a, b]), torch.concatenate([a, b]))
@case(lambda n: torch.randn(6 + n, 3))
def slices(a):
    return (a[5], a[:5], a[5:], a[2:5], a[::2], torch.unsqueeze(a, 0)[:, 2:], a[-1], a[..., 1], a[None, :, -2:],
        a[1:-1:3], a[[0, 2]], a[torch.tensor([1, 1])], a[a.sum(1) > 100])
@case(lambda n: torch.randn(2 * n, 4))
def unpack_halves(a):
    h = a.size(0) // 2
    p = [a[:h], a[h:]]
    x, y = p
    return x - y
@case(lambda n: torch.randn(n, 6), lambda n: torch.randn(n, 6))
def pool(a, b):
    return F.avg_pool2d(torch.unsqueeze(a, 0) * torch.unsqueeze(b, 1), kernel_size=2, padding=1)
@case(lambda n: torch.randn(n, 10))
def scores(x):
    return (x.view(*x.size()[:-1] + (2, 5)).permute(0, 2, 1), x.view(x.shape[:-1] + torch.Size([5, 2])),
        torch.Size([1, 2]) + x.shape, x.size()[1:] + (1,))
@case()
def lens(x):
    return (torch.add(x, len(x)), len([1, 2]), len({'a': 1}), len((1, 2)), len('test'), len(range(5)), x.__len__(),
        len(x.shape))
@case()
def is_fp(x):
    return (torch.is_floating_point(x + 1), torch.is_floating_point(input=x), x.is_complex(), torch.is_complex(x),
        x.is_signed(), torch.is_tensor(x), torch.is_nonzero(torch.ones(1)), x.is_sparse, x.is_quantized, x.is_cuda,
        x.is_leaf, x.requires_grad, x.layout, x.device, x.itemsize, x.nbytes, x.element_size(), x.ndim,
        x.ndimension(), x.dim(), x.storage_offset(), x.stride(), x.names, x.output_nr, x.is_meta, x.is_nested,
        x.retains_grad)
@case()
def dtype_if(x):
    if x.dtype == torch.float32:
        return x + 1
    return x
@case()
def type_conv(a, b):
    m = a.to(torch.float16)
    return (b.type(m.type()), a.type(torch.HalfTensor), a.type('torch.DoubleTensor'), a.type(), a.type(torch.int32),
        a.type_as(m), m.double().type())
@case()
def promote(x):
    return (torch.promote_types(torch.int32, torch.float32), torch.result_type(x, 1), torch.can_cast(torch.double,
        torch.int), x + 1)
@case()
def fan(x):
    return (x + torch.nn.init._calculate_correct_fan(x, 'fan_in'), torch.nn.init.calculate_gain('relu'))
@case()
def transposes(x):
    return (torch.ones_like(x.T), x.mT, x.H, x.mH, x.adjoint(), x.swapaxes(0, 1), x.movedim(0, 1), x.t())
@case()
def softmax_module(x, y):
    return (torch.nn.Softmax(dim=-1)(x + y * 2), torch.nn.GELU()(x), torch.nn.LeakyReLU(0.1)(y),
        torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Flatten(0))(x))
@case()
def unwrap_opt(x):
    return (torch.jit._unwrap_optional(x).sin(), torch.jit.annotate(Any, x + 1) + 2, cast(Any, x))
@case()
def symbool(x):
    return (x + sum((s == -1 for s in x.size())), sum((s > 3 for s in x.shape)), any((s == 3 for s in x.shape)),
        all(x.shape), x.shape.count(4), x.shape.index(4), x.shape.numel(), math.prod(x.shape), max(x.shape),
        list(x.shape), tuple(x.size()), x.shape[::-1], 4 in x.shape, sorted(x.shape),
        hash(x.shape) == hash(tuple(x.shape)), x.shape == (x.size(0), 4), str(x.shape), repr(x.size()),
        f'{x.shape}', f'{x.shape[0]:03d}', '%d' % x.shape[0])
@case()
def sizeattr(x):
    return (x + 1, hasattr(x.shape, '_fields'), type(x.shape) is torch.Size, isinstance(x.shape, tuple))
@case()
def news(x):
    y = torch.rand(5, 8)
    return (x.new(y.size()).shape, x.new_zeros(2, 3), x.new_ones(x.shape), x.new_full((2,), 3.0), x.new_tensor([1,
        2]), x.new_empty(2, 2).shape, torch.empty_like(x).shape)
@case()
def contig(x):
    return (x.is_contiguous(memory_format=torch.contiguous_format), x.T.is_contiguous(),
        x.T.contiguous().is_contiguous())
@case(lambda n: [torch.randn(n), torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8,
    8).contiguous(memory_format=torch.channels_last), torch.randn(10)[::2], torch.randn(2, 3, 9, 9)[:, :, 2:-2]][n],
    sizes=(0, 1, 2, 3, 4, 0, 2))
def contig_if(x):
    if x.is_contiguous():
        return x + 1
    elif x.is_contiguous(memory_format=torch.channels_last):
        return x + 2
    return x + 3
@case()
def dists(x):
    n = torch.distributions.Normal(x, torch.tensor(1.0))
    i = torch.distributions.Independent(n, 1)
    return (i.log_prob(x), n.mean, n.entropy(), torch.distributions.kl_divergence(n, torch.distributions.Normal(0.0,
        1.0)), torch.distributions.Categorical(logits=x).entropy(),
        torch.distributions.Bernoulli(torch.sigmoid(x)).mean)
@case()
def nograd_dec(x):

    @torch.no_grad()
    def aug(x):
        return (x + 1) * 2
    return (aug(x), aug.__name__)
@case(lambda n: torch.randn(10, 2), lambda n: torch.randn(10, 8, 6))
def size_by_size(x, y):
    return x[:, :1] + y.shape[x.shape[-1]]
@case()
def meta(x):
    return (torch.ones(2).to('meta').shape, x.to('meta').device, x.to('meta').sum().shape)
@case(grad=False)
def is_same(x):
    y = x.add_(1)
    z = torch.Tensor.add_(y, 1)
    w = x.clone()
    v = w.mul_(2)
    return (x is y, z is x, w is v, x is not w, x.data is x, x[:] is x, x.view_as(x) is x, x.contiguous() is x,
        x.to(x.dtype) is x, x.float() is x, x.detach() is x, x.cpu() is x, id(x) == id(y),
        x.requires_grad_(False) is x, torch.relu_(x) is x, x.squeeze_(0) is x, x.copy_(x) is x, x.zero_() is x)
@fresh(lambda n: n % 2, sizes=(0, 1, 0))
def aliased():
    a, b = (torch.zeros(2), torch.ones(2))

    def f(k):
        x, y = (a, a) if k else (a, b)
        return x * 2 if x is y else x + y
    return f
@case(grad=False)
def is_break(x):
    y = x.add_(1)
    c = x is y
    x.add_(1)
    bolide.graph_break()
    x.add_(1)
    return (x is y, c)
@case(lambda n: torch.randn(4, 2, n), lambda n: torch.randn(4, 2), lambda n: torch.tensor([n % 4]))
def trees(a, b, i):
    t = {'x': [a, (b, 1)], 'y': None}
    leaves, spec = pytree.tree_flatten(t)
    return (pytree.tree_map_only(torch.Tensor, lambda v: v[i], (a, b)), pytree.tree_map(lambda v: v, t),
        pytree.tree_unflatten(leaves, spec), pytree.tree_leaves(t), pytree.tree_map(lambda u, v: u + v, [a, b], [a,
        b]), pytree.tree_all(lambda v: True, t), pytree.tree_any(lambda v: isinstance(v, int), t),
        torch.fx.node.map_aggregate([a, [b, {'k': a}]], lambda y: y * 2), len(leaves), spec.num_leaves,
        spec == pytree.tree_structure(t), pytree.tree_map_(lambda v: None, [a])[0] is a)
@case()
def fx_immutable(x):
    l = torch.fx.immutable_collections.immutable_list([x, 1])
    try:
        l.append(x)
    except TypeError as e:
        r = str(e)[:20]
    return (l[0] * 2, r, len(l))
@case(lambda n: torch.tensor(float(n)), lambda n: [torch.float32, torch.float64, torch.int32][n % 3])
def full_tensor(x, dt):
    return (torch.full((2,), x.item(), dtype=dt), torch.full((3,), x.detach(), dtype=torch.float64), torch.full((2,
        ), 7, dtype=dt), torch.full_like(x, 3), torch.zeros(2).fill_(x.detach()))
@case()
def grads_modes(x):
    r = [torch.is_grad_enabled()]
    with torch.no_grad():
        y = x * 2
        r.append(torch.is_grad_enabled())
    with torch.enable_grad():
        z = x * 3
    with torch.set_grad_enabled(False):
        w = x * 4
        r.append(torch.is_grad_enabled())
    torch.set_grad_enabled(False)
    u = x * 5
    r.append(torch.is_grad_enabled())
    torch.set_grad_enabled(True)

    @torch.no_grad()
    def h(v):
        return v * 6

    @torch.inference_mode(False)
    def k(v):
        return v * 7
    with torch.autocast('cpu', dtype=torch.bfloat16):
        m = x @ x.T
        r.append((torch.is_autocast_enabled('cpu'), torch.get_autocast_dtype('cpu')))
    with torch.autograd.grad_mode.set_multithreading_enabled(False):
        v = x + 8
    with torch.autograd.set_detect_anomaly(False):
        v = v + 1
    with torch.random.fork_rng():
        torch.manual_seed(3)
    with torch.device('cpu'):
        q = torch.ones(2)
    with torch.autograd.forward_ad.dual_level() if False else contextlib.nullcontext():
        pass
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
        s = x.sin()
    with torch.backends.cudnn.flags(enabled=False):
        s = s + 1
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        a = F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])
    with torch.sparse.check_sparse_tensor_invariants(False):
        pass
    with torch.autograd.profiler.record_function('q'):
        s = s * 2
    with torch.no_grad(), torch.enable_grad():
        b = x * 9
    return (y, z, w, u, h(x), k(x), m, v, q, s, a, b, r)
@case()
def libs(x):
    r = [json.dumps({'a': [1, None, True]}), json.loads('{"a":1.5}'), re.sub('\\d', '#', 'a1b2'),
        re.match('(\\w)(\\d)', 'a1').groups(), re.findall('a', 'banana'), bool(re.search('z', 'abc')), re.split(',',
        'a,b'), re.compile('(?P<n>x)').match('x').group('n'), copy.copy([1, [2]]), copy.deepcopy({'a': [1]}),
        bisect.bisect([1, 3], 2), heapq.nsmallest(2, [3, 1, 2]), statistics.mean([1, 2, 3]), fractions.Fraction(1,
        3) + 1, decimal.Decimal('1.1') * 2, datetime.timedelta(days=1).total_seconds(), datetime.date(2020, 1,
        2).isoformat(), os.path.join('a', 'b'), os.path.splitext('a.py'), textwrap.dedent('  a'),
        string.ascii_lowercase[:3], collections.Counter('aab').most_common(1), collections.namedtuple('P', 'x y')(1,
        2).x, collections.ChainMap({'a': 1}, {'b': 2})['b'],
        operator.attrgetter('a.b')(types.SimpleNamespace(a=types.SimpleNamespace(b=3))),
        types.SimpleNamespace(q=x).q, functools.cmp_to_key(lambda a, b: b - a)(1) < functools.cmp_to_key(lambda a,
        b: b - a)(2), sorted([1, 3, 2], key=functools.cmp_to_key(lambda a, b: b - a)), inspect.isclass(int),
        typing.get_origin(List[int]), typing.get_args(Dict[str, int]), typing.cast(int, 'a'), isinstance([],
        collections.abc.Sequence), isinstance({}, collections.abc.Mapping), random.Random(3).random(), uuid_()]
    return (x + 1, r)
""",
    "NumPy": r"""
@case()
def npinfo(a):
    return (a + np.iinfo(np.int16).max, a + np.finfo(np.float32).tiny, np.finfo(np.float64).eps,
        torch.finfo(a.dtype).min * a, torch.iinfo(torch.int32).bits)
@case(lambda n: torch.randn(n), lambda n: torch.randn(n), grad=False)
def npmesh(x, y):
    r1, r2 = np.meshgrid(x.numpy(), y.numpy())
    return (torch.from_numpy(r1), torch.from_numpy(r2))
@case(grad=False)
def npattrs(x):
    a = x.numpy()
    return (a.size, a.itemsize, a.strides, a.shape, a.ndim, torch.from_numpy(a.T), torch.from_numpy(a.real),
        a.dtype, a.nbytes, a.T, a.copy(), a.transpose(0, 1), a.reshape([1, a.size]), a.max(axis=0), a.all(axis=0),
        a + a, np.ones_like(x, dtype=np.float64), np.full_like(x, 2.4, dtype=np.dtype('float')), np.linalg.norm(a,
        axis=0), np.fft.fftshift(a), np.mean(a, 1), torch.from_numpy(np.asarray(np.sum(np.mean(a, 1)))),
        np.asarray(a), np.array([1, 2]) + a.shape[0], np.zeros(a.shape), a.flatten(), a.sum(), a.mean(), a.tolist(),
        len(a), a[0], a[:, 1], a > 0, a @ a.T, np.where(a > 0, a, 0), np.concatenate([a, a]), a.astype(np.int32),
        np.float32(2.0) * a, a.item(0))
@case(grad=False)
def npimag(x):
    return x.numpy().imag
@case(T, lambda n: ['float16', np.float16, np.dtype('float16'), np.finfo('float16')][n], sizes=(0, 1, 2, 3, 0, 2))
def npinfo_args(a, i):
    return a + np.finfo(i).max
@case(T, lambda n: [np.dtype(int), np.dtype(np.int16), np.dtype('int8')][n % 3])
def npdt(a, dt):
    return (a + np.iinfo(dt).max, dt.name, dt.itemsize, dt == np.int16, dt.kind)
@case(lambda n: np.arange(4.0).reshape(2, 2) + n, lambda n: [np.s_[...], np.s_[0, ...], np.s_[1, ...], np.s_[...,
    0]][n % 4], lambda n: np.full(2, 9.0))
def np_setitem(a, ind, val):
    a[ind] = val
    return a
""",
}
