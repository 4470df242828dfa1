"""The part of the native check's text (`native_text.py`) that knows torch: what tensors are, where their memory is and
what is in it, and the state of the thread.
"""

TEXT = """
declare i32 @memcmp(ptr, ptr, i64)
declare i8 @_ZN3c104impl31tls_is_dispatch_keyset_excludedENS_14DispatchKeySetE(i64)
declare i8 @_ZN3c104impl31tls_is_dispatch_keyset_includedENS_14DispatchKeySetE(i64)
declare ptr @_ZN3c1013AutogradState13get_tls_stateEv()
declare i64 @_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv()
declare i64 @_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv()
declare i16 @_ZN3c1017get_default_dtypeEv()
declare ptr @_ZN2at13globalContextEv()
declare i8 @_ZNK2at7Context23deterministicAlgorithmsEv(ptr)
declare i8 @_ZNK2at7Context31deterministicAlgorithmsWarnOnlyEv(ptr)
declare ptr @_ZN5torch3jit6tracer15getTracingStateEv()

define internal i1 @tensor_fits(ptr %object, ptr %facts) {{
entry:
  %class = load.at(ptr %object, i64 {type})
  %class.wanted = load i64, ptr %facts
  %class.same = icmp eq i64 %class, %class.wanted
  br i1 %class.same, label %dims, label %no
dims:
  %impl.at = getelementptr i8, ptr %object, i64 {impl}
  %impl = load ptr, ptr %impl.at
  %dim = load.at(ptr %impl, i64 {dims})
  %dim.wanted = load.word(ptr %facts, i64 1)
  %dim.same = icmp eq i64 %dim, %dim.wanted
  br i1 %dim.same, label %begin, label %no
begin:
  %flags = load.word(ptr %facts, i64 2)
  %word.count = load.word(ptr %facts, i64 3)
  %size.count = load.word(ptr %facts, i64 4)
  %first = getelementptr i64, ptr %facts, i64 5
  br label %word
word:
  %i = phi i64 [ 0, %begin ], [ %next, %word.same ]
  %at = phi ptr [ %first, %begin ], [ %following, %word.same ]
  %left = icmp slt i64 %i, %word.count
  br i1 %left, label %compare, label %start.sizes
compare:
  %offset = load i64, ptr %at
  %mask = load.word(ptr %at, i64 1)
  %expected = load.word(ptr %at, i64 2)
  %found = load.at(ptr %impl, i64 %offset)
  %kept = and i64 %found, %mask
  %equal = icmp eq i64 %kept, %expected
  br i1 %equal, label %word.same, label %no
word.same:
  %following = getelementptr i64, ptr %at, i64 3
  %next = add i64 %i, 1
  br label %word
start.sizes:
  %inline = getelementptr i8, ptr %impl, i64 {sizes}
  %outside = load ptr, ptr %inline
  %far.bit = and i64 %flags, {far}
  %far = icmp ne i64 %far.bit, 0
  %base = select i1 %far, ptr %outside, ptr %inline
  br label %size
size:
  %j = phi i64 [ 0, %start.sizes ], [ %j.next, %size.same ]
  %pair = phi ptr [ %at, %start.sizes ], [ %pair.next, %size.same ]
  %size.left = icmp slt i64 %j, %size.count
  br i1 %size.left, label %size.compare, label %autograd
size.compare:
  %size.offset = load i64, ptr %pair
  %size.expected = load.word(ptr %pair, i64 1)
  %size.found = load.at(ptr %base, i64 %size.offset)
  %size.equal = icmp eq i64 %size.found, %size.expected
  br i1 %size.equal, label %size.same, label %no
size.same:
  %pair.next = getelementptr i64, ptr %pair, i64 2
  %j.next = add i64 %j, 1
  br label %size
autograd:
  %metadata.at = getelementptr i8, ptr %impl, i64 {metadata}
  %metadata = load ptr, ptr %metadata.at
  %plain = icmp eq ptr %metadata, null
  br i1 %plain, label %judge, label %look
look:
  %flag.at = getelementptr i8, ptr %metadata, i64 {requires_grad}
  %flag = load i8, ptr %flag.at
  %flagged = icmp ne i8 %flag, 0
  %function = load.at(ptr %metadata, i64 {grad_fn})
  %made = icmp ne i64 %function, 0
  br label %judge
judge:
  %has.flag = phi i1 [ false, %autograd ], [ %flagged, %look ]
  %has.function = phi i1 [ false, %autograd ], [ %made, %look ]
  %requires = or i1 %has.flag, %has.function
  %requires.bit = and i64 %flags, {requires}
  %requires.wanted = icmp ne i64 %requires.bit, 0
  %requires.same = icmp eq i1 %requires, %requires.wanted
  br i1 %requires.same, label %leaves, label %no
leaves:
  %leaf.bit = and i64 %flags, {leaf}
  %leaf.wanted = icmp ne i64 %leaf.bit, 0
  %leaf.wrong = and i1 %leaf.wanted, %has.function
  %inner.bit = and i64 %flags, {not_leaf}
  %inner.wanted = icmp ne i64 %inner.bit, 0
  %no.function = xor i1 %has.function, true
  %inner.wrong = and i1 %inner.wanted, %no.function
  %wrong = or i1 %leaf.wrong, %inner.wrong
  %right = xor i1 %wrong, true
  ret i1 %right
no:
  ret i1 false
}}

define internal i1 @tensors_fit(ptr %pairs, i64 %count) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %good ]
  %left = icmp slt i64 %i, %count
  br i1 %left, label %test, label %yes
test:
  %two = mul i64 %i, 2
  %at = getelementptr ptr, ptr %pairs, i64 %two
  %object = load ptr, ptr %at
  %facts.at = getelementptr ptr, ptr %at, i64 1
  %facts = load ptr, ptr %facts.at
  %fits = call i1 @tensor_fits(ptr %object, ptr %facts)
  br i1 %fits, label %good, label %no
good:
  %next = add i64 %i, 1
  br label %loop
yes:
  ret i1 true
no:
  ret i1 false
}}

define internal ptr @impl_of(ptr %slots, ptr %pair) {{
entry:
  %slot = load i64, ptr %pair
  %pinned = icmp slt i64 %slot, 0
  %object.at = getelementptr i64, ptr %pair, i64 1
  %slot.at = getelementptr i64, ptr %slots, i64 %slot
  %at = select i1 %pinned, ptr %object.at, ptr %slot.at
  %tensor = load ptr, ptr %at
  %impl.at = getelementptr i8, ptr %tensor, i64 {impl}
  %impl = load ptr, ptr %impl.at
  ret ptr %impl
}}

define internal i64 @memory_of(ptr %impl) {{
entry:
  %storage.at = getelementptr i8, ptr %impl, i64 {storage}
  %storage = load ptr, ptr %storage.at
  %data = load.at(ptr %storage, i64 {storage_data})
  ret i64 %data
}}

define internal i1 @data_is(ptr %slots, ptr %operands) {{
entry:
  %width = load.word(ptr %operands, i64 2)
  %wanted.at = getelementptr i64, ptr %operands, i64 3
  %wanted = load ptr, ptr %wanted.at
  %bytes = load.word(ptr %operands, i64 4)
  %impl = call ptr @impl_of(ptr %slots, ptr %operands)
  %data = call i64 @memory_of(ptr %impl)
  %none = icmp eq i64 %data, 0
  br i1 %none, label %no, label %compare
compare:
  %offset = load.at(ptr %impl, i64 {storage_offset})
  %skipped = mul i64 %offset, %width
  %first = add i64 %data, %skipped
  %found = inttoptr i64 %first to ptr
  %order = call i32 @memcmp(ptr %found, ptr %wanted, i64 %bytes)
  %same = icmp eq i32 %order, 0
  ret i1 %same
no:
  ret i1 false
}}

define internal i1 @apart(ptr %slots, ptr %operands) {{
entry:
  %size = load i64, ptr %operands
  %count = load.word(ptr %operands, i64 1)
  %pairs = getelementptr i64, ptr %operands, i64 2
  %table = alloca i64, i64 %size
  %mask = sub i64 %size, 1
  br label %clear
clear:
  %c = phi i64 [ 0, %entry ], [ %c.next, %clear ]
  %c.at = getelementptr i64, ptr %table, i64 %c
  store i64 0, ptr %c.at
  %c.next = add i64 %c, 1
  %c.more = icmp slt i64 %c.next, %size
  br i1 %c.more, label %clear, label %loop
loop:
  %i = phi i64 [ 0, %clear ], [ %next, %advance ]
  %left = icmp slt i64 %i, %count
  br i1 %left, label %look, label %yes
look:
  %two = mul i64 %i, 2
  %pair = getelementptr i64, ptr %pairs, i64 %two
  %impl = call ptr @impl_of(ptr %slots, ptr %pair)
  %data = call i64 @memory_of(ptr %impl)
  %empty = icmp eq i64 %data, 0
  br i1 %empty, label %advance, label %hash
hash:
  %mixed = mul i64 %data, -7046029254386353131
  %high = lshr i64 %mixed, 32
  br label %probe
probe:
  %number = phi i64 [ %high, %hash ], [ %following, %taken ]
  %index = and i64 %number, %mask
  %entry.at = getelementptr i64, ptr %table, i64 %index
  %found = load i64, ptr %entry.at
  %free = icmp eq i64 %found, 0
  br i1 %free, label %insert, label %taken
taken:
  %following = add i64 %number, 1
  %shared = icmp eq i64 %found, %data
  br i1 %shared, label %no, label %probe
insert:
  store i64 %data, ptr %entry.at
  br label %advance
advance:
  %next = add i64 %i, 1
  br label %loop
yes:
  ret i1 true
no:
  ret i1 false
}}

define internal i1 @state_is(ptr %operands) {{
entry:
  %modes = call i64 @_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv()
  %functions = call i64 @_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv()
  %stacks = or i64 %modes, %functions
  %tracing.at = call ptr @_ZN5torch3jit6tracer15getTracingStateEv()
  %tracing = load i64, ptr %tracing.at
  %busy = or i64 %stacks, %tracing
  %idle = icmp eq i64 %busy, 0
  br i1 %idle, label %keys, label %no
keys:
  %casts = load i64, ptr %operands
  %casts.off = call i8 @_ZN3c104impl31tls_is_dispatch_keyset_excludedENS_14DispatchKeySetE(i64 %casts)
  %casts.bit = and i8 %casts.off, 1
  %a = icmp ne i8 %casts.bit, 0
  %transforms = load.word(ptr %operands, i64 1)
  %transforms.on = call i8 @_ZN3c104impl31tls_is_dispatch_keyset_includedENS_14DispatchKeySetE(i64 %transforms)
  %transforms.bit = and i8 %transforms.on, 1
  %b = icmp eq i8 %transforms.bit, 0
  %autograd.at = call ptr @_ZN3c1013AutogradState13get_tls_stateEv()
  %autograd.flags.at = getelementptr i8, ptr %autograd.at, i64 {flags}
  %autograd = load i8, ptr %autograd.flags.at
  %autograd.byte = zext i8 %autograd to i64
  %autograd.word = and i64 %autograd.byte, {flags_mask}
  %autograd.wanted = load.word(ptr %operands, i64 2)
  %c = icmp eq i64 %autograd.word, %autograd.wanted
  %dtype = call i16 @_ZN3c1017get_default_dtypeEv()
  %dtype.word = zext i16 %dtype to i64
  %dtype.wanted = load.word(ptr %operands, i64 3)
  %d = icmp eq i64 %dtype.word, %dtype.wanted
  %context = call ptr @_ZN2at13globalContextEv()
  %exact = call i8 @_ZNK2at7Context23deterministicAlgorithmsEv(ptr %context)
  %exact.bit = and i8 %exact, 1
  %warns = call i8 @_ZNK2at7Context31deterministicAlgorithmsWarnOnlyEv(ptr %context)
  %warns.bit = and i8 %warns, 1
  %warns.high = shl i8 %warns.bit, 1
  %exact.both = or i8 %exact.bit, %warns.high
  %exact.word = zext i8 %exact.both to i64
  %exact.wanted = load.word(ptr %operands, i64 4)
  %e = icmp eq i64 %exact.word, %exact.wanted
  %ab = and i1 %a, %b
  %cd = and i1 %c, %d
  %abcd = and i1 %ab, %cd
  %all = and i1 %abcd, %e
  ret i1 %all
no:
  ret i1 false
}}
"""
