"""Bytes that were once written decode for ever, to the same values."""

from __future__ import annotations

import pytest
from google.protobuf import text_format
from wire.samples import FRAMED, GOLDEN, decode, message_types, samples

from shoal.envelope import decode_envelope
from shoal.policy import check_digests, decode_bundle, decode_golden, decode_manifest
from shoal.spaces import EnvSpec
from shoal.tensors import decode_tensors
from shoal.trajectory import decode_chunk
from shoal.v1 import space_pb2
from shoal.validation import validate_chunk

NAMES = sorted(path.stem for path in GOLDEN.glob("*.bin"))


def read(name: str) -> bytes:
    return (GOLDEN / f"{name}.bin").read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_golden_bytes_decode_to_their_values(name: str) -> None:
    wanted = message_types()[name.partition(".")[0]]()
    text_format.Parse((GOLDEN / f"{name}.txtpb").read_text(encoding="utf-8"), wanted)
    assert decode(name, read(name)) == wanted


def test_every_message_of_the_contract_has_golden_bytes() -> None:
    missing = set(message_types()) - {name.partition(".")[0] for name in NAMES}
    assert not missing, "add a sample to tests/wire/samples.py and run it"


def test_every_sample_has_golden_bytes() -> None:
    missing = set(samples()) - set(NAMES)
    assert not missing, "run: PYTHONPATH=tests python tests/wire/samples.py"


@pytest.mark.parametrize("name", sorted(FRAMED))
def test_samples_set_every_field_they_can(name: str) -> None:
    of_kind = {each: data for each, data in samples().items() if each.partition(".")[0] == name}
    messages = [decode(each, data) for each, data in of_kind.items()]
    unset = {field.name for field in messages[0].DESCRIPTOR.fields} - {
        field.name for message in messages for field, _ in message.ListFields()
    }
    assert not unset, "golden bytes that leave a field out do not hold its number"


def test_the_codecs_read_the_golden_bytes() -> None:
    spec = EnvSpec.from_pb(space_pb2.EnvSpec.FromString(read("EnvSpec")))
    envelope = decode_envelope(read("TrajectoryEnvelope"))
    assert (envelope.key.device_id, envelope.key.seq, envelope.oldest_seq) == ("pi-1", 12, 10)
    for body in (envelope.body, read("TrajectoryChunk")):
        chunk = decode_chunk(body)
        validate_chunk(chunk, spec)
        assert (chunk.steps, chunk.envs, chunk.episodes[0].length) == (4, 2, 22)
    bundle = decode_bundle(read("PolicyBundle"))
    manifest = decode_manifest(bundle.manifest)
    assert manifest == decode_manifest(read("PolicyManifest"))
    check_digests(manifest, bundle)
    assert decode_tensors(bundle.tensors)["scale"] == 0.25
    assert decode_golden(read("TensorSet.golden")).actions.tolist() == [0, 1]


def test_the_codecs_read_the_golden_bytes_of_nested_spaces_and_of_memory() -> None:
    spec = EnvSpec.from_pb(space_pb2.EnvSpec.FromString(read("EnvSpec.nested")))
    chunk = decode_chunk(read("TrajectoryChunk.memory"))
    validate_chunk(chunk, spec)
    assert chunk.initial_state is not None
    assert chunk.initial_state.shape == (2, 3)
    assert chunk.priorities is not None
    manifest = decode_manifest(read("PolicyManifest.2"))
    more = (manifest.noise_correlation, manifest.agreement, manifest.priority_gamma)
    assert more == (0.75, 0.96875, 0.5)
    assert len(decode_manifest(read("PolicyManifest.3")).float_graph_digest) == 32
    golden = decode_golden(read("TensorSet.golden_memory"))
    assert golden.states is not None
    assert golden.next_states is not None
    assert golden.states.tolist() == (golden.next_states * 2).tolist()


def test_the_codecs_read_the_golden_bytes_of_columns() -> None:
    spec = EnvSpec.from_pb(space_pb2.EnvSpec.FromString(read("EnvSpec")))
    envelope = decode_envelope(read("TrajectoryEnvelope.columns"))
    plain, columns = decode_chunk(read("TrajectoryChunk")), decode_chunk(envelope.body)
    assert columns.observations.tobytes() == plain.observations.tobytes()
    assert columns.episodes == plain.episodes
    assert decode_chunk(read("ColumnChunk")).episodes == plain.episodes
    every = decode_chunk(read("ColumnChunk.forms"))
    for chunk in (columns, every):
        validate_chunk(chunk, spec)
    assert (every.steps, every.actions[:, 0].sum(), every.actions[:, 1].sum()) == (64, 0, 64)
    assert every.priorities is not None
    assert every.priorities.ravel().tolist() == list(range(128))
    assert (every.log_probs[0, 0], every.log_probs[-1, -1]) == (-1.0, -0.5)


def test_what_was_written_before_a_field_was_there_reads_as_without_it() -> None:
    chunk = decode_chunk(read("TrajectoryChunk"))
    assert (chunk.initial_state, chunk.priorities) == (None, None)
    manifest = decode_manifest(read("PolicyManifest"))
    assert (manifest.noise_correlation, manifest.agreement, manifest.priority_gamma) == (0, 0, 0)
    assert decode_golden(read("TensorSet.golden")).states is None
