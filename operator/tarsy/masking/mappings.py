"""Kubernetes' mappings, as far as they are judged: which entries of which mapping hold a secret.

`json_reader` and `yaml_reader` each read a text in their own way and report here. Neither builds a tree: a text is
often cut, wrapped in prose or only nearly well-formed, and a parser that gives up would let all of it pass.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from tarsy.masking import secret_names

Span: TypeAlias = tuple[int, int]

_DATA = frozenset({b"data", b"stringData"})
TYPE = (
    rb"Opaque|kubernetes\.io/(?:service-account-token|dockercfg|dockerconfigjson|basic-auth|ssh-auth|tls)"
    rb"|bootstrap\.kubernetes\.io/token|helm\.sh/release\.v1"
)
"""Types that only a Secret has: <https://kubernetes.io/docs/concepts/configuration/secret/#secret-types>."""
TYPE_WORDS = b"opaque|kubernetes.io/|helm.sh/release.v1"
"""One of them is in each of these, in lower case."""
_TYPE = re.compile(TYPE)
_ENV = frozenset({b"env", b"environment", b"Environment"})
_NAMES = frozenset({b"name", b"Name", b"key", b"Key", b"path"})
"""The keys beside a value that name it: a variable, a parameter, a tag, the path of a patch."""
_VALUES = frozenset({b"value", b"Value"})
_PATCH = b"/stringData/"
TELLING = (
    *sorted(_NAMES),
    b"apiVersion",
    b"kind",
    b"env",
    b"environment",
    b"Environment",
    b"client-key-data",
    b"stringData",
)
"""Names without one of which a text has nothing to find."""
READ = frozenset({*_DATA, *_ENV, b"apiVersion", b"kind", b"items", b"type", b"client-key-data", *_NAMES, *_VALUES})
CUT = b"?"
"""Stands for the key of what a text begins with, if that is no key."""
_VARIABLE = re.compile(rb"[A-Za-z_]\w*+")
_SCALAR = re.compile(rb"(?:[\s>|+]|\\++[nrt](?=[\s\\\"']))*+(?:!!str\s++)?\\*+[\"']?([-./\w]*+)")


def scalar(text: bytes) -> bytes:
    """The name that an entry's text has for its value, without quotes, escapes and comments."""
    match = _SCALAR.match(text)
    return b"" if match is None else match[1]


_STAMP = rb"\d{4}-\d\d-\d\d[T ][\d:.,]++(?:Z|[+-]\d\d:\d\d)?+[ ]"
LOGGED = (
    rb"(?:\[pod/[^\]\s]++\][ ])?+(?:%b(?:std(?:out|err)[ ][FP][ ]|(?:INFO|WARN|WARNING|DEBUG|ERROR)[ ][ ]?+)?+"
    rb"|[IWEF]\d{4}[ ][\d:.]{8,}+[ ]++\d++[ ][\w./-]++:\d++\][ ]"
    rb"|[A-Z][a-z][a-z][ ]++\d++[ ]\d\d:\d\d:\d\d[ ][\w.-]++[ ][\w./-]++(?:\[\d++\])?+:[ ]"
    rb"|[\w.-]++[ ]++\|[ ])?+" % _STAMP
)
"""The prefixes of lines in a log: kubectl's and a node's stamps, klog's and syslog's heads, a container's name."""


class Mapping:
    """A mapping (or, in JSON, a list) that is being read.

    Most of them say nothing, and a hostile text has a million: what one does not know stays with the class.
    """

    key: bytes | None = None
    """The entry under way; b"" is one that says nothing."""
    kind = name = b""
    value: Span | None = None
    data: list[Span]
    cut: list[Span]
    """The beginning of the text, if it is the end of a Secret's data whose own key was cut off."""
    orphans: list[Span]
    """Data of mappings below that do not say what they are, as items of a SecretList need not."""
    seen: frozenset[bytes] = frozenset()
    is_variable = False
    """Whether its name is that of a container's variable."""
    is_telling = False
    """Whether anything was said at all."""
    is_torn = False
    """Whether its beginning was cut off, so that it may as well be a list."""

    def __init__(self, mark: int, *, parent: Mapping | None, is_list: bool = False, column: int = 0) -> None:
        self.mark = mark
        self.column = column
        self.is_list = is_list
        self.is_env = parent is not None and bool(parent.key) and parent.key in _ENV

    def tell(self, *keys: bytes) -> None:
        """Keep that something was said, by an entry of this key or from below."""
        if not self.is_telling:
            self.is_telling, self.data, self.cut, self.orphans = True, [], [], []
        self.seen |= frozenset(keys)

    def knows(self, key: bytes) -> bool:
        """Whether an entry of this name says anything about this mapping."""
        return key in READ or (
            self.is_env and _VARIABLE.fullmatch(key) is not None and secret_names.is_secret_variable(key)
        )


def _is_secret(name: bytes, *, is_variable: bool) -> bool:
    """Whether a pair of this name has a secret for a value."""
    if is_variable or name.isupper():
        return secret_names.is_secret_variable(name)
    return name.startswith(_PATCH) or secret_names.kind_of(name) is not None


class Found:
    """The places that are to be masked: single values, and mappings of which every value is."""

    def __init__(self) -> None:
        self.values: list[Span] = []
        self.data: list[Span] = []

    def entry(self, mapping: Mapping, *, span: Span, scalar: bytes) -> None:
        """The entry that `mapping` was reading ends, with its value at `span`; `scalar` is that without its quotes."""
        key, mapping.key = mapping.key, None
        if key is None:
            return
        mapping.tell(key)
        if key in _DATA:
            mapping.data.append(span)
            if key == b"stringData":
                mapping.kind = mapping.kind or b"Secret"
        elif key == CUT:
            mapping.cut.append(span)
        elif key == b"type":
            if not mapping.kind and _TYPE.fullmatch(scalar):
                mapping.kind = b"Secret"
        elif key == b"kind":
            mapping.kind = scalar
        elif key in _NAMES:
            mapping.name = scalar if key == b"name" or not mapping.name else mapping.name
            mapping.is_variable = mapping.is_variable or key == b"name"
        elif key in _VALUES:
            mapping.value = span
        elif key == b"client-key-data" or (mapping.is_env and key not in READ):
            self.values.append(span)

    def end(self, mapping: Mapping, *, parent: Mapping | None) -> None:
        """`mapping` ends: by now it is known whether it is a Secret, or the variable of a container.

        An object without a kind was cut: `data` and `items` come before `kind`, so it may have been a Secret or a list
        of them. So was a Secret without an apiVersion, which comes first: what the text begins with may be its data. A
        kind may be cut itself.
        """
        if not mapping.is_telling:
            return
        if mapping.value and _is_secret(mapping.name, is_variable=mapping.is_variable):
            self.values.append(mapping.value)
        is_cut = b"apiVersion" in mapping.seen and not mapping.kind
        if is_cut or (mapping.kind and b"secretlist".startswith(mapping.kind.lower())):
            self.data += mapping.data
            if is_cut or len(mapping.kind) > len(b"Secret"):
                self.data += mapping.orphans
            elif b"apiVersion" not in mapping.seen and (mapping.is_torn or not _DATA & mapping.seen):
                self.data += mapping.cut
        elif not mapping.kind and parent is not None:
            if parent.is_torn:
                parent.tell()
                parent.orphans += mapping.orphans + mapping.data + mapping.cut
            elif parent.is_list or parent.key == b"items":
                parent.tell()
                parent.orphans += mapping.orphans if mapping.is_list else mapping.data
