"""The learner's session with the MQTT broker: a persistent QoS 1 subscription, and acks out."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable
from typing import Final

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from cloud_learner.config import BrokerConfig
from cloud_learner.uplink.inbox import Inbox, Message
from shoal.errors import ConnectionFailed, IdentityError
from shoal.identity import Identity
from shoal.logs import get_logger
from shoal.services import backoff
from shoal.topics import Topics

CONNECT_TIMEOUT_S: Final = 10.0
_log = get_logger("subscriber")


class Subscriber:
    """Receives everything devices send into an inbox; reconnects for ever, with full jitter.

    subscriber = Subscriber(config, identity, topics, inbox, rng=random.Random())
    await subscriber.serve()                     # until cancelled
    subscriber.publish(topics.ack("pi-1"), payload)
    """

    def __init__(
        self,
        config: BrokerConfig,
        identity: Identity,
        topics: Topics,
        inbox: Inbox,
        *,
        rng: random.Random,
    ) -> None:
        self._config = config
        self._tls: ssl.SSLContext = identity.ssl_context()
        self._tls.sslsocket_class = ClosingSocket
        self._topics = topics
        self._inbox = inbox
        self._rng = rng
        self._session: _Session | None = None
        self._renewals = 0
        self._connections = 0
        self._connected_s: float | None = None

    @property
    def connected_s(self) -> float | None:
        """Since when the subscription stands, in monotonic seconds; None when it does not."""
        stands = self._session is not None and self._session.subscribed
        return self._connected_s if stands else None

    @property
    def connections(self) -> int:
        """How often the broker accepted us."""
        return self._connections

    @property
    def renewals(self) -> int:
        """How often the session was replaced because chunks stopped coming."""
        return self._renewals

    def publish(self, topic: str, payload: bytes) -> None:
        """Sends at QoS 0; lost when there is no connection, as acks are repeated anyway."""
        if self._session is not None:
            self._session.client.publish(topic, payload, qos=0)

    def renew(self) -> None:
        """Replaces the session: some brokers stop serving one, and only another id helps."""
        self._renewals += 1
        _log.warning("session_renewed", renewals=self._renewals, client_id=self._client_id)
        if self._session is not None:
            self._session.end("renewed")

    async def serve(self) -> None:
        """Keeps the subscription up until cancelled.

        Raises:
            IdentityError: The first broker we reach is not of our fleet's CA.
        """
        attempt = 0
        abandoned: str | None = None
        while True:
            client_id = self._client_id
            if abandoned is not None and abandoned != client_id:
                await self._forget(abandoned)
            abandoned = client_id
            session = _Session(client_id, self._topics.all_up(), self._tls, self._inbox.offer)
            self._session = session
            try:
                await session.run(self._config, on_subscribed=self._note_connection)
            except ConnectionFailed as error:
                if isinstance(error.__cause__, ssl.SSLCertVerificationError) and not attempt:
                    raise IdentityError(
                        f"{error}; it must have a certificate of the CA in `identity`, for the "
                        "name in broker.host"
                    ) from error
                if not attempt & (attempt - 1):  # 0, 1, 2, 4, 8: one outage is no flood
                    _log.warning("broker_unreachable", attempt=attempt, error=str(error))
            finally:
                self._session = None
            attempt = 0 if session.was_subscribed else attempt + 1
            await asyncio.sleep(
                backoff(
                    attempt,
                    base_s=self._config.backoff_base_s,
                    cap_s=self._config.backoff_cap_s,
                    rng=self._rng,
                )
            )

    @property
    def _client_id(self) -> str:
        suffix = f"-r{self._renewals}" if self._renewals else ""
        return f"{self._config.client_id}{suffix}"

    def _note_connection(self) -> None:
        self._connections += 1
        self._connected_s = time.monotonic()
        _log.info(
            "broker_connected",
            host=self._config.host,
            port=self._config.port,
            client_id=self._client_id,
            connections=self._connections,
        )

    async def _forget(self, client_id: str) -> None:
        """Takes an abandoned session away from the broker, so that it queues nothing for it."""
        session = _Session(client_id, None, self._tls, self._inbox.offer)
        try:
            await session.run(self._config, on_subscribed=lambda: session.end("forgotten"))
        except ConnectionFailed as error:
            _log.warning("session_not_forgotten", client_id=client_id, error=str(error))


class ClosingSocket(ssl.SSLSocket):
    """Closes itself when the handshake fails; paho would leave that to the garbage collector."""

    def do_handshake(self, block: bool = False) -> None:  # noqa: FBT001, FBT002 - as inherited
        """As inherited."""
        try:
            super().do_handshake(block)
        except (OSError, ValueError):
            self.close()
            raise


class _Session:
    """One connection. Callbacks run in paho's thread and only set things on the loop."""

    def __init__(
        self,
        client_id: str,
        topic_filter: str | None,
        tls: ssl.SSLContext,
        deliver: Callable[[Message], bool],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._filter = topic_filter
        self._deliver = deliver
        self._answered = asyncio.Event()
        self._ended = asyncio.Event()
        self._subscribed = False
        self._reason = ""
        self.client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=topic_filter is None,
            protocol=mqtt.MQTTv311,
            reconnect_on_failure=False,
        )
        self.client.connect_timeout = CONNECT_TIMEOUT_S
        self.client.tls_set_context(tls)
        self.client.on_connect = lambda _c, _u, _flags, reason, _p: self._on_connect(reason)
        self.client.on_subscribe = lambda _c, _u, _mid, reasons, _p: self._on_subscribe(reasons)
        self.client.on_disconnect = lambda _c, _u, _flags, reason, _p: self._tell(
            self.end, str(reason)
        )
        self.client.on_message = lambda _c, _u, message: self._on_message(message)

    @property
    def subscribed(self) -> bool:
        """Whether messages come."""
        return self._subscribed and not self._ended.is_set()

    @property
    def was_subscribed(self) -> bool:
        """Whether messages came."""
        return self._subscribed

    async def run(self, config: BrokerConfig, *, on_subscribed: Callable[[], None]) -> None:
        """Connects and stays until the connection ends.

        Raises:
            ConnectionFailed: The broker cannot be reached, refused us, or went away.
        """
        where = f"{config.host}:{config.port}"
        try:
            await asyncio.to_thread(
                self.client.connect, config.host, config.port, config.keepalive_s
            )
        except (OSError, ValueError) as error:
            raise ConnectionFailed(f"broker {where}: {error}; is it running?") from error
        self.client.loop_start()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._answered.wait()
            if self._subscribed:
                on_subscribed()
                await self._ended.wait()
        except TimeoutError as error:
            raise ConnectionFailed(f"broker {where}: no answer; is it an MQTT port?") from error
        finally:
            self._ended.set()
            self.client.disconnect()
            await asyncio.to_thread(self.client.loop_stop)
        raise ConnectionFailed(f"broker {where}: {self._reason or 'the connection was lost'}")

    def end(self, reason: str) -> None:
        """Ends the connection, from the loop."""
        self._reason = self._reason or reason
        self._ended.set()
        self._answered.set()

    def _begin(self) -> None:
        self._subscribed = True
        self._answered.set()

    # ------------------------------------------------------------------------- in paho's thread

    def _on_connect(self, reason: ReasonCode) -> None:
        if reason.is_failure:
            self._tell(self.end, f"refused: {reason}")
        elif self._filter is None:
            self._tell(self._begin)
        else:
            self.client.subscribe(self._filter, qos=1)

    def _on_subscribe(self, reasons: list[ReasonCode]) -> None:
        if any(reason.is_failure for reason in reasons):
            self._tell(self.end, f"may not subscribe to {self._filter}: {reasons[0]}")
        else:
            self._tell(self._begin)

    def _on_message(self, message: mqtt.MQTTMessage) -> None:
        self._deliver(Message(message.topic, bytes(message.payload)))

    def _tell(self, act: Callable[..., None], *arguments: str) -> None:
        self._loop.call_soon_threadsafe(act, *arguments)
