"""Programs of 64-bit words: what `runner` runs and `assemble` makes of a Plan.

A program works on *slots* (handles of tensors: the address of an ``at::Tensor``), and on a *frame* of words (sizes, and
arrays of them). Inputs and constants have the first slots; they are borrowed. A handle in another slot is the
program's, until it is freed.
"""

from __future__ import annotations

# Instructions, with their operands. An `offset` counts words from the start of the program.
DONE = 0
LAUNCH = 1  # address of a kernel of the CPU, count, operands
CALL = 2  # address of a thunk, or of a GPU's kernel, offset of the Python step for when it answers an error, count,
# operands
CHECK = 3  # slot, offset of the Python step for when it fails, dtype, dims, operands: address of sizes, of strides
FREE = 4  # first slot, count, slots: give up handles of the program's
FREE_INPUTS = 5  # count, inputs: give up inputs; holds the interpreter lock
PYTHON = 6  # offset of a Python step; holds the interpreter lock
RELEASE = 7  # the interpreter lock
ACQUIRE = 8
SHARE = 9  # slot to fill, slot: a second handle of a tensor
HANDLES = 10  # first frame word to fill, count, slots
ADD = 11  # frame words: to fill, left, right
MULTIPLY = 12
DIVIDE = 13  # rounded down; by 0 gives 0
REMAINDER = 14  # of that quotient
LEAST = 15
GREATEST = 16
EXPECT = 17  # slot, offset of the Python step for when the only element, a bool, is another, the bool that is expected
HOLDS = 18  # frame word, offset of the Python step for when the relation to 0 does not hold, relation
ITEM = 19  # frame word to fill, slot, bytes of the only element, its sign bit (0: it has none, or is a whole word)
SIZE = 20  # frame word to fill, slot, dimension
UNLESS = 21  # frame word, words from here to the next instruction if it is 0
JUMP = 22  # words from here to the next instruction
SIGNALS = 23  # once in a while: handlers of signals may raise
DISPATCH = 24  # an operator's name, offset of the Python step for when it fails, count, its overload's name, count of
# results, operands, forms (form, count, whether it is optional), results (slot, count, -1 for a tensor alone, or
# frame word, -2)
OFFSET = 25  # frame word to fill, slot: where in its storage a tensor begins

# Relations to 0.
EQUAL = 0
UNEQUAL = 1
AT_LEAST = 2

# Operands: kind and value.
LITERAL = 0  # the value itself
WORD = 1  # frame word
PLACE = 2  # address of a frame word
HANDLE = 3  # handle in a slot
SLOT = 4  # address of a slot
DATA = 5  # address of the first element of the tensor in a slot
OBJECT = 6  # an object of Python's by its address (in results only)

# Forms of an operator's arguments. The operand is a word, a handle, the address of `count` letters, or of an array.
FORM_WORD = 0
FORM_TENSOR = 1
FORM_OPTIONAL_TENSOR = 2  # none if its handle is 0
FORM_TEXT = 3
FORM_LIST = 4  # added to the form of its items, of which there are `count`

# A Python step: the function, offset of the instruction behind it, number of arguments, arguments (kind HANDLE or
# WORD, place), number of results, results (likewise). The function answers a tuple of all results.

# The control block of a program, by word.
FALLBACK = 0  # the readable driver
INPUTS = 1  # how many
INPUT_TABLE = 2  # address of: kind HANDLE or WORD, place
SLOTS = 3  # how many
SLOT_TABLE = 4  # address of the first handles (0 where there is none)
FRAME = 5  # how many words
FRAME_TABLE = 6  # address of their first values
BORROWED = 7  # how many slots are inputs' or constants'
CODE = 8  # address of the instructions
RESULTS = 9  # how many
RESULT_TABLE = 10  # address of: kind HANDLE, WORD or OBJECT, place
TENSOR = 11  # offset of the handle in an object of Python's
CLASSES = 12  # two classes whose objects are tensors: Tensor and Parameter
LONGEST = 14  # most operands of an instruction
RUNS = 15  # how often it has run natively
CONTROL_WORDS = 16
