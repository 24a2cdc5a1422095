"""Texts that make parsers and maskers work hard: a head, and a piece that is repeated to any length.

The unit tests count the lines that such texts cost, and `python -m bench --only growth` measures their time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

EVERY_READER = 'kind: Secret\nname: DB_PASSWORD\n"kind":"Secret","name":"DB_TOKEN" \\"kind\\":\n'
"""A head after which every reader of the masker has work."""

MASKING_HEADS = [
    *("", 'password="', "password='", 'token=\\"', "--token '", "authorization: hmac ", "key=", "password: |\n  "),
    *('{"kind":"Secret","data":{"', '{"kind":"Secret","data":{"a":', '\\"kind\\":\\"Secret\\",\\"data\\":{\\"'),
    *("kind: Secret\ndata:\n  a: ", "kind: Secret\ndata:\n  a: |\n    ", '{"env":{"TOKEN":', "env:\n  TOKEN: "),
    *("-----BEGIN PRIVATE KEY-----\n", "LS0tLS1CRUdJTi", "Data\n====\n", "map[string][]byte{", "https://a:"),
]
"""Heads after which a reader of the masker looks far ahead."""

MASKING_PIECES = [
    *"\\\"'`{}[]:,;=-|><@. \n\t\r%#&?$()/aA1é",
    *('\\"', "\\\\", '\\\\"', '\\\\\\"', "\\n", "\\\\n", "\\'", "\r\n", "''", '""', "\n  ", "\n    ", "- ", "\n- "),
    *(
        "password",
        "token",
        "key=",
        "key='",
        'key="',
        "auth=",
        "token: ",
        "TOKEN=",
        "--token ",
        "api_key=>",
        "password:",
    ),
    *(
        "authorization: ",
        "hmac ",
        "bearer ",
        "Basic ",
        "[MASKED:token]",
        "[MASKED:",
        "MASKED",
        "<x>",
        "$(",
        "{{",
        "***",
    ),
    *("-----BEGIN A-----", "-----END A-----", "-----BEGIN ", "-----", "LS0tLS1CRUdJTi", "eyJaaaaaaaa", "AIza", "AKIA"),
    *('"kind":"Secret",', '"data":{', "kind: Secret\n", "data:\n", "  a: b\n", "items:", "env:", '"env":{', '"name":'),
    *(
        "a@b.cc",
        "://",
        ":x@",
        "ssh-rsa AAAA",
        "password '",
        "Data\n====\n",
        "---\n",
        "# a\n",
        "0123456789abcdef",
        "null",
    ),
    *("{[", "{]", "{:", "{:,", "[{}", ":'", ",'x", " a:\n", "a:\n", "# a\n  # b\n", "items:\n- data:\n    a: b\n"),
    *('{"kind":"Secret","data":', '{"data":{"a":', '{"kind":"Secret","data":{"a":"b"}}', "data:\n kind: Secret\n"),
    *("token=a ", "token:{", "token:$(", 'token: "', "token: '<", 'token="\\"', "token: a, ", "password: |\n  "),
    *(
        "key=A1aAAAAAAAAAAAAAAAAAAAAA%",
        "--token '-",
        "authorization: bearer ",
        "bearer a1 ",
        "eyJaaaaaaaaaa.",
        "a://b:",
    ),
    *('token,"', "token ?= ", "<token>\n", "[MASKED:token]a", "password=Aa1aaaaa ", "PASSWORD=Aa1aaaaa\nAa1aaaaa"),
    *('{"log":"a"}\n', '{"log":"kind: Secret\\n"}\n', 'msg="a: b"\n', "x y kind: Secret\n", "x y a: b\n", "U2VjcmV0"),
    *(
        "mongosh ",
        "password is ",
        "token aaaaaaa1\n",
        "a:1111:b:c:\n",
        "Key Value\n- -\n",
        "x://a:b/",
        "mc alias set a ",
    ),
    *(
        "password:\n",
        "password:\nA1!a\n",
        "password:\\n",
        "password:\n```\n",
        "password:\n ",
        'password:\n"a',
        "token:\n>",
    ),
    *("\u200b", "pass\u200bword:\n", "\uff50\uff1a", "p\ufe0fassword: A1!aaaaa\n"),
    *("= Secret \n<  a: b=\n", "<   value: aaaaaaa1\n"),
    *(
        'token: Some("',
        "token=&a ",
        "token={",
        "token\n a\n",
        "--token\n  a\n",
        "&quot;token&quot;:&quot;a",
        "<token a>b</",
    ),
    *(
        "<name>token</name>",
        "%22token%22%3A%22a",
        '{"key":"token","value":"a"}',
        "- key: a\n",
        'token = "[MASKED:token]" ->',
    ),
    *("curl -u ", "curl \\\n", "AAAAAAAAAAAAAAAA\n", "\ud800", "\0", '"},', '}, "type": "Opaque"', "a\n b: c\n"),
]
"""Pieces that cost the masker the most, as far as is known."""

REACT_PARTS = [
    *(
        "Thought:",
        "Action:",
        "Action Input:",
        "Final Answer:",
        "Observation:",
        "**Action:**",
        "- Observation:",
        "action:",
    ),
    *(
        "\n",
        "\n",
        "\n",
        "\r\n",
        " ",
        "```",
        "\n```\n",
        "\n```json\n",
        "~~~",
        "`",
        '{"a": 1}',
        "{",
        "}",
        "(",
        ")",
        '"',
        "'",
    ),
    *(
        "k8s.get",
        "None",
        "a: b",
        "a=b",
        "web-0",
        ",",
        "**",
        ":",
        "\uff1a",
        "\x00",
        "\ud800",
        "[",
        "- ",
        "&a ",
        "*a ",
        "!!set ",
    ),
]
"""Parts of answers in ReAct's text form, well-formed and broken."""

REACT_PIECES = [
    *REACT_PARTS,
    *("Thought: a\n", "Action: None\n", "Action: None\nAction Input: {\n", "Action: a\n", "Action Input: {\n"),
    *("Final Answer:\nAction: None\nAction Input:\n", "Final Answer:\n```\n", "Final Answer: a\nAction: b\n", "```x\n"),
    *(
        "Final Answer:\n```x\n",
        "Thought: ```\nFinal Answer:\n```\n? ",
        "````\n```\n",
        "Action:\n```\n",
        "Thought: ```\n",
        '{"a":',
        '{"a":[',
        "a=b ",
        "a: b\n",
        "a=b,",
    ),
    *(
        "a: b, ",
        "a=(",
        "a={",
        'a="',
        "a='",
        "a=\\",
        '"a" ',
        "- - ",
        "? ",
        "{a,",
        "[a: ",
        "a   ",
        "\ta",
        "#\n",
        "| ",
        "%a\n",
    ),
]
"""Pieces that cost the parser of ReAct's text form the most, as far as is known."""


def _written_out(count: int, text: str) -> str:
    return "".join(text % number for number in range(count))


MASKING_TEXTS: dict[str, Callable[[int], str]] = {
    "values in values": lambda size: (
        '{"env":[{"name":"A_TOKEN","value":' * 21 + "aB3aB3aB3aB3aB3aB3aB3 " * (size // 22)
    ),
    "values in values, again and again": lambda size: (
        '"env":[{"name":"A_TOKEN","value":"Authorization: Basic [MASKED:password]' * (size // 71)
    ),
    "a head of many letters": lambda size: "x" * size + "y kind: Secret\n",
    "a head of many numbers": lambda size: "1a " * (size // 3) + "y kind: Secret\n",
    "Secrets of backslashes": lambda size: (
        ('{"apiVersion":"v1","kind":"Secret","data":{"a":"' + "\\" * 16_000 + 'x"}}\n') * (size // 16_000)
    ),
    "records of escapes": lambda size: ('{"log":"' + '\\"' * 8_000 + '"}\n{"log":"kind: Secret"}\n') * (size // 16_000),
    "records of characters by number": lambda size: (
        ('{"log":"' + "\\u0041" * 2_500 + '"}\n{"log":"kind: Secret"}\n') * (size // 15_000)
    ),
    "heads, each another": lambda size: _written_out(size // 20, "%xz kind: Secret\n"),
    "passwords, each another": lambda size: _written_out(size // 22, "PASSWORD=aB%xxYz9q\n"),
}
"""Texts for the masker that are more than one piece repeated, by size in characters."""

KNOWN_SECRETS = ["0000-secret-value", "0000-secret-valu", "MDAwMC1zZWNyZXQtdmFsdWU", "0000-secret-value "]
"""Pieces for a masker that knows `0000-secret-value` and others like it."""

CUSTOM_PATTERNS = [r"acct-\d+", r"\d", r"(?:a|b)*a(?:a|b){60}c", r"a[^z]*z", r"(?i)[a-z]+\d+@"]
"""Patterns that a platform file may have."""
CUSTOM_PIECES = ["acct-12 ", "7", "ab", "a", "[MASKED:token]", "[MASKED:"]
"""Pieces for these patterns."""

LOOKALIKES = [
    "all work and no play\n",
    "wörk „quotes“ → 日本\n",
    r"a\nb\u0041\\n",
    "pass\u200bword\uff1a x\n",
    "\x1b[31mred\x1b[0m\n",
]
"""Lines in which look-alike characters are replaced."""

QUOTED_PIECES = {
    "blanks": " ",
    "empty lines": "\n",
    "lines of blanks": " \n",
    "dashes": "-",
    "labels without a colon": "action ",
    "quotes": "> ",
    "steps": "Observation : x\n",
    "a label and blanks": "thought" + " " * 50,
}
"""Pieces of results in which ReAct's labels are quoted."""

MARKDOWN_TEXTS: dict[str, Callable[[int], str]] = {
    "spans": lambda size: "`<` " * (size // 4),
    "backticks": lambda size: "`" * size,
    "backticks of all lengths": lambda size: " ".join("`" * length for length in range(1, math.isqrt(2 * size))),
    "quotes": lambda size: "> " * (size // 2),
    "fences": lambda size: "```\n" * (size // 4),
    "links": lambda size: "[](" * (size // 4),
    "dashes": lambda size: "- " * (size // 2) + "x",
    "escapes": lambda size: "\\" * size,
}
"""Markdown that is escaped, by size in characters."""

REPAIRED_PIECES = [
    "\\",
    "\\ud83d",
    "\\ud83d\\ude00",
    "\\ude00\\ud83d",
    "\\\\ud83d",
    "\\\\x",
    "\\u",
    "\\ud8",
    "é",
    "\\udead\\\\",
]
"""Pieces of JSON with surrogates and escapes."""

COUNTED_PIECES = ['"', "\\", '\\"', '""', '"\n', "\n", "a", '",', '"\\']
"""Pieces of JSON whose values are counted."""

RESULT_PIECES = [
    *("\n", "\r\n", " ", "a", "\U0001f4a5", "a1" * 40, "error web-0\n", "x y\n", '{"a": 1}, ', "_" * 300 + "\n"),
    *("größer\r\n", "2026-11-26T10:00:00Z INFO GET /a/1 200\n", "(a+)+$", "web-0 " * 50 + "\n", "." * 399 + "\n"),
]
"""Pieces of long tool results, of which excerpts are made, and which are searched."""
RESULT_PATTERN = "(?i)(err|war)[a-z]{0,9}.{0,20}web-[0-9]+|(a+)+$|(.*a)+x"
"""A pattern that costs much, and is not refused."""
