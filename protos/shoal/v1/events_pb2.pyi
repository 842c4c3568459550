from shoal.v1 import device_pb2 as _device_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FleetEvent(_message.Message):
    __slots__ = ("place", "event", "source", "about", "age_s")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    place: int
    event: _device_pb2.Event
    source: str
    about: str
    age_s: float
    def __init__(self, place: _Optional[int] = ..., event: _Optional[_Union[_device_pb2.Event, _Mapping]] = ..., source: _Optional[str] = ..., about: _Optional[str] = ..., age_s: _Optional[float] = ...) -> None: ...

class ListEventsRequest(_message.Message):
    __slots__ = ("fleet", "about", "kinds", "max_age_s", "limit")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_S_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    about: str
    kinds: _containers.RepeatedScalarFieldContainer[str]
    max_age_s: float
    limit: int
    def __init__(self, fleet: _Optional[str] = ..., about: _Optional[str] = ..., kinds: _Optional[_Iterable[str]] = ..., max_age_s: _Optional[float] = ..., limit: _Optional[int] = ...) -> None: ...

class ListEventsResponse(_message.Message):
    __slots__ = ("events", "counters", "log_id", "newest_place")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    NEWEST_PLACE_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[FleetEvent]
    counters: _containers.ScalarMap[str, int]
    log_id: bytes
    newest_place: int
    def __init__(self, events: _Optional[_Iterable[_Union[FleetEvent, _Mapping]]] = ..., counters: _Optional[_Mapping[str, int]] = ..., log_id: _Optional[bytes] = ..., newest_place: _Optional[int] = ...) -> None: ...

class WatchEventsRequest(_message.Message):
    __slots__ = ("fleet", "about", "kinds", "after_place", "log_id")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    AFTER_PLACE_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    about: str
    kinds: _containers.RepeatedScalarFieldContainer[str]
    after_place: int
    log_id: bytes
    def __init__(self, fleet: _Optional[str] = ..., about: _Optional[str] = ..., kinds: _Optional[_Iterable[str]] = ..., after_place: _Optional[int] = ..., log_id: _Optional[bytes] = ...) -> None: ...

class WatchEventsResponse(_message.Message):
    __slots__ = ("event", "log_id")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    event: FleetEvent
    log_id: bytes
    def __init__(self, event: _Optional[_Union[FleetEvent, _Mapping]] = ..., log_id: _Optional[bytes] = ...) -> None: ...
