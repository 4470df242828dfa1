"""Options of capture and dispatch (`bolide.dynamo.config`)."""

from __future__ import annotations

from bolide.support.config import Config, option


class DynamoConfig(Config):
    cache_size_limit: int = option(
        8, "Most compiled versions of one function; after that it is no longer compiled anew."
    )
    accumulated_cache_size_limit: int = option(
        256, "Most compiled versions of all functions that share one code object."
    )
    disable: bool = option(
        False, "Run everything in eager.", env=("BOLIDE_DISABLE", "TORCH_COMPILE_DISABLE"), compiled=False
    )
    suppress_errors: bool = option(
        True,
        "When bolide itself fails on a program: warn and run it in eager. Off: raise CompileError.",
        env=("BOLIDE_SUPPRESS_ERRORS", "TORCHDYNAMO_SUPPRESS_ERRORS"),
        compiled=False,
    )
    error_on_recompile: bool = option(False, "Raise RecompileError when a guard fails.", compiled=False)
    verbose: bool = option(
        False,
        "Warnings about failures of bolide carry the whole traceback.",
        env=("BOLIDE_VERBOSE", "TORCHDYNAMO_VERBOSE"),
        compiled=False,
    )


config = DynamoConfig()
