"""Names of secrets, and values that are no secrets.

Lists alone mask too much: `tokenExpirationSeconds`, `passwordPolicy` and `secretName` hold no secret. The last word of
a name says what its value is, so names are split into words and judged by their last one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Literal, TypeAlias, TypeVar

from tarsy.masking import markers, rules

Kind: TypeAlias = Literal["api_key", "aws_secret_key", "password", "private_key", "secret_key", "token"]

_T = TypeVar("_T")

NEAR = 512
"""The bytes of a value that are examined; a longer value is always a secret."""

_LONGEST = 128
"""The last bytes of a name, by which it is judged; they bound the caches."""
_CACHED = 4096
_CREDENTIALS = {b"credential", b"credentials", b"creds"}
_LONGEST_WORD = 32
_WORD = re.compile(rb"[A-Z]++(?![a-z])|[A-Z]?[a-z]++|[A-Z]|\d++")
_HEADS: dict[bytes, Kind] = {
    b"password": "password",
    b"passwd": "password",
    b"passwort": "password",
    b"pwd": "password",
    b"pass": "password",
    b"passphrase": "password",
    b"passcode": "password",
    b"pw": "password",
    b"psk": "password",
    b"rootpw": "password",
    b"bindpw": "password",
    b"token": "token",
    b"jwt": "token",
    b"secret": "token",
    b"apikey": "api_key",
    b"secretkey": "secret_key",
    b"accesskey": "api_key",
    b"privatekey": "private_key",
}
_TAILS = tuple(head for head in _HEADS if head not in {b"pass", b"pwd", b"jwt", b"pw", b"psk"})
"""Heads that also end longer words: PGPASSWORD, authtoken."""
_BLOB_HEADS = {
    *(b"auth", b"credential", b"credentials", b"creds", b"dockercfg", b"dockerconfigjson", b"key", b"login", b"secret"),
}
"""Heads that are too common, unless the value looks like a key itself."""
_PLURALS = (b"passwords", b"tokens", b"secrets", b"apikeys")
_BARE = {b"pass", b"secret"}
"""Heads that are no secret's name alone: `pass: 5`, `secret: db`."""
_KEYS: dict[bytes, Kind] = {
    **dict.fromkeys((b"ssh", b"private", b"host"), "private_key"),
    **dict.fromkeys(
        (b"access", b"account", b"api", b"auth", b"encryption", b"hmac", b"license", b"master", b"service"),
        "api_key",
    ),
    b"secret": "secret_key",
    **dict.fromkeys((b"session", b"shared", b"signing", b"storage", b"webhook", b"consumer", b"app"), "api_key"),
}
"""The words before `key` that make it a secret."""
_OTHER_KEYS = {
    *(b"annotation", b"cache", b"foreign", b"hash", b"index", b"label", b"lookup", b"metric", b"object", b"partition"),
    *(b"primary", b"public", b"routing", b"row", b"s3", b"shard", b"sort", b"tag", b"topology", b"registry"),
}
"""The words before `key` in names of environment variables that are no secrets."""
_OTHER_TOKENS = {b"cancel", b"continue", b"next", b"page", b"resume", b"stop", b"sync", b"unexpected"}
_OTHER_SECRETS = {
    *(
        b"ca",
        b"cert",
        b"certificate",
        b"credential",
        b"credentials",
        b"existing",
        b"image",
        b"k8s",
        b"kubernetes",
        b"pull",
    ),
    *(b"source", b"target", b"tls"),
}
"""The words before `secret` in the name of an object: `existingSecret: db`."""
_REFERENCES = {b"secretKey"}
"""Fields of Kubernetes' objects that name a key of a Secret: `secretKey: password` of an ExternalSecret."""
_SUFFIXES = {
    *(b"b64", b"base", b"current", b"data", b"dev", b"live", b"new", b"old", b"plain", b"plaintext", b"previous"),
    *(b"prod", b"production", b"raw", b"secondary", b"staging", b"stage", b"test", b"value"),
}
"""Last words that are ignored: PASSWORD_PROD, token_value."""

_OTHERS = {
    *(
        b"age",
        b"alg",
        b"algorithm",
        b"annotation",
        b"annotations",
        b"at",
        b"attempts",
        b"audience",
        b"bucket",
        b"budget",
    ),
    *(b"bytes", b"cache", b"changed", b"class", b"complexity", b"controller", b"count", b"created", b"date", b"days"),
    *(b"dir", b"enabled", b"endpoint", b"expiration", b"expires", b"expiry", b"field", b"file", b"format", b"hash"),
    *(b"header", b"hint", b"history", b"host", b"hours", b"id", b"ids", b"index", b"input", b"issuer", b"labels"),
    *(b"length", b"limit", b"manager", b"max", b"message", b"min", b"minutes", b"mode", b"mount", b"name", b"names"),
    *(b"namespace", b"operator", b"output", b"path", b"policy", b"prefix", b"projection", b"prompt", b"provider"),
    *(b"rate", b"reason", b"ref", b"request", b"requests", b"reset", b"retries", b"review", b"rotation", b"rule"),
    *(b"scope", b"scopes", b"seconds", b"server", b"service", b"size", b"source", b"state", b"status", b"store"),
    *(b"suffix", b"template", b"time", b"total", b"ttl", b"type", b"updated", b"uri", b"url", b"usage", b"used"),
    *(b"user", b"username", b"version", b"volume"),
}
"""Words after a secret's word that change the meaning of a name: `tokenExpirationSeconds`, `passwordPolicy`."""

_EMPTY = {b"", b"~", b"null", b"{}", b"[]", b'""', b"''", b"|", b"|-", b">", b">-"}
_WORDS = frozenset(
    b"bearer basic disabled empty enabled expired false hidden incorrect invalid masked missing nil no none null off on"
    b" optional read redacted required rotated string true undefined unset write yes absent changed default denied"
    b" failed forbidden present provided rejected revoked set timeout unauthenticated unauthorized unchanged unknown"
    b" updated valid".split()
)
_REFERENCE = rules.rule(
    rb"<[^>\n]*>.*|\$?\{\{.*|\$[({].*|\$[A-Z_]+|\$\d|%[a-z]\b.*|[*]+|(?i:x{3,}|redacted)|\.{3,}|"
    rb"\d+ bytes|[^A-Za-z0-9\s]{1,3}|invalid_[a-z]+|([A-Za-z][\w.-]*[:-])*v?\d+\.\d+\.\d+([.-][A-Za-z]+[\d.]*)?|"
    rb"(?i:(field|must|required?|is|was|has|may|value|invalid|forbidden|unauthorized|expected|unexpected|cannot|could"
    rb"|should|not|no|missing|unknown|failed|error|duplicate|too|unsupported|expired)(:|\b[ ]).*)|"
    rb"\.{0,2}(/[a-z0-9._-]+)+/?|vault:.*|(?:arn|ref\+[a-z]+|op):.*|.*\(v1:[a-zA-Z.]+\)"
)
_PROSE = rules.rule(rb"(?:[A-Za-z]?[a-z]*|[A-Z]{1,5})[.,:;!?)]*")


def _cached(judge: Callable[[bytes], _T]) -> Callable[[bytes], _T]:
    """Cache the judgement of names, by their last `_LONGEST` bytes, which bounds the memory."""
    cached = functools.lru_cache(maxsize=_CACHED)(judge)
    return functools.wraps(judge)(lambda name: cached(name[-_LONGEST:]))


@_cached
def kind_of(name: bytes) -> Kind | None:
    """Return the kind of secret that a key of this name holds; None if it holds none."""
    return None if name in _REFERENCES else _promise(_words(name))


@_cached
def is_secret_variable(name: bytes) -> bool:
    """Return whether an environment variable of this name holds a secret.

    It accepts more than `kind_of`: names of variables are descriptive, so each KEY counts that is no known other key.
    """
    words = _words(name)
    if not words:
        return False
    before = words[-2] if len(words) > 1 else b""
    if words[-1] == b"key" or (words[-1].endswith(b"key") and len(words) == 1):
        return before not in _OTHER_KEYS
    return words[-1] in _CREDENTIALS | {b"auth", b"dsn"} or _promise(words) is not None


@_cached
def may_name_blob(name: bytes) -> bool:
    """Return whether a key of this name holds a secret if its value looks like one."""
    words = _words(name)
    return bool(words) and words[-1] in _BLOB_HEADS and not (len(words) > 1 and words[-2] in _OTHER_KEYS)


@_cached
def mentioned_kind(name: bytes) -> Kind | None:
    """Return the kind of secret that any word of this name mentions, unless a later word changes the meaning."""
    words = _words(name)
    for index in range(len(words), 0, -1):
        word = words[index - 1].removesuffix(b"s") if words[index - 1].endswith(_PLURALS) else words[index - 1]
        if word in _OTHERS:
            return None
        if kind := _promise((*words[: index - 1], word)) or (_promise((b"a", word)) if word != b"key" else None):
            before = words[index - 2] if index > 1 else b""
            return None if before in _OTHER_TOKENS | _OTHER_SECRETS else kind
    if words and words[-1] in _CREDENTIALS:
        return "token"
    return "api_key" if name.isupper() and is_secret_variable(name) else None


def looks_random(value: bytes) -> bool:
    """Return whether a value looks random: 8 characters or more, with letters and digits, and no name or number."""
    if len(value) < _RANDOM_MIN or _MIXED.fullmatch(value) is None:
        return False
    return _NAMED.fullmatch(value) is None or _IDENTIFIER.fullmatch(value) is not None


_RANDOM_MIN = 8
_IDENTIFIER = rules.rule(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MIXED = rules.rule(rb"[!-~]*(?:[A-Za-z][!-~]*[0-9]|[0-9][!-~]*[A-Za-z])[!-~]*")
_NAMED = rules.rule(
    rb"[a-z]+[0-9]*(?:[-.][a-z0-9]+)+|[a-z][a-z-]*[0-9]{0,2}|[0-9][0-9.,:]*[A-Za-z%]{0,3}|0x[0-9a-f]+|[0-9-]{10}T[0-9:.Z+-]+"
    rb"|(?:https?|tcp|grpc)://[^@]*|.*[/({<].*"
)


def is_empty(value: bytes) -> bool:
    """Return whether a value is empty, null or a marker."""
    value = value.strip()
    bare = value.strip(b"\\\"'")
    return value in _EMPTY or not bare or markers.marker_end(bare, 0) == len(bare)


def is_harmless(value: bytes) -> bool:
    """Return whether the value of a secret's name is harmless: short, and empty, a reference, a path or a flag."""
    return len(value) <= NEAR and _is_harmless(value)


@functools.lru_cache(maxsize=_CACHED)
def _is_harmless(value: bytes) -> bool:
    bare = value.strip(b" \t\r\n\\\"',;")
    if bare.isalnum():
        return len(bare) == 1 or bare.lower() in _WORDS or (len(bare) == bare.lower().count(b"x") > 2)
    return is_empty(value) or bare.lower() in _WORDS or _REFERENCE.fullmatch(bare) is not None


def is_prose(value: bytes) -> bool:
    """Return whether a value is a plain word, as after a colon in an error message."""
    return len(value) <= _LONGEST_WORD and _PROSE.fullmatch(value) is not None


def is_blob(value: bytes) -> bool:
    """Return whether a value looks like a key: 20 characters or more of base64 or 32 of hex, and no name."""
    if len(value) < 20 or _BASE64.fullmatch(value) is None:
        return False
    if len(value) >= 32 and _HEX.fullmatch(value):
        return True
    return value.lower() != value != value.upper() and any(48 <= byte <= 57 for byte in value[:256])


def may_be_blob(head: bytes) -> bool:
    """Return whether a value that begins with `head` may look like a key."""
    return _BASE64.fullmatch(head) is not None


_BASE64 = rules.rule(rb"[A-Za-z0-9+/_=-]+")
_HEX = rules.rule(rb"[0-9a-fA-F]+")


def _words(name: bytes) -> tuple[bytes, ...]:
    words = [word.lower() for word in _WORD.findall(name)]
    while len(words) > 1 and (words[-1] in _SUFFIXES or words[-1].isdigit()):
        words.pop()
    return tuple(words)


def _promise(words: tuple[bytes, ...]) -> Kind | None:
    if not words or (len(words) == 1 and words[0] in _BARE):
        return None
    head, before = words[-1], words[-2] if len(words) > 1 else b""
    if words[-3:] == (b"secret", b"access", b"key") or (b"aws" in words and words[-2:] == (b"secret", b"key")):
        return "aws_secret_key"
    if head == b"key":
        return _KEYS.get(before)
    if head == b"token" and before in _OTHER_TOKENS:
        return None
    if head == b"secret" and before in _OTHER_SECRETS:
        return None
    return _HEADS.get(head) or next((_HEADS[tail] for tail in _TAILS if head.endswith(tail)), None)
