"""Options of differentiation (`bolide.functorch.config`). Names are those of `torch._functorch.config`; `note` says
of an option why it has no effect of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bolide.support.config import Config, option, publish

_ALWAYS = "always so here"
_COST = "what is kept for the backward is decided by what it costs to keep and to compute again"
_CACHE = "graphs are not kept on disk"


class FunctorchConfig(Config):
    # ---- graphs
    cse: bool = option(True, "Equal computations of a graph are done once.")
    debug_assert: bool = option(False, "Check the structure of a graph after each pass.", compiled=False)
    functionalize_rng_ops: bool = option(False, "Random operations of graphs are functional.", note=_ALWAYS)
    view_replay_for_aliased_outputs: bool = option(
        True, "Results that are views of inputs are made by the same views.", note=_ALWAYS
    )
    static_weight_shapes: bool = option(
        True, "Sizes of parameters are fixed.", note="see force_parameter_static_shapes"
    )
    joint_custom_pass: Callable[..., Any] | None = option(
        None, "A pass over joint graphs.", note="graphs here are of another kind; there is no such pass"
    )
    check_custom_op_aliasing: bool = option(
        True, "Results of custom operators that share memory with arguments are looked for.", note=_ALWAYS
    )
    error_on_custom_op_aliasing: bool = option(
        True, "Such results are errors.", note="what a schema does not say is an error in each call"
    )
    fake_tensor_propagate_real_tensors: bool = option(
        False, "Graphs are made with the data at hand.", note="numbers that are data are symbols, or end a segment"
    )

    # ---- what is kept for the backward
    treat_parameters_as_free_to_save: bool = option(True, "Keeping a parameter costs nothing.", note=_ALWAYS)
    recompute_views: bool = option(False, "Views are computed again.", note=_ALWAYS)
    aggressive_recomputation: bool = option(False, "Compute again whatever may be.", note=_COST)
    activation_memory_budget: float = option(
        1.0, "The share of the bytes kept for the backward that may be kept; the rest is computed again."
    )
    activation_memory_budget_runtime_estimator: str = option(
        "flops", "What measures work for that.", note="always formulas, see activation-memory.md"
    )
    activation_memory_budget_solver: str = option(
        "dp", "What chooses for that.", note="always minimum cuts, see activation-memory.md"
    )
    ban_recompute_used_far_apart: bool = option(True, "Keep what is needed much later.", note=_COST)
    ban_recompute_long_fusible_chains: bool = option(True, "Keep ends of long chains.", note=_COST)
    ban_recompute_materialized_backward: bool = option(True, "Keep what the backward must store.", note=_COST)
    ban_recompute_not_in_allowlist: bool = option(True, "Keep results of unknown operations.", note=_COST)
    ban_recompute_reductions: bool = option(True, "Keep results of reductions.", note=_COST)
    debug_partitioner: bool = option(
        False,
        "Say what is kept.",
        env=("BOLIDE_PARTITIONER_DEBUG", "AOT_PARTITIONER_DEBUG"),
        compiled=False,
        note="set_logs(aot=logging.DEBUG) and the stages of events say it",
    )
    saved_tensors_hooks_filtering_mode: str = option(
        "donated",
        "Which tensors hooks of saved tensors see.",
        choices=("donated", "no_static", "all"),
        note="those that eager shows them",
    )

    # ---- the backward
    backward_pass_autocast: str = option(
        "same_as_forward", "The autocast mode of the backward.", note="that of the forward, as in eager"
    )
    donated_buffer: bool = option(True, "The backward may write to what only it reads.", note=_ALWAYS)

    # ---- caches
    enable_autograd_cache: bool = option(True, "Keep differentiated graphs on disk.", compiled=False, note=_CACHE)
    strict_autograd_cache: bool = option(False, "What cannot be kept is an error.", compiled=False, note=_CACHE)
    bundled_autograd_cache: bool = option(False, "Keep graphs with their code.", compiled=False, note=_CACHE)


config = FunctorchConfig()
publish(config, __name__)
