"""The registry of notification formats. Each format is a module, a name and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from tarsy.ingest import alertmanager, grafana

Format = Literal["alertmanager", "grafana"]

PARSERS: Mapping[Format, Callable[[bytes], alertmanager.Notification]] = {
    "alertmanager": alertmanager.parse,
    "grafana": grafana.parse,
}
"""The parser of each format. It raises payload.PayloadError."""
