"""One MQTT connection, from its CONNECT to its end, on the event loop.

paho reconnects, queues and resends by itself, out of our sight; a client of its own for each
connection has nothing to resend, so what is sent again is only what the uplink decided.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Self, TypeVar

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from shoal.errors import ConnectionFailed

CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 10.0
_HOUSEKEEPING_S: Final = 1.0
_NOT_ADMITTED: Final = frozenset({"Not authorized", "Bad user name or password"})
_NOT_YET_VALID, _EXPIRED = 9, 10  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED

T = TypeVar("T")
OnMessage = Callable[[str, bytes], None]


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect, and as whom.

    Attributes:
        host: name or address, as the broker's certificate has it.
        port: its port.
        keepalive_s: MQTT keepalive, seconds.
        client_id: unique among all connections of the broker.
        tls: the client's context; None speaks plain TCP.
        name: of the certificate, for messages; empty: as the client id.
    """

    host: str
    port: int
    keepalive_s: int
    client_id: str
    tls: ssl.SSLContext | None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Will:
    """What the broker publishes, retained, when this connection dies."""

    topic: str
    payload: bytes


class Connection:
    """A live connection; when it is lost it stays lost.

    connection = await Connection.open(address, will, on_message=print, on_lost=wake.set)
    connection.publish("some/topic", b"payload", qos=1)
    connection.close()
    """

    def __init__(
        self,
        address: Address,
        will: Will | None,
        *,
        on_message: OnMessage,
        on_lost: Callable[[], None],
    ) -> None:
        """Prepares a client; `open` connects it."""
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._answer: asyncio.Future[ReasonCode] = self._loop.create_future()
        self._published: dict[int, asyncio.Future[None]] = {}
        self._subscribed: dict[int, asyncio.Future[list[ReasonCode]]] = {}
        self._socket: socket.socket | None = None
        self._housekeeping: asyncio.TimerHandle | None = None
        self._writing = False
        self.lost = asyncio.Event()
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=address.client_id,
            clean_session=True,
            reconnect_on_failure=False,
        )
        client.connect_timeout = CONNECT_TIMEOUT_S
        client.max_inflight_messages_set(65535)  # the uplink's window is the only bound
        if will is not None:
            client.will_set(will.topic, will.payload, qos=1, retain=True)
        if address.tls is not None:
            client.tls_set_context(address.tls)
        client.on_connect = self._connected
        client.on_publish = self._acknowledged
        client.on_subscribe = self._granted
        client.on_disconnect = self._disconnected
        client.on_socket_close = self._socket_closing
        client.on_message = lambda _client, _data, message: on_message(
            message.topic, bytes(message.payload)
        )
        self._client = client

    @classmethod
    async def open(
        cls,
        address: Address,
        will: Will | None,
        *,
        on_message: OnMessage,
        on_lost: Callable[[], None],
    ) -> Self:
        """Connects.

        Args:
            address: where, and as whom.
            will: published by the broker when the connection dies, if there is to be one.
            on_message: called with topic and payload, on the event loop.
            on_lost: called on the event loop when the connection has ended.

        Raises:
            ConnectionFailed: the broker cannot be reached, or it refused us.
        """
        self = cls(address, will, on_message=on_message, on_lost=on_lost)
        where = f"broker {address.host}:{address.port}"
        try:
            await self._connect_in_thread()
            self._attach()
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                code = await self._answer
        except TimeoutError as error:
            self.close()
            raise ConnectionFailed(f"{where}: no answer; check that it is a broker") from error
        except (OSError, ValueError) as error:
            self.close()
            raise ConnectionFailed(f"{where}: {_explain(error)}") from error
        except BaseException:
            self.close()
            raise
        if code.is_failure:
            self.close()
            raise ConnectionFailed(f"{where}: {_refusal(code, address.name or address.client_id)}")
        return self

    async def subscribe(self, topic: str, *, qos: int) -> None:
        """Subscribes and waits for the broker's word.

        Raises:
            ConnectionFailed: the broker refuses, or does not answer.
        """
        where = f"broker {self._address.host}:{self._address.port}: subscribing to {topic}"
        granted: asyncio.Future[list[ReasonCode]] = self._loop.create_future()
        _, mid = self._client.subscribe(topic, qos)
        if mid is None or self.lost.is_set():
            raise ConnectionFailed(f"{where}: the connection was lost")
        self._subscribed[mid] = granted
        self._flush()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                codes = await granted
        except TimeoutError as error:
            raise ConnectionFailed(f"{where}: no answer") from error
        finally:
            self._subscribed.pop(mid, None)
        if any(code.is_failure for code in codes):
            raise ConnectionFailed(f"{where}: refused; check the device's permissions")

    def publish(self, topic: str, payload: bytes, *, qos: int, retain: bool = False) -> int:
        """Sends a message, or nothing at all when the connection is lost; never blocks.

        Returns:
            What `delivered` wants.
        """
        info = self._client.publish(topic, payload, qos, retain)
        self._flush()
        return info.mid

    async def delivered(self, mid: int, timeout_s: float) -> bool:
        """Waits for the broker's word about a message just published at QoS 1."""
        if self.lost.is_set():
            return False
        done = self._published.setdefault(mid, self._loop.create_future())
        try:
            async with asyncio.timeout(timeout_s):
                await done
        except (TimeoutError, ConnectionFailed):
            return False
        finally:
            self._published.pop(mid, None)
        return True

    def close(self) -> None:
        """Ends the connection; the broker forgets the will if it still hears this."""
        self._client.on_message = None
        self._client.disconnect()
        self._flush()  # paho closes the socket once the farewell is written
        left = self._socket
        if left is not None:
            self._detach()
            left.close()
        self._end()

    async def _connect_in_thread(self) -> None:
        """Paho connects in blocking calls; a daemon thread never keeps the process from ending."""
        done: asyncio.Future[None] = self._loop.create_future()

        def connect() -> None:
            failure: Exception | None = None
            try:
                self._client.connect(
                    self._address.host, self._address.port, self._address.keepalive_s
                )
            except Exception as error:  # noqa: BLE001 handed to whoever waits
                failure = error
            try:
                self._loop.call_soon_threadsafe(finish, failure)
            except RuntimeError:  # the loop has ended meanwhile
                self._client.disconnect()

        def finish(failure: Exception | None) -> None:
            if done.cancelled():
                self._client.disconnect()
            elif failure is not None:
                done.set_exception(failure)
            else:
                done.set_result(None)

        threading.Thread(target=connect, name="mqtt-connect", daemon=True).start()
        await done

    def _attach(self) -> None:
        found = self._client.socket()
        if not isinstance(found, socket.socket):
            raise ConnectionResetError("the broker closed the connection")
        self._socket = found
        self._loop.add_reader(found, self._readable)
        self._tick()
        self._readable()

    def _detach(self) -> None:
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        self._socket = None

    def _tick(self) -> None:
        """Pings, and notices a silent broker."""
        self._client.loop_misc()
        if self._socket is not None:
            self._flush()
            self._housekeeping = self._loop.call_later(_HOUSEKEEPING_S, self._tick)

    def _readable(self) -> None:
        code = MQTTErrorCode.MQTT_ERR_SUCCESS
        while code == MQTTErrorCode.MQTT_ERR_SUCCESS and self._socket is not None:
            code = self._client.loop_read()
            if not (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
                break
        self._flush()

    def _writable(self) -> None:
        self._client.loop_write()
        self._flush()

    def _flush(self) -> None:
        """Writes what can be written now; the rest when the socket takes it."""
        if self._client.want_write() and not self._writing:
            self._client.loop_write()
        attached, wanted = self._socket, self._client.want_write()  # the write may have lost it
        if attached is not None and wanted != self._writing:
            self._writing = wanted
            if wanted:
                self._loop.add_writer(attached, self._writable)
            else:
                self._loop.remove_writer(attached)

    def _end(self) -> None:
        failure = ConnectionFailed(
            "the broker ended the connection; check that this device is enrolled, its certificate "
            "is valid, and its messages are within the broker's limits"
        )
        _fail([self._answer], failure)
        _fail(self._published.values(), failure)
        _fail(self._subscribed.values(), failure)
        if not self.lost.is_set():
            self.lost.set()
            self._on_lost()

    # paho's callbacks, on the event loop but for those of a connection that is being made.

    def _connected(
        self,
        _client: mqtt.Client,
        _data: object,
        _flags: mqtt.ConnectFlags,
        code: ReasonCode,
        _properties: Properties | None,
    ) -> None:
        if not self._answer.done():
            self._answer.set_result(code)

    def _acknowledged(
        self,
        _client: mqtt.Client,
        _data: object,
        mid: int,
        _code: ReasonCode,
        _properties: Properties,
    ) -> None:
        waiting = self._published.get(mid)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _granted(
        self,
        _client: mqtt.Client,
        _data: object,
        mid: int,
        codes: list[ReasonCode],
        _properties: Properties | None,
    ) -> None:
        waiting = self._subscribed.get(mid)
        if waiting is not None and not waiting.done():
            waiting.set_result(codes)

    def _disconnected(
        self,
        _client: mqtt.Client,
        _data: object,
        _flags: mqtt.DisconnectFlags,
        _code: ReasonCode,
        _properties: Properties | None,
    ) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._end)

    def _socket_closing(self, _client: mqtt.Client, _data: object, _socket: object) -> None:
        if self._socket is not None:
            self._detach()


def _fail(futures: Iterable[asyncio.Future[T]], failure: ConnectionFailed) -> None:
    for waiting in futures:
        if not waiting.done():
            waiting.set_exception(failure)
            waiting.exception()  # it is not an error that nobody waits


def _refusal(code: ReasonCode, name: str) -> str:
    """One line for a person."""
    if str(code) not in _NOT_ADMITTED:
        return f"{code}; check that this device is enrolled"
    return (
        f"the broker does not admit {name} ({code}): add it to `devices` in broker.toml or to the"
        " broker's devices file"
    )


def _explain(error: Exception) -> str:
    """One line for a person."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _NOT_YET_VALID:
            return "its certificate is not valid yet: this device's clock is behind; set it"
        if error.verify_code == _EXPIRED:
            return "its certificate has expired, or this device's clock is ahead"
        return f"its certificate is not trusted ({error.verify_message}); check ca.pem and the host"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there; check host and port, and that the broker runs"
    if isinstance(error, TimeoutError):
        return "it does not answer; check the network"
    return f"{error}"
