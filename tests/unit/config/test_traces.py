"""Where traces are sent: OpenTelemetry's variables, the platform file, and what neither may say."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
from tarsy.config.load import loader, traces
from tarsy.config.model import platforms
from tarsy.config.redact import secret_values

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
NONE = platforms.Traces()


def test_no_traces_are_sent_without_an_endpoint() -> None:
    assert traces.destination(NONE, {}) is None
    assert traces.destination(NONE, {"OTEL_EXPORTER_OTLP_HEADERS": "a=b", "OTEL_SERVICE_NAME": "x"}) is None
    assert traces.destination(NONE, {"OTEL_EXPORTER_OTLP_ENDPOINT": " "}) is None


@pytest.mark.parametrize("off", [{"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_SDK_DISABLED": "True"}])
def test_environment_variables_turn_traces_off(off: dict[str, str]) -> None:
    named = platforms.Traces(endpoint="http://collector:4318")
    assert traces.destination(named, {**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", **off}) is None


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        (ENDPOINT, "http://collector:4318/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c/"}, "http://c/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c/api/public/otel"}, "https://c/api/public/otel/v1/traces"),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t:1/own"}, "http://t:1/own"),
    ],
)
def test_otlp_endpoint_is_a_base_url_and_traces_endpoint_is_a_complete_url(
    environment: dict[str, str], url: str
) -> None:
    destination = traces.destination(NONE, environment)
    assert destination is not None
    assert destination.url == url


def test_all_standard_variables_are_heeded() -> None:
    environment = {
        **ENDPOINT,
        "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Basic%20YWJj,x-a=1",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x-a=2, x-b=3",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2500",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=prod,service.name=other",
        "OTEL_SERVICE_NAME": "tarsy-eu",
        "OTEL_TRACES_EXPORTER": "otlp",
    }
    destination = traces.destination(NONE, environment)
    assert destination is not None
    assert destination.headers == {"Authorization": "Basic YWJj", "x-a": "2", "x-b": "3"}
    assert (destination.timeout, destination.compress, destination.tls) == (2.5, True, None)
    assert destination.resource == {
        "service.name": "tarsy-eu",
        "service.version": metadata.version("tarsy"),
        "deployment.environment.name": "prod",
    }
    assert "YWJj" not in repr(destination)


def test_the_files_endpoint_gets_the_files_headers_alone() -> None:
    named = platforms.Traces(endpoint="https://langfuse.example/api/public/otel", headers={"Authorization": "Basic f"})
    environment = {**ENDPOINT, "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Basic%20e,x-a=1"}
    destination = traces.destination(named, environment)
    assert destination is not None
    assert destination.url == "https://langfuse.example/api/public/otel/v1/traces"
    assert destination.headers == {"Authorization": "Basic f"}


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "other.example:4318"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "secret-without-a-name"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=line%0Abreak"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
        ("OTEL_TRACES_EXPORTER", "console"),
        ("OTEL_RESOURCE_ATTRIBUTES", "x"),
    ],
)
def test_an_error_names_the_variable_the_way_out_and_no_value(variable: str, value: str) -> None:
    with pytest.raises(loader.ConfigError) as error:
        traces.destination(NONE, {**ENDPOINT, variable: value})
    assert str(error.value).startswith(variable)
    assert "OTEL_TRACES_EXPORTER=none" in str(error.value)
    assert value not in str(error.value).replace(variable, "").replace("http/protobuf", "")


def test_certificates_of_the_environment_are_read_for_https(tmp_path: Path) -> None:
    missing = {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / "missing.pem")}
    https = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector:4318"}
    assert traces.destination(NONE, {**ENDPOINT, **missing}) is not None, "without TLS none is needed"
    with pytest.raises(loader.ConfigError, match=r"OTEL_EXPORTER_OTLP_CERTIFICATE: .*No such file"):
        traces.destination(NONE, {**https, **missing})
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate", encoding="utf-8")
    with pytest.raises(loader.ConfigError, match=r"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE: .*cannot be used"):
        traces.destination(NONE, {**https, "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(broken)})


def test_otlp_headers_in_environment_variables_are_known_secrets() -> None:
    environment = {"OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Basic%20cGstbGY6c2stbGY=,x-plain=4"}
    secrets = secret_values.collect(platforms.Platform(), environment)
    assert "cGstbGY6c2stbGY=" in secrets
    assert "4" not in secrets


def test_headers_without_an_endpoint_are_refused() -> None:
    with pytest.raises(ValueError, match="headers: of no use without endpoint"):
        platforms.Traces(headers={"a": "b"})
