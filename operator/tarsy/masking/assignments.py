"""Assignments of secrets: a secret's name and its value, `DB_PASSWORD=...`, `"token": "..."`, `--api-key ...`.

One rule finds all candidate names. The functions here decide step by step whether a name has a secret value, and where
its value ends. They read a value only as far as needed, and no text twice, which keeps the time linear.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from tarsy.masking import budgets, edits, markers, rules, secret_names

WORDS = b"pass|pw|psk|token|secret|key|credential|creds|auth|jwt|dockerc|login"
"""Each name of a secret contains one of these words."""
_WORDS = rb"(?:%b)" % WORDS
_LINE = rules.rule(rb"(?i)[^\n]*" + _WORDS + rb"[^\n]*")
_NAME = re.compile(
    rb"(?i)(?<![\w.-])([\w.-]++)(?:\\*+[\"'])?+\]?+"
    rb"[ \t]*+(?:value[ \t]*+|:?+[ \t]*+str(?:ing)?+[ \t]*+)?+(=>|->|:{1,3}=|\\?+[?+.]?=|[:>,])[ \t]*+"
)
"""A name and its sign; also `key="..." value=`, a type before the sign, and the first of two arguments."""
_WRAP = re.compile(
    rb"(?:Some|Just|Ok|Secret(?:Str(?:ing)?+)?+|SecureString|String|Password|Token|Sensitive|Protected)\((?=\\*+[\"'])"
    rb"|[bBuU](?=[\"'])|\s*+string\(\d++\)[ ](?=\")|(?<=[ \t])(?:&[\w-]++|!!?+\w++)[ \t]++"
    rb"|\{\s*+\\*+[\"']value\\*+[\"']\s*+:\s*+(?=\\*+[\"'])"
)
"""The wrappers around a value: Rust, Python and PHP print its type, YAML an anchor or a tag, Spring an object."""
_CHANGED = re.compile(rb"\\*+[\"'][ \t]*+->[ \t]*+(?=\\*+[\"'])")
"""The arrow between an old value and the new one."""
_WORD = rules.rule(rb"(?i)" + _WORDS)
_FLAG = rules.rule(
    rb"(?i)(--?[\w-]*" + _WORDS + rb"[\w-]*)(?:\\*[\"'][ \t]*(,)(?:\s|\\+n)*|[ \t]+|\\*[\"']?\s*\n\s*(-)[ \t]+"
    rb"|(?:\r?\n|\\+n)([ \t]+))"
)
_NAMED = rb"([\w./-]*" + _WORDS + rb"[\w.-]*)"
_OTHER_QUOTES = rules.rule(
    rb"(?i)"
    + rb"|".join(
        (
            rb"\\+u0022%b\\+u0022[ \t]*:[ \t]*\\+u0022([^\\\n\"]+)" % _NAMED,
            rb"&quot;%b&quot;[ \t]*:[ \t]*&quot;((?:[^&\n\"<]|&[^q])+)" % _NAMED,
            rb"%%22%b%%22(?:%%20|\+)*(?:%%3A|:)(?:%%20|\+)*%%22((?:[^\s\"%%&]|%%[013-9A-F][0-9A-F]|%%2[013-9A-F])+)"
            % _NAMED,
            rb"<(?:[\w-]+:)?%b[ \t]+(?:[^<>]*[^<>/])?>\s*([^<>\s]+)\s*</" % _NAMED,
            rb"<name>\s*%b\s*</name>\s*<value>\s*([^<>\s]+)\s*</value>" % _NAMED,
        )
    )
)
"""Names and values in quotes of JSON, HTML and URLs, and in XML elements."""
_OPENING = re.compile(rb"\[?+(\\*+)([\"'`])")
_UNEXPECTED = rules.rule(rb"(?is).*\b(?:unexpected|illegal|bad|invalid|next|end)[ \t]+")
_UNEXPECTED_MAX = 24
_CHECKSUM = b"checksum/"
_QUOTE = {byte: re.compile(rb"(\\*+)%c|\n|\\++" % byte) for byte in b"\"'`"}
_BARE_END = rules.rule(
    rb"[\s\"'`]|\\+[nrt\"']|[,;&](?:[\"'{\[]|[ \t]?[\w.-]+[=:]|\s|\z)|[)\]}<>]+(?:[,;:.\s\"'\\<]|\z)|</"
)
_PLAIN_VALUE = re.compile(rb"[\w.+/=~%@!$*?^|-]++(?=[\s\"'`]|\Z)")
"""The form of most values, and their end."""
_FAR_END = rules.rule(rb"[\s\"'`\\]")
"""The end of a long value."""
_ITEM_END = rules.rule(rb"[\s\"'`\\,;)\]}]")
_LINE_END = rules.rule(rb"\r?\n|\\+[nr\"']|[\"'](?:[,}\]\s]|\z)|[,;]?[ \t]+(?:#|[\w.-]+[=:])")
_BREAK = rb"(?:\r?\n|(?:\\++r)?+\\++n)"
_NEXT_LINE = re.compile(
    rb"(?P<aside>(?:!!\w++[ \t]*+)?+(?:#[ \t][^\r\n\\]*+)?+)"
    + _BREAK
    + rb"(?:[ \t>|]*+```\w*+"
    + _BREAK
    + rb")?+(?P<lead>[ \t>|]*+)"
    rb"(?:(?P<quote>\\*+[\"'`])(?P<quoted>[^\"'`\\\r\n]++)(?:(?P=quote)[,;]?+|\Z)|(?P<bare>[^\s\"'`\\]++))"
    rb"[ \t]*+(?:[\r\n\"'\\]|\Z)"
)
"""A value alone on the line after its name, or after a line that opens a code block.

A tag and a comment may follow the name (YAML 1.2.2, sections 6.6 and 6.9)."""
_KEY_LIKE = re.compile(rb"[\w./-]++(?::|=(?!=*\Z))|.*+(?<=[:{[(,])\Z|-++\Z|[-+*#<]")
"""The beginning of a line that is no value: a name with its sign, a list item, a heading, an element."""
_BLOCK = rules.rule(rb"[|>][+-]?\d?[ \t]*\r?\n([ \t]+)")
_CODE = rules.rule(
    rb"[A-Za-z_][\w.]*[(\[](?:[^)\]]|[)\]]+(?:[^)\]\w]|\z))*|[A-Z]\w*<.*>,?"
    rb"|(?:self|this|config|cfg|os|env|process|settings|args|req|request|var|vars|local|module|secrets)\.[\w.]+"
)
_SCHEME = rules.rule(
    rb"(?i)\[?(?:\\*[\"'])?(?:(bearer|basic|(?:api-)?token|apikey|negotiate|key)|(?:digest|aws4-hmac-sha256|hmac))"
    rb"[ \t]+"
)
_PLAIN = rules.rule(rb"\[?(?:\\*[\"'])?([\w.~+/=-]+)")
"""A token without a scheme."""
_SCHEME_END = rules.rule(rb"[\s\"'\\\],]")
_PARAMETERS_END = rules.rule(rb"[\"\n]")
_REST = re.compile(rb"[\w+/=~%@.-]++")
"""Further characters of a secret whose vendor-specific part is masked already."""
_SPACE = re.compile(rb"\s*+")
_SEPARATORS = {b"{", b",", b"[", b"&", b"?", b";"}
"""Characters before a name; a name after one is no word of a sentence."""
_LEAD = 80
_LEADS = {b"", b"export", b"ENV", b"ARG", b"set", b"declare", b"env:"}
_NO_VALUES = (b"{", b"(", b"<", b"=", b"//", b"&", b"*")
_BEFORE_FLAGS = {b"", *(bytes([byte]) for byte in b" \t\n\r\"'[,(=")}
_COUNT_DIGITS = 6
_NEWLINE = 0x0A
_COST, _LINE_COST = 24, 5
_LONGEST = 256
_CACHED = 4096
_REST_MIN = 4
_BLOB_HEAD = 20


def find(doc: bytes, budget: budgets.Budget) -> Iterator[edits.Edit]:
    """Yield the edits of the values of all secrets' names in `doc`."""
    for named, read in (
        (_names(doc, budget), _assigned),
        (_FLAG.finditer(doc), _flagged),
        (_OTHER_QUOTES.finditer(doc), _otherwise),
    ):
        done = 0
        for match in budget.metered(named, cost=_COST):
            start = match.start()
            if start >= done and (change := read(doc, start, match, budget)) is not None:
                done = change.end
                yield change


def _names(doc: bytes, budget: budgets.Budget) -> Iterator[rules.Match]:
    """Yield the candidate names."""
    for line in budget.metered(_LINE.finditer(doc), cost=_LINE_COST):
        for match in budget.metered(_NAME.finditer(doc, *line.span())):
            if _is_candidate(match[1][-_LONGEST:]):
                yield match


@functools.lru_cache(maxsize=_CACHED)
def _is_candidate(name: bytes) -> bool:
    return _WORD.search(name) is not None


def _assigned(doc: bytes, start: int, match: rules.Match, budget: budgets.Budget) -> edits.Edit | None:
    name, sign, at = match[1], match[2], match.end()
    if doc[max(0, start - len(markers.PREFIX)) : start] == markers.PREFIX or (sign == b">" and not _is_tag(doc, start)):
        return None
    if (marked := markers.marker_end(doc, at)) >= 0:
        return _rest(doc, at, marked, kind=secret_names.kind_of(name))
    if sign == b",":
        return _argument(doc, match, budget)
    if name.lower().endswith(b"authorization"):
        return _authorization(doc, at)
    kind = secret_names.kind_of(name)
    mention = secret_names.mentioned_kind(name) if kind is None else None
    wrapped = _WRAP.match(doc, at) if kind else None
    at = wrapped.end() if wrapped else at
    if not (kind or mention or secret_names.may_name_blob(name)) or doc.startswith((*_NO_VALUES, markers.PREFIX), at):
        return None
    if doc[max(0, start - len(_CHECKSUM)) : start] == _CHECKSUM:
        return None
    if kind == "token" and _UNEXPECTED.match(doc[max(0, start - _UNEXPECTED_MAX) : start]):
        return None
    if kind and doc.startswith((b"|", b">"), at) and (block := _BLOCK.match(doc, at, at + secret_names.NEAR)):
        return _block(doc, block, kind, budget)
    if kind and sign == b":" and (below := _NEXT_LINE.match(doc, at, at + secret_names.NEAR)):
        change = _below(doc, below, start=start, kind=kind)
        if change or not below["aside"]:  # what looks like a comment may be the value
            return change
    if (opening := _OPENING.match(doc, at)) is None:
        return _bare(doc, match, at, start=start, kind=kind, mention=mention)
    return _quoted(doc, opening, kind=kind, mention=mention, is_sure=kind is not None and sign != b"->", budget=budget)


def _quoted(
    doc: bytes,
    opening: re.Match[bytes],
    *,
    kind: secret_names.Kind | None,
    mention: secret_names.Kind | None,
    is_sure: bool,
    budget: budgets.Budget,
) -> edits.Edit | None:
    """Return the edit of a quoted value; or of the new value after a former one that is masked already."""
    if not (kind or mention) and not secret_names.may_be_blob(doc[opening.end() : opening.end() + _BLOB_HEAD]):
        return None
    end = _closing(doc, opening, budget)
    if markers.marker_end(doc, opening.end()) == end and (changed := _CHANGED.match(doc, end)):
        opening = _OPENING.match(doc, changed.end()) or opening
        end = _closing(doc, opening, budget)
    value = doc[opening.end() : end]
    if secret_names.is_harmless(value) if is_sure else not _is_random(value, kind or mention):
        return None
    return edits.Edit(opening.end(), end, markers.marker(kind or mention or "token"))


def _below(doc: bytes, below: re.Match[bytes], *, start: int, kind: secret_names.Kind) -> edits.Edit | None:
    """Return the edit of a value on the line after the name at `start`.

    A plain word is a value only if its indent is greater than that of a name that begins its line, as in YAML.
    """
    group = "quoted" if below["quote"] else "bare"
    value, (at, end) = below[group], below.span(group)
    if secret_names.is_harmless(value) or (not below["quote"] and _KEY_LIKE.match(value)) or _CODE.fullmatch(value):
        return None
    if secret_names.is_prose(value) and not (_begins_line(doc, start) and len(below["lead"]) > _indent(doc, start)):
        return None
    is_near = end < below.endpos or end == len(doc)
    return edits.Edit(at, end if is_near else _far_end(doc, at), markers.marker(kind))


def _indent(doc: bytes, at: int) -> int:
    """Return the number of bytes before `at` on its line, at most `_LEAD`."""
    before = doc[max(0, at - _LEAD) : at]
    escaped = before.rfind(b"\\n")
    return len(before) - 1 - max(before.rfind(b"\n"), escaped + 1 if escaped >= 0 else -1)


def _is_tag(doc: bytes, start: int) -> bool:
    """Return whether the name at `start` is the name of an element, or in its attribute."""
    return doc[start - 1 : start] == b"<" or doc[max(0, start - 6) : start - 1] in {b"name=", b" key="}


def _rest(doc: bytes, at: int, marked: int, *, kind: secret_names.Kind | None) -> edits.Edit | None:
    """Return the edit for the rest of a value after a marker that covers only a part of it."""
    rest = _REST.match(doc, marked) if kind else None
    end = marked + len(rest[0].rstrip(b".")) if rest else marked
    return edits.Edit(at, end, markers.marker(kind)) if kind and end - marked >= _REST_MIN else None


def _argument(doc: bytes, match: rules.Match, budget: budgets.Budget) -> edits.Edit | None:
    """Return the edit of an argument after a name, `setenv("TOKEN", "...")`, whose value looks like a secret."""
    at, kind = match.end(), secret_names.kind_of(match[1]) or secret_names.mentioned_kind(match[1])
    if kind is None:
        return None
    if opening := _OPENING.match(doc, at):
        at, end = opening.end(), _closing(doc, opening, budget)
    else:
        end = at + _near_end(doc[at : at + secret_names.NEAR], _ITEM_END)
    value = doc[at:end]
    if at > end or (not opening and at > match.end(2)) or not _is_random(value, kind):
        return None
    return edits.Edit(at, end, markers.marker(kind))


def _bare(
    doc: bytes,
    match: rules.Match,
    at: int,
    *,
    start: int,
    kind: secret_names.Kind | None,
    mention: secret_names.Kind | None,
) -> edits.Edit | None:
    """Return the edit of the unquoted value at `at` of the name at `start`."""
    sign = match[2]
    at += doc.startswith(b"[", at)
    if sign == b">" and (space := _SPACE.match(doc, at, at + secret_names.NEAR)):
        at = space.end()
        if doc.startswith(b"<", at):
            return None
    near = doc[at : at + secret_names.NEAR]
    if not (kind or mention) and not secret_names.is_blob(near[:_BLOB_HEAD]):
        return None
    begins_line = _begins_line(doc, start)
    is_line = begins_line and sign != b">" and doc[match.end(1)] not in _QUOTE
    end = _near_end(near, _LINE_END if is_line else _BARE_END)
    value = near[:end] if end >= 0 else near
    if sign == b">" and not doc[at + len(value) : at + len(value) + secret_names.NEAR].lstrip().startswith(b"</"):
        return None
    if end >= 0:
        in_prose = sign == b":" and not begins_line and doc[start - 1 : start] not in _SEPARATORS
        if _is_other(value, kind=kind, in_prose=in_prose) or secret_names.is_harmless(value):
            return None
    if (kind is None or sign == b"->") and not _is_random(value, kind or mention):
        return None
    return edits.Edit(at, at + end if end >= 0 else _far_end(doc, at), markers.marker(kind or mention or "token"))


def _is_random(value: bytes, mention: secret_names.Kind | None) -> bool:
    """Return whether a value is a secret, although its name is not that of a secret."""
    return secret_names.is_blob(value) or (
        mention is not None and secret_names.looks_random(value) and not secret_names.is_harmless(value)
    )


def _flagged(doc: bytes, start: int, match: rules.Match, budget: budgets.Budget) -> edits.Edit | None:
    kind, at = secret_names.kind_of(match[1]), match.end()
    if kind is None or markers.marker_end(doc, at) >= 0 or doc[start - 1 : start] not in _BEFORE_FLAGS:
        return None
    opening = _OPENING.match(doc, at)
    if doc.startswith(b"-", opening.end() if opening else at) or (opening is None and match.end(2) > 0):
        return None
    if opening:
        at, end = opening.end(), _closing(doc, opening, budget)
    else:
        near = _near_end(doc[at : at + secret_names.NEAR], _BARE_END)
        end = at + near if near >= 0 else _far_end(doc, at)
    value = doc[at:end]
    is_item = match.end(2) > 0 or match.end(3) > 0
    if match.start(4) >= 0:
        if not _is_alone(doc, start, end, indent=match[4]):
            return None
        is_item = True
    if secret_names.is_harmless(value) or (not is_item and secret_names.is_prose(value)):
        return None
    return edits.Edit(at, end, markers.marker(kind))


def _otherwise(_doc: bytes, _start: int, match: rules.Match, _budget: budgets.Budget) -> edits.Edit | None:
    group = next(group for group in range(2, 11, 2) if match.start(group) >= 0)
    kind = secret_names.kind_of(match[group - 1])
    if kind is None or secret_names.is_harmless(match[group]):
        return None
    return edits.Edit(match.start(group), match.end(group), markers.marker(kind))


def _is_alone(doc: bytes, start: int, end: int, *, indent: bytes) -> bool:
    """Return whether the flag at `start` and its value up to `end` are alone on lines that begin with `indent`."""
    before = doc[max(0, start - len(indent) - 2) : start]
    return before.endswith((b"\n" + indent, b"\\n" + indent)) and doc[end : end + 1] in {b"", b"\r", b"\n", b"\\"}


def _authorization(doc: bytes, at: int) -> edits.Edit | None:
    scheme = _SCHEME.match(doc, at, at + secret_names.NEAR)
    if scheme is None:
        plain = _PLAIN.match(doc, at, at + secret_names.NEAR)
        is_token = plain and secret_names.looks_random(plain[1]) and not secret_names.is_harmless(plain[1])
        return edits.Edit(plain.start(1), plain.end(1), markers.marker("token")) if plain and is_token else None
    if markers.marker_end(doc, start := scheme.end()) >= 0 or doc.startswith((b"<", b"{"), start):
        return None
    ending = _SCHEME_END if scheme.start(1) >= 0 else _PARAMETERS_END
    ended = ending.search(doc, start, start + secret_names.NEAR) or ending.search(
        doc, min(start + secret_names.NEAR, len(doc))
    )
    end = ended.start() if ended else len(doc)
    if secret_names.is_harmless(doc[start : min(end, start + secret_names.NEAR + 1)]):
        return None
    return edits.Edit(start, end, markers.marker("token"))


def _begins_line(doc: bytes, at: int) -> bool:
    """Return whether a name begins its line, which may be in a JSON string, apart from indent, quotes and keywords."""
    before = b"\n" * (at <= _LEAD) + doc[max(0, at - _LEAD) : at]
    newline = max(before.rfind(b"\n"), before.rfind(b"\\n") + 1)
    return newline >= 0 and before[newline + 1 :].strip(b" \t-+>|\"'\\") in _LEADS


def _near_end(near: bytes, ending: rules.Rule) -> int:
    """Return the end of the value at the beginning of `near`; -1 if it may be longer than `near`."""
    if ending is not _LINE_END and (plain := _PLAIN_VALUE.match(near)) and plain.end() < secret_names.NEAR:
        return plain.end()
    end_match = ending.search(near)
    if end_match is None:
        return -1 if len(near) == secret_names.NEAR else len(near)
    return -1 if end_match.end() == secret_names.NEAR else end_match.start()


def _far_end(doc: bytes, at: int) -> int:
    far = _FAR_END.search(doc, min(len(doc), at + secret_names.NEAR))
    return len(doc) if far is None else far.start()


def _closing(doc: bytes, opening: re.Match[bytes], budget: budgets.Budget) -> int:
    """Return the end of a quoted value: a quote with no more backslashes, or the end of its line."""
    level = _level(len(opening[1]))
    for quote in budget.metered(_QUOTE[opening[2][0]].finditer(doc, opening.end())):
        if quote[1] is None:
            if doc[quote.start()] == _NEWLINE:
                return quote.start()
        elif _level(len(quote[1])) <= level:
            return quote.end() - 1 - min(len(quote[1]), len(opening[1]))
    return len(doc)


def _level(slashes: int) -> int:
    """Return the nesting level of a quote with this number of backslashes before it."""
    return ((slashes + 1) & -(slashes + 1)).bit_length() - 1


def _block(doc: bytes, block: rules.Match, kind: str, budget: budgets.Budget) -> edits.Edit:
    indent, start = block[1], block.end()
    end = doc.find(b"\n", start)
    while end >= 0 and doc.startswith(indent, end + 1):
        budget.spend(1)
        end = doc.find(b"\n", end + 1)
    end = len(doc) if end < 0 else end
    return edits.Edit(start, end, markers.marker(kind))


def _is_other(value: bytes, *, kind: str | None, in_prose: bool) -> bool:
    """Return whether an unquoted value is no secret but an expression, a count of tokens or a word of prose."""
    is_count = kind == "token" and value.isdigit() and len(value) <= _COUNT_DIGITS
    return (
        is_count
        or (in_prose and secret_names.is_prose(value))
        or (not value.isalnum() and bool(_CODE.fullmatch(value)))
    )
