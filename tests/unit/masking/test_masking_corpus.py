"""How much is found and what is changed for nothing, by family of texts: the figures are printed and are a gate."""

from __future__ import annotations

import random
import string
from collections.abc import Callable

import pytest
from tarsy.masking import masker, vendors

MASKER = masker.Masker(groups=["security"])

LITERALS = {
    "names by any word": (
        "API_KEY_OPENAI=@ | DB_PASSWORD_PRIMARY=@ | TOKEN_GITHUB=@ | export SECRET_STRIPE='@' | passwordPrimary: @"
        ' | "tokenForGithub": "@" | secret_for_jwt = @ | PASSWORDS=@ | OPENAI_KEY=@ | FOO_CREDENTIALS=@ | REDIS_AUTH=@'
        " | credentials: @ | MYSQL_ROOT_PASSWORD_1=@ | datadog_app_key: @ | jwt_signing=@ | BASIC_AUTH=web:@ | GH_PAT=@"
    ),
    "names by their last word": (
        "AWS_SECRET_ACCESS_KEY=@ | PGPASSWORD=@ psql | client_secret=@ | DB_PASS=@ | aws_secret_access_key = @"
        " | DATADOG_API_KEY=@ | spring.datasource.password=@ | {\"password\": \"@\"} | 'token': '@' | --db-password @"
        " | helm install --set postgresql.auth.postgresPassword=@ | adminPassword: '@' | ?api_key=@&page=2"
    ),
    "headers": (
        "Authorization: @ | authorization: '@' | curl -H 'Authorization: @' https://x | X-Api-Key: @ | x-vault-token: @"
        " | curl -H 'PRIVATE-TOKEN: @' https://x | Authorization: Bearer @ | Authorization: Basic @ | Cookie: session=@"
        " | Set-Cookie: sid=@; Path=/ | Proxy-Authorization: Basic @ | Authorization: Api-Token @"
    ),
    "commands": (
        "curl -u admin:@ https://x | curl -sS --user admin:@ https://x | curl -uadmin:@ x.io | mysql -u root -p@ db"
        " | ENV DB_PASSWORD @ | docker login -u web -p @ r.io | sshpass -p @ ssh root@h | redis://:@@redis:6379/0"
        " | kubectl create secret generic db --from-literal=foo=@ -n x | postgres://web:@@db/x"
    ),
    "code": (
        'var serviceToken string = "@" | serviceToken := `@` | service_token: str = "@" | let apiToken: string = "@"'
        ' | $serviceToken .= "@" | String apiToken = "@"; | os.getenv("SERVICE_TOKEN", "@") | setenv("API_KEY", "@")'
        " | 'serviceToken' => '@' | parser.add_argument('--key', default=key) # token=@"
    ),
    "configuration": (
        'SERVICE_TOKEN ?= @ | SERVICE_TOKEN += "@" | SERVICE_TOKEN ::= "@" | service_token: >\n  @ | #token = "@"'
        ' | <apiToken>\n    @\n</apiToken> | <add key="Password" value="@" /> | <bean name="db.password" value="@"/>'
        " | credentials=@ | client-secret: '@' | serviceToken,@,next"
    ),
    "prose": (
        "the password is @ | login with password @ | password: @ was refused"
        " | failed: token=@ | ALTER USER web PASSWORD '@';"
    ),
    "on the next line": (
        "password:\n@ | Password: \r\n@\r\nLast login: today | your new password:\n\t@ | api_key:\n  @\nuser: web"
        ' | "token":\n    "@", | db-password:\n```\n@\n``` | > client_secret:\n> @'
        ' | {"log": "root password:\\n@\\nnext"}'
        ' | {"a": "{\\"b\\": \\"token:\\\\r\\\\n@\\"}"}'
        " | db:\n  password:  # set by the installer\n    @\n  user: web | apiKey: !!str\n  @ | token: # one\r\n  @"
    ),
    "names in disguise": (
        "pass\u200bword: @ | \uff50\uff41\uff53\uff53\uff57\uff4f\uff52\uff44: @ "
        " | password\uff1a@ | to\u2060ken=@ | p\u00adassword:\n@"
        ' | \U0001d429\U0001d41a\U0001d42c\U0001d42cword = @ | {"api\ufeff_key": "@"} | to\u200cken:\u200b @'
        " | \U0001f4a5 client\ufe0f_secret: @ | password\u00a0=\u00a0@ | pass\x01word: @ | pass\x08word: @"
    ),
    "colors of terminals": (
        "\x1b[36mINFO\x1b[0m[0001] login  \x1b[36mpassword\x1b[0m=@ \x1b[36muser\x1b[0m=a"
        " | \x1b[1;38;5;208mtoken\x1b[m: \x1b[33m@\x1b[0m | \x9b31mpass\x9b0mword: @"
        r' | {"log": "\u001b[36mpassword\u001b[0m=@\n"} | \033[31mapi_key\033[0m: @'
        r' | {"a": "{\"log\": \"\\u001B[36mtoken\\u001B[0m=@\"}"} | {"log": "pass\u200bword: @"}'
    ),
}
"""Texts with a secret at @, by family."""
BENIGN = """\
password:  16 bytes
token:      1024 bytes
user.password: field is required
spec.token: Required value
error: token: Forbidden
token: Forbidden
unexpected token: '}'
unexpected token: "<" at position 3
Unexpected token '}' in JSON
image: nginx@sha256:9b7c1f0d8a6e5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a1b0c
imageID: docker.io/library/nginx@sha256:9b7c1f0d8a6e5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a1b0c
uid: 4bf92f35-77b3-4da6-a3ce-929d0e0e4736
commit 9b7c1f0d8a6e5b4c3d2e1f0a9b8c7d6e5f4a3b2c
io.jsonwebtoken:jjwt-api:0.12.5
io.jsonwebtoken:jjwt-impl:jar:0.12.5
com.auth0:java-jwt:4.4.0
max_tokens: 4096
token_count=1523
secretName: db-credentials
passwordPolicy: strict
password: must be at least 8 characters
password: incorrect
failed to get token: timeout
token: expired
token: invalid_grant
secret: not found
Error: secret "db-password" not found
partition_key=orders-2024
primary_key: id
MountVolume.SetUp failed for volume "token": secret "web-token" not found
serviceAccountToken: expirationSeconds: 3607
automountServiceAccountToken: false
authorization: rbac
Authorization: required
--authorization-mode=Node,RBAC
--service-account-key-file=/etc/kubernetes/pki/sa.pub
--token-auth-file=/etc/tokens
x-api-key: missing
monkey: banana
token bucket: 100/s
spec.containers[0].env[1].password: Invalid value
password authentication failed for user "web"
Basic auth: enabled
checksum/secret: 9b7c1f0d8a6e5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a1b0c
token_type: bearer
secret_type: Opaque
password_changed_at: 2026-10-01
token_expires_in=3600
tokenExpirationSeconds: 86400
TOKEN_TTL=15m0s
PASSWORD_MIN_LENGTH=12
SECRET_NAME=db-credentials-v2
TOKEN_URL=https://auth.example.com/oauth2/token
API_KEY_HEADER=X-Api-Key-2
curl -u admin https://x
curl -sS https://example.com/api
{"kind":"ConfigMap","data":{"level":"debug","TOKEN_PATH":"/var/run/token"}}
pod/web-token-reviewer-7f9c9d6b5-xk2lp condition met
Authorization: Bearer XXXXXXXXXXXX
Authorization: Bearer <your API token>
parser.add_argument("--token", type=str, default=None)
def connect(token: str = None): ...
secret: string = getSecret()
kubectl get secret,configmap,pod -n shop
--resources=secrets,configmaps
["username","password","email"]
("token", "web-token-7f9c9d6b5-xk2lp")
getenv("DB_PASSWORD", "none")
<password>
administrator_login_password = var.db_password
ACCESS_KEY=${ACCESS_KEY:=$2}
login=user12345
Last login: Tue Oct  1 12:00:00 2026 from 10.0.0.1
notes = "Maven - io.jsonwebtoken:jjwt-api-0.12.5"
credentialsId: '4bf92f35-77b3-4da6-a3ce-929d0e0e4736'
audit_access_id: 4bf92f35-77b3-4da6-a3ce-929d0e0e4736
MODEL_SECRET_NAME = "shop-gpt4-api-key"
Pair = Ed25519.KeyPair
sat-solver-keying:x64-linux=fail
apiUrl=gateway.corp.example.com
orders-message-api:rc1.4.0_20261001_1200-SNAPSHOT
WebAPI_version=9b7c1f0d8a6e5b4c3d2e1f0a9b8c7d6e5f4a3b2c
server.ssl.KeyFile=web_rsa2048.pem
the token, abc12345, was refused
Password expires_in=3600s2 for user web
password for web:8080 was not asked for
NAME            AGE\tTYPE
web-token       web-7d9f8c6b5d-x2x9k
docker run -p 8080:80 -a stdout nginx
redis-cli -h redis -a $REDIS_PASSWORD ping
mongosh -u root -p --authenticationDatabase admin
ldapsearch -x -W -D cn=admin
ipmitool -H bmc -P ${IPMI_PASSWORD} power status
requirepass ""
250-AUTH PLAIN LOGIN XOAUTH2 OAUTHBEARER CRAM-MD5
main.c:1024:12:error:undeclared
https://host:8080/path/@user
GET /run?a=1&signal=SIGTERM
proxy_set_header X-Api-Key $http_x_api_key;
Unseal Key: <hidden>
fn token(&self) -> Option<String>
the password -> encrypted before it is stored
password: Option<String>,
token: Some(token),
password = getPassword(user)
token = config.get("token").strip()
password: *shared
<property name="connection.password"></property>
<wsse:Password Type="x">${password}</wsse:Password>
<name>fs.s3a.secret.key</name><value>${env.SECRET}</value>
<token type="x"><a/></token>
{&quot;tokenCount&quot;:&quot;4096&quot;}
%22token_type%22%3A%22bearer%22
{"op":"replace","path":"/data/LOG_LEVEL","value":"debug"}
{"op":"replace","path":"/metadata/labels/secret-name","value":"db-credentials"}
{"key":"node-role.kubernetes.io/token-service","operator":"Equal","value":"true"}
{"Key":"primary_key","Value":"orders-2024"}
[{"key":"http.token_type","value":"bearer"},{"key":"sort_key","value":"created_at"}]
v1.EnvVar{Name:"TOKEN_PATH", Value:"/var/run/token"}
{"TOKEN_TTL":{"value":"3600"},"PASSWORD_FILE":{"value":"/run/secrets/db"}}
pw: ""
GET /x?token=&page HTTP/1.1
opwatch: 12345678a
~ password = (sensitive value)
  ~ token_ttl = "15m" -> "30m"
<           value: debug
>           image: web-7f9c9d6b5
===== apps/Deployment shop/web ======""".splitlines()
BENIGN += [
    *("password:\n  valueFrom:\n    secretKeyRef:", "token:\n- first-one\n- second", "Password:\nUsername: web"),
    *("password:\n---\nnext", "token:\n  type: string", "secret:\n  secretName: db", "Enter password:\nWelcome home"),
    *("token:\n</div>", "password:\n\nsee below", "error: no token:\nunauthorized", "token:\n{\n", "Tokens:\n  none"),
    *("\u2764\ufe0f all is well, \u200bhere", "\uff21\uff22\uff23\uff1a\uff11\uff12", "\u5bc6\u7801\uff1a\u7a7a"),
]
BENIGN += ["  --token\n    The token that the server asks for.", "  --token\n  --verbose", "  --password\nsee below"]


def values() -> list[str]:
    chance = random.Random(4)  # noqa: S311 - a fixed seed, no secret
    letters = string.ascii_letters + string.digits
    return [
        *("hunter2abc", "9b7c1f0d8a6e5b4c3d2e1f0a9b8c7d6e", "k8Jd0sLq2mXv93Tz"),
        *("".join(chance.choices(letters, k=24)) + "7q" for _ in range(5)),
    ]


def recall(texts: list[tuple[str, str]]) -> float:
    return sum(secret not in MASKER.text(text) for text, secret in texts) / len(texts)


@pytest.mark.parametrize(("family", "least"), [(family, 0.9) for family in LITERALS])
def test_secret_literals_are_found(family: str, least: float, figure: Callable[[str], None]) -> None:
    forms = LITERALS[family].split(" | ")
    texts = [
        (form.replace("@@", "\0").replace("@", value, 1).replace("\0", f"{value}@"), value)
        for form in forms
        for value in values()
    ]
    share = recall(texts)
    figure(f"{family}: {share:.0%} of {len(texts)} found")
    assert share >= least, sorted({text for text, secret in texts if secret in MASKER.text(text)})


@pytest.mark.parametrize(
    ("family", "form", "least"),
    [
        ("vendors' tokens, bare", "request with {} failed", 0.95),
        ("vendors' tokens behind a name", "API_TOKEN={}", 0.98),
    ],
)
def test_vendor_tokens_are_found(family: str, form: str, least: float, figure: Callable[[str], None]) -> None:
    chance = random.Random(5)  # noqa: S311 - a fixed seed, no secret
    letters = {"capitals and digits": string.ascii_uppercase + "234567"} | dict.fromkeys(
        ("hex", "hex and hyphens"), "0123456789abcdef"
    )
    texts = []
    for token_format in vendors.TOKEN_FORMATS:
        for prefix in token_format.prefixes.split():
            alphabet = letters.get(token_format.alphabet, string.ascii_letters + string.digits)
            token = prefix + "".join(chance.choices(alphabet, k=token_format.length))
            texts.append((form.format(token), token[-10:]))
    share = recall(texts)
    figure(f"{family}: {share:.0%} of {len(texts)} found")
    assert share >= least


def test_benign_texts_stay_as_they_are(figure: Callable[[str], None]) -> None:
    changed = [(text, MASKER.text(text)) for text in BENIGN if MASKER.text(text) != text]
    figure(f"benign texts: {len(changed)} of {len(BENIGN)} changed")
    assert len(changed) <= 2, changed
