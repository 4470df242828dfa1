"""The kinds of things that cannot be captured, as data: a stable code, what it is, why, and what helps.

`Unsupported.kind` names one of them; docs/break-kinds.md is this table. Codes are never reused: BR01 data, BR02 calls,
BR03 objects, BR04 Python, BR05 tensors, BR06 torch's state, BR07 the compiled function as a whole.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Literal

Scope = Literal["program", "call", "user"]
"""What a break of a kind says about: the ``program`` (it will meet the same thing at every call), this ``call`` only
(its arguments, or the present global state), or the ``user``'s own code, which raised.
"""


@dataclass(frozen=True, slots=True)
class BreakKind:
    """`name` is what the code says, `code` what people search for."""

    code: str
    name: str
    title: str
    explanation: str
    remedy: str
    scope: Scope = "program"


_TABLE = (
    BreakKind(
        "BR0001",
        "unsupported",
        "Not captured yet",
        "bolide has no rule for this operation.",
        "move it out of the compiled function, or accept the break",
    ),
    # ---- data
    BreakKind(
        "BR0101",
        "data_branch",
        "A branch depends on the data of a tensor",
        "The truth of a tensor is known only when the graph has run, and it decides which code comes next.",
        "use torch.where, torch.cond or torch.while_loop, or branch on sizes and Python values",
    ),
    BreakKind(
        "BR0102",
        "data_value",
        "A Python number is read from a tensor",
        "`.item()`, `int()`, `float()`, `.tolist()` need the data of a tensor, which exist when the graph has run.",
        "keep it a tensor; a number that is only computed with does not break",
    ),
    BreakKind(
        "BR0103",
        "data_shape",
        "A size depends on the data of a tensor",
        "Operations such as nonzero, unique and indexing with a mask have results whose sizes depend on data.",
        "use torch.where or a fixed size; leave bolide.dynamo.config.capture_dynamic_output_shape_ops on",
    ),
    BreakKind(
        "BR0104",
        "data_text",
        "The text of a tensor is needed",
        "Formatting a tensor reads its data.",
        "format it outside the compiled function, or print its shape instead",
    ),
    BreakKind(
        "BR0105",
        "data_pointer",
        "The memory of a tensor is asked for",
        "`data_ptr()`, `numpy()`, `storage()` and the like reach memory that exists only when the graph runs.",
        "use tensor operations, or do it outside the compiled function",
    ),
    BreakKind(
        "BR0106",
        "data_condition",
        "A condition on a number that is data decides what comes next",
        "Numbers and sizes that are data are symbols without a value; what does not follow from their bounds and from "
        "what the program has checked is not known: there the program breaks, and the number is known behind it.",
        "state what holds with torch._check(...)",
    ),
    # ---- calls
    BreakKind(
        "BR0201",
        "graph_break",
        "A break was asked for",
        "The program calls bolide.graph_break() (or torch's).",
        "remove the call",
    ),
    BreakKind(
        "BR0202",
        "disabled",
        "A function that is never compiled is called",
        "It is marked with disable, or stands in a file that is skipped.",
        "remove the mark, or call it outside the compiled function",
    ),
    BreakKind(
        "BR0203",
        "side_effect",
        "A call has an effect outside Python's objects",
        "Printing, logging, files and the like must happen in order and at every call.",
        "move it out, or name the function in bolide.dynamo.config.reorderable_logging_functions",
    ),
    BreakKind(
        "BR0204",
        "moment",
        "A call answers or does something else each time",
        "Clocks, random generators of Python, the process's environment: a later call gets another result.",
        "call it outside the compiled function and pass the result",
    ),
    BreakKind(
        "BR0205",
        "native_call",
        "Native code is given objects it would look into",
        "A function written in C is called with an object of the outside world; what it reads cannot be seen.",
        "pass the parts that it needs (tensors, numbers, lists)",
    ),
    BreakKind(
        "BR0206",
        "frame_access",
        "A frame's namespaces are used",
        "The variables of a frame object, names of a library's module or code among names from outside are asked for.",
        "do this outside the compiled function",
    ),
    # ---- objects
    BreakKind(
        "BR0301",
        "outside_object",
        "An object of the outside world is used in an unknown way",
        "What this operation reads of the object cannot be guarded.",
        "pass the parts that are needed, or do this outside the compiled function",
    ),
    BreakKind(
        "BR0302",
        "attribute_write",
        "An attribute is written that cannot be replayed",
        "The write would have to happen while capturing.",
        "assign it outside the compiled function",
    ),
    BreakKind(
        "BR0303",
        "numpy_value",
        "A NumPy value is used",
        "This use of NumPy has no counterpart among tensor operations.",
        "pass tensors or Python numbers",
    ),
    BreakKind(
        "BR0304",
        "escape",
        "A new object leaves the function that cannot be rebuilt",
        "What a compiled function makes is built again at each call; for this class nobody knows how.",
        "return a list, tuple, dict or dataclass",
    ),
    BreakKind(
        "BR0305",
        "class_statement",
        "A class is made",
        "This class statement cannot be run while capturing.",
        "define the class outside the compiled function",
    ),
    BreakKind(
        "BR0306",
        "copy",
        "An object of the outside world is copied",
        "Copying would run code of its class natively.",
        "copy it outside the compiled function",
    ),
    BreakKind(
        "BR0307",
        "finaliser",
        "An object with a finaliser is made",
        "Its `__del__` must run when the program lets go of the object, at every call and at the right moment.",
        "make it outside the compiled function, or use a context manager",
    ),
    # ---- Python
    BreakKind(
        "BR0401",
        "bytecode",
        "An operation of Python's bytecode is not known",
        "The interpreter has no handler for it.",
        "move this code out of the compiled function",
    ),
    BreakKind(
        "BR0402",
        "asynchronous",
        "Asynchronous code",
        "Coroutines are driven by an event loop outside.",
        "await outside the compiled function",
    ),
    BreakKind(
        "BR0403",
        "generator",
        "A generator or coroutine function is compiled",
        "Its frame outlives the call.",
        "compile the functions that it calls",
    ),
    BreakKind(
        "BR0404",
        "iterator",
        "An iterator is used in an unknown way",
        "Its position cannot be followed through this operation.",
        "use a loop, or list(iterator)",
    ),
    BreakKind(
        "BR0405",
        "size_loop",
        "A loop whose length differs from call to call",
        "A loop over a size is unrolled, for one length. After four lengths its body is captured alone, which is "
        "compiled once, whatever the length.",
        "write it with tensor operations, or keep the length fixed",
    ),
    BreakKind(
        "BR0406",
        "size_value",
        "A value that differs from call to call is needed",
        "The operation has no form for sizes, floats or numbers of items that are not known, so each of four values "
        "was compiled for itself. From the next on it runs in eager; what is around it is compiled once for all.",
        "write it with operations that take sizes, or keep the value fixed",
    ),
    # ---- tensors
    BreakKind(
        "BR0501",
        "tensor_method",
        "A method or attribute of tensors is not captured",
        "It would go past the recording, or changes the tensor's identity.",
        "use it outside the compiled function",
    ),
    BreakKind(
        "BR0502",
        "tensor_write",
        "A write to a tensor cannot be made functional",
        "The written tensor, or the view it is written through, has no functional form.",
        "write to a clone, or pass the tensor as an argument",
    ),
    BreakKind(
        "BR0503",
        "operator",
        "An operator is not captured",
        "Its schema (several views, lists written in place, no functional form, higher order) is not handled.",
        "use the functional form of the operation",
    ),
    BreakKind(
        "BR0504",
        "layout",
        "A tensor is not a plain strided one",
        "Sparse, quantised and nested tensors and subclasses without a tracing protocol are not captured.",
        "convert it to a dense tensor before the call",
        "call",
    ),
    BreakKind(
        "BR0505",
        "device",
        "A tensor is on a device without code generation",
        "The backend generates code for other devices.",
        'move it, or use backend="aot_eager"',
        "call",
    ),
    BreakKind(
        "BR0506",
        "generator_state",
        "A random number generator is copied, or asked for a number",
        "Compiled code makes and seeds generators, keeps and sets their states; a seed that nobody chose is a number "
        "of the moment.",
        "do this outside of the compiled function",
    ),
    BreakKind(
        "BR0507",
        "new_leaf",
        "A new leaf that requires grad leaves the function",
        "A tensor made inside is given requires_grad; its history begins there.",
        "call requires_grad_() on it outside the compiled function",
    ),
    BreakKind(
        "BR0508",
        "detached_alias",
        "Outputs share memory, one of them detached",
        "Their common history cannot be made again at run time.",
        "clone the detached one",
    ),
    BreakKind(
        "BR0510",
        "compliance",
        "A custom operator is not known to keep the compiler's rules",
        "bolide.dynamo.config.only_allow_pt2_compliant_ops is set, and the operator lacks the tag pt2_compliant_tag.",
        "add the tag to the operator, or reset the option",
    ),
    BreakKind(
        "BR0511",
        "control_flow",
        "Control flow written with torch's operators is not captured",
        "The branches or bodies of torch.cond, while_loop and the like do something that a graph cannot hold.",
        "let branches compute tensors of equal shapes and dtypes, without effects",
    ),
    BreakKind(
        "BR0512",
        "inner_gradient",
        "Gradients are asked of a tensor that the program makes",
        "A hook that writes outside, or retain_grad, is called for real. It sees no gradients of what the same graph "
        "has computed from the tensor, so the graph ends before that.",
        "ask for it right behind the operation that makes the tensor",
    ),
    # ---- torch's state
    BreakKind(
        "BR0601",
        "global_state",
        "torch's global state is read or changed",
        "This part of it is neither guarded nor replayed.",
        "do this outside the compiled function",
    ),
    BreakKind(
        "BR0602",
        "state",
        "The surroundings of the call",
        "A mode, transform or trace is active in which nothing is compiled.",
        "call the compiled function outside of it",
        "call",
    ),
    BreakKind(
        "BR0603",
        "context",
        "A context manager or variable is not captured",
        "Its effect cannot be entered and left by compiled code.",
        "enter or set it outside the compiled function",
    ),
    # ---- the function as a whole
    BreakKind(
        "BR0701",
        "limit",
        "Compiled too often",
        "The number of compiled versions has reached its limit.",
        "keep the value that changes fixed, make it a tensor, or raise bolide.dynamo.config.cache_size_limit",
    ),
    BreakKind(
        "BR0702",
        "input",
        "These arguments cannot be compiled",
        "Others may.",
        "change the argument as the reason says",
        "call",
    ),
    BreakKind(
        "BR0703",
        "user_exception",
        "The program raised an exception",
        "Eager runs, so that it surfaces with its own traceback. Where it comes again, the graph ends there.",
        "none needed if the exception is meant",
        "user",
    ),
    BreakKind(
        "BR0704",
        "bug",
        "bolide failed",
        "A stage of the compiler raised an error: a fault of bolide, not of the program.",
        "please report it; BOLIDE_VERBOSE=1 shows the traceback, suppress_errors=False raises it",
    ),
    BreakKind(
        "BR0705",
        "aliasing",
        "Arguments share memory",
        "An argument that is written to shares its memory with another one.",
        "clone one of them",
        "call",
    ),
    BreakKind(
        "BR0706",
        "too_small",
        "The program has too few operations",
        "bolide.dynamo.config.minimum_call_count is higher.",
        "lower minimum_call_count",
    ),
    BreakKind(
        "BR0707",
        "lazy",
        "A lazy module has no parameters yet",
        "Its first call makes them, in eager; the next one is compiled.",
        "none needed",
        "user",
    ),
    BreakKind(
        "BR0708",
        "recursion",
        "Calls are nested too deeply",
        "The program recurses as deeply as sys.getrecursionlimit() allows, or bolide would have to. Eager runs, and "
        "raises RecursionError if it has to.",
        "write the recursion as a loop, or raise the limit by sys.setrecursionlimit",
        "user",
    ),
    BreakKind(
        "BR0709",
        "halfway",
        "bolide failed where eager cannot take over",
        "A part of the call was done already (something was written, an instruction or the forward pass had run): made "
        "again, it would be done twice. What was written stays.",
        "please report it, and call the function without bolide.compile (or mark it with bolide.dynamo.disable) until "
        "then",
    ),
)

KINDS: dict[str, BreakKind] = {kind.name: kind for kind in _TABLE}


def markdown() -> str:
    """The table as docs/break-kinds.md has it, in lines of less than 120 characters."""
    lines = [
        "# Kinds of breaks",
        "",
        "What capture cannot take into a graph runs in eager, and says why: in errors (`fullgraph=True`), warnings,",
        "logs (`BOLIDE_LOGS=graph_breaks`) and `bolide.explain`. Each reason has a kind with a stable code. This page",
        "is made from `bolide/support/kinds.py`; a test keeps it so.",
    ]
    for kind in _TABLE:
        lines += ["", f"## {kind.code} {kind.title}", "", *_wrapped(f"`{kind.name}`: {kind.explanation}"), ""]
        lines += _wrapped(f"Remedy: {kind.remedy}.")
        if kind.scope == "call":
            later = "the next one is tried again"
            later += ", `cache_size_limit` times for the same kind of tensor" if kind.name == "input" else ""
            lines += ["", *_wrapped(f"Only the call that met it runs in eager; {later}.")]
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 119, break_long_words=False, break_on_hyphens=False)
