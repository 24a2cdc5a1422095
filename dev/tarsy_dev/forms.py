"""Forms of single values of the chart: patterns and bounds, as Kubernetes has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

Anything = dict[str, Any]
Qualified = Annotated[
    str,
    Field(
        pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
        r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
        max_length=317,
    ),
]
"""The name of a label or an annotation."""
Label = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")]
Labels = dict[Qualified, Label]
Annotations = dict[Qualified, str]
Name = Annotated[
    str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", max_length=253)
]
Namespace = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
Host = Annotated[
    str, Field(pattern=r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", max_length=253)
]
NoName = Literal[""]
Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
NameOrNothing = Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$", max_length=43)]
ServiceNameOrNothing = Annotated[str, Field(pattern=r"^([a-z]([-a-z0-9]*[a-z0-9])?)?$", max_length=43)]
Digest = Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")]
Tag = Annotated[str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$")]
Registry = Annotated[str, Field(pattern=r"^([A-Za-z0-9.-]+(:[0-9]+)?)?$")]
Repository = Annotated[str, Field(pattern=r"^[a-z0-9]+([._/-]+[a-z0-9]+)*$")]
Key = Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253)]
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_GROUP = "[0-9a-fA-F]{1,4}"
_SHORTENED = "|".join(
    f"({_GROUP}:){{{before}}}(:{_GROUP}){{1,{7 - before}}}" if before else f":(:{_GROUP}){{1,7}}" for before in range(7)
)
NETWORK = (
    f"^({_BYTE}(\\.{_BYTE}){{3}}/(3[0-2]|[12]?[0-9])"
    f"|(({_GROUP}:){{7}}{_GROUP}|({_GROUP}:){{1,7}}:|{_SHORTENED}|::)/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))$"
)
CIDR = Annotated[str, Field(pattern=NETWORK)]
"""A network of IPv4 or IPv6."""
Share = Count | Annotated[str, Field(pattern=r"^(100|[1-9]?[0-9])%$")]
Quantity = (
    Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?([munkKMGTPE]|[KMGTPE]i)?$")] | Annotated[float, Field(ge=0)]
)
