"""Where things are in memory that a library's own code reads and writes, by word. The control block of its program
(`inductor.runtime.native.instructions`) goes on with what stands here first.
"""

from __future__ import annotations

from bolide.inductor.runtime.native.instructions import CONTROL_WORDS

# The control block, behind the program's own words.
CONSTANTS = CONTROL_WORDS  # how many
CONSTANT_TABLE = CONTROL_WORDS + 1  # address of their records
BLOB_SIZE = CONTROL_WORDS + 2  # of their data, at the end of the file, in bytes
BLOB_MARK = CONTROL_WORDS + 3  # the first word of the data
IN_SPEC = CONTROL_WORDS + 4  # address of a text
OUT_SPEC = CONTROL_WORDS + 5
NEEDS = CONTROL_WORDS + 6  # how many features of the CPU are needed
NEED_TABLE = CONTROL_WORDS + 7  # address of their records
DTYPES = CONTROL_WORDS + 8  # address of the names of dtypes, by number
INPUT_NAMES = CONTROL_WORDS + 9  # address of texts
OUTPUT_NAMES = CONTROL_WORDS + 10
WRITES = CONTROL_WORDS + 11  # how many inputs are written
WRITE_TABLE = CONTROL_WORDS + 12  # address of their places
DEVICE = CONTROL_WORDS + 13  # the type of the device that kernels run on, with torch's numbers: 0 for the CPU
DEVICE_INDEX = CONTROL_WORDS + 14
DEVICE_TABLE = CONTROL_WORDS + 15  # address of the types of the inputs' devices; -1 for any
GPU_LOCK = CONTROL_WORDS + 16  # address of a lock
GPU_CONTEXT = CONTROL_WORDS + 17  # address of the context where the code is loaded; 0 before that
GPU_IMAGE = CONTROL_WORDS + 18  # address of the machine code
GPU_REGIONS = CONTROL_WORDS + 19  # how many functions it has
GPU_REGION_TABLE = CONTROL_WORDS + 20  # address of their records
LIBRARY_WORDS = CONTROL_WORDS + 21

# The record of a function of a GPU: a text, and where its handle belongs.
REGION_NAME = 0
REGION_TABLE = 1
REGION_PLACE = 2
REGION_WORDS = 3
TABLE_CONTEXT = 3  # where the context is in such a table

# The record of a constant.
NAME = 0
KIND = 1
DTYPE = 2
DIMS = 3
SIZES = 4
STRIDES = 5
AT = 6  # where its data are, in bytes from the first
BYTES = 7
CONSTANT_DEVICE = 8  # the type of its device
RECORD_WORDS = 9

# Kinds of constants, with PyTorch's numbers.
PARAMETER = 1
BUFFER = 2
TENSOR = 3

# The record of a feature: a bit that the instruction `cpuid` gives.
LEAF = 0
SUBLEAF = 1
REGISTER = 2
BIT = 3
FEATURE = 4
NEED_WORDS = 5

# What is done otherwise: kind, the instruction to go on at, the text, then what the kind needs.
MESSAGE = 0  # nothing
REFUSED = 1  # nothing; a function in C has told why
VALUE = 2  # a frame word, which the text has a place for
INPUT = 3  # slot, dtype, dimensions, operands: address of sizes, of strides
STEP_WORDS = 10

# Kinds of results beside HANDLE and WORD: a number of a type, none.
INTEGER = 10
FLOAT = 11
BOOL = 12
NONE = 13

# A container, which is what a library's user holds: behind eight words of a lock
ACTIVE = 8  # which of two sets of constants is used
SETS = 9  # addresses of the handles of both
DATA = 11  # where the data of the constants are, or 0
CONTAINER_WORDS = 12
