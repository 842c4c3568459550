"""How a policy graph acts: from outputs and noise to action, log-probability and distribution.

Noise of zeros gives the greedy action, whatever the head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from cloud_learner.models.graph_writer import GraphWriter
from cloud_learner.models.heads import LOG_STD_BOUNDS, Head
from shoal.layout import ActionLayout, Choice
from shoal.policy import ACTION, DISTRIBUTION, LOG_PROB, NOISE
from shoal.spaces import Discrete


@dataclass(frozen=True, slots=True)
class _Part:
    """What one leaf of the action space gives: names of `[N, ...]`.

    Attributes:
        action: Flat, `[N, numbers]`.
        log_prob: `[N]`.
        params: `[N, P]`.
    """

    action: str
    log_prob: str
    params: str


@dataclass(frozen=True, slots=True)
class _Names:
    """What a leaf's nodes are to be called: what is inside, and what it gives."""

    prefix: str
    action: str
    log_prob: str
    params: str


def write_head(writer: GraphWriter, action: ActionLayout, head: Head, outputs: str) -> None:
    """Writes the nodes from the network's outputs to those of the graph.

    Initializers: for each leaf with Box numbers `std` and `log_std` f32 `[numbers]`,
    `log_prob.offset` f32, behind the leaf's place where there are several (`1.std`); squashed
    actions have `action.half` and `action.center` f32 `[numbers]` and `log_prob.offset`; greedy
    ones `explore.threshold`, `log_prob.greedy` and `log_prob.other`, all f32 `[]`.
    """
    if head == "squash":
        _squash(writer, action, outputs)
    elif head == "greedy":
        _greedy(writer, outputs)
    elif len(action.choices) == 1 and isinstance(action.choices[0].space, Discrete):
        _categorical(writer, outputs, flat=bool(action.shape))
    elif action.discrete:
        values = tuple(n for choice in action.choices for n in choice.values)
        part = _multi_categorical(writer, values, outputs, NOISE, _whole(action))
        writer.node("Identity", [part.params], DISTRIBUTION)
        _shaped(writer, action, part.action)
    elif len(action.choices) == 1:
        part = _gaussian(writer, action.size, outputs, NOISE, _whole(action))
        _shaped(writer, action, part.action)
    else:
        _mixed(writer, action, outputs)


def leaf_prefix(action: ActionLayout, index: int) -> str:
    """What the names of a leaf's initializers begin with."""
    return f"{index}." if len(action.choices) > 1 else ""


def _categorical(writer: GraphWriter, logits: str, *, flat: bool) -> None:
    """Gumbel-max sampling (Maddison et al. 2014) and the log-probability of its choice.

    `flat` keeps a column: the space is a Dict or Tuple of this one leaf.
    """
    perturbed = writer.node("Add", [logits, NOISE], "perturbed")
    axis = writer.whole(1)
    if flat:
        index = writer.node("ArgMax", [perturbed], ACTION, axis=1, keepdims=1)
    else:
        writer.node("ArgMax", [perturbed], ACTION, axis=1, keepdims=0)
        index = writer.node("Unsqueeze", [ACTION, axis], "action.column")
    log_probs = writer.node("LogSoftmax", [logits], "log_probs", axis=1)
    chosen = writer.node("GatherElements", [log_probs, index], "log_prob.column", axis=1)
    writer.node("Squeeze", [chosen, axis], LOG_PROB)
    writer.node("Identity", [logits], DISTRIBUTION)


def _multi_categorical(
    writer: GraphWriter, values: tuple[int, ...], logits: str, noise: str, names: _Names
) -> _Part:
    """One choice for each element, all at once: logits as `[N, elements, most values]`."""
    prefix = names.prefix
    elements, most = len(values), max(values)
    table = logits
    perturbed = writer.node("Add", [logits, noise], f"{prefix}perturbed")
    if any(n != most for n in values):  # columns that do not exist repeat one, masked
        starts = np.cumsum((0, *values[:-1]))
        place = np.arange(most)
        exists = place < np.array(values)[:, None]
        columns = writer.constant(
            np.where(exists, starts[:, None] + place, 0).astype(np.int64).ravel()
        )
        mask = writer.constant(np.where(exists, 0.0, -1e30).astype(np.float32).ravel()[None])
        table = writer.node("Gather", [logits, columns], f"{prefix}logits.wide", axis=1)
        table = writer.node("Add", [table, mask], f"{prefix}logits.masked")
        perturbed = writer.node("Gather", [perturbed, columns], f"{prefix}perturbed.wide", axis=1)
        perturbed = writer.node("Add", [perturbed, mask], f"{prefix}perturbed.masked")
    cube = writer.shape(perturbed, (elements, most), f"{prefix}perturbed.cube")
    index = writer.node("ArgMax", [cube], f"{prefix}action.index", axis=2, keepdims=1)
    cube = writer.shape(table, (elements, most), f"{prefix}logits.cube")
    log_probs = writer.node("LogSoftmax", [cube], f"{prefix}log_probs", axis=2)
    chosen = writer.node("GatherElements", [log_probs, index], f"{prefix}log_prob.chosen", axis=2)
    log_prob = writer.node("ReduceSum", [chosen, writer.whole(1, 2)], names.log_prob, keepdims=0)
    action = writer.shape(index, (elements,), names.action)
    return _Part(action, log_prob, logits)


def _gaussian(writer: GraphWriter, size: int, mean: str, noise: str, names: _Names) -> _Part:
    """Adds std * noise to the mean; the log-density needs the noise alone."""
    prefix = names.prefix
    std = writer.tensor(f"{prefix}std", TensorProto.FLOAT, size)
    scaled = writer.node("Mul", [noise, std], f"{prefix}noise.scaled")
    action = writer.node("Add", [mean, scaled], names.action)
    squares = writer.node("Mul", [noise, noise], f"{prefix}noise.squared")
    total = writer.node("ReduceSum", [squares, writer.whole(1)], f"{prefix}noise.norm", keepdims=0)
    exponent = writer.node("Mul", [total, writer.number(-0.5)], f"{prefix}exponent")
    offset = writer.tensor(f"{prefix}log_prob.offset", TensorProto.FLOAT)
    log_prob = writer.node("Add", [exponent, offset], names.log_prob)
    extent = writer.node("Shape", [mean], f"{prefix}mean.shape")
    log_std = writer.tensor(f"{prefix}log_std", TensorProto.FLOAT, size)
    spread = writer.node("Expand", [log_std, extent], f"{prefix}log_std.rows")
    params = writer.node("Concat", [mean, spread], names.params, axis=1)
    return _Part(action, log_prob, params)


def _mixed(writer: GraphWriter, action: ActionLayout, outputs: str) -> None:
    """Leaves side by side, in a flat action of float32."""
    parts = []
    for index, choice in enumerate(action.choices):
        prefix = leaf_prefix(action, index)
        names = _Names(prefix, f"{prefix}action", f"{prefix}log_prob", f"{prefix}params")
        own, noise = _own(writer, choice, outputs, prefix)
        if not choice.values:
            parts.append(_gaussian(writer, choice.size, own, noise, names))
            continue
        part = _multi_categorical(writer, choice.values, own, noise, names)
        floats = writer.node("Cast", [part.action], f"{prefix}action.floats", to=TensorProto.FLOAT)
        parts.append(_Part(floats, part.log_prob, part.params))
    writer.node("Concat", [part.params for part in parts], DISTRIBUTION, axis=1)
    writer.node("Sum", [part.log_prob for part in parts], LOG_PROB)
    writer.node("Concat", [part.action for part in parts], ACTION, axis=1)


def _own(writer: GraphWriter, choice: Choice, outputs: str, prefix: str) -> tuple[str, str]:
    """A leaf's columns of the outputs and of the noise."""
    bounds = (choice.noise_start, choice.noise_start + choice.noise_width)
    return (
        writer.columns(outputs, *bounds, f"{prefix}outputs"),
        writer.columns(NOISE, *bounds, f"{prefix}noise"),
    )


def _whole(action: ActionLayout) -> _Names:
    """The graph's own outputs, as one leaf gives them."""
    shaped = len(action.shape) == 1
    return _Names("", ACTION if shaped else "action.flat", LOG_PROB, DISTRIBUTION)


def _shaped(writer: GraphWriter, action: ActionLayout, flat: str) -> None:
    if flat != ACTION:
        writer.shape(flat, action.shape, ACTION)


def _squash(writer: GraphWriter, action: ActionLayout, outputs: str) -> None:
    """The squashed sample of `SquashedGaussian`, which gives the log-density."""
    size = action.size
    mean, raw = writer.split(outputs, [size, size], ["mean", "log_std.raw"])
    bounds = [writer.number(bound) for bound in LOG_STD_BOUNDS]
    log_std = writer.node("Clip", [raw, *bounds], "log_std")
    std = writer.node("Exp", [log_std], "std")
    scaled = writer.node("Mul", [std, NOISE], "noise.scaled")
    inner = writer.node("Add", [mean, scaled], "inner")
    unit = writer.node("Tanh", [inner], "unit")
    half = writer.tensor("action.half", TensorProto.FLOAT, size)
    center = writer.tensor("action.center", TensorProto.FLOAT, size)
    reached = writer.node("Mul", [unit, half], "action.reached")
    _shaped(writer, action, writer.node("Add", [reached, center], _whole(action).action))
    # log p = sum(2 u + 2 softplus(-2 u) - log_std - noise^2 / 2) + offset
    twice = writer.node("Mul", [inner, writer.number(2.0)], "inner.twice")
    soft = writer.node("Softplus", [writer.node("Neg", [twice], "inner.negative")], "soft")
    soft = writer.node("Mul", [soft, writer.number(2.0)], "soft.twice")
    squares = writer.node("Mul", [NOISE, NOISE], "noise.squared")
    squares = writer.node("Mul", [squares, writer.number(-0.5)], "noise.exponent")
    terms = writer.node("Sub", [squares, log_std], "terms.normal")
    jacobian = writer.node("Add", [twice, soft], "terms.jacobian")
    terms = writer.node("Add", [terms, jacobian], "terms")
    total = writer.node("ReduceSum", [terms, writer.whole(1)], "terms.sum", keepdims=0)
    offset = writer.tensor("log_prob.offset", TensorProto.FLOAT)
    writer.node("Add", [total, offset], LOG_PROB)
    writer.node("Concat", [mean, log_std], DISTRIBUTION, axis=1)


def _greedy(writer: GraphWriter, values: str) -> None:
    """Explores where the largest noise is over a threshold; see `EpsilonGreedy.threshold`."""
    best = writer.node("ArgMax", [values], "action.best", axis=1, keepdims=0)
    other = writer.node("ArgMax", [NOISE], "action.other", axis=1, keepdims=0)
    largest = writer.node("ReduceMax", [NOISE], "noise.largest", axes=[1], keepdims=0)
    smallest = writer.node("ReduceMin", [NOISE], "noise.smallest", axes=[1], keepdims=0)
    threshold = writer.tensor("explore.threshold", TensorProto.FLOAT)
    # Noise of zeros has no largest element, and never explores, not even at an epsilon of 1.
    bar = writer.node("Max", [smallest, threshold], "explore.bar")
    explores = writer.node("Greater", [largest, bar], "explore")
    writer.node("Where", [explores, other, best], ACTION)
    agrees = writer.node("Equal", [ACTION, best], "action.agrees")
    greedy = writer.tensor("log_prob.greedy", TensorProto.FLOAT)
    rest = writer.tensor("log_prob.other", TensorProto.FLOAT)
    writer.node("Where", [agrees, greedy, rest], LOG_PROB)
    writer.node("Identity", [values], DISTRIBUTION)


def squash_offset(half: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> float:
    """The constant of a squashed action's log-density, for `half` `[numbers]`."""
    wide = half.astype(np.float64)
    each = 0.5 * math.log(2.0 * math.pi) + 2.0 * math.log(2.0)
    return float(-np.log(wide).sum() - each * wide.size)
