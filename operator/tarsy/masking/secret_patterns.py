"""Patterns of secrets in free text, the layer after structure: by their own form or by the name before them.

Patterns alone are weak: they miss secrets without a form of their own, and match other texts. So a name is judged by
its words and a value by its form (`secret_names`), not by one long expression; and where a line of prose is as likely
as an assignment (`failed to get token: timeout`), a value must look like more than a word.
"""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias, get_args

from tarsy.masking import assignments, budgets, edits, markers, prefilter, repeats, rules, secret_names, vendors

Name: TypeAlias = Literal[
    "api_key",
    "aws_access_key",
    "aws_secret_key",
    "certificate",
    "certificate_authority_data",
    "email",
    "github_token",
    "password",
    "private_key",
    "secret_key",
    "slack_token",
    "ssh_key",
    "token",
]
"""The names of patterns, which are also those of markers."""
Group: TypeAlias = Literal["all", "basic", "cloud", "kubernetes", "secrets", "security"]
NAMES: tuple[Name, ...] = get_args(Name)
GROUPS: Mapping[Group, tuple[Name, ...]] = MappingProxyType(
    {
        "all": NAMES,
        "basic": ("api_key", "password"),
        "cloud": ("aws_access_key", "aws_secret_key", "api_key", "token"),
        "kubernetes": ("api_key", "certificate_authority_data", "password", "secret_key"),
        "secrets": ("api_key", "password", "token", "private_key", "secret_key"),
        "security": NAMES,
    }
)
"""The groups that the platform file names. Kubernetes' Secrets are masked by structure, independently of the groups."""
_NARROWER: Mapping[str, tuple[Name, ...]] = {
    "api_key": ("aws_access_key",),
    "secret_key": ("aws_secret_key",),
    "token": ("github_token", "slack_token"),
}
"""The narrower patterns that a name includes."""
RESERVED = frozenset({*NAMES, "kubernetes_secret", "secret", "withheld"})
"""Names that no custom pattern may have: a marker has the name of the pattern that matched."""

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
"""The last labels of addresses in a cluster, and of systemd's units."""


_COST, _CHECK_COST = 14, 10
"""Steps of a match of RE2, and further steps to examine its value."""


class _Pattern(NamedTuple):
    """A pattern of a secret's own form: the first group that takes part in a match is masked."""

    name: str
    needs: bytes
    """Words (see `prefilter`)."""
    rule: rules.Rule
    is_secret: Callable[[bytes], bool] | None = None
    """A further test of the value."""


def _is_random(value: bytes) -> bool:
    """Return whether a value looks random; paths have slashes like base64, and `name=value` is no value."""
    if _NAMED_VALUE.match(value):
        return False
    return secret_names.looks_random(value) or (secret_names.is_blob(value) and not value.startswith(b"/"))


def _is_value(value: bytes) -> bool:
    """Return whether it is a value, and no variable or place-holder."""
    return not secret_names.is_harmless(value)


_NAMED_VALUE = re.compile(rb"[A-Za-z][A-Za-z_.-]*+[=:][^=]")
_VALUE = rb"([^\s\"'`<>\\]*[^\s\"'`<>\\.,;:)])"
"""A word without the punctuation after it."""
_COMMAND = rb"\b(?:%b)\b[^\n|;]*?[\s\"',](?:%b)([^\s\"'\\]{4,})"
"""A secret among the arguments of a command, on one line."""
_ARGUMENT = rb"\b(?:%b)\b[^\n|;]*?[\s\"',](?:%b)[\s\"',=]*([^\s\"'\\-][^\s\"'\\]{3,})"
"""A secret among the arguments of a command, which may be an argument of its own."""
_CURL = (
    rb"\bcurl\b(?:[^\n|;]|\\\r?\n)*?[\s\"',](?:-u|--user|--proxy-user|-U)[\s=\"',]*"
    rb"(?:[^\s:\"'$<\[{]*:[\"']?([^\s\"'\\$<\[{}]{4,})|([^\s:\"'$<\[{\\]{8,}):[\"'\s])"
)
"""A user's password, or a token in the place of the user; no variable and no place-holder."""
_ENV = rb"(?m)^(?:ENV|setenv|set[ \t]+-[A-Za-z]+)[ \t]+\w*(?:PASSWORD|TOKEN|SECRET|API_?KEY)[ \t]+([^\s\"'=]+)"
_SPOKEN = rb"(?i)\bpassword(?:(?:[ \t]+(?:for|of)(?:[ \t]+[\w.'\"-]+){1,3})?[ \t]+(?:is|was):?)?[ \t]+[\"'`]?" + _VALUE
"""A password in a sentence, or a name and a value in one line."""
_DIRECTIVE = (
    rb"(?im)(?:^|\\n)[ \t]*(?:(?:proxy_set_header|add_header|fastcgi_param|Setenv|RequestHeader[ \t]+set)[ \t]+)?"
    rb"[\w.-]*(?:pass|password|passwd|secret|token|api[_-]?key)[ \t]+" + _VALUE + rb";?[ \t]*(?:\r?$|\\+n)"
)
"""A name and a value alone in one line."""
_TERRAFORM = (
    rb"(?i)\bvariable[ \t]+\\*\"[\w-]*(?:password|passwd|secret|token|api_?key)\\*\"[ \t]*\{"
    rb"[^{}]*?\bdefault[ \t]*=[ \t]*\\*\"([^\"\n\\]+)"
)
"""The default value of a Terraform variable."""
_PGPASS = (
    rb"(?m)^(?:[\w.-]*[A-Za-z.][\w.-]*|\*|\[[0-9a-f:]+\]):(?:\d{4,5}|\*)"
    rb":[A-Za-z_*][^\s:]*:[A-Za-z_*][^\s:]*:([^\s:]+)\r?$"
)
"""Host, port, database, user, password."""
_URL = (
    rb"[a-z0-9+]://[^\s/@:\"'\\<>]*:([^\s/\"'\\<>\[\]]+)@"
    rb"|[a-z0-9+]://[^\s/@:\"'\\<>]+:(\d*[^\s/@:\"'\\<>\[\]\d][^\s/@:\"'\\<>\[\]]*/[^\s@:\"'\\<>\[\]]*)@[\w.-]"
    rb"|jdbc:oracle:\w+:[^\s/@:\"'\\]+/([^\s@\"'\\]+)@"
)
"""A password in a URL. It may have a slash if no port is before it; after a port a path begins."""
_SIDE_BY_SIDE = b"|".join(
    word + space for word in (b"pass", b"password", b"passwd", b"secret", b"token", b"key") for space in (b" ", b"\t")
)
_PATTERNS = (
    _Pattern(
        "certificate_authority_data",
        b"certificate-authority-data",
        rules.rule(rb"certificate-authority-data\\*[\"']?: *\\*[\"']?([\w+/=-]{16,})"),
    ),
    _Pattern(
        "ssh_key",
        b"ssh-|ecdsa-sha2-nistp",
        rules.rule(rb"\b(?:ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-nistp\d+)[ \t]+(AAAA[A-Za-z0-9+/=]{16,})"),
    ),
    _Pattern("token", b"eyj", rules.rule(rb"\b(eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)*)")),
    _Pattern("token", b"bearer", rules.rule(rb"(?i)\bbearer[ \t]+([^\s\"'\\,;\[\](){}<>]*\d[^\s\"'\\,;\[\](){}<>]*)")),
    _Pattern("password", b"://|jdbc:oracle:", rules.rule(_URL)),
    _Pattern("password", b"curl", rules.rule(_CURL)),
    _Pattern("password", b"mysql|7z", rules.rule(_COMMAND % (rb"mysql(?:dump|admin)?|7z[ar]?", rb"-p"))),
    _Pattern(
        "password",
        b"sshpass|docker login|podman login|registry login",
        rules.rule(_COMMAND % (rb"sshpass|(?:docker|podman|registry) login", rb"-p[ \t]?")),
    ),
    _Pattern(
        "password", b"mongo", rules.rule(_ARGUMENT % (rb"mongo(?:sh|dump|restore|export|import)?", rb"-p")), _is_value
    ),
    _Pattern("password", b"redis-cli", rules.rule(_ARGUMENT % (rb"redis-cli", rb"-a")), _is_value),
    _Pattern(
        "password",
        b"ldap",
        rules.rule(_ARGUMENT % (rb"ldap(?:search|modify|add|delete|whoami|passwd)", rb"-w")),
        _is_value,
    ),
    _Pattern("password", b"ipmitool|zip", rules.rule(_ARGUMENT % (rb"ipmitool|unzip|zip", rb"-P")), _is_value),
    _Pattern(
        "password",
        b"keytool|jarsigner",
        rules.rule(_ARGUMENT % (rb"keytool|jarsigner", rb"-(?:store|key|deststore|srcstore)pass")),
        _is_value,
    ),
    _Pattern(
        "password",
        b"mc alias set|mc config host add",
        rules.rule(rb"\bmc (?:alias set|config host add)[ \t]+\S+[ \t]+https?://\S+[ \t]+\S+[ \t]+([^\s\"'\\]{4,})"),
        _is_value,
    ),
    _Pattern(
        "password",
        b"requirepass|masterauth|stats auth",
        rules.rule(
            rb"(?:^|[\s\"'])(?:--(?:requirepass|masterauth)[\s\"',=]+([^\s\"'\\-][^\s\"'\\]*)|stats auth [^\s:]+:(\S+))"
        ),
        _is_value,
    ),
    _Pattern(
        "password",
        b"requirepass|masterauth",
        rules.rule(rb"(?m)^[ \t]*(?:requirepass|masterauth)[ \t]+([^\s\"'\\]+)[ \t]*\r?$"),
        _is_value,
    ),
    _Pattern("password", b'"auth" "', rules.rule(rb"\] \"(?i:auth)\" (?:\"[^\"\n]*\" )?\"([^\"\n]+)\""), _is_value),
    _Pattern("password", b"--from-literal", rules.rule(rb"--from-literal[= ][\"']?[\w.-]+=([^\s\"'\\]+)")),
    _Pattern("password", b"env |env\t|set |set\t", rules.rule(_ENV)),
    _Pattern("password", b"password", rules.rule(_SPOKEN), _is_random),
    _Pattern(
        "password", b"value: ", rules.rule(rb"(?m)^[<>][ ]{3,}(?:- )?value: [\"']?([^\s\"']+)[\"']?\r?$"), _is_random
    ),
    _Pattern("password", _SIDE_BY_SIDE, rules.rule(_DIRECTIVE), _is_random),
    _Pattern("password", b"", rules.rule(_PGPASS), _is_value),
    _Pattern(
        "token", b"cookie", rules.rule(rb"(?i)\bcookie[\"']?[:=][ \t]*[\"']?[\w.-]+=([^\s;,\"'\\]{8,})"), _is_random
    ),
    _Pattern("token", b"://", rules.rule(rb"https?://([0-9a-f]{32})@")),
    _Pattern("token", b"sig=", rules.rule(rb"[?&]sig=([^\s&\"'\\<>]{8,})"), _is_value),
    _Pattern(
        "token",
        b"unseal key|recovery key",
        rules.rule(rb"(?i)\b(?:unseal|recovery) key(?: \d+)?:[ \t]+([^\s\"'\\]+)"),
        _is_value,
    ),
    _Pattern(
        "private_key",
        b"--certificate-key",
        rules.rule(rb"--certificate-key[ \t=]+([^\s\"'\\-][^\s\"'\\]*)"),
        _is_random,
    ),
    _Pattern(
        "password",
        b"auth |auth\t",
        rules.rule(rb"\bAUTH[ \t]+(?:PLAIN|LOGIN|XOAUTH2)[ \t]+([A-Z]*[a-z0-9+/][A-Za-z0-9+/]{8,}={0,2})"),
    ),
    _Pattern("password", b"variable", rules.rule(_TERRAFORM), _is_value),
    _Pattern("password", b"password|identified by", rules.rule(rb"(?i)\b(?:password|identified by)[ \t]+'([^'\n]+)'")),
)


def chosen(groups: Iterable[Group], names: Iterable[Name]) -> frozenset[str]:
    """Return the names of all patterns of these groups and names."""
    named = {*names, *(name for group in groups for name in GROUPS[group])}
    return frozenset(named.union(*(_NARROWER.get(name, ()) for name in named)))


def mask(doc: bytes, names: frozenset[str], budget: budgets.Budget, repeated: repeats.Repeats) -> bytes:
    """Return `doc` with the matches of these patterns masked; raises only a BudgetExceededError."""
    wanted = {markers.marker(name) for name in names}
    may_find: Container[int] = _PREFILTER.may_find(doc)
    for number, finder in enumerate(FINDERS):
        if number not in may_find or (finder.name and finder.name not in names):
            continue
        budget.check_time()
        if changes := edits.merged(_changes(doc, finder.find(doc, budget), wanted)):
            repeated.add(doc, changes)
            doc = repeated.apply(doc, changes)
            may_find = _ALL  # it is another text now
    return doc


def _changes(doc: bytes, edits_found: Iterable[edits.Edit], wanted: set[bytes]) -> Iterator[edits.Edit]:
    """Yield the edits of the wanted patterns, but none within a marker."""
    for change in edits_found:
        start = change.start - (change.start > 0 and markers.marker_end(doc, change.start - 1) >= 0)
        if change.text in wanted and markers.marker_end(doc, start) < change.end:
            yield change._replace(start=start)


def _matches(pattern: _Pattern, doc: bytes, budget: budgets.Budget) -> Iterator[edits.Edit]:
    cost = _COST if pattern.is_secret is None else _COST + _CHECK_COST
    for match in budget.metered(pattern.rule.finditer(doc), cost=cost):
        group = next(group for group in (1, 2, 3) if match.start(group) >= 0)
        if pattern.is_secret is None or pattern.is_secret(match[group]):
            yield edits.Edit(match.start(group), match.end(group), markers.marker(pattern.name))


_TABLE = rules.rule(rb"(?m)^Key[ \t]+Value[ \t]*\r?\n-+[ \t]+-+[ \t]*((?:\r?\n[\w.-]+[ \t]+\S[^\r\n]*)+)")
_ROW = rules.rule(rb"([\w.-]+)[ \t]+(\S[^\r\n]*)")


def _tables(doc: bytes, budget: budgets.Budget) -> Iterator[edits.Edit]:
    """Yield the secrets in Vault's output: a table of keys and values."""
    for table in budget.metered(_TABLE.finditer(doc), cost=_COST):
        for row in budget.metered(_ROW.finditer(doc, *table.span(1)), cost=_COST):
            kind = secret_names.kind_of(row[1])
            if kind and not secret_names.is_harmless(row[2]):
                yield edits.Edit(row.start(2), row.end(2), markers.marker(kind))


_DIFF = rules.rule(rb"(?m)^=+ [\w./]*Secret [^\n]*\n((?:(?:[<>][^\n]*|---|[\d,]+[acd][\d,]+)\r?(?:\n|\z))+)")
_CHANGED = rules.rule(rb"(?m)^[<>][ ]+[\w.-]+:[ ]+[\"']?([^\s\"']+)")


def _diffs(doc: bytes, budget: budgets.Budget) -> Iterator[edits.Edit]:
    """Yield the secrets in Argo CD's diff of a Secret: single lines, whose kind is only in the heading."""
    for diff in budget.metered(_DIFF.finditer(doc), cost=_COST):
        for line in budget.metered(_CHANGED.finditer(doc, *diff.span(1)), cost=_COST + _CHECK_COST):
            if line[1].endswith(b"=") or _is_random(line[1]):
                yield edits.Edit(line.start(1), line.end(1), markers.marker("token"))


def _pem(doc: bytes, budget: budgets.Budget) -> Iterator[edits.Edit]:
    """Yield the edits of PEM blocks, also of parts of them."""
    for rest in budget.metered(_PEM_REST.finditer(doc), cost=_COST):
        if (name := _certified(rest[2])) is not None:
            yield edits.Edit(rest.start(1), rest.end(1), markers.marker(name))
    blocks = list(budget.metered(_PEM.finditer(doc), cost=2 * _COST))
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
        yield edits.Edit(block.start(), stop, markers.marker(name))


def _encoded_pem(doc: bytes, budget: budgets.Budget) -> Iterator[edits.Edit]:
    """Yield the edits of PEM in base64, as in Secrets, kubeconfigs and webhooks."""
    for match in budget.metered(_ENCODED_PEM.finditer(doc), cost=_COST):
        label = base64.b64decode(match[2][: min(len(match[2]), 48) // 4 * 4]).removeprefix(b"-----BEGIN ")
        if (name := _certified(label)) is not None:
            end = match.start(1) + len(match[1].rstrip(b"\\ \t\r\n"))
            yield edits.Edit(match.start(1), end, markers.marker(name))


def _certified(label: bytes) -> str | None:
    if label.startswith((b"PUBLIC", b"RSA PUBLIC", b"SSH2 PUBLIC", b"PGP PUBLIC")):
        return None
    return "certificate" if label.startswith((b"CERT", b"TRUSTED", b"X509", b"NEW CERT", b"PKCS7")) else "private_key"


def _emails(doc: bytes, budget: budgets.Budget) -> Iterator[edits.Edit]:
    if b"@" not in doc:
        return
    for match in budget.metered(_EMAIL.finditer(doc), cost=_COST):
        start = match.start()
        is_login = doc[start - 2 : start] == b"//" or doc[start : start + 4] == b"git@"
        if not is_login and match[0].rpartition(b".")[2].lower() not in _NO_DOMAINS:
            yield edits.Edit(start, match.end(), markers.marker("email"))


class Finder(NamedTuple):
    """A search for one kind of secret."""

    name: str | None
    """The pattern that has to be chosen; None: it always runs, and its edits count if their patterns are chosen."""
    needs: bytes
    """Words (see `prefilter`)."""
    find: Callable[[bytes, budgets.Budget], Iterable[edits.Edit]]


FINDERS = (
    Finder(None, b"-----begin |-----end ", _pem),
    Finder(None, b"", vendors.find),
    *(Finder(pattern.name, pattern.needs, functools.partial(_matches, pattern)) for pattern in _PATTERNS),
    Finder(None, b"ls0tls1crudjti", _encoded_pem),
    Finder(None, b"key |key\t", _tables),
    Finder(None, b"secret ", _diffs),
    Finder(None, assignments.WORDS, assignments.find),
    Finder(None, b"", _emails),
)
_PREFILTER = prefilter.Prefilter(finder.needs for finder in FINDERS)
_ALL = range(len(FINDERS))
