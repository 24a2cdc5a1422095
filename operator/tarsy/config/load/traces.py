"""Where traces are sent: by the platform file, else by OpenTelemetry's variables.

Source: OpenTelemetry Protocol Exporter specification 1.x, "Configuration Options", and "Environment Variable
Specification". A variable that an injector sets for all programs may ask for what TARSy lacks; the error says how to
turn traces off.
"""

from __future__ import annotations

import ssl
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata

from tarsy import proxies
from tarsy.config.load import loader
from tarsy.config.model import fields, platforms
from tarsy.telemetry import spans

PREFIX = "OTEL_EXPORTER_OTLP_"
OFF = "set OTEL_TRACES_EXPORTER=none to send no traces"
_PATH = "/v1/traces"


def destination(traces: platforms.Traces, environment: Mapping[str, str]) -> spans.Destination | None:
    """Return where traces are sent; None if neither the file nor the environment names a collector.

    It reads the files of certificates that the environment names. Raises a ConfigError that names the variable.
    """
    if _is_off(environment):
        return None
    if traces.endpoint is not None:
        url, headers = _signal_url(traces.endpoint), dict(traces.headers)
    else:
        collector = _environment_url(environment)
        if collector is None:
            return None
        url = collector
        headers = dict(_pairs(environment, f"{PREFIX}HEADERS")) | dict(_pairs(environment, f"{PREFIX}TRACES_HEADERS"))
    _check_protocol(environment)
    return spans.Destination(
        url=url,
        headers=headers,
        timeout=_milliseconds(environment) / 1000,
        compress=_compresses(environment),
        resource=_resource(environment),
        version=metadata.version("tarsy"),
        tls=_tls(environment) if url.lower().startswith("https:") else None,
        proxy=proxies.proxy_for(url),
    )


def header_values(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the headers in variables, which may be secrets; none of a variable that cannot be read."""
    for variable in ("HEADERS", "TRACES_HEADERS"):
        try:
            yield from _pairs(environment, PREFIX + variable)
        except loader.ConfigError:
            continue


def _is_off(environment: Mapping[str, str]) -> bool:
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter == "none":
        return True
    if exporter != "otlp":
        raise loader.ConfigError(f"OTEL_TRACES_EXPORTER: only otlp and none are supported; {OFF}")
    return False


def _environment_url(environment: Mapping[str, str]) -> str | None:
    """Return the address of the collector; the variable for traces alone has the whole of it."""
    for variable, has_path in ((f"{PREFIX}TRACES_ENDPOINT", True), (f"{PREFIX}ENDPOINT", False)):
        if value := environment.get(variable, "").strip():
            if not fields.is_url(value):
                raise loader.ConfigError(f"{variable}: not a URL such as http://collector:4318; {OFF}")
            return value if has_path else _signal_url(value)
    return None


def _signal_url(endpoint: str) -> str:
    parts = urllib.parse.urlsplit(endpoint)
    return parts._replace(path=parts.path.rstrip("/") + _PATH).geturl()


def _setting(environment: Mapping[str, str], name: str) -> tuple[str, str]:
    """Return the variable of a setting that is set, and its value; that for traces alone wins."""
    for variable in (f"{PREFIX}TRACES_{name}", f"{PREFIX}{name}"):
        if value := environment.get(variable, "").strip():
            return variable, value
    return f"{PREFIX}{name}", ""


def _check_protocol(environment: Mapping[str, str]) -> None:
    variable, value = _setting(environment, "PROTOCOL")
    if value not in ("", "http/protobuf"):
        raise loader.ConfigError(
            f"{variable}: only http/protobuf is supported: set it, and an endpoint that speaks it (port 4318), or {OFF}"
        )


def _milliseconds(environment: Mapping[str, str]) -> int:
    variable, value = _setting(environment, "TIMEOUT")
    if not value:
        return 10_000
    if not value.isdecimal() or not 1 <= int(value) <= 600_000:
        raise loader.ConfigError(f"{variable}: not a number of milliseconds from 1 to 600000; {OFF}")
    return int(value)


def _compresses(environment: Mapping[str, str]) -> bool:
    variable, value = _setting(environment, "COMPRESSION")
    if value not in ("", "none", "gzip"):
        raise loader.ConfigError(f"{variable}: only gzip and none are supported; {OFF}")
    return value == "gzip"


def _tls(environment: Mapping[str, str]) -> ssl.SSLContext | None:
    """Return the trusted certificates and the client's; None if the environment names none."""
    ca_variable, ca_file = _setting(environment, "CERTIFICATE")
    certificate_variable, certificate = _setting(environment, "CLIENT_CERTIFICATE")
    _, key = _setting(environment, "CLIENT_KEY")
    if not ca_file and not certificate:
        return None
    with _readable(ca_variable):
        context = ssl.create_default_context(cafile=ca_file or None)
    if certificate:
        with _readable(certificate_variable):
            context.load_cert_chain(certificate, key or None, password="")
    return context


@contextmanager
def _readable(variable: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "it is not PEM"
        raise loader.ConfigError(f"{variable}: the file cannot be used: {reason}; {OFF}") from error


def _resource(environment: Mapping[str, str]) -> dict[str, str]:
    resource = {"service.name": "tarsy", "service.version": metadata.version("tarsy")}
    resource |= dict(_pairs(environment, "OTEL_RESOURCE_ATTRIBUTES"))
    if name := environment.get("OTEL_SERVICE_NAME", "").strip():
        resource["service.name"] = name
    return resource


def _pairs(environment: Mapping[str, str], variable: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a variable such as `name=value,name2=value%202`.

    Source: W3C Baggage, section 3.3.1, whose values are percent-encoded.
    """
    for number, pair in enumerate(environment.get(variable, "").split(","), 1):
        if not pair.strip():
            continue
        name, equals, value = (urllib.parse.unquote(part.strip()) for part in pair.partition("="))
        if not equals or not name or not f"{name}{value}".isprintable():
            raise loader.ConfigError(f"{variable}: pair {number} is not name=value; {OFF}")
        yield name, value
