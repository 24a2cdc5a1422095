"""Kubernetes' secrets by structure: in whatever form a Secret is written, none of its values comes through."""

from __future__ import annotations

import base64
import itertools
import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from tarsy.masking import masker

STRUCTURE = masker.Masker()
MARKER = "[MASKED:secret]"

Encode = Callable[[dict[str, Any]], str]


def secret(number: int) -> dict[str, Any]:
    """A Secret with a canary in each value, among what breaks naive readers."""
    count = itertools.count(number * 100)

    def canary() -> str:
        return f"cnry{next(count):08d}"

    odd = [f"a: {canary()}", f"two\n  lines {canary()}\nkind: ConfigMap\n", f'{{"b": "{canary()}"}}']
    odd += [f"it's {canary()}, #1; x}}]", f'say "{canary()}"\\', f"- {canary()}", canary() * 40]
    plain = {"password": canary(), "tls.key": canary()}
    applied = {"apiVersion": "v1", "kind": "Secret", "stringData": {"password": canary()}}
    annotation = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(applied) + "\n"}
    return {
        "apiVersion": "v1",
        "data": {name: base64.b64encode(value.encode()).decode() for name, value in plain.items()},
        "kind": "Secret",
        "metadata": {"annotations": annotation, "labels": {"app": "web"}, "name": "db", "namespace": "shop"},
        "stringData": {f"odd-{index}": value for index, value in enumerate(odd)} | {"empty": ""},
        "type": "Opaque",
    }


def canaries(document: dict[str, Any]) -> set[str]:
    """Everything of a Secret that must not be seen: its canaries, plain and as they stand in `data`."""
    return {*re.findall(r"cnry\d{8}", json.dumps(document)), *document["data"].values()}


def block(document: Any) -> str:
    return yaml.safe_dump(document, width=10**6, allow_unicode=True)


def literal(document: Any) -> str:
    """YAML as Kubernetes prints it: many lines as a literal block."""

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return yaml.dump(document, Dumper=Dumper, width=10**6)


def without_kinds(document: dict[str, Any]) -> dict[str, Any]:
    items = [{key: value for key, value in document.items() if key not in {"kind", "apiVersion"}}]
    return {"apiVersion": "v1", "items": items, "kind": "SecretList", "metadata": {"resourceVersion": "7"}}


def prefixed(text: str, prefix: str) -> str:
    return "".join(prefix + line for line in text.splitlines(keepends=True))


def docker(text: str) -> str:
    """Each line in a JSON record, as Docker's json-file driver writes it."""
    lines = enumerate(text.splitlines(keepends=True))
    records = ({"log": line, "stream": "stdout", "time": f"2026-10-01T12:00:00.{at:09d}Z"} for at, line in lines)
    return "".join(json.dumps(record) + "\n" for record in records)


def zap(text: str) -> str:
    """Each line in a JSON record, as Go's zap writes it."""
    lines = enumerate(text.splitlines())
    records = ({"level": "info", "ts": 1759320000.5 + at, "caller": "a.go:1", "msg": line} for at, line in lines)
    return "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)


def logfmt(text: str) -> str:
    """Each line in a record of logfmt."""
    lines = ((at, json.dumps(line) if set(line) & set(' "=') else line) for at, line in enumerate(text.splitlines()))
    return "".join(f"time=2026-10-01T12:00:00.{at:03d}Z level=info msg={line} pid=1\n" for at, line in lines)


def stern(text: str) -> str:
    """Each line behind the names of its pod and container, and a time."""
    lines = enumerate(text.splitlines(keepends=True))
    return "".join(f"web-7f9c9d6b5-xk2lp web 2026-10-01T12:00:{at % 60:02d}.{at:09d}Z {line}" for at, line in lines)


def wrapped(text: str) -> str:
    """Base64 in lines of 76 characters."""
    return base64.encodebytes(text.encode()).decode()


POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}}
ENCODINGS: dict[str, Encode] = {
    "JSON": json.dumps,
    "JSON without spaces": lambda d: json.dumps(d, separators=(",", ":")),
    "JSON, indented": lambda d: json.dumps(d, indent=4),
    "JSON, indented by tabs": lambda d: json.dumps(d, indent="\t"),
    "JSON, keys the other way round": lambda d: json.dumps(dict(reversed(d.items())), indent=1),
    "YAML": block,
    "YAML, literal": literal,
    "YAML, quoted": lambda d: yaml.safe_dump(d, default_style='"', width=10**6),
    "YAML, folded": lambda d: yaml.safe_dump({key: value for key, value in d.items() if key != "metadata"}, width=20),
    "YAML in braces": lambda d: yaml.safe_dump(d, default_flow_style=True, width=10**6),
    "YAML with CRLF": lambda d: literal(d).replace("\n", "\r\n"),
    "YAML, data in braces": lambda d: f"kind: Secret\ndata: {json.dumps(d['data'])}\nstringData:\n  a: |\n    b",
    "YAML documents": lambda d: f"---\n{block(POD)}---\n{literal(d)}---\n{block(POD)}",
    "List in YAML": lambda d: block({"apiVersion": "v1", "items": [POD, d, POD], "kind": "List"}),
    "List in JSON": lambda d: json.dumps({"items": [POD, d, POD]}, indent=2),
    "SecretList in JSON": lambda d: json.dumps(without_kinds(d)),
    "SecretList in YAML": lambda d: literal(without_kinds(d)),
    "a watch's event": lambda d: json.dumps({"type": "MODIFIED", "object": d}),
    "an audit event": lambda d: json.dumps({"kind": "Event", "requestObject": d, "responseObject": d}),
    "JSON in a JSON string": lambda d: json.dumps({"content": [{"type": "text", "text": json.dumps(d)}]}),
    "indented JSON in a JSON string": lambda d: json.dumps({"text": json.dumps(d, indent=2)}, indent=2),
    "YAML in a JSON string": lambda d: json.dumps({"text": literal(d)}),
    "YAML in braces in a JSON string": lambda d: json.dumps({"text": ENCODINGS["YAML in braces"](d)}),
    "JSON in strings in strings": lambda d: json.dumps(json.dumps(json.dumps(d))),
    "YAML in strings in strings": lambda d: json.dumps({"a": json.dumps({"b": literal(d)})}),
    "an annotation": lambda d: block({"metadata": {"annotations": {"last": json.dumps(d)}}, "kind": "Deployment"}),
    "a manifest in a ConfigMap": lambda d: literal({"kind": "ConfigMap", "data": {"secret.yaml": literal(d)}}),
    "Python": lambda d: str({**d, "metadata": {}}),
    "a log line": lambda d: f'level=info msg="applied" manifest={json.dumps(json.dumps(d))} took=3ms',
    "a log line that lost its head": lambda d: json.dumps("x" + json.dumps(d))[2:],
    "a fence in prose": lambda d: f"This 5\" one isn't {{right}}:\n```yaml\n{literal(d)}```\nIs it?",
    "a quotation": lambda d: prefixed(literal(d), "> "),
    "a diff": lambda d: "@@ -1,9 +1,9 @@\n" + prefixed(literal(d), "+"),
    "a diff that takes away": lambda d: prefixed(literal(d), "-"),
    "a node's log": lambda d: prefixed(literal(d), "2026-10-01T12:00:00.123456789Z stdout F "),
    "klog": lambda d: prefixed(literal(d), "I1122 10:00:00.123456       1 main.go:42] "),
    "indented JSON behind klog": lambda d: prefixed(
        json.dumps(d, indent=2) + "\n", "I1122 10:00:00.123456       1 main.go:42] "
    ),
    "kubectl logs --prefix": lambda d: prefixed(literal(d), "[pod/web-0/web] "),
    "kubectl logs --prefix --timestamps": lambda d: prefixed(
        literal(d), "[pod/web-0/web] 2026-10-01T12:00:00.123456789Z "
    ),
    "syslog": lambda d: prefixed(literal(d), "Oct  1 12:00:00 node-1 app[12]: "),
    "a log with levels": lambda d: prefixed(literal(d), "2026-10-01 12:00:00,123 INFO  "),
    "compose": lambda d: prefixed(literal(d), "web-1  | "),
    "a record of Docker's a line": lambda d: docker(literal(d)),
    "a record of Docker's a line, indented JSON": lambda d: docker(json.dumps(d, indent=2)),
    "a record of Docker's a line behind kubectl's head": lambda d: prefixed(docker(literal(d)), "[pod/web-0/web] "),
    "a record of zap a line": lambda d: zap(literal(d)),
    "a record of zap a line, indented JSON": lambda d: zap(json.dumps(d, indent=2)),
    "a record of logfmt a line": lambda d: logfmt(literal(d)),
    "stern": lambda d: stern(literal(d)),
    "stern, indented JSON": lambda d: stern(json.dumps(d, indent=2)),
    "a pod's name and an arrow": lambda d: prefixed(literal(d), "web-0 \u203a "),
    "base64": lambda d: base64.b64encode(literal(d).encode()).decode(),
    "base64 of JSON": lambda d: base64.b64encode(json.dumps(d).encode()).decode(),
    "base64 in lines": lambda d: wrapped(literal(d)),
    "a list cut before its kind": lambda d: json.dumps({**without_kinds(d), "kind": ""}).partition(', "kind"')[0],
    "a list cut before its kind, YAML": lambda d: literal(without_kinds(d)).partition("\nkind: SecretList")[0],
    "cut in its data": lambda d: json.dumps({"kind": "Secret", "data": d["data"]})[:-9],
    "cut before its kind": lambda d: json.dumps({"apiVersion": "v1", "data": d["data"]}, indent=2)[:-9],
    "cut before its kind, YAML": lambda d: literal({"apiVersion": "v1", "data": d["data"]})[:-9],
    "cut before its kind, in a string": lambda d: json.dumps(literal({"apiVersion": "v1", "data": d["data"]}))[:-9],
    "cut in its data, YAML": lambda d: literal({"kind": "Secret"}) + literal({"data": d["data"]})[:-9],
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_no_value_of_a_secret_comes_through(encoding: str) -> None:
    for number in range(4):
        document = secret(number)
        text = ENCODINGS[encoding](document)
        masked = STRUCTURE.text(text)
        assert [value for value in canaries(document) if value in masked] == [], f"{text}\n{masked}"
        assert "password" in masked or encoding.startswith("base64")
        assert STRUCTURE.text(masked) == masked


PRINTED = ["JSON", "JSON without spaces", "JSON, indented", "YAML", "YAML, literal", "List in JSON", "List in YAML"]
PRINTED += ["SecretList in JSON", "JSON in a JSON string", "YAML in a JSON string"]


def small(number: int) -> dict[str, Any]:
    """A Secret as most are: four values, all of them in `data`."""
    names = ("password", "username", "tls.key", "config.yaml")
    values = (base64.b64encode(f"cnry{number:04d}{index:04d}".encode()).decode() for index in range(4))
    metadata = {"labels": {"app": "web"}, "name": "db", "namespace": "shop"}
    secret_data = dict(zip(names, values, strict=True))
    return {"apiVersion": "v1", "data": secret_data, "kind": "Secret", "metadata": metadata, "type": "Opaque"}


@pytest.mark.parametrize(("make", "least"), [(small, 1.0), (secret, 0.98)])
@pytest.mark.parametrize("half", ["head", "tail", "first lines"])
def test_secrets_in_manifests_cut_at_any_point_are_found(
    half: str, make: Callable[[int], dict[str, Any]], least: float, figure: Callable[[str], None]
) -> None:
    chance = random.Random(11)  # noqa: S311 - a fixed seed, no secret
    detections = []
    for name, number in itertools.product(PRINTED, range(20)):
        document = make(number)
        text = ENCODINGS[name](document)
        lines = list(itertools.accumulate(map(len, text.splitlines(keepends=True)), initial=0))
        at = chance.choice(lines[:-1]) if half == "first lines" else chance.randrange(len(text))
        detections.append(not leaked(document, text[:at] if half == "tail" else text[at:]))
    figure(f"Secrets, {half} cut off: {sum(detections)} of {len(detections)} without a value")
    assert sum(detections) >= least * len(detections)


def leaked(document: dict[str, Any], text: str) -> list[str]:
    masked = STRUCTURE.text(text)
    return [value for value in canaries(document) if value in masked]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_secret_among_other_text_leaves_that_text_alone(encoding: str) -> None:
    document = secret(1)
    around = "Before it, 3 pods (web-0: Running) and a {brace}.", "\nAfter it: nothing but `kubectl get pods`.\n"
    text = f"{around[0]}\n{ENCODINGS[encoding](document)}\n{around[1]}"
    masked = STRUCTURE.text(text)
    assert not [value for value in canaries(document) if value in masked]
    assert masked.startswith(around[0])
    if "cut" not in encoding:
        assert masked.endswith(around[1])


def test_masked_json_is_the_same_json_but_for_the_values() -> None:
    document = secret(2)
    document["metadata"]["annotations"] = {}
    masked = STRUCTURE.text(json.dumps(document, indent=2))
    names = {"data": document["data"], "stringData": document["stringData"]}
    expected = document | {part: {key: MARKER if value else "" for key, value in names[part].items()} for part in names}
    assert json.loads(masked) == expected
    assert masked == json.dumps(expected, indent=2)


def test_masked_yaml_is_the_same_yaml_but_for_the_values() -> None:
    document = secret(3)
    document["metadata"]["annotations"] = {}
    masked = STRUCTURE.text(f"# as applied\n{literal(document)}")
    names = {"data": document["data"], "stringData": document["stringData"]}
    expected = document | {part: {key: MARKER if value else "" for key, value in names[part].items()} for part in names}
    assert yaml.safe_load(masked) == expected
    assert masked.startswith("# as applied\napiVersion: v1\ndata:\n  password: ")


@pytest.mark.parametrize("form", [json.dumps, lambda d: json.dumps(d, indent=2), block, literal])
def test_an_object_that_is_no_secret_stays(form: Encode) -> None:
    objects: list[dict[str, Any]] = [
        {"kind": "ConfigMap", "data": {"password": "in a ConfigMap", "a": "b: c\nd: e\n"}},
        {"kind": "Event", "involvedObject": {"kind": "Secret", "name": "db"}, "data": {"a": "b"}},
        {"kind": "Role", "rules": [{"resources": ["secrets"], "verbs": ["get"]}]},
        {"kind": "SecretStore", "data": {"a": "b"}},
        {"kind": "Pod", "spec": {"volumes": [{"name": "v", "secret": {"secretName": "db", "items": [{"key": "k"}]}}]}},
    ]
    for document in [*objects, {"kind": "List", "items": objects}]:
        assert STRUCTURE.text(form(document)) == form(document)


NAMES = ["DB_PASSWORD", "API_TOKEN", "REDIS_KEY", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY", "dbPassword", "GITHUB_TOKEN_2"]


@pytest.mark.parametrize("form", [json.dumps, lambda d: json.dumps(d, indent=2), block, literal, str])
@pytest.mark.parametrize("name", NAMES)
def test_environment_variable_with_secret_like_name_is_masked(name: str, form: Encode) -> None:
    variables: list[dict[str, Any]] = [
        {"name": "MODE", "value": "fast"},
        {"name": name, "value": "two\nlines cnry"},
        {"value": "cnry, too", "name": name},
        {"name": "LOG", "value": "debug"},
    ]
    text = form({"kind": "Pod", "spec": {"containers": [{"env": variables, "image": "web", "name": "web"}]}})
    masked = STRUCTURE.text(text)
    assert "cnry" not in masked
    assert masked.count(MARKER) == 2
    assert "fast" in masked
    assert "debug" in masked


@pytest.mark.parametrize("form", [json.dumps, lambda d: json.dumps(d, indent=2), block])
def test_a_variable_that_holds_no_secret_stays(form: Encode) -> None:
    values = {
        "TOKEN_PATH": "/var/run/token",
        "PASSWORD_FILE": "/etc/password",
        "API_TOKEN": "/var/run/secrets/api/token",
        "DB_PASSWORD": "$(OTHER)",
        "USE_TOKEN": "true",
        "EMPTY_PASSWORD": "",
        "CACHE_KEY": "pods",
        "SECRET_NAME": "db",
        "PASSWORD_MIN_LENGTH": "12",
    }
    variables: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in values.items()]
    variables.append({"name": "X_TOKEN", "valueFrom": {"secretKeyRef": {"key": "token", "name": "db"}}})
    text = form({"env": variables})
    assert STRUCTURE.text(text) == text


DESCRIBED_POD = """\
Name:             web-0
Containers:
  web:
    Image:          nginx:1.29
    State:          Waiting
      Reason:       CrashLoopBackOff
    Environment Variables from:
      web-env  Secret  Optional: false
    Environment:
      MODE:          fast
      DB_PASSWORD:   cnry1
      TLS_KEY:       first line cnry2
                     second line cnry3
      API_TOKEN:     <set to the key 'token' in secret 'api'>  Optional: false
      POD_TOKEN:      (v1:metadata.name)
    Mounts:
      /var/run/secrets/kubernetes.io/serviceaccount from kube-api-access-x7 (ro)
Volumes:
  db:
    Type:        Secret (a volume populated by a Secret)
    SecretName:  db
"""


def test_variables_in_a_described_pod_are_masked() -> None:
    masked = STRUCTURE.text(DESCRIBED_POD)
    assert "cnry" not in masked
    expected_lines = [line for line in DESCRIBED_POD.splitlines() if "cnry" not in line]
    assert [line for line in masked.splitlines() if MARKER not in line] == expected_lines


def test_the_token_in_a_described_secret_is_masked_and_sizes_stay() -> None:
    head = "Name:  t\n\nType:  kubernetes.io/service-account-token\n\nData\n====\nca.crt:     1107 bytes\n"
    masked = STRUCTURE.text(f"{head}namespace:  4 bytes\ntoken:      cnry.a.b\n\nEvents:  <none>\n")
    assert masked == f"{head}namespace:  4 bytes\ntoken:      {MARKER}\n\nEvents:  <none>\n"


def test_a_described_config_map_stays() -> None:
    text = (
        "Name:  c\n\nData\n====\napp.conf:\n----\nlevel: debug\nmode: fast\n\n\nBinaryData\n====\n\nEvents:  <none>\n"
    )
    assert STRUCTURE.text(text) == text


def test_the_key_of_a_kubeconfigs_user_is_masked() -> None:
    config = {"kind": "Config", "users": [{"name": "admin", "user": {"client-key-data": "cnry"}}]}
    for form in (json.dumps, block):
        assert "cnry" not in STRUCTURE.text(form(config))


def test_a_secret_that_go_printed_is_masked() -> None:
    text = "&Secret{ObjectMeta:{db},Data:map[string][]byte{password: [99 110],},Type:Opaque,}"
    assert STRUCTURE.text(text) == text.replace("password: [99 110],", MARKER)
