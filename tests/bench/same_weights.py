"""The newest checkpoint of a learner in int8: the weights that its fp32 export has.

What was published last is a batch or two older than what the checkpoint holds, and off policy that
alone may be worth more than all rounding. So rounding is judged at equal weights.
"""

from collections import deque
from dataclasses import replace
from pathlib import Path

import onnxruntime

from cloud_learner.algorithms.interface import load_algorithm
from cloud_learner.config import LearnerConfig
from cloud_learner.journal.reader import JournaledChunk, JournalReader
from cloud_learner.quantization.sample import sample_of
from cloud_learner.quantization.session import open_session
from cloud_learner.state_dir import StateDir
from cloud_learner.training.brain import make_brain
from cloud_learner.training.checkpoint import newest_checkpoint
from cloud_learner.training.experience import Admitted, collate
from shoal.config import load_config
from shoal.envelope import ChunkKey
from shoal.errors import ShoalError


def int8_of_checkpoint(config_file: Path) -> onnxruntime.InferenceSession:
    """Quantizes a checkpoint as its learner would, whatever the gap.

    Ranges are those that the learner held, moved where the newest chunks do not fit.

    Args:
        config_file: The learner's TOML.

    Raises:
        ShoalError: There is no checkpoint, or no chunk in the journal.
    """
    config = load_config(LearnerConfig, config_file)
    state = StateDir(config.state_dir)
    checkpoint = newest_checkpoint(state.checkpoints)
    newest = _newest_chunks(state.journal)
    if checkpoint is None or not newest:
        raise ShoalError(f"{state.directory}: no checkpoint, or no chunk to find ranges by")
    training = replace(config.training, kl_quantization_max=float("inf"))
    choice = load_algorithm(training.algorithm, training.settings)
    brain = make_brain(checkpoint.spec, training, choice, seed=config.seed)
    brain.learner.load_state_dict(checkpoint.learner)
    brain.quantizer.load_state_dict(checkpoint.quantizer)
    policy = brain.learner.policy
    admitted = [
        Admitted(ChunkKey("", b"", item.seq), 0, item.chunk, 0)
        for item in newest
        if item.chunk.rewards.shape == newest[0].chunk.rewards.shape
    ]
    sample = sample_of(policy, collate(admitted, updates_now=0))
    quantized = brain.quantizer.quantize(policy, sample)
    return open_session(brain.quantizer.graphs[quantized.precision], quantized.tensors)


def _newest_chunks(journal: Path) -> list[JournaledChunk]:
    """The last chunk of each run."""
    with JournalReader(journal) as reader:
        lasts = [deque(reader.chunks(run.key), maxlen=1) for run in reader.runs()]
    return [item for last in lasts for item in last]
