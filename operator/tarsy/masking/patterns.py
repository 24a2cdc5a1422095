"""Secrets in free text, found by how they look or by the name before them: the second line, behind structure.

Patterns alone are weak: they miss what looks like nothing and hit what only looks like a secret. So a name is judged by
its words and a value by what it is (`names`), not by one long expression; and where a line of prose is as likely as an
assignment (`failed to get token: timeout`), a value must look like more than a word.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable, Iterable, Iterator
from types import MappingProxyType
from typing import NamedTuple

from tarsy.masking import assignments, edits, efforts, repeats, rules, vendors
from tarsy.masking import names as naming

NAMES = (
    "api_key",
    "certificate",
    "certificate_authority_data",
    "email",
    "password",
    "private_key",
    "ssh_key",
    "token",
)
"""What can be masked by pattern; each stands in its marker."""

GROUPS = MappingProxyType(
    {
        "kubernetes": ("api_key", "certificate_authority_data", "password"),
        "security": NAMES,
    }
)
"""The groups that the platform file names. Kubernetes' Secrets are masked by structure, whatever the groups."""

_PEM = rules.rule(rb"-----BEGIN ([A-Z0-9 ]+)-----")
_PEM_BODY = rules.rule(
    rb"(?:(?:[\s>|'\"]|\\+[nrt])*(?:[A-Za-z0-9+/=]{16,}|[A-Z][A-Za-z]+-[A-Z][A-Za-z]+: [^\n\\]*))*"
    rb"(?:(?:\s|\\+[nrt])*[A-Za-z0-9+/]+={1,2})?"
)
_PEM_END = b"-----END "
_PEM_REST = rules.rule(rb"((?:[A-Za-z0-9+/=]{8,76}(?:\s|\\+[nrt])+)+-----END ([A-Z0-9 ]+)-----)")
_ENCODED_PEM = rules.rule(
    rb"((LS0tLS1CRUdJTi[A-Za-z0-9+/]*)=*(?:(?:\\+n|\r?\n)[ \t]*[A-Za-z0-9+/]{60,}={0,2})*"
    rb"(?:(?:\\+n|\r?\n)[ \t]*[A-Za-z0-9+/]+={0,2}(?:\\|\s|\z))?)"
)
_EMAIL = rules.rule(rb"[A-Za-z0-9_%+-][A-Za-z0-9._%+-]*@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z][A-Za-z]+\b")
_NO_DOMAINS = {b"cluster", b"internal", b"local", b"mount", b"scope", b"service", b"slice", b"socket", b"svc", b"timer"}
"""What an address in a cluster or one of systemd's units ends with."""


_COST = 14
"""Steps that a place costs that RE2 finds."""


class _Look(NamedTuple):
    """A secret that is known by its own look: what the first group matches is masked."""

    name: str
    rule: rules.Rule
    is_drawn: bool = False
    """Whether it has to look drawn by chance as well."""


_COMMAND = rb"\b%b\b[^\n|;]*?[\s\"',]%b([^\s\"'\\]{4,})"
"""A secret among the arguments of a command, on one line."""
_CURL = (
    rb"\bcurl\b(?:[^\n|;]|\\\r?\n)*?[\s\"',](?:-u|--user|--proxy-user|-U)[\s=\"',]*"
    rb"(?:[^\s:\"'$<\[{]*:[\"']?([^\s\"'\\$<\[{}]{4,})|([^\s:\"'$<\[{\\]{8,}):[\"'\s])"
)
"""A user's password, or a token in the place of the user; no variable and no place-holder."""
_LOOKS = (
    _Look("certificate_authority_data", rules.rule(rb"certificate-authority-data\\*[\"']?: *\\*[\"']?([\w+/=-]{16,})")),
    _Look("ssh_key", rules.rule(rb"\b(?:ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-nistp\d+)[ \t]+(AAAA[A-Za-z0-9+/=]{16,})")),
    _Look("token", rules.rule(rb"\b(eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)*)")),
    _Look("token", rules.rule(rb"(?i)\bbearer[ \t]+([^\s\"'\\,;\[\](){}<>]*\d[^\s\"'\\,;\[\](){}<>]*)")),
    _Look("password", rules.rule(rb"[a-z0-9+]://[^\s/@:\"'\\<>]*:([^\s/\"'\\<>\[\]]+)@")),
    _Look("password", rules.rule(_CURL)),
    _Look("password", rules.rule(_COMMAND % (rb"mysql(?:dump|admin)?", rb"-p"))),
    _Look("password", rules.rule(_COMMAND % (rb"(?:sshpass|(?:docker|podman|registry) login)", rb"-p[ \t]?"))),
    _Look("password", rules.rule(rb"--from-literal[= ][\"']?[\w.-]+=([^\s\"'\\]+)")),
    _Look("password", rules.rule(rb"(?m)^ENV[ \t]+[A-Z0-9_]*(?:PASSWORD|TOKEN|SECRET|API_?KEY)[ \t]+([^\s\"'=]+)")),
    _Look("password", rules.rule(rb"(?i)\bpassword(?:[ \t]+(?:is|was))?[ \t]+([\w!-]+)"), is_drawn=True),
    _Look("token", rules.rule(rb"(?i)\bcookie[\"']?[:=][ \t]*[\"']?[\w.-]+=([^\s;,\"'\\]{8,})"), is_drawn=True),
    _Look("token", rules.rule(rb"https?://([0-9a-f]{32})@")),
    _Look("password", rules.rule(rb"(?i)\b(?:password|identified by)[ \t]+'([^'\n]+)'")),
)


def mask(doc: bytes, names: frozenset[str], effort: efforts.Effort, seen: repeats.Repeats) -> bytes:
    """`doc` without what the patterns of these names find; raises nothing but a TooMuchWorkError."""
    finders: list[Callable[[bytes, efforts.Effort], Iterable[edits.Edit]]] = [
        _pem,
        *(functools.partial(vendors.find, kind) for kind in ("api_key", "token") if kind in names),
        *(functools.partial(_looks, look) for look in _LOOKS if look.name in names),
        _encoded_pem,
        assignments.find,
        _emails,
    ]
    markers = {edits.marker(name) for name in names}
    for finder in finders:
        effort.in_time()
        changes = edits.merged(_changes(doc, finder(doc, effort), markers))
        seen.note(doc, changes)
        doc = edits.apply(doc, changes)
    return doc


def _changes(doc: bytes, found: Iterable[edits.Edit], markers: set[bytes]) -> Iterator[edits.Edit]:
    """Of what was found that which is asked for, and never a part of a marker."""
    for change in found:
        start = change.start - (change.start > 0 and edits.marked(doc, change.start - 1) >= 0)
        if change.text in markers and edits.marked(doc, start) < change.end:
            yield change._replace(start=start)


def _looks(look: _Look, doc: bytes, effort: efforts.Effort) -> Iterator[edits.Edit]:
    for found in effort.each(look.rule.finditer(doc), cost=_COST):
        if not look.is_drawn or naming.is_drawn(found[1]):
            group = 1 if found.start(1) >= 0 else 2
            yield edits.Edit(found.start(group), found.end(group), edits.marker(look.name))


def _pem(doc: bytes, effort: efforts.Effort) -> Iterator[edits.Edit]:
    """PEM blocks; of one that was cut, what there is."""
    for rest in effort.each(_PEM_REST.finditer(doc), cost=_COST):
        if (name := _certified(rest[2])) is not None:
            yield edits.Edit(rest.start(1), rest.end(1), edits.marker(name))
    blocks = list(effort.each(_PEM.finditer(doc), cost=2 * _COST))
    end = 0
    for index, block in enumerate(blocks):
        following = blocks[index + 1].start() if index + 1 < len(blocks) else len(doc)
        if 0 <= end < block.end():
            end = doc.find(_PEM_END, block.end())
        if (name := _certified(block[1])) is None:
            continue
        if 0 <= end < following:
            close = doc.find(b"-----", end + len(_PEM_END), end + 80)
            stop = close + 5 if close >= 0 else end + len(_PEM_END)
        else:
            body = _PEM_BODY.match(doc, block.end(), following)
            stop = body.end() if body else block.end()
        yield edits.Edit(block.start(), stop, edits.marker(name))


def _encoded_pem(doc: bytes, effort: efforts.Effort) -> Iterator[edits.Edit]:
    """PEM in base64, as Secrets, kubeconfigs and webhooks carry it."""
    for found in effort.each(_ENCODED_PEM.finditer(doc), cost=_COST):
        label = base64.b64decode(found[2][: min(len(found[2]), 48) // 4 * 4]).removeprefix(b"-----BEGIN ")
        if (name := _certified(label)) is not None:
            end = found.start(1) + len(found[1].rstrip(b"\\ \t\r\n"))
            yield edits.Edit(found.start(1), end, edits.marker(name))


def _certified(label: bytes) -> str | None:
    if label.startswith((b"PUBLIC", b"RSA PUBLIC", b"SSH2 PUBLIC", b"PGP PUBLIC")):
        return None
    return "certificate" if label.startswith((b"CERT", b"TRUSTED", b"X509", b"NEW CERT", b"PKCS7")) else "private_key"


def _emails(doc: bytes, effort: efforts.Effort) -> Iterator[edits.Edit]:
    for found in effort.each(_EMAIL.finditer(doc), cost=_COST):
        start = found.start()
        is_login = doc[start - 2 : start] == b"//" or doc[start : start + 4] == b"git@"
        if not is_login and found[0].rpartition(b".")[2].lower() not in _NO_DOMAINS:
            yield edits.Edit(start, found.end(), edits.marker("email"))
