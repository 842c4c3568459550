"""`shoal.v1.Enrollment` over gRPC: what devices without a certificate, or with an old one, call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NoReturn

import grpc
import grpc.aio

from cloud_learner.serving.grpc_server import Context, refuse, require_fleet
from shoal.logs import get_logger
from shoal.v1 import enrollment_pb2 as pb
from shoal.v1 import enrollment_pb2_grpc as rpc
from shoalctl.enrollment.applications import Application, Member, Renewal
from shoalctl.enrollment.authority import Authority
from shoalctl.enrollment.challenges import Challenges, Throttle
from shoalctl.enrollment.config import EnrollmentConfig
from shoalctl.enrollment.refusal import EnrollmentRefused, Reason

RETRY_AFTER_S = 5
"""When a device asks again whether an operator has approved it."""
BURST = 30

_CODES = {
    Reason.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.NAME: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.CHALLENGE: grpc.StatusCode.ABORTED,  # begin again
    Reason.NAME_TAKEN: grpc.StatusCode.ALREADY_EXISTS,
    Reason.NAME_REQUESTED: grpc.StatusCode.ALREADY_EXISTS,
    Reason.TOO_MANY_REQUESTS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.RATE: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""The status of a refusal; PERMISSION_DENIED if it is not here."""

_log = get_logger("enrollment")


class EnrollmentService(rpc.EnrollmentServicer):
    """Serves `shoal.v1.Enrollment` on the event loop; decisions are made in a thread.

    service = EnrollmentService(config, authority, challenges, ca=ca_pem, policy_public_key=key)
    """

    def __init__(
        self,
        config: EnrollmentConfig,
        authority: Authority,
        challenges: Challenges,
        *,
        ca: bytes,
        policy_public_key: bytes,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Serves nobody yet.

        Args:
            config: The rules and addresses.
            authority: Decides.
            challenges: Given out here, redeemed by the authority.
            ca: The root, PEM.
            policy_public_key: Ed25519, 32 bytes.
            clock: Wall clock, Unix seconds: devices are told.
        """
        self._config = config
        self._authority = authority
        self._challenges = challenges
        self._ca = ca
        self._policy_public_key = policy_public_key
        self._clock = clock
        self._throttle = Throttle(
            per_minute=config.requests_per_minute, burst=BURST, clock=time.monotonic
        )

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the calls."""
        rpc.add_EnrollmentServicer_to_server(self, server)

    def stop_streams(self) -> None:
        """There are none."""

    async def Begin(  # noqa: N802 - the name in the proto
        self, request: pb.BeginRequest, context: Context
    ) -> pb.BeginResponse:
        """Gives out a challenge, and the time."""
        await self._admit(context)
        if request.fleet:
            await require_fleet(context, request.fleet, self._config.fleet)
        return pb.BeginResponse(
            challenge=self._challenges.issue(),
            server_unix_ms=int(self._clock() * 1000),
            fleet=self._config.fleet,
        )

    async def Enroll(  # noqa: N802 - the name in the proto
        self, request: pb.EnrollRequest, context: Context
    ) -> pb.EnrollResponse:
        """Makes a device a member, or has it wait for an operator."""
        await self._admit(context)
        application = Application(
            request.challenge, request.csr, request.token, request.proof, _address(context)
        )
        try:
            member = await asyncio.to_thread(self._authority.enroll, application)
        except EnrollmentRefused as refusal:
            await _turn_away(context, refusal)
        if member is None:
            return pb.EnrollResponse(retry_after_s=RETRY_AFTER_S)
        _log.info("device_enrolled", device_id=member.device_id, address=_address(context))
        return pb.EnrollResponse(enrolled=self._enrolled(member))

    async def Renew(  # noqa: N802 - the name in the proto
        self, request: pb.RenewRequest, context: Context
    ) -> pb.RenewResponse:
        """Gives a member a new certificate for its present key."""
        await self._admit(context)
        renewal = Renewal(request.challenge, request.certificate, request.proof)
        try:
            member = await asyncio.to_thread(
                self._authority.renew, renewal, address=_address(context)
            )
        except EnrollmentRefused as refusal:
            await _turn_away(context, refusal)
        _log.info("device_renewed", device_id=member.device_id, address=_address(context))
        return pb.RenewResponse(enrolled=self._enrolled(member))

    async def _admit(self, context: Context) -> None:
        if not self._throttle.admit(_address(context)):
            # No event: whoever floods the server shall not flood its log of events too.
            _log.warning("rate_limited", address=_address(context))
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests from here: slow down"
            )

    def _enrolled(self, member: Member) -> pb.Enrolled:
        addresses = self._config.addresses
        return pb.Enrolled(
            fleet=self._config.fleet,
            device_id=member.device_id,
            certificate_chain=member.chain,
            ca=self._ca,
            policy_public_key=self._policy_public_key,
            addresses=pb.Addresses(
                broker=addresses.broker,
                parameter_server=addresses.parameter_server,
                enrollment=addresses.enrollment,
            ),
        )


async def _turn_away(context: Context, refusal: EnrollmentRefused) -> NoReturn:
    code = _CODES.get(refusal.reason, grpc.StatusCode.PERMISSION_DENIED)
    _log.warning(
        "enrollment_refused",
        reason=str(refusal.reason),
        device_id=refusal.device_id,
        address=_address(context),
    )
    await refuse(context, code, f"{refusal.reason}: {refusal}")


def _address(context: Context) -> str:
    """The caller's IP address: `ipv4:10.0.0.7:40312` and `ipv6:[::1]:40312` without their port."""
    peer = str(context.peer())
    return peer.partition(":")[2].rpartition(":")[0].strip("[]") or peer[:64]
