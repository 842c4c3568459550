"""The libraries of an agent and next to nothing of Shoal: what an agent cannot be smaller than.

Started by `shoal bench footprint`, with the paths as arguments. It watches the parameter server
over gRPC with mutual TLS, verifies the signature of the first policy that comes, acts with it in
the environment, and keeps an MQTT connection with mutual TLS: one of each thing that an agent does.
It has no configuration, command line, spool, status, gradients, updates or tasks.
"""

import asyncio
import contextlib
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import paho.mqtt.client as mqtt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.x509 import load_pem_x509_certificate
from paho.mqtt.enums import CallbackAPIVersion

from shoal.v1 import parameter_server_pb2 as pb
from shoal.v1 import policy_pb2
from shoal.v1.parameter_server_pb2_grpc import ParameterServerStub
from shoal.v1.tensor_pb2 import TensorSet

HOST = "127.0.0.1"
_NUMPY = {1: "?", 2: "u1", 3: "i1", 4: "<u2", 5: "<i2", 6: "<i4", 7: "<i8", 9: "<f4"}


def session_of(graph: bytes, tensors: bytes) -> Any:  # noqa: ANN401 - published without types
    """An onnxruntime session as an agent has it."""
    arrays = {
        each.name: np.frombuffer(each.data, _NUMPY[each.dtype]).reshape(each.shape)
        for each in TensorSet.FromString(tensors).tensors
    }
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in arrays.values()]
    options.add_external_initializers(list(arrays), values)
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


async def joined(parts: AsyncIterator[pb.Part]) -> bytes:
    """One payload of a stream."""
    payload = b""
    async for part in parts:
        payload += part.data
        if len(payload) == part.total_bytes:
            return payload
    raise SystemExit("the stream ended early")


async def run(fleet: str, identity: Path, port: int, server_port: int, probe: str) -> None:
    """Acts until SIGTERM."""
    import grpc
    import grpc.aio
    from bench.footprint_env import ProbedCartPole

    cert, key, ca = (identity / f"{name}.pem" for name in ("cert", "key", "ca"))
    assert load_pem_x509_certificate(cert.read_bytes()).not_valid_after_utc.timestamp()
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=identity.name)
    client.tls_set(str(ca), str(cert), str(key))
    client.connect(HOST, port)
    client.loop_start()
    with contextlib.closing(sqlite3.connect(":memory:")):
        credentials = grpc.ssl_channel_credentials(
            ca.read_bytes(), key.read_bytes(), cert.read_bytes()
        )
        async with grpc.aio.secure_channel(f"{HOST}:{server_port}", credentials) as channel:
            stub = ParameterServerStub(channel)
            watch = stub.Watch(pb.WatchRequest(fleet=fleet, device_id=identity.name))
            bundle = policy_pb2.PolicyBundle.FromString(await joined(watch))
            signer = Ed25519PublicKey.from_public_bytes(
                bytes.fromhex((identity / "policy.pub").read_text("ascii").strip())
            )
            signer.verify(bundle.signature, b"shoal policy manifest v1\x00" + bundle.manifest)
            manifest = policy_pb2.PolicyManifest.FromString(bundle.manifest)
            wanted = pb.GetGraphRequest(fleet=fleet, digest=manifest.graph_digest)
            graph = await joined(stub.GetGraph(wanted))
            session = session_of(graph, bundle.tensors)
            await asyncio.to_thread(act, session, probe, ProbedCartPole(probe))


def act(session: Any, probe: str, env: gymnasium.Env[Any, Any]) -> None:  # noqa: ANN401
    """Steps an environment for ever."""
    observation, _ = env.reset(seed=0)
    rng = np.random.default_rng(0)
    width = session.get_inputs()[1].shape[1]
    while True:
        noise = rng.random((1, width), np.float32)
        feed = {"observation": observation[None], "noise": noise}
        (action,) = session.run(["action"], feed)
        observation, _, terminated, truncated, _ = env.step(action[0])
        if terminated or truncated:
            observation, _ = env.reset()


def main() -> None:
    """Runs it with the arguments of the command line."""
    fleet, identity, port, server_port, probe = sys.argv[1:]
    asyncio.run(run(fleet, Path(identity), int(port), int(server_port), probe))
