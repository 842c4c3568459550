"""What training starts with: random weights, those of a file, or a checkpoint gone on from."""

from __future__ import annotations

from cloud_learner.algorithms.interface import Choice
from cloud_learner.algorithms.recipe import Recipe
from cloud_learner.config import LearnerConfig
from cloud_learner.state_dir import StateDir
from cloud_learner.training.brain import Brain, make_brain
from cloud_learner.training.checkpoint import check_recipe
from cloud_learner.training.init_file import InitFile
from shoal.errors import CheckpointError, ConfigError
from shoal.logs import get_logger
from shoal.spaces import EnvSpec

_log = get_logger("start")


def build_brain(
    spec: EnvSpec, config: LearnerConfig, choice: Choice, init: InitFile | None = None
) -> Brain:
    """Builds what is trained for a pair of spaces, with fresh weights or those of a file.

    Raises:
        WireError: The spaces are of a kind that no model is made for.
        ConfigError: The network cannot be built, the algorithm cannot act in these spaces, or the
            file is of others.
    """
    brain = make_brain(spec, config.training, choice, seed=config.seed)
    if init is not None:
        init.put_into(brain)
    return brain


def read_init(config: LearnerConfig, choice: Choice) -> InitFile | None:
    """The file that training starts from, if there is one, checked against the configuration.

    Raises:
        ConfigError: It cannot be used. What it does not say of its spaces is checked later.
    """
    if config.init is None:
        return None
    init = InitFile.read(config.init)
    if init.checkpoint is not None:
        try:
            asked = Recipe.of(choice, config.training.network)
            check_recipe(init.checkpoint, asked, otherwise="give another file")
        except CheckpointError as error:
            raise ConfigError(f"init = {config.init}: {error}") from error
    if init.spec is not None:
        build_brain(init.spec, config, choice, init)
    return init


def init_of(config: LearnerConfig, choice: Choice, resumed: StateDir | None) -> InitFile | None:
    """What fresh weights begin with; nothing when a checkpoint is gone on from.

    Raises:
        ConfigError: The file cannot be used.
    """
    if resumed is None:
        init = read_init(config, choice)
        if init is not None:
            kind = "policy" if init.checkpoint is None else "checkpoint"
            _log.info("training_starts_from_file", init=str(init.path), kind=kind)
        return init
    if config.init is not None:
        _log.warning(
            "init_ignored",
            init=str(config.init),
            problem=f"training goes on from the checkpoint in {resumed.checkpoints}",
        )
    return None
