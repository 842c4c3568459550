from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from shoal.enrollment import (
    check_fingerprint,
    enroll_proof,
    is_proven,
    key_digest,
    prove,
    renew_proof,
)
from shoal.errors import ConfigError

KEY = ec.generate_private_key(ec.SECP256R1())
parts = st.tuples(st.binary(max_size=40), st.binary(max_size=40), st.text(max_size=40))


@given(parts, parts)
def test_a_statement_says_one_thing_only(
    first: tuple[bytes, bytes, str], second: tuple[bytes, bytes, str]
) -> None:
    assert (enroll_proof(*first) == enroll_proof(*second)) is (first == second)


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_a_proof_to_enrol_is_none_to_renew(challenge: bytes, other: bytes) -> None:
    assert enroll_proof(challenge, other, "") != renew_proof(challenge, other)


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_a_proof_is_of_one_statement_and_one_key(statement: bytes, other: bytes) -> None:
    proof = prove(KEY, statement)
    assert is_proven(KEY.public_key(), proof, statement)
    assert is_proven(KEY.public_key(), proof, other) is (statement == other)
    stranger = ec.generate_private_key(ec.SECP256R1()).public_key()
    assert not is_proven(stranger, proof, statement)
    assert key_digest(stranger) != key_digest(KEY.public_key())


@given(st.binary(max_size=128))
def test_bytes_that_are_no_signature_prove_nothing(proof: bytes) -> None:
    assert not is_proven(KEY.public_key(), proof, b"statement")


@given(st.binary(min_size=32, max_size=32))
def test_a_fingerprint_is_read_as_people_write_it(digest: bytes) -> None:
    plain = digest.hex()
    with_colons = ":".join(plain[at : at + 2] for at in range(0, 64, 2)).upper()
    for written in (plain, with_colons, f" SHA256:{plain}\n"):
        assert check_fingerprint(written) == plain


@pytest.mark.parametrize("text", ["", "00", "g" * 64, "0" * 63, "0" * 65])
def test_what_is_no_fingerprint_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="fingerprint"):
        check_fingerprint(text)
