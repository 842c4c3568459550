from shoal.v1 import statistics_pb2 as _statistics_pb2
from shoal.v1 import trajectory_pb2 as _trajectory_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GradientCodec(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GRADIENT_CODEC_UNSPECIFIED: _ClassVar[GradientCodec]
    GRADIENT_CODEC_FLOAT32: _ClassVar[GradientCodec]
    GRADIENT_CODEC_INT8: _ClassVar[GradientCodec]
    GRADIENT_CODEC_TOP_K: _ClassVar[GradientCodec]
GRADIENT_CODEC_UNSPECIFIED: GradientCodec
GRADIENT_CODEC_FLOAT32: GradientCodec
GRADIENT_CODEC_INT8: GradientCodec
GRADIENT_CODEC_TOP_K: GradientCodec

class GetWeightsRequest(_message.Message):
    __slots__ = ("fleet", "device_id", "have_updates", "acted_version")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    HAVE_UPDATES_FIELD_NUMBER: _ClassVar[int]
    ACTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    device_id: str
    have_updates: int
    acted_version: int
    def __init__(self, fleet: _Optional[str] = ..., device_id: _Optional[str] = ..., have_updates: _Optional[int] = ..., acted_version: _Optional[int] = ...) -> None: ...

class Weights(_message.Message):
    __slots__ = ("layout_digest", "updates", "values", "setup", "normalizer")
    LAYOUT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    SETUP_FIELD_NUMBER: _ClassVar[int]
    NORMALIZER_FIELD_NUMBER: _ClassVar[int]
    layout_digest: bytes
    updates: int
    values: bytes
    setup: bytes
    normalizer: _statistics_pb2.ActingNormalizer
    def __init__(self, layout_digest: _Optional[bytes] = ..., updates: _Optional[int] = ..., values: _Optional[bytes] = ..., setup: _Optional[bytes] = ..., normalizer: _Optional[_Union[_statistics_pb2.ActingNormalizer, _Mapping]] = ...) -> None: ...

class ObservationMoments(_message.Message):
    __slots__ = ("count", "mean", "variance", "low", "high")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    VARIANCE_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    count: int
    mean: bytes
    variance: bytes
    low: bytes
    high: bytes
    def __init__(self, count: _Optional[int] = ..., mean: _Optional[bytes] = ..., variance: _Optional[bytes] = ..., low: _Optional[bytes] = ..., high: _Optional[bytes] = ...) -> None: ...

class PushUpdateRequest(_message.Message):
    __slots__ = ("fleet", "device_id", "run_id", "seq", "layout_digest", "updates", "policy_version", "transitions", "codec", "parameters", "body", "episodes", "metrics", "moments", "statistics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    FLEET_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    TRANSITIONS_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    device_id: str
    run_id: bytes
    seq: int
    layout_digest: bytes
    updates: int
    policy_version: int
    transitions: int
    codec: GradientCodec
    parameters: int
    body: bytes
    episodes: _containers.RepeatedCompositeFieldContainer[_trajectory_pb2.Episode]
    metrics: _containers.ScalarMap[str, float]
    moments: ObservationMoments
    statistics: _statistics_pb2.ObservationStatistics
    def __init__(self, fleet: _Optional[str] = ..., device_id: _Optional[str] = ..., run_id: _Optional[bytes] = ..., seq: _Optional[int] = ..., layout_digest: _Optional[bytes] = ..., updates: _Optional[int] = ..., policy_version: _Optional[int] = ..., transitions: _Optional[int] = ..., codec: _Optional[_Union[GradientCodec, str]] = ..., parameters: _Optional[int] = ..., body: _Optional[bytes] = ..., episodes: _Optional[_Iterable[_Union[_trajectory_pb2.Episode, _Mapping]]] = ..., metrics: _Optional[_Mapping[str, float]] = ..., moments: _Optional[_Union[ObservationMoments, _Mapping]] = ..., statistics: _Optional[_Union[_statistics_pb2.ObservationStatistics, _Mapping]] = ...) -> None: ...

class PushUpdateResponse(_message.Message):
    __slots__ = ("applied", "reason", "updates", "lag_updates", "newest_version")
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    LAG_UPDATES_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    applied: bool
    reason: str
    updates: int
    lag_updates: int
    newest_version: int
    def __init__(self, applied: bool = ..., reason: _Optional[str] = ..., updates: _Optional[int] = ..., lag_updates: _Optional[int] = ..., newest_version: _Optional[int] = ...) -> None: ...
