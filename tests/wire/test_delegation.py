"""A delegate signs for the policy key as long, and for what, that key said: and no further."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from wire.delegation_samples import DELEGATE, DELEGATION, ROOT
from wire.samples import samples

from shoal.delegation import (
    MAX_DELEGATION_BYTES,
    Delegation,
    Purpose,
    check_current,
    decode_delegation,
    encode_delegation,
    prove_delegation,
    sign_delegation,
)
from shoal.errors import LimitExceeded, PolicyRejected, WireError
from shoal.policy import SIGNING_CONTEXT, Bundle, decode_bundle, decode_manifest
from shoal.policy_delta import Content, PolicyDelta, decode_policy_delta, encode_policy_delta
from shoal.policy_trust import prove_manifest
from shoal.v1 import delegation_pb2 as pb

WHOLE = decode_bundle(samples()["PolicyBundle"])
NOW_S = DELEGATION.not_before_s + 1000
SECONDS = st.integers(0, 253_402_300_799)


@st.composite
def delegations(draw: st.DrawFn) -> Delegation:
    begins, ends = sorted((draw(SECONDS), draw(SECONDS)))
    return Delegation(
        fleet=draw(st.from_regex(r"[a-z0-9-]{1,63}", fullmatch=True)),
        public_key=draw(st.binary(min_size=32, max_size=32)),
        generation=draw(st.integers(1, (1 << 62) - 1)),
        not_before_s=begins,
        not_after_s=ends,
        purposes=draw(st.frozensets(st.integers(1, 1000), min_size=1, max_size=16)),
    )


def signed_with(
    key: Ed25519PrivateKey, delegation: Delegation | None = None, *, root: Ed25519PrivateKey = ROOT
) -> Bundle:
    """The sample, signed by a key, whose delegation a root signed."""
    return replace(
        WHOLE,
        signature=key.sign(SIGNING_CONTEXT + WHOLE.manifest),
        delegation=b"" if delegation is None else sign_delegation(delegation, root),
    )


def reason_of(bundle: Bundle, *, now_s: float = NOW_S, newest_generation: int = 0) -> str:
    """Why a policy is not accepted; empty if it is."""
    try:
        signed = prove_manifest(bundle, ROOT.public_key())
        signed.check_current(now_s=now_s, newest_generation=newest_generation)
    except PolicyRejected as rejected:
        return rejected.reason if "\n" not in str(rejected) else "more than a line"
    assert signed.manifest == decode_manifest(bundle.manifest)
    return ""


@given(delegations())
def test_a_delegation_comes_back_as_it_was_signed(delegation: Delegation) -> None:
    assert decode_delegation(encode_delegation(delegation)) == delegation
    signed = sign_delegation(delegation, ROOT)
    assert len(signed) <= MAX_DELEGATION_BYTES
    assert prove_delegation(signed, ROOT.public_key()) == delegation


@given(delegations(), st.data())
def test_no_byte_of_a_signed_delegation_can_be_changed(
    delegation: Delegation, data: st.DataObject
) -> None:
    signed = bytearray(sign_delegation(delegation, ROOT))
    signed[data.draw(st.integers(0, len(signed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        assert prove_delegation(bytes(signed), ROOT.public_key()) == delegation
    except (PolicyRejected, WireError):
        return
    pytest.fail("it was proven")


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 2},
        {"schema": 0},
        {"public_key": bytes(31)},
        {"generation": 0},
        {"generation": 1 << 62},
        {"not_before_unix_s": -1},
        {"not_after_unix_s": 1},
        {"not_after_unix_s": 1 << 40},
        {"purposes": []},
        {"purposes": [0]},
        {"purposes": list(range(1, 18))},
        {"fleet": "a" * 64},
    ],
)
def test_a_field_out_of_its_range_is_malformed(changes: dict[str, object]) -> None:
    message = pb.Delegation.FromString(encode_delegation(DELEGATION))
    for name, value in changes.items():
        message.ClearField(name)
        message.MergeFrom(pb.Delegation(**{name: value}))  # type: ignore[arg-type]
    with pytest.raises(WireError):
        decode_delegation(message.SerializeToString())


def test_a_delegation_over_its_limit_is_not_read() -> None:
    for read in (decode_delegation, lambda data: prove_delegation(data, ROOT.public_key())):
        with pytest.raises(LimitExceeded):
            read(bytes(MAX_DELEGATION_BYTES + 1))


def test_the_policy_key_itself_signs_as_it_always_did() -> None:
    bundle = signed_with(ROOT)
    assert reason_of(bundle) == ""
    assert reason_of(bundle, now_s=0.0, newest_generation=9) == ""
    assert prove_manifest(bundle, ROOT.public_key()).generation == 0


@given(
    generation=st.integers(1, 5),
    newest=st.integers(0, 5),
    now_s=st.integers(0, 40).map(float),
    begins=st.integers(0, 20),
    lasts=st.integers(0, 20),
)
def test_a_delegate_is_accepted_within_its_dates_and_never_below_a_generation_seen(
    generation: int, newest: int, now_s: float, begins: int, lasts: int
) -> None:
    delegation = replace(
        DELEGATION, generation=generation, not_before_s=begins, not_after_s=begins + lasts
    )
    expected = ""
    if generation < newest:
        expected = "delegation_revoked"
    elif now_s < begins:
        expected = "delegation_early"
    elif now_s > begins + lasts:
        expected = "delegation_expired"
    bundle = signed_with(DELEGATE, delegation)
    assert reason_of(bundle, now_s=now_s, newest_generation=newest) == expected
    # What was accepted once proves itself for ever.
    assert prove_manifest(bundle, ROOT.public_key()).generation == generation


STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(32))


@pytest.mark.parametrize(
    ("bundle", "reason"),
    [
        (signed_with(DELEGATE), "signature"),
        (signed_with(STRANGER, DELEGATION), "signature"),
        (signed_with(ROOT, DELEGATION), "signature"),
        (signed_with(DELEGATE, DELEGATION, root=STRANGER), "delegation"),
        (signed_with(DELEGATE, DELEGATION, root=DELEGATE), "delegation"),
        (signed_with(DELEGATE, replace(DELEGATION, fleet="reef")), "delegation_fleet"),
        (
            signed_with(DELEGATE, replace(DELEGATION, purposes=frozenset({Purpose.BUNDLES}))),
            "delegation_purpose",
        ),
    ],
    ids=[
        "an undelegated key",
        "another key's delegation",
        "the policy key, as if it were its delegate",
        "a delegation of another key",
        "a delegation of a delegate",
        "another fleet's",
        "another purpose",
    ],
)
def test_whoever_may_not_sign_is_told_apart(bundle: Bundle, reason: str) -> None:
    assert reason_of(bundle) == reason


def test_a_clock_that_no_calendar_has_is_still_an_answer() -> None:
    for now_s in (-1e18, 1e18):
        with pytest.raises(PolicyRejected, match="UTC here"):
            check_current(DELEGATION, now_s=now_s, newest_generation=0)


def test_a_delegation_is_sent_once_and_not_with_each_version() -> None:
    first = signed_with(DELEGATE, DELEGATION)
    renewed = signed_with(DELEGATE, replace(DELEGATION, generation=3))
    again = PolicyDelta.between(first, first)
    changed = PolicyDelta.between(first, renewed)
    direct = PolicyDelta.between(WHOLE, WHOLE)
    sizes = [len(encode_policy_delta(each)) for each in (direct, again, changed)]
    assert sizes[1] - sizes[0] <= 2
    assert sizes[2] - sizes[0] > 100
    for target, delta in ((first, again), (renewed, changed), (signed_with(ROOT), None)):
        sent = encode_policy_delta(delta or PolicyDelta.between(first, target))
        assert decode_bundle(decode_policy_delta(sent).restore(Content.of(first))) == target
