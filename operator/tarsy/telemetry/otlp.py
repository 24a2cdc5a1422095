"""Spans as OTLP: the protobuf of a request to a collector, and of its answer.

Source: OpenTelemetry Protocol Specification 1.x, "OTLP/HTTP". This module imports protobuf, so it is imported only if
traces are sent.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from google.protobuf import message
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from tarsy.telemetry import genai, spans

SCOPE = "tarsy"
_KINDS: Mapping[spans.Kind, trace_pb2.Span.SpanKind.ValueType] = {
    "internal": trace_pb2.Span.SPAN_KIND_INTERNAL,
    "client": trace_pb2.Span.SPAN_KIND_CLIENT,
}
_SAMPLED = 1
_INTEGER_MAX = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def encode(sent: Sequence[spans.Span], *, resource: Mapping[str, str], version: str, compress: bool) -> bytes:
    """Return the body of a request with these spans, of the program's `version`; with `compress` as gzip."""
    request = trace_service_pb2.ExportTraceServiceRequest()
    of_resource = request.resource_spans.add(schema_url=genai.SCHEMA_URL)
    of_resource.resource.attributes.extend(_attributes(resource))
    of_scope = of_resource.scope_spans.add(schema_url=genai.SCHEMA_URL)
    of_scope.scope.name, of_scope.scope.version = SCOPE, version
    of_scope.spans.extend(map(_span, sent))
    body: bytes = request.SerializeToString()
    return gzip.compress(body, compresslevel=1) if compress else body


def rejected(answer: bytes) -> int:
    """Return how many spans a collector rejected by its answer; none, if the answer is not readable."""
    response = trace_service_pb2.ExportTraceServiceResponse()
    try:
        response.ParseFromString(answer)
    except message.DecodeError:
        return 0
    count: int = response.partial_success.rejected_spans
    return count


def _span(span: spans.Span) -> trace_pb2.Span:
    encoded = trace_pb2.Span(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent_id,
        flags=_SAMPLED,
        name=_text(span.name),
        kind=_KINDS[span.kind],
        start_time_unix_nano=_nanoseconds(span.start),
        end_time_unix_nano=_nanoseconds(span.end),
        attributes=_attributes(span.attributes),
    )
    for link in span.links:
        encoded.links.add(
            trace_id=link.trace_id,
            span_id=link.span_id,
            flags=_SAMPLED if link.sampled else 0,
            attributes=_attributes({"tarsy.link": link.reason}),
        )
    if span.failed:
        encoded.status.code = trace_pb2.Status.STATUS_CODE_ERROR
        encoded.status.message = _text(span.message)
    return encoded


def _attributes(values: Mapping[str, spans.Value]) -> Iterable[common_pb2.KeyValue]:
    for key, value in values.items():
        yield common_pb2.KeyValue(key=key, value=_value(value))


def _value(value: spans.Value) -> common_pb2.AnyValue:
    match value:
        case bool():
            return common_pb2.AnyValue(bool_value=value)
        case int():
            return common_pb2.AnyValue(int_value=max(-_INTEGER_MAX, min(value, _INTEGER_MAX)))
        case float():
            return common_pb2.AnyValue(double_value=value)
        case str():
            return common_pb2.AnyValue(string_value=_text(value))
        case spans.JSON():
            return common_pb2.AnyValue(string_value=_text(json.dumps(value.value, ensure_ascii=False)))
        case _:
            texts = (common_pb2.AnyValue(string_value=_text(member)) for member in value)
            return common_pb2.AnyValue(array_value=common_pb2.ArrayValue(values=texts))


def _text(text: str) -> str:
    """Return `text` with U+FFFD for lone surrogates, which protobuf refuses."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _nanoseconds(moment: datetime) -> int:
    """Return Unix time in nanoseconds; 0 for times before it."""
    since = moment - _EPOCH
    return max(0, (since.days * 86400 + since.seconds) * 10**9 + since.microseconds * 1000)
