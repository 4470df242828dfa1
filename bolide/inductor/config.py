"""Options of the code generator (`bolide.inductor.config`)."""

from __future__ import annotations

from bolide.support.config import Config, option, publish


class InductorConfig(Config):
    fusion: bool = option(True, "Join operations into shared kernels. Off: one kernel for each, to find a wrong one.")


config = InductorConfig()
publish(config, __name__)
