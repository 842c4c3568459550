"""The networks that are trained: weights, features, torsos, heads, critics."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch
from networks import ACTIONS, KINDS, NEST, OBSERVATIONS, SMALL, bounded, make_case, of_kind, pixels
from torch import nn

from cloud_learner.config import NetworkConfig
from cloud_learner.models.actor_critic import build_actor_critic
from cloud_learner.models.features import Encoder, FeatureLayout
from cloud_learner.models.heads import action_range
from cloud_learner.models.network import FloatRunner
from cloud_learner.models.plan import Conv, Dense, flow
from cloud_learner.models.policy import build_policy
from cloud_learner.models.q_function import build_q_function
from cloud_learner.models.torso import DuelingHead, conv_stack
from shoal.errors import ConfigError
from shoal.layout import ActionLayout, ObservationLayout
from shoal.spaces import Box, Discrete, EnvSpec, Space, unbounded


def spec(observation: Space, action: Space) -> EnvSpec:
    return EnvSpec("Test-v0", observation, action)


def rows(space: Space, *lead: int, seed: int = 0) -> torch.Tensor:
    """Observations `[*lead, *obs]` as chunks hold them."""
    case = make_case(space, Discrete(2), seed=seed)
    count = int(np.prod(lead, dtype=int))
    taken = case.sample.observations[:count]
    return torch.from_numpy(taken.reshape((*lead, *case.policy.observation.shape)))


@pytest.mark.parametrize("kind", KINDS)
def test_equal_seeds_give_equal_weights_and_leave_the_global_generator_alone(kind: str) -> None:
    before = torch.random.get_rng_state()
    first, second, other = (
        build_actor_critic(spec(pixels(12, 12, 1), Discrete(2)), of_kind(kind), seed=s).state_dict()
        for s in (3, 3, 4)
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)
    weight = "policy.network.layers.0.weight"
    assert not torch.equal(first[weight], other[weight])


def test_a_dense_policy_starts_as_papers_advise() -> None:
    model = build_actor_critic(spec(unbounded((4,)), Discrete(2)), NetworkConfig(), seed=0)
    for network, gain in ((model.policy.network, 0.01), (model.critic, 1.0)):
        hidden, last = network.layers[1], network.layers[2]
        assert isinstance(hidden, nn.Linear)
        assert isinstance(last, nn.Linear)
        square = hidden.weight @ hidden.weight.T
        torch.testing.assert_close(square, 2.0 * torch.eye(64), atol=1e-5, rtol=1e-5)
        norm = (last.weight @ last.weight.T).diagonal().sqrt()
        torch.testing.assert_close(norm, torch.full_like(norm, gain))
        assert not hidden.bias.any()


@pytest.mark.parametrize("lead", [(), (5,), (3, 2)])
@pytest.mark.parametrize("name", OBSERVATIONS)
def test_takes_observations_of_any_space_under_any_leading_axes(
    name: str, lead: tuple[int, ...]
) -> None:
    model = build_actor_critic(spec(OBSERVATIONS[name], Discrete(3)), SMALL, seed=0)
    observations = rows(OBSERVATIONS[name], *lead)
    assert model.policy(observations).shape == (*lead, 3)
    assert model.value(observations).shape == lead
    if lead == (3, 2):
        flat = model.policy(observations.flatten(0, 1))
        torch.testing.assert_close(model.policy(observations).flatten(0, 1), flat)


@pytest.mark.parametrize(("name", "kind"), list(itertools.product(ACTIONS, ["auto", "lstm"])))
def test_acts_in_any_space(name: str, kind: str) -> None:
    case = make_case(unbounded((4,)), ACTIONS[name], of_kind(kind))
    params, family = case.asked(), case.policy.distribution
    assert params.shape == (256, family.parameters)
    modes = family.mode(params)
    assert modes.shape == (256, *case.policy.action.shape)
    assert (modes.dtype == torch.int64) == case.policy.action.discrete
    for scalars in (
        family.log_prob(params, modes),
        family.entropy(params),
        family.kl(params, params),
    ):
        assert scalars.shape == (256,)
        assert scalars.isfinite().all()


@pytest.mark.parametrize(
    "dtype",
    [np.float32, np.float64, np.float16, np.int32, np.uint16, np.int8, np.uint32, np.uint64],
)
def test_takes_numbers_in_the_environments_own_dtype(dtype: type[np.number]) -> None:
    box = Box(np.zeros(4, dtype), np.full(4, 100, dtype))
    policy = build_policy(spec(box, Discrete(2)), SMALL, head="sample", seed=0)
    observations = np.arange(8, dtype=dtype).reshape(2, 4)
    same = policy.network.layers[0]
    expected = build_policy(spec(unbounded((4,)), Discrete(2)), SMALL, head="sample", seed=0)
    assert isinstance(same, nn.Linear)
    torch.testing.assert_close(
        policy(torch.from_numpy(observations)),
        expected(torch.from_numpy(observations.astype(np.float32))),
    )


def test_a_packed_row_is_taken_apart_as_its_layout_says() -> None:
    layout = ObservationLayout.of(NEST)
    encoder = Encoder(layout, FeatureLayout.of(layout, convolve=True))
    packed = rows(NEST, 7)
    leaves = layout.unpack(packed.numpy())
    found = encoder(packed)
    (image,) = found.images
    assert image.dtype == torch.uint8
    np.testing.assert_array_equal(image, leaves["camera"].transpose(0, 3, 1, 2))
    assert found.vector is not None
    np.testing.assert_array_equal(found.vector[:, :3], leaves["arm"])
    one_hot = [
        leaves["grid"].reshape(7, 4)[:, i, None] == np.arange(n) for i, n in enumerate((2, 3, 4, 2))
    ]
    np.testing.assert_array_equal(found.vector[:, 3:14], np.concatenate(one_hot, 1))
    np.testing.assert_array_equal(found.vector[:, 14:17], leaves["more.0"][:, None] == np.arange(3))
    np.testing.assert_array_equal(found.vector[:, 17:], leaves["more.1"])


def test_images_stay_uint8_until_the_first_convolution() -> None:
    policy = build_policy(spec(pixels(36, 36, 3), Discrete(2)), SMALL, head="sample", seed=0)
    assert policy.observation.dtype == np.uint8
    assert policy.features(rows(pixels(36, 36, 3), 2)).images[0].dtype == torch.uint8


@pytest.mark.parametrize(
    ("shape", "channels", "height"),
    [((84, 84, 4), 4, 84), ((4, 84, 84), 4, 84), ((36, 40, 3), 3, 36), ((3, 36, 40), 3, 36)],
)
def test_the_shorter_outer_axis_of_an_image_is_its_channels(
    shape: tuple[int, ...], channels: int, height: int
) -> None:
    layout = ObservationLayout.of(pixels(*shape))
    (image,) = FeatureLayout.of(layout, convolve=True).images
    assert (image.channels, image.height) == (channels, height)


def test_an_image_means_the_same_in_either_order_of_axes() -> None:
    first, last = (
        build_policy(spec(pixels(*shape), Discrete(2)), SMALL, head="sample", seed=0)
        for shape in ((3, 36, 40), (36, 40, 3))
    )
    image = rows(pixels(3, 36, 40), 2)
    torch.testing.assert_close(first(image), last(image.movedim(1, -1)))


def test_84_by_84_gives_the_convolutions_of_the_dqn_paper() -> None:
    found = [(c.kernel, c.stride, c.outputs, c.height) for c in conv_stack(4, 84, 84)]
    assert found == [(8, 4, 32, 20), (4, 2, 64, 9), (3, 1, 64, 7)]


@pytest.mark.parametrize("side", [3, 4, 5, 7, 10, 12, 19, 31, 32, 50, 63, 64, 96, 160, 210, 640])
def test_every_image_has_a_stack_that_fits_it(side: int) -> None:
    for height, width in ((side, side), (side, side + 30), (side + 5, side)):
        stack = conv_stack(3, height, width)
        data = torch.zeros(1, 3, height, width)
        for layer in stack:
            data = torch.zeros(
                1,
                layer.outputs,
                *nn.Conv2d(layer.inputs, layer.outputs, layer.kernel, layer.stride)(data).shape[2:],
            )
            assert (layer.height, layer.width) == data.shape[2:]
        assert min(stack[-1].height, stack[-1].width) <= 11


def test_pixels_are_scaled_to_one_whether_convolved_or_not() -> None:
    for kind in ("cnn", "mlp"):
        policy = build_policy(
            spec(pixels(3, 5, 5), Discrete(2)), of_kind(kind), head="greedy", seed=0
        )
        image = rows(pixels(3, 5, 5), 4)
        layer = policy.network.layers[0]
        scaled = image.float() / 255.0
        if isinstance(layer, nn.Conv2d):
            expected = layer(scaled).relu().flatten(1)
        else:
            assert isinstance(layer, nn.Linear)
            expected = layer(scaled.flatten(1)).relu()
        seen: dict[str, torch.Tensor] = {}
        flow(
            policy.plan, FloatRunner(policy.network, policy.features(image), watch=seen.__setitem__)
        )
        torch.testing.assert_close(seen["output.0"].flatten(1), expected, atol=1e-5, rtol=1e-4)


def test_means_are_in_the_environments_units() -> None:
    policy = build_policy(
        spec(unbounded((4,)), bounded((2,), -1.0, 5.0)), NetworkConfig(), head="sample", seed=1
    )
    params = policy(rows(unbounded((4,)), 6)).detach().numpy()
    np.testing.assert_allclose(params[:, :2], 2.0, atol=0.5)  # a fresh policy aims at the centre
    np.testing.assert_allclose(params[:, 2:], np.log(3.0) - 0.5, rtol=1e-5)


def test_unbounded_and_half_bounded_actions_are_not_scaled() -> None:
    low = np.array([-np.inf, 0.0, -2.0], np.float32)
    high = np.array([np.inf, np.inf, 2.0], np.float32)
    span = action_range(ActionLayout.of(Box(low, high)))
    assert span.half.tolist() == [1.0, 1.0, 2.0]
    assert span.center.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("head", ["sample", "squash"])
def test_the_spread_of_actions_stays_within_bounds_whatever_training_does(head: str) -> None:
    policy = build_policy(
        spec(unbounded((1,)), bounded((1,), -1.0, 1.0)),
        SMALL,
        head="squash" if head == "squash" else "sample",
        seed=0,
    )
    for wanted, allowed in ((-100.0, -5.0), (100.0, 2.0)):
        if policy.log_std is not None:
            nn.init.constant_(policy.log_std, wanted)
        else:
            last = policy.network.layers[policy.plan.last]
            assert isinstance(last, nn.Linear)
            nn.init.constant_(last.bias, wanted)
        assert policy(torch.zeros(1)).detach()[1].item() == allowed


def test_dueling_streams_are_value_plus_centred_advantage() -> None:
    head = DuelingHead(5, 3, torch.Generator().manual_seed(0))
    nn.init.normal_(head.advantage.bias, generator=torch.Generator().manual_seed(1))
    hidden = torch.randn(7, 10, generator=torch.Generator().manual_seed(2))
    value, advantage = head.value(hidden[:, :5]), head.advantage(hidden[:, 5:])
    expected = value + advantage - advantage.mean(-1, keepdim=True)
    torch.testing.assert_close(hidden @ head.weight.T + head.bias, expected)


@pytest.mark.parametrize("kind", ["auto", "lstm", "attention"])
def test_a_dueling_policy_is_a_plain_chain_of_dense_layers(kind: str) -> None:
    case = make_case(unbounded((4,)), Discrete(3), of_kind(kind), head="greedy", dueling=True)
    last = case.policy.plan.layers[-1]
    assert last == Dense(2 * SMALL.hidden[-1], 3, "none")
    assert case.asked().std() > 0.0


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("name", ["vector", "nest", "image"])
def test_a_q_function_values_actions_in_the_environments_units(
    name: str,
    normalize: bool,  # noqa: FBT001 - a parameter
) -> None:
    here = spec(OBSERVATIONS[name], bounded((2,), -1.0, 5.0))
    network = of_kind("auto", normalize=normalize)
    policy = build_policy(here, network, head="squash", seed=0)
    first, second = (
        build_q_function(here, network, seed=s, normalizer=policy.normalizer) for s in (1, 2)
    )
    observations = rows(OBSERVATIONS[name], 5)
    actions = policy.distribution.mode(policy(observations))
    values = first(observations, actions)
    assert values.shape == (5,)
    assert not torch.equal(values, second(observations, actions))
    assert not torch.equal(values, first(observations, actions + 1.0))
    assert not any("normalizer" in name for name in first.state_dict())


def test_a_critic_reads_the_memory_of_its_policy() -> None:
    model = build_actor_critic(spec(unbounded((4,)), Discrete(2)), of_kind("lstm"), seed=0)
    observations = rows(unbounded((4,)), 3, 2)
    starts = torch.zeros(3, 2, dtype=torch.bool)
    unrolled = model.policy.unroll(observations, model.policy.initial_state(2), starts)
    assert unrolled.memory.shape == (3, 2, SMALL.memory)
    value = model.value(observations, unrolled.memory)
    assert value.shape == (3, 2)
    assert not torch.equal(value, model.value(observations, unrolled.memory + 1.0))


def refuse(inputs: int, network: NetworkConfig) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 4), nn.GELU())


def misfit(inputs: int, network: NetworkConfig) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 4), nn.ReLU(), nn.Linear(5, 4))


def biasless(inputs: int, network: NetworkConfig) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 4, bias=False))


def nothing(inputs: int, network: NetworkConfig) -> nn.Sequential:
    return nn.Sequential()


def no_sequence(inputs: int, network: NetworkConfig) -> nn.Linear:
    return nn.Linear(inputs, 4)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("refuse", "GELU"),
        ("misfit", "5 inputs where 4"),
        ("biasless", "no bias"),
        ("nothing", "no Linear"),
        ("no_sequence", "Linear: it must give"),
        ("absent", "cannot be loaded"),
    ],
)
def test_a_torso_that_cannot_be_exported_is_refused_by_name(
    name: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torsos", sys.modules[__name__])
    with pytest.raises(ConfigError, match=says):
        build_policy(
            spec(unbounded((4,)), Discrete(2)),
            NetworkConfig(kind=f"torsos:{name}"),
            head="sample",
            seed=0,
        )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden", ()),
        ("hidden", (0,)),
        ("hidden", (8, -1)),
        ("kind", "gru"),
        ("memory", 0),
        ("window", 1),
    ],
)
def test_refuses_networks_that_make_no_sense(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{key} = "):
        NetworkConfig(**{key: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ("greedy", "box"),
        ("greedy", "multi-discrete"),
        ("greedy", "tuple of one"),
        ("squash", "discrete"),
        ("squash", "dict"),
        ("squash", "box scalar"),
    ],
)
def test_a_head_that_cannot_act_in_a_space_is_refused_by_name(head: str, name: str) -> None:
    with pytest.raises(ConfigError, match="APPO"):
        build_policy(
            spec(unbounded((4,)), ACTIONS[name]),
            SMALL,
            head="greedy" if head == "greedy" else "squash",
            seed=0,
        )


def test_a_space_too_wide_for_one_hot_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="100000 values"):
        build_policy(spec(Discrete(100_000), Discrete(2)), SMALL, head="sample", seed=0)


def test_every_convolution_of_an_image_counts_in_the_plan() -> None:
    policy = build_policy(spec(pixels(84, 84, 4), Discrete(6)), SMALL, head="greedy", seed=0)
    assert [type(layer) for layer in policy.plan.layers] == [Conv, Conv, Conv, Dense, Dense, Dense]
    assert policy.plan.dense(3).inputs == 64 * 7 * 7


def test_building_a_policy_leaves_torchs_compiler_out() -> None:
    program = (
        "import sys, cloud_learner.models.policy, cloud_learner.quantization.quantize\n"
        "assert 'torch._dynamo' not in sys.modules and 'sympy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
