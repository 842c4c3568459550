"""Faults that others have had, as edits of our own source: each has a test that must notice it.

`make faults` applies one after the other to a copy and demands that its test fails; every run of
the tests demands that each edit can still be made.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One edit.

    Attributes:
        pitfall: What goes wrong.
        test: Its node, `file::name`, from `tests`.
        file: From the root.
        before: Source, found there exactly once.
        after: What the fault has in its place.
    """

    pitfall: str
    test: str
    file: str
    before: str
    after: str


TRUNCATION = "truncation treated as termination, or worth the next episode's reset"
FAKE_STEP = "a fake step at an automatic reset; episode statistics off by one"
BOUNDS = "bounds of a Box ignored, or clipped before it is recorded"
NORMALIZER = (
    "the normalizer never sees anything, is lost on resume, or differs on actor and learner"
)
EXPORT = "the exported network is not the trained one"
SLOWER = "int8 believed to be faster, not measured"
NON_FINITE = "NaN in mid-run"
SEED = "the same seed with another lag pattern differs"
RESUME = "a resume loses performance or inflates the budget of staleness"
DTYPES = "images become float32; float64 surprises"
LAG = "lag not counted in optimiser updates, or without effect"
WEIGHTS = "importance weights silently not applied"
SCORES = "no threshold and no published score beside one's own"
PITFALLS = (
    *(TRUNCATION, FAKE_STEP, BOUNDS, NORMALIZER, EXPORT, SLOWER, NON_FINITE),
    *(SEED, RESUME, DTYPES, LAG, WEIGHTS, SCORES),
)

_ALGORITHMS = "cloud_learner/algorithms"
_TRAINING = "cloud_learner/training"
_ENVIRONMENTS = "edge_agent/environments"

FAULTS = (
    Fault(
        TRUNCATION,
        "cloud/test_vtrace.py::test_after_a_truncation_it_is_worth_the_value_of_the_final_observation",
        f"{_ALGORITHMS}/vtrace.py",
        "next_values.masked_fill(terminated, 0.0)",
        "next_values.masked_fill(terminated | truncated, 0.0)",
    ),
    Fault(
        TRUNCATION,
        "cloud/test_appo.py::test_a_truncated_episode_is_never_worth_the_next_ones_reset",
        f"{_ALGORITHMS}/actor_critic_view.py",
        "next_values.view(-1)[index] = ",
        "_ = ",
    ),
    Fault(
        TRUNCATION,
        "cloud/test_appo_memory.py::test_a_truncated_episode_is_never_worth_the_next_ones_reset",
        f"{_ALGORITHMS}/actor_critic_view.py",
        "next_values[step, lane] = model.value",
        "_ = model.value",
    ),
    Fault(
        TRUNCATION,
        "cloud/test_transition_ring.py::test_termination_is_worth_nothing_and_truncation_its_final_observation",
        f"{_TRAINING}/transition_ring.py",
        "terminated = self._kinds[last] == _TERMINATED",
        "terminated = self._kinds[last] != _GOES_ON",
    ),
    Fault(
        TRUNCATION,
        "edge/test_actor_spaces.py::test_truncation_of_a_dict_keeps_the_true_last_observation_and_not_the_resets",
        f"{_ENVIRONMENTS}/env.py",
        "Ending(n, observations[n].copy(), ",
        "Ending(n, observations[n], ",
    ),
    Fault(
        FAKE_STEP,
        "edge/test_env.py::test_a_three_step_environment_gives_exactly_three_steps",
        f"{_ENVIRONMENTS}/env.py",
        "self._lengths[n] = 0",
        "self._lengths[n] = 1",
    ),
    Fault(
        FAKE_STEP,
        "edge/test_env.py::test_a_three_step_environment_gives_exactly_three_steps",
        f"{_ENVIRONMENTS}/env.py",
        "                    self._begin(n, None)\n",
        "",
    ),
    Fault(
        BOUNDS,
        "edge/test_actor.py::test_box_actions_are_recorded_raw_and_clipped_only_at_the_environment",
        "edge_agent/acting/actor.py",
        "columns.actions[t] = action",
        "columns.actions[t] = np.clip(action, -1, 1)",
    ),
    Fault(
        BOUNDS,
        "edge/test_env.py::test_box_actions_are_clipped_to_the_bounds_and_the_raw_ones_left_alone",
        f"{_ENVIRONMENTS}/gym_spaces.py",
        "return lambda actions: np.clip(actions, low, high).astype(dtype)",
        "return lambda actions: actions.astype(dtype)",
    ),
    Fault(
        NORMALIZER,
        "cloud/test_normalizer.py::test_the_normalizer_is_part_of_the_state_and_goes_on_where_it_was",
        "cloud_learner/models/normalizer.py",
        'self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))',
        'self.register_buffer("mean", torch.zeros(width, dtype=torch.float64), persistent=False)',
    ),
    Fault(
        NORMALIZER,
        "cloud/test_dqn.py::test_what_devices_see_is_what_observations_are_normalized_by",
        f"{_ALGORITHMS}/dqn.py",
        "self.policy.observe(fresh.observations)",
        "pass",
    ),
    Fault(
        NORMALIZER,
        "cloud/test_sac.py::test_what_devices_see_is_what_observations_are_normalized_by",
        f"{_ALGORITHMS}/sac.py",
        "self.policy.observe(fresh.observations)",
        "pass",
    ),
    Fault(
        NORMALIZER,
        "cloud/test_normalizer.py::test_the_published_policy_is_the_trained_one_with_all_that_shapes_it",
        "cloud_learner/quantization/tensors.py",
        'self.tensors["input.shift"] = _array(normalizer.shift)',
        'self.tensors["input.shift"] = 0 * _array(normalizer.shift)',
    ),
    Fault(
        NORMALIZER,
        "cloud/test_gradient_worker.py::test_ratios_are_1_at_the_weights_that_acted_with_the_normalizer_of_their_version",
        "cloud_learner/gradients/worker.py",
        "normalizer.act_as(acting)",
        "normalizer.acting(0)",
    ),
    Fault(
        NORMALIZER,
        "cloud/test_run_statistics.py::test_duplicates_losses_and_any_order_change_nothing_at_all",
        "cloud_learner/gradients/run_statistics.py",
        "if held is not None and seq <= held.seq:",
        "if held is not None and seq == held.seq:",
    ),
    Fault(
        NORMALIZER,
        "cloud/test_gradient_statistics.py::test_a_learner_that_stopped_goes_on_with_statistics_and_versions",
        "cloud_learner/gradients/source.py",
        'state["normalizer"] = self._normalizer.state_dict()',
        'state["normalizer"] = 0',
    ),
    Fault(
        EXPORT,
        "cloud/test_policy_graph.py::test_a_graph_is_its_policy_at_every_precision",
        "cloud_learner/quantization/tensors.py",
        "_array(normalizer.gain)",
        "_array(0.5 * normalizer.gain)",
    ),
    Fault(
        EXPORT,
        "cloud/test_policy_graph.py::test_a_graph_run_step_by_step_remembers_like_the_unrolled_policy",
        "cloud_learner/models/policy.py",
        "Past(state, starts))",
        "Past(state, torch.zeros_like(starts)))",
    ),
    Fault(
        SLOWER,
        "edge/test_precision.py::test_auto_acts_with_the_faster_and_says_what_it_measured",
        "edge_agent/policies/precision.py",
        "if twin in times_us and times_us[twin] < FASTER_BY * times_us[precision]:",
        "if False:",
    ),
    Fault(
        NON_FINITE,
        "cloud/test_learner.py::test_a_minibatch_that_is_not_finite_changes_nothing_and_is_counted",
        f"{_ALGORITHMS}/optimiser.py",
        "if not norm < math.inf or not math.isfinite(loss):",
        "if False:",
    ),
    Fault(
        NON_FINITE,
        "edge/test_policy.py::test_a_binding_notices_nan_and_infinity",
        "edge_agent/policies/binding.py",
        "if not all(map(math.isfinite, floats.tolist())):",
        "if False:",
    ),
    Fault(
        NON_FINITE,
        "wire/test_chunk_validation.py::test_rejects_a_value_that_is_not_finite",
        "protos/shoal/tensors.py",
        "finite = np.isfinite(array).ravel()",
        "finite = np.ones(1, bool)",
    ),
    Fault(
        SEED,
        "cloud/test_lockstep.py::test_the_order_of_a_batch_is_that_of_the_keys",
        f"{_TRAINING}/lockstep.py",
        "return sorted(present, key=lambda item: item.key)",
        "return list(present)",
    ),
    Fault(
        RESUME,
        "cloud/test_learner.py::test_the_update_counter_only_moves_forward_on_resume",
        f"{_TRAINING}/learner.py",
        "self._ahead = max(self._ahead, updates - self.algorithm.updates)",
        "self._ahead = 0",
    ),
    Fault(
        RESUME,
        "cloud/test_dqn.py::test_goes_on_bit_for_bit_from_its_state",
        f"{_ALGORITHMS}/dqn.py",
        '            self._target_flat.copy_(state["target"])',
        "            self._target_flat.copy_(self._optimiser.flat)",
    ),
    Fault(
        DTYPES,
        "edge/test_actor_spaces.py::test_images_stay_uint8_and_float64_stays_float64_all_the_way",
        f"{_ENVIRONMENTS}/rows.py",
        "np.zeros((envs, *layout.shape), layout.dtype)",
        'np.zeros((envs, *layout.shape), "f4")',
    ),
    Fault(
        LAG,
        "cloud/test_transition_replay.py::test_lag_is_counted_in_updates_since_the_version_that_acted",
        f"{_TRAINING}/transition_ring.py",
        "lags=updates_now - self._updates[slots]",
        "lags=self._draws - self._updates[slots]",
    ),
    Fault(
        LAG,
        "cloud/test_gradient_service.py::test_a_step_is_clipped_to_its_norm_and_shorter_the_further_behind",
        "cloud_learner/gradients/live.py",
        "learning_rate(self._config, self.updates) * verdict.rate",
        "learning_rate(self._config, self.updates)",
    ),
    Fault(
        NON_FINITE,
        "cloud/test_gradient_service.py::test_a_step_is_clipped_to_its_norm_and_shorter_the_further_behind",
        "cloud_learner/gradients/live.py",
        "self.shards.apply(gradient, gain=verdict.gain, rate=rate)",
        "self.shards.apply(gradient, gain=1.0, rate=rate)",
    ),
    Fault(
        NON_FINITE,
        "cloud/test_gradient_service.py::test_a_step_is_clipped_to_its_norm_and_shorter_the_further_behind",
        "cloud_learner/gradients/live.py",
        "apply_in_threads(gradient, gain=verdict.gain, rate=rate)",
        "apply_in_threads(gradient, gain=1.0, rate=rate)",
    ),
    Fault(
        WEIGHTS,
        "cloud/test_transition_replay.py::test_importance_weights_undo_ever_more_of_the_priorities_until_they_undo_all",
        f"{_TRAINING}/transition_replay.py",
        "return sampling.priority_beta + done * (1.0 - sampling.priority_beta)",
        "return sampling.priority_beta",
    ),
    Fault(
        WEIGHTS,
        "cloud/test_dqn.py::test_importance_weights_are_applied_by_default",
        f"{_ALGORITHMS}/dqn.py",
        '(columns["weights"] * losses).mean()',
        "losses.mean()",
    ),
    Fault(
        WEIGHTS,
        "cloud/test_sac.py::test_importance_weights_are_applied_by_default",
        f"{_ALGORITHMS}/sac.py",
        "(weights * gaps.square())",
        "gaps.square()",
    ),
    Fault(
        SCORES,
        "ops/test_demo.py::test_the_summary_says_what_others_have_published_and_how_it_ended",
        "deploy/shoalctl/demo/summary.py",
        """(f"  published  {published['text']}\\n" if published else "")""",
        '""',
    ),
)
