"""The engine that a run asks for. Nothing of a library is imported before it is chosen."""

from convoy.config.engine import check_engine_offload, missing_package
from convoy.config.errors import PrerequisiteMissing
from convoy.config.run import RunConfig
from convoy.training.engines.engine import Engine
from convoy.training.process_groups import Ranks


def build_engine(config: RunConfig, ranks: Ranks, *, with_weights: bool = True) -> Engine:
    """with_weights: False leaves a transformer's weights undefined, for a checkpoint to fill. Raises ConfigError if
    `model.init_from` or `model.build` cannot give the model, the engine's package is not installed, or the engine is to
    offload where there is no GPU."""
    name = config.engine.name
    if ranks.device.type == "cpu":
        check_engine_offload(config.engine)
    try:
        if name == "deepspeed":
            from convoy.training.engines.deepspeed import DeepSpeedEngine

            return DeepSpeedEngine(config, ranks, config.engine.settings, with_weights=with_weights)
        if name == "accelerate":
            from convoy.training.engines.accelerate import AccelerateEngine

            return AccelerateEngine(config, ranks, with_weights=with_weights)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise PrerequisiteMissing(missing_package(name)) from None
    if config.parallel.uses_ddp:
        from convoy.training.engines.ddp import DdpEngine

        return DdpEngine(config, ranks, with_weights=with_weights)
    from convoy.training.engines.convoy import build_convoy_engine

    return build_convoy_engine(config, ranks, with_weights=with_weights)
