"""Secrets by pattern: at least 95 % of those that are written as people and programs do, at most 1 % of other lines."""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable

import pytest
from support import cluster_text
from tarsy.masking import masker, secret_patterns

SECURITY = masker.Masker(groups=["security"])

_WORD = string.ascii_letters + string.digits
VALUES: dict[str, Callable[[random.Random], str]] = {
    "random": lambda chance: "".join(chance.choices(_WORD, k=20)),
    "short": lambda chance: (
        "".join(chance.choices(string.ascii_lowercase, k=5)) + "".join(chance.choices("0123456789", k=3))
    ),
    "with signs": lambda chance: "".join(chance.choices(_WORD, k=5)) + "!p@s#W0" + "".join(chance.choices(_WORD, k=5)),
    "hex": lambda chance: chance.randbytes(20).hex(),
    "base64": lambda chance: base64.b64encode(chance.randbytes(25)).decode(),
    "identifier": lambda chance: f"{chance.randrange(16**8):08x}-4f5a-4978-8796-{chance.randrange(16**12):012x}",
}
"""Shapes of secrets; each form of text is tried with several of each."""

FORMS = {
    "environment": "HOME=/root\nDB_PASSWORD={}\nPATH=/usr/bin",
    "export": "export API_TOKEN='{}'",
    "Dockerfile": "ENV REDIS_PASSWORD {}\nARG NPM_TOKEN={}",
    "JSON": '{{"user": "web", "password": "{}", "port": 1}}',
    "compact JSON": '{{"access_token":"{}","expires_in":3600}}',
    "JSON in a string": '{{"body":"{{\\"apiKey\\":\\"{}\\",\\"a\\":1}}"}}',
    "JSON in a string in a string": '"{{\\"b\\":\\"{{\\\\\\"clientSecret\\\\\\":\\\\\\"{}\\\\\\"}}\\"}}"',
    "YAML": "db:\n  user: web\n  password: {}\n  port: 5432\n",
    "quoted YAML": "  adminPassword: '{}'\n  other: x\n",
    "YAML in a string": '"text": "db:\\n  password: {}\\n  port: 1\\n"',
    "block scalar": "  token: |\n    {}\n  next: x",
    "properties": "spring.datasource.password={}\nspring.datasource.url=jdbc:x",
    "INI": "[db]\npassword = {}\nuser = web\n",
    "TOML": 'secret_key = "{}"',
    "XML": "<db><user>web</user><password>{}</password></db>",
    "logfmt": 'level=info user=web password="{}" took=3ms',
    "a Go struct": "config: {{User:web Password:{} Port:5432}}",
    "a Go map": "map[password:{} user:web]",
    "Python": "{{'user': 'web', 'password': '{}', 'port': 1}}",
    "a flag": "+ ./server --verbose --password={} --port 80",
    "a flag with a space": "+ ./server --token {} --port 80",
    "flags in JSON": '["./server", "--api-key", "{}", "--port", "80"]',
    "flags in YAML": "  args:\n  - --token\n  - {}\n  - --port=80\n",
    "a flag in YAML": "  - --db-password={}\n  - --port=80\n",
    "a query": "GET /api?user=web&api_key={}&page=2 HTTP/1.1",
    "a URL": "connecting to amqp://web:{}@rabbit.shop.svc.cluster.local:5672/",
    "a header": "> Authorization: Bearer {}\n> Accept: */*",
    "a header in a command": "curl -H 'Authorization: Bearer {}' https://x",
    "a header that Go printed": "map[Accept:[*/*] Authorization:[Bearer {}] X-Api-Key:[{}]]",
    "an own header": "X-Auth-Token: {}",
    "headers in JSON": '{{"headers": {{"Authorization": "Basic {}", "Accept": "*/*"}}}}',
    "SQL": "ALTER USER web WITH PASSWORD '{}';",
    "prose": "2026-10-01 12:00:00 INFO login with password: {} from 10.0.0.1",
    "a variable in code": 'client = Client(url, api_key="{}", timeout=3)',
}


def cases() -> list[tuple[str, str, str]]:
    chance = random.Random(6)  # noqa: S311 - a fixed seed, no secret
    drawn = [(form, kind, VALUES[kind](chance)) for form in FORMS for kind in VALUES for _ in range(3)]
    return [(form, kind, value) for form, kind, value in drawn if kind == "identifier" or "/" not in value]


def test_at_least_95_percent_of_secrets_are_masked_and_the_rest_of_the_text_stays() -> None:
    missed = []
    for form, kind, value in cases():
        text = FORMS[form].format(value, value)
        masked = SECURITY.text(text)
        assert SECURITY.text(masked) == masked
        if any(part in masked for part in {value, value[:6], value[-6:]}):
            missed.append((form, kind, masked))
            continue
        for word in ("web", "port", "took=3ms", "page=2", "expires_in", "Accept", "timeout=3"):
            assert (word in masked) == (word in text), masked
    assert len(cases()) > 500
    assert len(missed) <= len(cases()) * 0.05, missed


def test_at_most_1_percent_of_lines_without_secrets_are_changed() -> None:
    lines, changed = 0, []
    for text in cluster_text.TEXTS.values():
        before, after = text.splitlines(), SECURITY.text(text).splitlines()
        assert len(before) == len(after)
        lines += len(before)
        changed += [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
    assert lines > 250
    assert len(changed) <= lines * 0.01, changed


PEM = "-----BEGIN {0}-----\nMIIEpAIBAAKCAQEA0Z3VS5JJcds3xfn\nygWyF8PbnGy0AHB7==\n-----END {0}-----\n"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl"
BLOB = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWZnaGlqa2xtbm9wcXJzdHV2d3h5ejAxMjM0NTY3ODk"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (PEM.format("CERTIFICATE"), "[MASKED:certificate]\n"),
        (PEM.format("RSA PRIVATE KEY"), "[MASKED:private_key]\n"),
        (json.dumps({"tls.key": PEM.format("EC PRIVATE KEY")}), '{"tls.key": "[MASKED:private_key]\\n"}'),
        (PEM.format("PRIVATE KEY")[:60] + " is cut", "[MASKED:private_key]\n is cut"),
        (PEM.format("PUBLIC KEY"), PEM.format("PUBLIC KEY")),
        (
            f"caBundle: {base64.b64encode(PEM.format('CERTIFICATE').encode()).decode()}\na: b",
            "caBundle: [MASKED:certificate]\na: b",
        ),
        (base64.encodebytes(PEM.format("PRIVATE KEY").encode()).decode() + "a: b", "[MASKED:private_key]\na: b"),
        (f"certificate-authority-data: {BLOB}", "certificate-authority-data: [MASKED:certificate_authority_data]"),
        (
            f'"certificate-authority-data":"{BLOB}"',
            '"certificate-authority-data":"[MASKED:certificate_authority_data]"',
        ),
        ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB web@host", "ssh-ed25519 [MASKED:ssh_key] web@host"),
        ("mail jane.doe+x@mail.example.co.uk, now", "mail [MASKED:email], now"),
        (f"saw {JWT} once", "saw [MASKED:token] once"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "[MASKED:github_token]"),
        (
            "at https://hooks.slack.com/services/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",
            "at https://[MASKED:slack_token]",
        ),
        ("key AKIAIOSFODNN7EXAMPLE", "key [MASKED:aws_access_key]"),
        ("aws_secret_access_key = wJalrXUtnFEMIK7MDENGbPxRfiCYa", "aws_secret_access_key = [MASKED:aws_secret_key]"),
        ("DJANGO_SECRET_KEY=wJalrXUtnFEMI", "DJANGO_SECRET_KEY=[MASKED:secret_key]"),
        (f'{{"auth": "{BLOB}"}}', '{"auth": "[MASKED:token]"}'),
        (f".dockerconfigjson: {BLOB}", ".dockerconfigjson: [MASKED:token]"),
        ("passphrase: correct horse battery staple\nnext: x", "passphrase: [MASKED:password]\nnext: x"),
        ("password=hunter2, user=web", "password=[MASKED:password], user=web"),
        ('password: "a \\"quoted\\" one", x', 'password: "[MASKED:password]", x'),
    ],
)
def test_marker_names_the_kind_of_secret(text: str, masked: str) -> None:
    assert SECURITY.text(text) == masked


SAMPLES = {
    "api_key": "X-Api-Key: a1b2c3d4e5f6",
    "aws_access_key": "AKIAIOSFODNN7EXAMPLE",
    "aws_secret_key": "AWS_SECRET_ACCESS_KEY=a1b2c3d4e5f6",
    "certificate": PEM.format("CERTIFICATE"),
    "certificate_authority_data": f"certificate-authority-data: {BLOB}",
    "email": "jane@example.com",
    "github_token": "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "password": "DB_PASSWORD=a1b2c3d4e5f6",
    "private_key": PEM.format("PRIVATE KEY"),
    "secret_key": "SECRET_KEY=a1b2c3d4e5f6",
    "slack_token": "xoxb-1234567890-abcdefABCDEF1234567890",
    "ssh_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB",
    "token": "ACCESS_TOKEN=a1b2c3d4e5f6",
}
"""Texts by pattern, in each of which that pattern finds something, and no other."""
API_KEYS, SECRET_KEYS = {"api_key", "aws_access_key"}, {"secret_key", "aws_secret_key"}
TOKENS = {"token", "github_token", "slack_token"}
GROUPS: dict[secret_patterns.Group, set[str]] = {
    "basic": {"password"} | API_KEYS,
    "secrets": {"password", "private_key"} | API_KEYS | SECRET_KEYS | TOKENS,
    "security": set(secret_patterns.NAMES),
    "kubernetes": {"password", "certificate_authority_data"} | API_KEYS | SECRET_KEYS,
    "cloud": {"aws_secret_key"} | API_KEYS | TOKENS,
    "all": set(secret_patterns.NAMES),
}


@pytest.mark.parametrize("group", GROUPS)
def test_group_masks_only_its_own_patterns(group: secret_patterns.Group) -> None:
    chosen = masker.Masker(groups=[group])
    changed = {name for name, text in SAMPLES.items() if f"[MASKED:{name}]" in chosen.text(text)}
    left = {name for name, text in SAMPLES.items() if chosen.text(text) == text}
    assert (changed, left) == (GROUPS[group], set(secret_patterns.NAMES) - GROUPS[group])


@pytest.mark.parametrize("name", secret_patterns.NAMES)
def test_each_pattern_can_be_chosen_by_its_name(name: secret_patterns.Name) -> None:
    assert f"[MASKED:{name}]" in masker.Masker(names=[name]).text("\n".join(SAMPLES.values()))
    assert masker.Masker(names=[name]).text(SAMPLES[name]) != SAMPLES[name]


def test_every_pattern_and_every_group_is_tested() -> None:
    assert set(SAMPLES) == set(secret_patterns.NAMES)
    assert set(GROUPS) == set(secret_patterns.GROUPS)


BASE64, SIGNS, WORD = "2utKT0RbWEDl0RSHbqnpbBts6ygMW+98yWu+7qA7", "7j4B9!6ZY28J.awqq6MG", "sunshine"
SPOKEN = ["password @", "The admin password is @.", "the password for web was @, she said", "password is '@'"]
BESIDE = [
    *(
        "31c31\n<           value: @x\n---\n>           value: @\n",
        "===== /Secret shop/db ======\n4c4\n<   a: @\n---\n>   a: @\n",
    ),
    *("machine a.b\n  login me\n  password @\n", "remote_password @\n", "proxy_set_header X-Api-Key @;\n"),
    *("set -x DB_PASSWORD @\n", "setenv API_TOKEN @\n", "    user web insecure-password @\n", "x\\n  auth_token @\\n"),
    "kubeadm join 10.0.0.1:6443 --certificate-key @",
]
GIVEN = [
    *(
        "redis-cli -h redis -a @ ping",
        'command: ["redis-server", "--requirepass", "@"]',
        "requirepass @\nmasterauth @\n",
    ),
    *("mongosh -u root -p @ --authenticationDatabase x", "ldapsearch -x -D cn=a -w @ -b dc=x", "7z x -p@ a.7z"),
    *("ipmitool -H bmc -U admin -P @ power status", "keytool -list -keystore k -storepass @", "stats auth web:@\n"),
    *(
        "mc alias set s3 https://m web @",
        '1.2 [0 10.0.0.1:5] "AUTH" "@"',
        "Unseal Key 1: @",
        "db.shop:5432:shop:web:@\n",
    ),
    *("https://x/c?sv=1&sig=@&se=2", "Key         Value\n---         -----\npassword    @\nusername    web\n"),
    *("jdbc:oracle:thin:web/@@//db:1521/X",),
]


WRAPPED = [
    *('password: Some("@")', 'password: Secret("@")', "{'password': b'@'}", '["password"]=>\n  string(20) "@"\n'),
    *('~ password = "old@" -> "@"', "password: &pw @\nother: *pw\n", "spring.password\\=@\n", 'psk="@"', "bindPW: @\n"),
    *('<property name="connection.password">@</property>', "<name>fs.secret.key</name><value>@</value>"),
    *('<wsse:Password Type="x#y">@</wsse:Password>', "{\\u0022password\\u0022:\\u0022@\\u0022}"),
    *(
        "{&quot;password&quot;:&quot;@&quot;}",
        "%22password%22%3A%20%22@%22",
        '{"DB_PASSWORD":{"value":"@","origin":"x"}}',
    ),
]
PAIRED = [
    *('{"op":"add","path":"/data/password","value":"@"}', '{"op":"add","path":"/stringData/a","value":"@"}'),
    *(
        '{"key":"DB_PASSWORD","value":"@"}',
        '{"Name":"/app/db/password","Value":"@"}',
        '{"value":"@","key":"db.password"}',
    ),
    *('v1.EnvVar{Name:"DB_PASSWORD", Value:"@"}', "- key: /db/password\n  value: @\n"),
    *("    Args:\n      --db-password\n      @\n      --port\n", '"  args:\\n      --token\\n      @\\n"'),
]


@pytest.mark.parametrize("form", [*SPOKEN, *BESIDE, *GIVEN, *WRAPPED, *PAIRED])
def test_no_part_of_a_secret_stays(form: str) -> None:
    for value in [BASE64, SIGNS, *([WORD] if form in [*GIVEN, *PAIRED] else [])]:
        masked = SECURITY.text(form.replace("@@", f"{value}\0").replace("@", value).replace("\0", "@"))
        assert not any(value[start : start + 6] in masked for start in range(len(value) - 5)), masked
        assert SECURITY.text(masked) == masked


def test_a_password_in_a_url_may_have_a_slash() -> None:
    assert SECURITY.text("get https://u:Pa/ss1@h/x") == "get https://u:[MASKED:password]@h/x"


def test_text_after_a_mail_servers_auth_is_masked() -> None:
    assert SECURITY.text("AUTH PLAIN AHdlYgBwYXNzd29yZA==\n") == "AUTH PLAIN [MASKED:password]\n"


def test_a_value_with_brackets_in_it_is_no_call() -> None:
    assert SECURITY.text("db_password=Ab1(cd2)ef3gh4") == "db_password=[MASKED:password]"
