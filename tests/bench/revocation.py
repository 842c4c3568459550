"""How soon a revoked device is off MQTT and gRPC, from the start of the operator's command.

    shoal bench revocation --devices 10

Real processes: the embedded broker; `shoal enroll revoke`, start of the interpreter included. The
gRPC server is this process, with the interceptor and the file watch of a learner.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc
import grpc.aio

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:  # run as a program
    sys.path.insert(0, str(HERE.parent))

from bench.report import table  # noqa: E402
from brokers import HOST, WAIT_S, Client, Nats, Process, free_port  # noqa: E402

from cloud_learner.serving.grpc_server import Context, GrpcServer  # noqa: E402
from cloud_learner.serving.revocations import Revocations  # noqa: E402
from shoal.config import load_config  # noqa: E402
from shoal.identity import Identity  # noqa: E402
from shoalctl.broker.broker import BrokerConfig  # noqa: E402
from shoalctl.fleet.init import FleetPlan, make_fleet  # noqa: E402
from shoalctl.pki.pki import FleetPki, Role  # noqa: E402
from shoalctl.pki.registry import DeviceRegistry  # noqa: E402

SHOAL = (sys.executable, "-m", "shoalctl.cli")


class Endless:
    """A stream that says one thing and stays open, as a watch does."""

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers it."""
        handlers = {"Watch": grpc.unary_stream_rpc_method_handler(self.watch)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("E", handlers),))

    def stop_streams(self) -> None:
        """They end with the process."""

    async def watch(self, _request: bytes, context: Context) -> None:
        """Never returns."""
        await context.write(b"begun")
        await asyncio.Event().wait()


async def measure(pki: FleetPki, broker: Nats, devices: list[str]) -> dict[str, list[float]]:
    """Seconds until each device was off, by MQTT and by gRPC."""
    learner = Identity.load(pki.directory / "identities" / "learner")
    revocations = Revocations(pki.directory / "revoked.crl", learner)
    found: dict[str, list[float]] = {"mqtt_s": [], "grpc_s": [], "command_s": []}
    async with GrpcServer(
        HOST, 0, learner, [Endless()], interceptors=revocations.interceptors
    ) as server:
        following = asyncio.create_task(revocations.follow())
        for device_id in devices:
            pems = Identity.load(pki.directory / "identities" / device_id).read_pems()
            keys = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
            async with grpc.aio.secure_channel(f"localhost:{server.port}", keys) as channel:
                call = channel.unary_stream("/E/Watch", None, None)(b"")
                await call.read()
                client = await asyncio.to_thread(Client(broker, device_id).__enter__)
                began_s = time.perf_counter()
                command = [*SHOAL, "enroll", "revoke", device_id, "--dir", str(pki.directory)]
                certificate = pki.directory / "identities" / device_id / "cert.pem"
                command += ["--certificate", str(certificate)]

                async def until_mqtt(client: Client = client, began_s: float = began_s) -> float:
                    await asyncio.to_thread(client.lost.wait, WAIT_S)
                    return time.perf_counter() - began_s

                async def until_grpc(call: grpc.aio.Call = call, began_s: float = began_s) -> float:
                    await call.code()
                    return time.perf_counter() - began_s

                async def until_done(
                    command: list[str] = command, began_s: float = began_s
                ) -> float:
                    await asyncio.to_thread(
                        subprocess.run, command, check=True, capture_output=True
                    )
                    return time.perf_counter() - began_s

                mqtt_s, grpc_s, command_s = await asyncio.gather(
                    until_mqtt(), until_grpc(), until_done()
                )
                found["mqtt_s"].append(mqtt_s)
                found["grpc_s"].append(grpc_s)
                found["command_s"].append(command_s)
                await asyncio.to_thread(client.__exit__)
        following.cancel()
    return found


def main() -> None:
    """Prints median and largest of each, seconds."""
    parser = argparse.ArgumentParser(
        prog="shoal bench revocation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--devices", type=int, default=10, help="how many are revoked, in turn")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", dest="format")
    given = parser.parse_args()
    devices = [f"pi-{number}" for number in range(given.devices)]
    with tempfile.TemporaryDirectory() as directory:
        pki = make_fleet(Path(directory) / "fleet", FleetPlan("reef"))
        for device_id in devices:
            pki.issue(device_id, Role.DEVICE)
        DeviceRegistry(pki.directory / "devices").add(*devices)
        path, port = pki.directory / "broker.toml", free_port()
        config = load_config(BrokerConfig, path, overrides={"port": port})
        broker = Nats(pki, config)
        broker.process = Process(
            [*SHOAL, "broker", "run", "--config", str(path), "--port", str(port)]
        )
        try:
            broker.process.wait_until_ready("broker_ready")
            found = asyncio.run(measure(pki, broker, devices))
        finally:
            broker.stop()
    summary = {
        name: {"median": sorted(values)[len(values) // 2], "largest": max(values)}
        for name, values in found.items()
    }
    document = json.dumps({"devices": len(devices), **summary})
    rows = [(name, each["median"], each["largest"]) for name, each in summary.items()]
    text = table(("until", "median s", "largest s"), rows)
    sys.stdout.write((document if given.format == "json" else text) + "\n")


if __name__ == "__main__":
    main()
