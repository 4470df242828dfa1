"""Programs of 64-bit words: what the machine code of the native check runs, and `pins` records.

A program is a list of instructions over *slots*: the values of the check's names, then what is unpacked from them. Each
instruction tests something; the first test that fails ends the program.
"""

from __future__ import annotations

# Instructions, with their operands. An object is given by its address. Those about the values that are passed come
# first: when one of them fails, the guards do not hold. When one of the others fails, they still may.
DONE = 0
TENSOR = 1  # slot, facts
EQUALS = 2  # slot, object of a built-in type: the same, or of the same type and equal
FIELD = 3  # slot, offset, expected word there
TUPLE = 4  # first slot to fill, slot, count: the items of a tuple of that length
LIST = 5  # first slot to fill, slot, count
DICT = 6  # first slot to fill, slot, count, keys: the values of a dict with exactly these keys in this order
ITEM = 7  # slot to fill, slot, key: a value of a dict
FIRST_OF_MEMORY = 8
IS = 8  # slot, object
WORDS = 9  # count, then (address, expected) count times
BITS = 10  # count, then (address, expected, mask) count times
TENSORS = 11  # count, then (object, facts) count times
ATTRIBUTE_IS = 12  # object, name, object
STATE = 13  # keys of autocast (all off), key of transforms (off), autograd's flags, default dtype, determinism
ATTRIBUTE = 14  # slot to fill, object, name: an attribute that is read by native code
APART = 15  # size of a table (a power of two), count, then (slot or -1, object) count times: no memory is shared
ABSENT = 16  # dict, key: it is not in the dict
DATA = 17  # slot or -1, object, bytes of an element, address of data, its bytes: what is in a dense tensor

# What a tensor has to be ("facts"): class, dim, flags, numbers of words and of sizes, then (offset, mask, expected) for
# each word of the TensorImpl, then (offset, expected) for each size and stride.
REQUIRES_GRAD, LEAF, NOT_LEAF, FAR_SIZES = 1, 2, 4, 8

# A program is: how often it has passed, number of slots, a Python function for the rest or null, number of results,
# address of the results, then instructions. A result is (slot, -), (-1, object), or (-2, position in the rest's list).
# A control block is: a Python function to be asked when no program passes, None, number of names, number of programs,
# their addresses.
