"""Secrets where clusters and clouds really show them: none is left; and what is none stays, letter by letter.

A text has its secrets between « and », so that the test knows them and the masker does not.
"""

from __future__ import annotations

import base64
import json
import random
import re
import string
import textwrap
from collections.abc import Callable

import pytest
from tarsy.masking import masker

MASKER = masker.Masker(groups=["security"])
LETTERS = string.ascii_letters + string.digits
SEEDS = range(4)


def drawn(chance: random.Random, length: int = 20, alphabet: str = LETTERS) -> str:
    """A secret with letters of both kinds and digits, as they are drawn."""
    while True:
        value = "".join(chance.choices(alphabet, k=length))
        if alphabet != LETTERS or (value.lower() != value != value.upper() and any(map(str.isdigit, value))):
            return value


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def jwt(chance: random.Random) -> str:
    head = b64('{"alg":"RS256","kid":"' + drawn(chance, 8) + '"}').rstrip("=")
    body = b64('{"iss":"kubernetes/serviceaccount","sub":"system:serviceaccount:shop:web"}').rstrip("=")
    return f"{head}.{body}.{drawn(chance, 86)}"


def pem(chance: random.Random, kind: str = "RSA PRIVATE KEY") -> str:
    body = "\n".join(drawn(chance, 64, LETTERS + "+/") for _ in range(6))
    return f"-----BEGIN {kind}-----\n{body}\n{drawn(chance, 22)}==\n-----END {kind}-----"


SURROUNDINGS: dict[str, Callable[[random.Random], str]] = {
    "kubectl get secret -o yaml": lambda c: (
        f"apiVersion: v1\ndata:\n  DB_PASSWORD: «{b64(drawn(c))}»\n  username: «{b64('web')}»\nkind: Secret\n"
        "metadata:\n  name: db\n  namespace: shop\n  uid: 4bf92f35-77b3-4da6-a3ce-929d0e0e4736\ntype: Opaque\n"
    ),
    "kubectl get secret -o json": lambda c: json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "data": {"token": f"«{b64(drawn(c, 40))}»"},
            "metadata": {
                "annotations": {
                    "kubectl.kubernetes.io/last-applied-configuration": json.dumps(
                        {"apiVersion": "v1", "kind": "Secret", "stringData": {"token": f"«{drawn(c, 40)}»"}}
                    )
                }
            },
        },
        indent=4,
        ensure_ascii=False,
    ),
    "kubectl get secrets -A -o yaml": lambda c: (
        "apiVersion: v1\nitems:\n"
        + "".join(
            f"- apiVersion: v1\n  data:\n    password: «{b64(drawn(c))}»\n  kind: Secret\n  metadata:\n    name: s{n}\n"
            for n in range(3)
        )
        + "kind: List\n"
    ),
    "kubectl describe pod": lambda c: (
        "Name:         web-0\nContainers:\n  web:\n    Image:      shop/web:1.4\n    Environment:\n"
        f"      DB_HOST:           db.shop.svc\n      DB_PASSWORD:       «{drawn(c)}»\n"
        f"      STRIPE_API_KEY:    «sk_live_{drawn(c, 24)}»\n      TOKEN:  <set to the key 'token' in secret 'web'>\n"
        "    Mounts:  <none>\n"
    ),
    "a pod's spec": lambda c: json.dumps(
        {
            "kind": "Pod",
            "spec": {
                "containers": [
                    {
                        "env": [
                            {"name": "DB_PASSWORD", "value": f"«{drawn(c)}»"},
                            {"name": "LOG_LEVEL", "value": "debug"},
                        ],
                        "args": ["--db-password", f"«{drawn(c)}»", f"--api-token=«{drawn(c)}»"],
                    }
                ]
            },
        },
        ensure_ascii=False,
    ),
    "env": lambda c: (
        f"HOSTNAME=web-0\nDB_PASSWORD=«{drawn(c)}»\nREDIS_URL=redis://default:«{drawn(c)}»@redis:6379/0\n"
        f"SESSION_SECRET=«{drawn(c, 32)}»\nPATH=/usr/bin\nSENTRY_AUTH_TOKEN=«{drawn(c, 64)}»\n"
    ),
    "docker inspect": lambda c: json.dumps(
        {"Config": {"Env": ["PATH=/bin", f"MYSQL_ROOT_PASSWORD=«{drawn(c)}»", f"API_TOKEN=«{drawn(c)}»"]}},
        indent=2,
        ensure_ascii=False,
    ),
    "a values file": lambda c: (
        f"postgresql:\n  auth:\n    username: web\n    password: «{drawn(c)}»\n    postgresPassword: '«{drawn(c)}»'\n"
        f'ingress:\n  enabled: true\noauth:\n  clientId: web\n  clientSecret: "«{drawn(c, 40)}»"\n'
    ),
    "application.properties": lambda c: (
        f"spring.datasource.url=jdbc:postgresql://db:5432/shop\nspring.datasource.password=«{drawn(c)}»\n"
        f"jwt.secret=«{drawn(c, 48)}»\nserver.port=8080\n"
    ),
    "a log of logfmt": lambda c: (
        f'time="2026-11-23T09:00:00Z" level=error msg="login failed" user=web password=«{drawn(c)}» attempt=3\n'
        f'level=info msg="using token=«{drawn(c, 32)}»" caller=main.go:12\n'
    ),
    "a log of JSON": lambda c: (
        json.dumps(
            {"level": "error", "msg": f"dial postgres://web:«{drawn(c)}»@db:5432/shop: refused"}, ensure_ascii=False
        )
        + "\n"
        + json.dumps({"level": "debug", "headers": {"Authorization": f"Bearer «{jwt(c)}»"}}, ensure_ascii=False)
        + "\n"
    ),
    "a log of requests": lambda c: (
        f'10.0.0.1 - - [23/Nov/2026:09:00:00 +0000] "GET /api?access_token=«{drawn(c, 32)}»&page=2 HTTP/1.1" 200 12\n'
        f"> GET /v1 HTTP/1.1\n> Host: api.example.com\n> Authorization: Basic «{b64('web:' + drawn(c))}»\n"
        f"> X-Api-Key: «{drawn(c, 32)}»\n> Cookie: session=«{drawn(c, 32)}»; theme=dark\n"
    ),
    "klog behind a head": lambda c: (
        f'I1123 09:00:00.000000       1 round_trippers.go:466] curl -v -XGET  -H "Authorization: Bearer «{jwt(c)}»" '
        "'https://10.0.0.1:443/api'\n"
    ),
    "a trace": lambda c: (
        'Traceback (most recent call last):\n  File "/app/db.py", line 12, in connect\n'
        f'psycopg.OperationalError: connection to "host=db user=web password=«{drawn(c)}» dbname=shop" failed\n'
    ),
    "a private key": lambda c: f"tls.key: |\n{textwrap.indent('«' + pem(c) + '»', '  ')}\nnext: 1\n",
    "a private key in JSON": lambda c: json.dumps(
        {"key": f"«{pem(c, 'EC PRIVATE KEY')}»", "next": 1}, ensure_ascii=False
    ),
    "a private key in base64": lambda c: f"tls.key: «{b64(pem(c))}»\nnext: 1\n",
    "AWS": lambda c: (
        f"[default]\naws_access_key_id = «AKIA{drawn(c, 16, string.ascii_uppercase + '234567')}»\n"
        f"aws_secret_access_key = «{drawn(c, 40, LETTERS + '/+')}»\n"
        f"aws_session_token = «{drawn(c, 200, LETTERS + '/+')}»\n"
        "region = eu-west-1\n"
    ),
    "AWS in JSON": lambda c: json.dumps(
        {
            "AccessKeyId": f"«ASIA{drawn(c, 16, string.ascii_uppercase + '234567')}»",
            "SecretAccessKey": f"«{drawn(c, 40)}»",
            "SessionToken": f"«{drawn(c, 120)}»",
            "Expiration": "2026-11-23T10:00:00Z",
        },
        ensure_ascii=False,
    ),
    "a service account of Google's": lambda c: json.dumps(
        {
            "type": "service_account",
            "project_id": "shop",
            "private_key_id": "0f1e2d3c4b5a69788796a5b4c3d2e1f001234567",
            "private_key": f"«{pem(c, 'PRIVATE KEY')}\n»",
            "client_id": "123456789012345678901",
        },
        indent=2,
        ensure_ascii=False,
    ),
    "Google": lambda c: f"GOOGLE_API_KEY=«AIza{drawn(c, 35)}»\nrefresh_token: «1//0{drawn(c, 60)}»\n",
    "Azure": lambda c: (
        "DefaultEndpointsProtocol=https;AccountName=shop;AccountKey="
        f"«{base64.b64encode(c.randbytes(64)).decode()}»;EndpointSuffix=core.windows.net\n"
        f"AZURE_CLIENT_SECRET=«{drawn(c, 3)}8Q~{drawn(c, 34)}»\n"
        f"https://shop.blob.core.windows.net/x?sv=2024-01-01&se=2026-12-01&sig=«{drawn(c, 43)}%3D»&sp=r\n"
        f"Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=«{b64(drawn(c, 32))}»\n"
    ),
    "GitHub": lambda c: (
        f"remote: https://x-access-token:«ghs_{drawn(c, 36)}»@github.com/shop/web.git\n"
        f"GITHUB_TOKEN: «ghp_{drawn(c, 36)}»\nusing «github_pat_{drawn(c, 22)}_{drawn(c, 59)}» for shop/web\n"
    ),
    "Slack": lambda c: (
        f"posting to https://«hooks.slack.com/services/T{drawn(c, 8, string.ascii_uppercase)}/"
        f"B{drawn(c, 8, string.ascii_uppercase)}/{drawn(c, 24)}»\nslack: «xoxb-{c.randrange(10**11)}-{drawn(c, 24)}»\n"
    ),
    "a JWT": lambda c: f"token expired: «{jwt(c)}» at 2026-11-23\n",
    "docker's login": lambda c: json.dumps(
        {
            "auths": {
                "registry.example.com": {
                    "username": "web",
                    "password": f"«{drawn(c)}»",
                    "auth": f"«{b64('web:' + drawn(c))}»",
                }
            }
        },
        ensure_ascii=False,
    ),
    "dockerconfigjson": lambda c: (
        "apiVersion: v1\nkind: Secret\ntype: kubernetes.io/dockerconfigjson\ndata:\n  .dockerconfigjson: «"
        + b64(json.dumps({"auths": {"r.io": {"auth": b64("web:" + drawn(c))}}}))
        + "»\n"
    ),
    "connection strings": lambda c: (
        f"postgres://web:«{drawn(c)}»@db:5432/shop?sslmode=disable\nmongodb+srv://web:«{drawn(c)}»@c0.abcde.mongodb.net/x\n"
        f"amqp://web:«{drawn(c)}»@mq:5672/\nServer=db;Database=shop;User Id=web;Password=«{drawn(c)}»;Encrypt=true\n"
        f"mysql+pymysql://web:«{drawn(c)}»@db/shop\nhttps://web:«{drawn(c)}»@example.com/repo.git\n"
    ),
    "a kubeconfig": lambda c: (
        "apiVersion: v1\nkind: Config\nclusters:\n- cluster:\n    server: https://10.0.0.1:6443\n  name: c\nusers:\n"
        f"- name: admin\n  user:\n    client-key-data: «{b64(pem(c))}»\n    token: «{jwt(c)}»\n"
    ),
    "terraform": lambda c: (
        f'variable "db_password" {{\n  default = "«{drawn(c)}»"\n}}\nadmin_password = "«{drawn(c)}»"\nsize = 3\n'
    ),
    "vendors": lambda c: (
        f"sk-ant-api03-«{drawn(c, 80)}»\nOPENAI «sk-proj-{drawn(c, 60)}»\n"
        f"glpat «glpat-{drawn(c, 20)}»\nnpm «npm_{drawn(c, 36)}»\n"
        f"vault «hvs.{drawn(c, 90)}»\nstripe «sk_live_{drawn(c, 24)}»\n"
    ),
}
SECRET = re.compile("«(.*?)»", re.DOTALL)


def parts(value: str) -> list[str]:
    """Return the parts of a secret that may not be left: itself, and each long line; a word such as web is none."""
    return [part for part in {value, *value.replace("\\n", "\n").split("\n")} if len(part.strip()) >= 12]


@pytest.mark.parametrize("where", SURROUNDINGS)
def test_no_secret_is_left(where: str) -> None:
    for seed in SEEDS:
        written = SURROUNDINGS[where](random.Random(f"{where} {seed}"))  # noqa: S311 - a fixed seed, no secret
        secrets = [part.strip() for value in SECRET.findall(written) for part in parts(value)]
        assert secrets
        for text in (plain := SECRET.sub(r"\1", written), json.dumps({"result": plain}), plain.replace("\n", "\r\n")):
            masked = MASKER.text(text)
            assert not [value for value in secrets if value in masked], masked
            assert MASKER.text(masked) == masked
            expected_lines = [
                line for line in SECRET.sub("", written).splitlines() if "level" in line or "name: " in line
            ]
            assert len(masked) > len(expected_lines)


def digest(chance: random.Random, length: int) -> str:
    return drawn(chance, length, "0123456789abcdef")


def uuid(chance: random.Random) -> str:
    return "-".join(digest(chance, length) for length in (8, 4, 4, 4, 12))


READABLE: dict[str, Callable[[random.Random], str]] = {
    "a ConfigMap": lambda c: (
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: web\n  uid: " + uuid(c) + '\n  resourceVersion: "812345"\n'
        "data:\n  LOG_LEVEL: debug\n  DB_HOST: db.shop.svc.cluster.local\n  TOKEN_TTL: 15m\n  PASSWORD_POLICY: strict\n"
        "  application.yaml: |\n    server:\n      port: 8080\n    features:\n      - checkout\n      - search\n"
        "    secretName: web-credentials\n  nginx.conf: |\n    upstream web { server web:8080; }\n"
    ),
    "a ConfigMap in JSON": lambda c: json.dumps(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "web", "uid": uuid(c), "annotations": {"checksum/config": digest(c, 64)}},
            "data": {
                "LOG_LEVEL": "debug",
                "ca-bundle": "",
                "url": "http://web:8080/",
                "blob": b64("just some text here"),
            },
            "binaryData": {"logo.png": b64("some bytes of a picture")},
        },
        indent=2,
    ),
    "ConfigMaps beside a Secret": lambda c: (
        "apiVersion: v1\nkind: ConfigMap\ndata:\n  a: value-of-a\n  hash: "
        + digest(c, 64)
        + "\nmetadata:\n  name: one\n"
    ),
    "images": lambda c: (
        f"image: registry.example.com/shop/web@sha256:{digest(c, 64)}\n"
        f"imageID: docker.io/library/nginx@sha256:{digest(c, 64)}\n"
        f"containerID: containerd://{digest(c, 64)}\n"
        f'  Normal  Pulled  Container image "shop/web:1.4.2" already present\n'
    ),
    "git": lambda c: (
        f"commit {digest(c, 40)}\nMerge: {digest(c, 7)} {digest(c, 7)}\nrevision: {digest(c, 40)}\n"
        f"Sync to main@sha1:{digest(c, 40)} (chart shop-1.2.3)\n{digest(c, 40)}\trefs/heads/main\n"
    ),
    "UUIDs": lambda c: (
        f"uid: {uuid(c)}\nownerReferences:\n- uid: {uuid(c)}\n  kind: ReplicaSet\ntrace_id={digest(c, 32)} "
        f"span_id={digest(c, 16)} request_id={uuid(c)}\n/var/lib/kubelet/pods/{uuid(c)}/volumes\n"
    ),
    "pods": lambda c: (
        "NAME                   READY   STATUS             RESTARTS      AGE\n"
        f"web-{digest(c, 9)}-x2lzp   0/1     CrashLoopBackOff   7 (2m ago)    11m\ndb-0   1/1   Running   0   3d4h\n"
    ),
    "events": lambda c: (
        "LAST SEEN   TYPE      REASON      OBJECT      MESSAGE\n2m   Warning   FailedMount   pod/web-0   "
        'MountVolume.SetUp failed for volume "token" : secret "web-token" not found\n3m  Warning  BackOff  pod/web-0  '
        "Back-off restarting failed container web in pod web-0_shop(" + uuid(c) + ")\n"
    ),
    "a Deployment": lambda c: (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  generation: 7\n  labels:\n    pod-template-hash: "
        + digest(c, 10)
        + "\nspec:\n  template:\n    spec:\n      containers:\n"
        "      - env:\n        - name: DB_PASSWORD\n          valueFrom:\n"
        "            secretKeyRef: {name: db, key: password}\n      imagePullSecrets:\n      - name: registry\n"
    ),
    "metrics": lambda c: (
        f'http_requests_total{{handler="/login",code="200",instance="10.0.{c.randrange(256)}.7:8080"}} 1523\n'
        f"process_start_time_seconds 1.7638{c.randrange(10**5)}e+09\ntoken_bucket_fill 0.7\n"
    ),
    "etcd and rollouts": lambda c: (
        f"etcdserver: request timed out, id {digest(c, 16)}\n"
        f'rollout "web" successfully rolled out, hash {digest(c, 10)}\n'
        f"lease holder: web-0_{uuid(c)}\nsubject: CN=web, serial {digest(c, 32)}\n"
    ),
}


@pytest.mark.parametrize("what", READABLE)
def test_text_without_secrets_is_unchanged(what: str) -> None:
    for seed in range(8):
        text = READABLE[what](random.Random(f"{what} {seed}"))  # noqa: S311 - a fixed seed, no secret
        assert MASKER.text(text) == text
        assert MASKER.text(json.dumps({"result": text})) == json.dumps({"result": text})


def test_a_config_map_beside_a_secret_stays_and_the_secret_does_not() -> None:
    chance = random.Random(5)  # noqa: S311 - a fixed seed, no secret
    config_map = READABLE["ConfigMaps beside a Secret"](chance)
    secret = f"apiVersion: v1\nkind: Secret\ndata:\n  a: {b64('hunter2-' + drawn(chance))}\nmetadata:\n  name: two\n"
    masked = MASKER.text(f"{config_map}---\n{secret}---\n{config_map}")
    assert masked.count(config_map) == 2
    assert b64("hunter2-") not in masked
