"""Options of the code generator (`bolide.inductor.config`)."""

from __future__ import annotations

from bolide.support.config import Config, Group, option, publish


class InductorConfig(Config):
    fusion: bool = option(True, "Join operations into shared kernels. Off: one kernel for each, to find a wrong one.")
    native_after: int = option(
        10,
        "Calls of a graph that its readable driver runs before the native one is made. 0: all of them.",
        env=("BOLIDE_NATIVE_AFTER",),
    )
    freezing: bool = option(
        False,
        "Parameters and buffers are constants where nothing is differentiated: folded, and packed for oneDNN, anew "
        "when one of them has changed.",
        env=("BOLIDE_FREEZING", "TORCHINDUCTOR_FREEZING"),
    )
    max_autotune: bool = option(
        False,
        "Run the schedules that compute the same, for each kernel, numbers of threads, and libraries for each product "
        "and convolution, and take the fastest: some 0.1 s each. What was found is kept in the artifacts.",
        env=("BOLIDE_MAX_AUTOTUNE", "TORCHINDUCTOR_MAX_AUTOTUNE"),
    )
    triton = Group(
        cudagraphs=option(
            False,
            "Graphs on CUDA are recorded as CUDA graphs.",
            env=("BOLIDE_CUDAGRAPHS", "TORCHINDUCTOR_CUDAGRAPHS"),
        ),
        cudagraph_trees=option(
            True, "Recordings share memory, and each knows what ran before it. Off: each graph has memory of its own."
        ),
        cudagraph_support_input_mutation=option(
            True,
            "Graphs that write to inputs are recorded: they write where these lie, or their copies are written back.",
        ),
        cudagraph_skip_dynamic_graphs=option(False, "Graphs with symbolic sizes are not recorded."),
        cudagraph_dynamic_shape_warn_limit=option(50, "For so many sets of sizes at most a graph is recorded."),
        cudagraph_unexpected_rerecord_limit=option(128, "So often at most a graph is recorded with the same sizes."),
    )


config = InductorConfig()
publish(config, __name__)
