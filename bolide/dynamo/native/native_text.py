"""The machine code of the native check, as LLVM text with places for the offsets of this build and the numbers of the
instructions (see `native.py`, which gives them, and says what a program is).

``load.at(ptr base, i64 offset)`` and ``load.word(ptr base, i64 index)`` stand for the word at an offset in bytes or in
words; LLVM runs without an inliner here, so they are written out (`expanded`).
"""

from __future__ import annotations

import re

from bolide.dynamo.native import native_tensors

# Whether memory is as noted: (address, expected) or (address, expected, mask) `count` times.
_COMPARING = """define internal i1 @NAME(ptr %notes, i64 %count) {{
entry:
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %loop, label %yes
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %same ]
  %at = phi ptr [ %notes, %entry ], [ %following, %same ]
  %address = load ptr, ptr %at
  %expected = load.word(ptr %at, i64 1)
  %found = load i64, ptr %address
MASKED  %equal = icmp eq i64 KEPT, %expected
  br i1 %equal, label %same, label %no
same:
  %following = getelementptr i64, ptr %at, i64 WORDS
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %yes
yes:
  ret i1 true
no:
  ret i1 false
}}"""


def _comparing(name: str, masked: bool) -> str:
    mask = "  %mask = load.word(ptr %at, i64 2)\n  %kept = and i64 %found, %mask\n" if masked else ""
    parts = {"NAME": name, "WORDS": "3" if masked else "2", "MASKED": mask, "KEPT": "%kept" if masked else "%found"}
    return re.sub("|".join(parts), lambda found: parts[found.group()], _COMPARING)


_DECLARATIONS = """
declare i64 @PyLong_AsLongLong(ptr)
declare i32 @PyDict_Next(ptr, ptr, ptr, ptr)
declare ptr @PyDict_GetItemWithError(ptr, ptr)
declare i32 @PyDict_Contains(ptr, ptr)
declare i32 @PyObject_RichCompareBool(ptr, ptr, i32)
declare ptr @PyObject_VectorcallDict(ptr, ptr, i64, ptr)
declare ptr @PyObject_GetAttr(ptr, ptr)
declare ptr @PyErr_Occurred()
declare void @PyErr_Clear()
declare ptr @PyList_New(i64)
declare i32 @PyList_Append(ptr, ptr)
declare ptr @PyList_GetItem(ptr, i64)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
"""

_FUNCTIONS = """
define internal i1 @equals(ptr %found, ptr %wanted) {{
entry:
  %same = icmp eq ptr %found, %wanted
  br i1 %same, label %yes, label %types
types:
  %found.type = load.at(ptr %found, i64 {type})
  %wanted.type = load.at(ptr %wanted, i64 {type})
  %alike = icmp eq i64 %found.type, %wanted.type
  br i1 %alike, label %compare, label %no
compare:
  %answer = call i32 @PyObject_RichCompareBool(ptr %found, ptr %wanted, i32 2)
  %equal = icmp eq i32 %answer, 1
  ret i1 %equal
yes:
  ret i1 true
no:
  ret i1 false
}}

define internal i1 @unpack(ptr %slots, ptr %operands, i1 %list) {{
entry:
  %to = load i64, ptr %operands
  %from = load.word(ptr %operands, i64 1)
  %count = load.word(ptr %operands, i64 2)
  %object.at = getelementptr ptr, ptr %slots, i64 %from
  %object = load ptr, ptr %object.at
  %length = load.at(ptr %object, i64 {size})
  %fits = icmp eq i64 %length, %count
  br i1 %fits, label %start, label %no
start:
  %near = getelementptr i8, ptr %object, i64 {tuple_items}
  %far.at = getelementptr i8, ptr %object, i64 {list_items}
  %far = load ptr, ptr %far.at
  %items = select i1 %list, ptr %far, ptr %near
  br label %loop
loop:
  %i = phi i64 [ 0, %start ], [ %next, %move ]
  %left = icmp slt i64 %i, %count
  br i1 %left, label %move, label %yes
move:
  %item.at = getelementptr ptr, ptr %items, i64 %i
  %item = load ptr, ptr %item.at
  %place = add i64 %to, %i
  %slot = getelementptr ptr, ptr %slots, i64 %place
  store ptr %item, ptr %slot
  %next = add i64 %i, 1
  br label %loop
yes:
  ret i1 true
no:
  ret i1 false
}}

define internal i1 @unpack_dict(ptr %slots, ptr %operands) {{
entry:
  %position = alloca i64
  %key.place = alloca ptr
  store i64 0, ptr %position
  %to = load i64, ptr %operands
  %from = load.word(ptr %operands, i64 1)
  %count = load.word(ptr %operands, i64 2)
  %keys = getelementptr ptr, ptr %operands, i64 3
  %object.at = getelementptr ptr, ptr %slots, i64 %from
  %object = load ptr, ptr %object.at
  %length = load.at(ptr %object, i64 {size})
  %fits = icmp eq i64 %length, %count
  br i1 %fits, label %loop, label %no
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %good ]
  %left = icmp slt i64 %i, %count
  br i1 %left, label %step, label %yes
step:
  %place = add i64 %to, %i
  %slot = getelementptr ptr, ptr %slots, i64 %place
  %any = call i32 @PyDict_Next(ptr %object, ptr %position, ptr %key.place, ptr %slot)
  %more = icmp ne i32 %any, 0
  br i1 %more, label %compare, label %no
compare:
  %key = load ptr, ptr %key.place
  %wanted.at = getelementptr ptr, ptr %keys, i64 %i
  %wanted = load ptr, ptr %wanted.at
  %same = call i1 @equals(ptr %key, ptr %wanted)
  br i1 %same, label %good, label %no
good:
  %next = add i64 %i, 1
  br label %loop
yes:
  ret i1 true
no:
  ret i1 false
}}

define internal i1 @attribute_is(ptr %object, ptr %name, ptr %wanted) {{
entry:
  %found = call ptr @PyObject_GetAttr(ptr %object, ptr %name)
  %missing = icmp eq ptr %found, null
  br i1 %missing, label %forget, label %compare
forget:
  call void @PyErr_Clear()
  ret i1 false
compare:
  call void @Py_DecRef(ptr %found)
  %same = icmp eq ptr %found, %wanted
  ret i1 %same
}}

define internal i1 @read_attribute(ptr %slots, ptr %operands, ptr %temporaries) {{
entry:
  %slot = load i64, ptr %operands
  %object = load.word(ptr %operands, i64 1)
  %name = load.word(ptr %operands, i64 2)
  %object.pointer = inttoptr i64 %object to ptr
  %name.pointer = inttoptr i64 %name to ptr
  %found = call ptr @PyObject_GetAttr(ptr %object.pointer, ptr %name.pointer)
  %missing = icmp eq ptr %found, null
  br i1 %missing, label %forget, label %keep
keep:
  %before = load ptr, ptr %temporaries
  %first = icmp eq ptr %before, null
  br i1 %first, label %start, label %append
start:
  %fresh = call ptr @PyList_New(i64 0)
  store ptr %fresh, ptr %temporaries
  %failed = icmp eq ptr %fresh, null
  br i1 %failed, label %drop, label %append
drop:
  call void @Py_DecRef(ptr %found)
  br label %forget
append:
  %list = load ptr, ptr %temporaries
  %answer = call i32 @PyList_Append(ptr %list, ptr %found)
  call void @Py_DecRef(ptr %found)
  %refused = icmp ne i32 %answer, 0
  br i1 %refused, label %forget, label %fill
fill:
  %place = getelementptr ptr, ptr %slots, i64 %slot
  store ptr %found, ptr %place
  ret i1 true
forget:
  call void @PyErr_Clear()
  ret i1 false
}}

define internal ptr @collect(ptr %program, ptr %slots, ptr %rest) {{
entry:
  %count = load.word(ptr %program, i64 3)
  %results.at = getelementptr ptr, ptr %program, i64 4
  %results = load ptr, ptr %results.at
  %list = call ptr @PyList_New(i64 %count)
  %failed = icmp eq ptr %list, null
  br i1 %failed, label %out, label %start
start:
  %items.at = getelementptr i8, ptr %list, i64 {list_items}
  %items = load ptr, ptr %items.at
  br label %loop
loop:
  %i = phi i64 [ 0, %start ], [ %next, %put ]
  %left = icmp slt i64 %i, %count
  br i1 %left, label %choose, label %out
choose:
  %two = mul i64 %i, 2
  %at = getelementptr i64, ptr %results, i64 %two
  %slot = load i64, ptr %at
  %value.at = getelementptr ptr, ptr %at, i64 1
  switch i64 %slot, label %from.slot [ i64 -1, label %from.object i64 -2, label %from.rest ]
from.slot:
  %slot.at = getelementptr ptr, ptr %slots, i64 %slot
  %passed = load ptr, ptr %slot.at
  br label %put
from.object:
  %object = load ptr, ptr %value.at
  br label %put
from.rest:
  %position = load i64, ptr %value.at
  %other = call ptr @PyList_GetItem(ptr %rest, i64 %position)
  br label %put
put:
  %value = phi ptr [ %passed, %from.slot ], [ %object, %from.object ], [ %other, %from.rest ]
  call void @Py_IncRef(ptr %value)
  %item.at = getelementptr ptr, ptr %items, i64 %i
  store ptr %value, ptr %item.at
  %next = add i64 %i, 1
  br label %loop
out:
  ret ptr %list
}}

define internal ptr @attempt(ptr %control, ptr %program, ptr %args, i64 %names) {{
  %temporaries = alloca ptr
  store ptr null, ptr %temporaries
  %result = call ptr @execute(ptr %control, ptr %program, ptr %args, i64 %names, ptr %temporaries)
  %list = load ptr, ptr %temporaries
  %none = icmp eq ptr %list, null
  br i1 %none, label %done, label %drop
drop:
  call void @Py_DecRef(ptr %list)
  br label %done
done:
  ret ptr %result
}}

define internal ptr @execute(ptr %control, ptr %program, ptr %args, i64 %names, ptr %temporaries) {{
entry:
  %total = load.word(ptr %program, i64 1)
  %slots = alloca ptr, i64 %total
  br label %copy
copy:
  %i = phi i64 [ 0, %entry ], [ %i.next, %copied ]
  %left = icmp slt i64 %i, %names
  br i1 %left, label %copied, label %begin
copied:
  %arg.at = getelementptr ptr, ptr %args, i64 %i
  %arg = load ptr, ptr %arg.at
  %slot.at = getelementptr ptr, ptr %slots, i64 %i
  store ptr %arg, ptr %slot.at
  %i.next = add i64 %i, 1
  br label %copy
begin:
  %code = getelementptr i64, ptr %program, i64 5
  br label %step
step:
  %at = phi ptr [ %code, %begin ], [ %after, %advance ]
  %op = load i64, ptr %at
  %operands = getelementptr i64, ptr %at, i64 1
  %x = load i64, ptr %operands
  %second = getelementptr i64, ptr %at, i64 2
  %third = getelementptr i64, ptr %at, i64 3
  %slot.x.at = getelementptr ptr, ptr %slots, i64 %x
  switch i64 %op, label %no [
    i64 {DONE}, label %passed
    i64 {WORDS}, label %words
    i64 {BITS}, label %bits
    i64 {TENSORS}, label %tensors
    i64 {IS}, label %identity
    i64 {TENSOR}, label %tensor
    i64 {EQUALS}, label %equals
    i64 {FIELD}, label %field
    i64 {TUPLE}, label %tuple
    i64 {LIST}, label %list
    i64 {DICT}, label %dict
    i64 {ITEM}, label %item
    i64 {ATTRIBUTE_IS}, label %attribute
    i64 {STATE}, label %state
    i64 {ATTRIBUTE}, label %read
    i64 {APART}, label %apart
    i64 {ABSENT}, label %absent
    i64 {DATA}, label %data
  ]
words:
  %words.ok = call i1 @words_match(ptr %second, i64 %x)
  %words.two = mul i64 %x, 2
  %words.size = add i64 %words.two, 2
  br label %advance
bits:
  %bits.ok = call i1 @bits_match(ptr %second, i64 %x)
  %bits.three = mul i64 %x, 3
  %bits.size = add i64 %bits.three, 2
  br label %advance
tensors:
  %tensors.ok = call i1 @tensors_fit(ptr %second, i64 %x)
  %tensors.two = mul i64 %x, 2
  %tensors.size = add i64 %tensors.two, 2
  br label %advance
identity:
  %is.found = load ptr, ptr %slot.x.at
  %is.wanted = load ptr, ptr %second
  %is.ok = icmp eq ptr %is.found, %is.wanted
  br label %advance
tensor:
  %tensor.object = load ptr, ptr %slot.x.at
  %tensor.facts = load ptr, ptr %second
  %tensor.ok = call i1 @tensor_fits(ptr %tensor.object, ptr %tensor.facts)
  br label %advance
equals:
  %equals.found = load ptr, ptr %slot.x.at
  %equals.wanted = load ptr, ptr %second
  %equals.ok = call i1 @equals(ptr %equals.found, ptr %equals.wanted)
  br label %advance
field:
  %field.object = load ptr, ptr %slot.x.at
  %field.offset = load i64, ptr %second
  %field.found = load.at(ptr %field.object, i64 %field.offset)
  %field.wanted = load i64, ptr %third
  %field.ok = icmp eq i64 %field.found, %field.wanted
  br label %advance
tuple:
  %tuple.ok = call i1 @unpack(ptr %slots, ptr %operands, i1 false)
  br label %advance
list:
  %list.ok = call i1 @unpack(ptr %slots, ptr %operands, i1 true)
  br label %advance
dict:
  %dict.ok = call i1 @unpack_dict(ptr %slots, ptr %operands)
  %dict.count = load i64, ptr %third
  %dict.size = add i64 %dict.count, 4
  br label %advance
item:
  %item.from = load i64, ptr %second
  %item.object.at = getelementptr ptr, ptr %slots, i64 %item.from
  %item.object = load ptr, ptr %item.object.at
  %item.key = load ptr, ptr %third
  %item.found = call ptr @PyDict_GetItemWithError(ptr %item.object, ptr %item.key)
  store ptr %item.found, ptr %slot.x.at
  %item.ok = icmp ne ptr %item.found, null
  br label %advance
attribute:
  %attribute.object = load ptr, ptr %operands
  %attribute.name = load ptr, ptr %second
  %attribute.wanted = load ptr, ptr %third
  %attribute.ok = call i1 @attribute_is(ptr %attribute.object, ptr %attribute.name, ptr %attribute.wanted)
  br label %advance
read:
  %read.ok = call i1 @read_attribute(ptr %slots, ptr %operands, ptr %temporaries)
  br label %advance
apart:
  %apart.ok = call i1 @apart(ptr %slots, ptr %operands)
  %apart.count = load i64, ptr %second
  %apart.two = mul i64 %apart.count, 2
  %apart.size = add i64 %apart.two, 3
  br label %advance
absent:
  %absent.table = load ptr, ptr %operands
  %absent.key = load ptr, ptr %second
  %absent.found = call i32 @PyDict_Contains(ptr %absent.table, ptr %absent.key)
  %absent.ok = icmp eq i32 %absent.found, 0
  br label %advance
data:
  %data.ok = call i1 @data_is(ptr %slots, ptr %operands)
  br label %advance
state:
  %state.ok = call i1 @state_is(ptr %operands)
  br label %advance
advance:
  %ok = phi i1 [ %words.ok, %words ], [ %bits.ok, %bits ], [ %tensors.ok, %tensors ], [ %is.ok, %identity ],
    [ %tensor.ok, %tensor ], [ %equals.ok, %equals ], [ %field.ok, %field ], [ %tuple.ok, %tuple ], [ %list.ok, %list ],
    [ %dict.ok, %dict ], [ %item.ok, %item ], [ %attribute.ok, %attribute ], [ %state.ok, %state ],
    [ %read.ok, %read ], [ %apart.ok, %apart ], [ %absent.ok, %absent ],
    [ %data.ok, %data ]
  %size = phi i64 [ %words.size, %words ], [ %bits.size, %bits ], [ %tensors.size, %tensors ], [ 3, %identity ],
    [ 3, %tensor ], [ 3, %equals ],
    [ 4, %field ], [ 4, %tuple ], [ 4, %list ], [ %dict.size, %dict ], [ 4, %item ], [ 4, %attribute ],
    [ 6, %state ], [ 4, %read ], [ %apart.size, %apart ], [ 3, %absent ], [ 6, %data ]
  %after = getelementptr i64, ptr %at, i64 %size
  br i1 %ok, label %step, label %failed
failed:
  %answered.by.values = icmp ult i64 %op, {FIRST_OF_MEMORY}
  br i1 %answered.by.values, label %refuse.values, label %no
refuse.values:
  %refusal.at = getelementptr ptr, ptr %control, i64 1
  %refusal = load ptr, ptr %refusal.at
  call void @Py_IncRef(ptr %refusal)
  ret ptr %refusal
passed:
  %rest.at = getelementptr ptr, ptr %program, i64 2
  %rest = load ptr, ptr %rest.at
  %complete = icmp eq ptr %rest, null
  br i1 %complete, label %hit, label %ask
ask:
  %answer = call ptr @PyObject_VectorcallDict(ptr %rest, ptr %args, i64 %names, ptr null)
  %broken = icmp eq ptr %answer, null
  br i1 %broken, label %no, label %answered
answered:
  %none.at = getelementptr ptr, ptr %control, i64 1
  %none = load ptr, ptr %none.at
  %refused = icmp eq ptr %answer, %none
  br i1 %refused, label %refuse, label %with.rest
refuse:
  ret ptr %answer
with.rest:
  %mixed = call ptr @collect(ptr %program, ptr %slots, ptr %answer)
  call void @Py_DecRef(ptr %answer)
  br label %count
hit:
  %plain = call ptr @collect(ptr %program, ptr %slots, ptr null)
  br label %count
count:
  %result = phi ptr [ %mixed, %with.rest ], [ %plain, %hit ]
  %passes = load i64, ptr %program
  %more.passes = add i64 %passes, 1
  store i64 %more.passes, ptr %program
  ret ptr %result
no:
  ret ptr null
}}

define ptr @check(ptr %self, ptr %args, i64 %count) {{
entry:
  %address = call i64 @PyLong_AsLongLong(ptr %self)
  %control = inttoptr i64 %address to ptr
  %names = load.word(ptr %control, i64 2)
  %programs = load.word(ptr %control, i64 3)
  %first = getelementptr ptr, ptr %control, i64 4
  %fits = icmp eq i64 %count, %names
  br i1 %fits, label %loop, label %slow
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %failed ]
  %left = icmp slt i64 %i, %programs
  br i1 %left, label %try, label %slow
try:
  %program.at = getelementptr ptr, ptr %first, i64 %i
  %program = load ptr, ptr %program.at
  %result = call ptr @attempt(ptr %control, ptr %program, ptr %args, i64 %names)
  %none = icmp eq ptr %result, null
  br i1 %none, label %failed, label %found
found:
  ret ptr %result
failed:
  %next = add i64 %i, 1
  br label %loop
slow:
  %raised = call ptr @PyErr_Occurred()
  %error = icmp ne ptr %raised, null
  br i1 %error, label %give.up, label %ask
give.up:
  ret ptr null
ask:
  %readable = load ptr, ptr %control
  %answer = call ptr @PyObject_VectorcallDict(ptr %readable, ptr %args, i64 %count, ptr null)
  ret ptr %answer
}}
"""

_LOOPS = [_comparing("words_match", False), _comparing("bits_match", True)]
TEXT = "\n\n".join([_DECLARATIONS, native_tensors.TEXT, *_LOOPS, _FUNCTIONS])


_LOAD = re.compile(r"^  (%\S+) = load\.(at|word)\(ptr (\S+), i64 (\S+)\)$", re.MULTILINE)


def _expand(found: re.Match[str]) -> str:
    """The word at an address and an offset in bytes (`load.at`) or in words (`load.word`)."""
    name, unit, base, offset = found.groups()
    step = "i8" if unit == "at" else "i64"
    return f"  {name}.place = getelementptr {step}, ptr {base}, i64 {offset}\n  {name} = load i64, ptr {name}.place"


def expanded(text: str) -> str:
    """Text in which the loads are written out."""
    return _LOAD.sub(_expand, text)
