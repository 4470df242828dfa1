"""Values of captured programs.

The interpreter works on *ordinary Python objects* wherever that is sound: constants are themselves, tensors are
`TracedTensor`s, and every list, dict, set, function, cell or instance that the captured program makes is a real one,
holding such values. So the behaviour of built-in types is not modelled, it is used. Only what belongs to the outside
world needs care, because it may not be mutated and what is read of it must be guarded:

- `Outside` stands for a mutable object of the outside world (instance, module, dict): identity, source, overlay of its
  attributes and items;
- outside lists, sets and deques are copied when first read, and compared with what they were at the end;
- outside tensors become graph inputs;
- `Generator` is a suspended frame, `Super` a bound `super`.
"""
