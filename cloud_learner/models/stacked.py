"""Equal networks run side by side: a layer of all of them is one product."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from cloud_learner.models.features import PIXEL_SCALE, Features
from cloud_learner.models.network import Affine, Network, Signal, activate


class StackedRunner:
    """Runs N networks of one plan, without memory, on the same inputs, in float32.

    >>> runner = StackedRunner(network, layers, features, extra)
    >>> outputs = flow(network.plan, runner).data      # [N, M, outputs]

    Of images, values are `[M, N * C, H, W]`; all others are `[N, M, width]`.
    """

    def __init__(
        self, network: Network, layers: Sequence[Affine], features: Features, extra: Tensor
    ) -> None:
        """Takes the inputs.

        Args:
            network: One of them: the plan, and how its vector is scaled.
            layers: The weights of all, place by place: `[N, out, ...]`, biases `[N, out]`.
            features: `[M, ...]`.
            extra: `[M, extra]`.
        """
        self._network = network
        self._plan = network.plan
        self._layers = layers
        self._copies = len(layers[0].weight)
        self._features = features
        self._extra = extra

    def image(self, index: int) -> Signal:
        """An image `[M, C, H, W]`, float32, scaled later: all read the same one."""
        image = self._features.images[index]
        return Signal(image.reshape(-1, *image.shape[-3:]).to(torch.float32), PIXEL_SCALE)

    def conv(self, place: int, value: Signal) -> Signal:
        """Convolves: the first layer reads one image, each other one the channels of its own."""
        layer, shape = self._layers[place], self._plan.conv(place)
        weight = layer.weight if value.scale is None else layer.weight * value.scale
        data = functional.conv2d(
            value.data,
            weight.flatten(0, 1),
            layer.bias.flatten(),
            shape.stride,
            groups=value.data.shape[1] // shape.inputs,
        )
        return Signal(data.relu())

    def flatten(self, value: Signal) -> Signal:
        """Rows `[N, M, C * H * W]`."""
        rows = value.data.reshape(len(value.data), self._copies, -1)
        return Signal(rows.transpose(0, 1))

    def vector(self) -> Signal:
        """The vector, normalized already."""
        vector = self._features.vector
        assert vector is not None  # noqa: S101 - flow asks only where there is one
        return Signal(vector.expand(self._copies, *vector.shape), self._network.vector_scale)

    def extra(self) -> Signal:
        """The further inputs."""
        return Signal(self._extra.expand(self._copies, *self._extra.shape))

    def join(self, values: Sequence[Signal]) -> Signal:
        """Side by side, scaled."""
        parts = [v.data if v.scale is None else v.data * v.scale for v in values]
        return Signal(torch.cat(parts, -1))

    def dense(self, place: int, value: Signal) -> Signal:
        """Multiplies."""
        layer = self._layers[place]
        weight = layer.weight if value.scale is None else layer.weight * value.scale
        total = torch.baddbmm(layer.bias.unsqueeze(1), value.data, weight.transpose(1, 2))
        return Signal(activate(total, self._plan.dense(place).activation))

    def remember(self, place: int, value: Signal) -> Signal:  # noqa: ARG002 - as flow calls it
        """No critic has memory."""
        raise TypeError("networks with memory are not run side by side")
