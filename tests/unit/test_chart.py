"""The chart: what it renders of the value files in tests/charts, what it refuses, and what its pods may and reach."""

from __future__ import annotations

import ipaddress
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import charts
from support.charts import Object
from tarsy.config import load
from tarsy.resources import schema
from tarsy_dev import chart, tools, values

FILES = charts.FILES
SPLIT = {"mode": "split"}
TRIAL = {"postgres": {"trial": True}}
CLUSTER_WIDE = {"CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}
SELECTING = {"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"}
ENVIRONMENT = {"GATEWAY_MODEL": "qwen3", "TEAM": "sre"}

BAD = [
    ("{imge: {tag: x}}", ""),
    ("{image: {tag: a b}}", "/image/tag"),
    ("{image: {digest: latest}}", "/image/digest"),
    ("{image: {repository: ''}}", "/image/repository"),
    ("{image: {registry: https://registry.example}}", "/image/registry"),
    ("{image: {pullPolicy: Sometimes}}", "/image/pullPolicy"),
    ("{imagePullSecrets: [registry]}", "/imagePullSecrets/0"),
    ("{mode: both}", "/mode"),
    ("{nameOverride: Tarsy}", "/nameOverride"),
    ("{commonLabels: {a: 1}}", "/commonLabels/a"),
    ("{pods: {nodeSelector: {a: true}}}", "/pods/nodeSelector/a"),
    ("{pods: {tolerations: {key: a}}}", "/pods/tolerations"),
    ("{operator: {replicas: -1}}", "/operator/replicas"),
    ("{operator: {replicas: two}}", "/operator/replicas"),
    ("{operator: {resources: {limits: {memory: lots}}}}", "/operator/resources/limits/memory"),
    ("{operator: {autoscaling: {enabled: true}}}", "/operator/autoscaling"),
    ("{operator: {extraEnv: {A: b}}}", "/operator/extraEnv"),
    ("{operator: {podDisruptionBudget: {maxUnavailable: half}}}", "/operator/podDisruptionBudget/maxUnavailable"),
    ("{operator: {strategy: {type: BlueGreen}}}", "/operator/strategy/type"),
    ("{worker: {replcas: 2}}", "/worker"),
    ("{worker: {livenessProbe: {periodSeconds: 3}}}", "/worker/livenessProbe"),
    ("{service: {port: 70000}}", "/service/port"),
    ("{ingress: {path: api}}", "/ingress/path"),
    ("{ingress: {tls: [{hosts: [a]}]}}", "/ingress/tls/0"),
    ("{database: {existingSecret: Some_Secret}}", "/database/existingSecret"),
    ("{database: {url: 'postgresql://a:b@c/d'}}", "/database"),
    ("{webhook: {token: secret}}", "/webhook"),
    ("{llmKeys: {GOOGLE_API_KEY: key}}", "/llmKeys"),
    ("{postgres: {enabled: true}}", "/postgres"),
    ("{postgres: {storage: {size: big}}}", "/postgres/storage/size"),
    ("{migrate: {mode: Never}}", "/migrate/mode"),
    ("{mcp: {toolsets: [config]}}", "/mcp/toolsets/0"),
    ("{mcp: {deniedResources: [{group: apps}]}}", "/mcp/deniedResources/0"),
    ("{networkPolicy: {egress: {cidrs: [10.0.0.0/8]}}}", "/networkPolicy/egress/cidrs/0"),
    ("{networkPolicy: {database: {cidrs: [db.example.com]}}}", "/networkPolicy/database/cidrs/0"),
    ("{crds: {enabled: 'yes'}}", "/crds/enabled"),
    ("{test: {timeoutSeconds: 5m}}", "/test/timeoutSeconds"),
    ("{extraObjects: [1]}", "/extraObjects/0"),
    ("{platform: {llm_provider: google-default}}", "/platform"),
    ("{platform: {llm_providers: {x: {type: gogle, model: y}}}}", "/platform/llm_providers/x/type"),
    ("{platform: {limits: {tool_call: 1 minute}}}", "/platform/limits/tool_call"),
    ("{platform: {agents: {A: {max_iterations: 1000}}}}", "/platform/agents/A/max_iterations"),
    ("{platform: {mcp_servers: {a: {transport: {type: http}}}}}", "/platform/mcp_servers/a/transport"),
    ("{platform: {mcp_servers: {a__b: {transport: {type: http, url: 'http://a'}}}}}", "/platform/mcp_servers"),
    ("{chains: {c: {alertTypes: [], stages: [{name: s, agent: A}]}}}", "/chains/c/alertTypes"),
    ("{chains: {c: {alertTypes: [a]}}}", "/chains/c"),
    ("{chains: {c: {alertTypes: [a], stages: [{name: s, agent: A, replicas: 20}]}}}", "/chains/c/stages/0/replicas"),
    ("{chains: {c: {alertTypes: [a], stages: [{name: s, agnt: A}]}}}", "/chains/c/stages/0"),
    ("{chains: {Chain_A: {alertTypes: [a], stages: [{name: s, agent: A}]}}}", "/chains"),
]


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    """What a file of values renders."""
    return charts.of_file(request.param.stem)


def containers(template: Object) -> Iterator[Object]:
    """The containers of a pod, first those that come first."""
    yield from template["spec"].get("initContainers", [])
    yield from template["spec"]["containers"]


@pytest.fixture(scope="module")
def refusals() -> list[tuple[Object, str]]:
    """The bad values, as many of them in one installation as do not stand in each other's way, and what is said."""
    batches: list[Object] = []
    for given, _ in BAD:
        for batch in batches:
            if _joined(batch, yaml.safe_load(given)):
                break
        else:
            batches.append(yaml.safe_load(given))
    assert len(batches) < 8
    return [(batch, refusal(batch)) for batch in batches]


def _joined(batch: Object, given: Object) -> bool:
    """Put `given` into `batch`; False, and nothing put, where both say something of the same place."""
    (key, value), *more = given.items()
    if more:
        return False
    if key not in batch:
        batch[key] = value
        return True
    both = isinstance(value, dict) and isinstance(batch[key], dict)
    return both and _joined(batch[key], value)


def refusal(given: Object) -> str:
    """What is said of values that are refused."""
    with pytest.raises(chart.RefusedError) as error:
        charts.render(given)
    return str(error.value)


@pytest.mark.parametrize(("given", "path"), BAD, ids=[given for given, _ in BAD])
def test_bad_values_are_refused_with_their_path(given: str, path: str, refusals: list[tuple[Object, str]]) -> None:
    told = [told for batch, told in refusals if _is_in(yaml.safe_load(given), batch)]
    assert any(f"at '{path}'" in one for one in told)


def _is_in(given: Any, batch: Any) -> bool:
    if not isinstance(given, dict) or not given:
        return bool(given == batch)
    return isinstance(batch, dict) and all(key in batch and _is_in(given[key], batch[key]) for key in given)


def test_unknown_keys_are_refused_in_every_group() -> None:
    given: Object = {}
    groups = list(_groups(values.Values(), ()))
    for path in groups:
        at = given
        for key in path:
            at = at.setdefault(key, {})
        at["unheardOf"] = 1
    told = refusal(given)
    assert len(groups) > 40
    for path in groups:
        assert re.search(
            f"at '{''.join(f'/{key}' for key in path)}': additional properties 'unheardOf' not allowed", told
        )


def _groups(part: values.Part, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Where the groups of values are."""
    yield path
    for name, field in type(part).model_fields.items():
        if isinstance(below := getattr(part, name), values.Part):
            yield from _groups(below, (*path, field.alias or name))


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    import helm_python

    found = helm_python.lint(str(chart.CHART))
    assert not found["errors"]
    assert [one["error"] for one in found["messages"]] == ["icon is recommended"]


def test_every_pod_satisfies_pod_security_restricted(objects: list[Object]) -> None:
    """As the API server judges it is asked in tests/cluster; this says which field it would be."""
    for template in charts.pod_templates(objects).values():
        of_pod = template["spec"]["securityContext"]
        assert of_pod["runAsNonRoot"] is True
        assert of_pod["runAsUser"] > 0
        assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(template):
            of_container = container["securityContext"]
            assert of_container["allowPrivilegeEscalation"] is False
            assert of_container["readOnlyRootFilesystem"] is True
            assert of_container["capabilities"] == {"drop": ["ALL"]}
            assert {"mountPath": "/tmp", "name": "tmp"} in container["volumeMounts"] or "test.py" in str(container)  # noqa: S108


def test_every_pod_has_resources_and_no_limit_of_cpu(objects: list[Object]) -> None:
    for template in charts.pod_templates(objects).values():
        for container in containers(template):
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert container["resources"]["limits"].keys() == {"memory"}


def test_what_pods_mount_is_there_and_whole(objects: list[Object]) -> None:
    """No subPath: a change of the Secret or ConfigMap would never reach the process."""
    configured = {one["metadata"]["name"] for one in objects if one["kind"] == "ConfigMap"}
    for template in charts.pod_templates(objects).values():
        volumes = {one["name"]: one for one in template["spec"]["volumes"]}
        claimed = {"data"}  # of the StatefulSet's template
        for container in containers(template):
            assert {one["name"] for one in container["volumeMounts"]} <= volumes.keys() | claimed
            assert not any("subPath" in one for one in container["volumeMounts"])
        assert {one["configMap"]["name"] for one in volumes.values() if "configMap" in one} <= configured


def test_every_object_is_named_labelled_and_placed(objects: list[Object]) -> None:
    seen = [(one["kind"], one["metadata"]["name"]) for one in objects]
    assert len(seen) == len(set(seen))
    extra = {one["metadata"]["name"] for one in objects if "helm.sh/chart" not in one["metadata"].get("labels", {})}
    assert extra <= {"tarsy-investigator-extra", "tarsy-text", "alerts"}  # extraObjects are as they are written
    for one in objects:
        assert one["metadata"].get("namespace") == (None if one["kind"] in CLUSTER_WIDE else charts.NAME)
        if one["metadata"]["name"] not in extra:
            assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == charts.NAME


def test_what_selects_pods_selects_its_own(objects: list[Object]) -> None:
    """And by three labels alone, which no upgrade changes: selectors are immutable."""
    templates = charts.pod_templates(objects)
    labels = {name: one["metadata"]["labels"] for name, one in templates.items()}
    for one in objects:
        spec = one.get("spec", {})
        match one["kind"]:
            case "Deployment" | "StatefulSet" | "PodDisruptionBudget":
                selector = spec["selector"]["matchLabels"]
            case "Service":
                selector = spec["selector"]
            case "NetworkPolicy" if one["metadata"]["name"].endswith("-migrate") and "Job" not in str(labels):
                continue  # of the Job that an upgrade may bring
            case "NetworkPolicy":
                selector = spec["podSelector"]["matchLabels"]
            case _:
                continue
        assert selector.keys() == SELECTING
        owners = [name for name, found in labels.items() if selector.items() <= found.items()]
        assert len(owners) == 1, one
        if one["kind"] in ("Deployment", "StatefulSet"):
            assert owners == [f"{one['kind']}/{one['metadata']['name']}"]


def test_services_and_policies_name_ports_that_pods_have(objects: list[Object]) -> None:
    ports = {
        (frozenset(found["metadata"]["labels"].items()), port["name"])
        for found in charts.pod_templates(objects).values()
        for container in containers(found)
        for port in container.get("ports", [])
    }
    services = [one for one in objects if one["kind"] == "Service"]
    assert services
    for one in services:
        for port in one["spec"]["ports"]:
            assert any(
                one["spec"]["selector"].items() <= labels and port["targetPort"] == name for labels, name in ports
            )


def test_the_platform_file_that_is_rendered_loads(objects: list[Object], tmp_path: Path) -> None:
    (found,) = (one for one in objects if one["metadata"]["name"].endswith("-platform"))
    path = tmp_path / "tarsy.yaml"
    path.write_text(found["data"]["tarsy.yaml"])
    loaded = load.platform_file(path, environment=ENVIRONMENT)
    if any(one["metadata"]["name"].endswith("-mcp") for one in objects if one["kind"] == "Service"):
        (service,) = (one for one in objects if one["kind"] == "Service" and "-mcp" in one["metadata"]["name"])
        transport = loaded.mcp_servers["kubernetes-server"].transport
        assert transport.type == "http"
        assert transport.url == f"http://{service['metadata']['name']}:8080/mcp"


def test_a_server_of_the_platform_file_goes_before_the_charts_own() -> None:
    own = {"transport": {"type": "http", "url": "http://elsewhere:1/mcp"}}
    found = charts.one(
        charts.render({"platform": {"mcp_servers": {"kubernetes-server": own}}}), "ConfigMap", "tarsy-platform"
    )
    assert yaml.safe_load(found["data"]["tarsy.yaml"])["mcp_servers"] == {"kubernetes-server": own}


def test_large_numbers_and_variables_come_through_as_they_are_written() -> None:
    provider = {"type": "openai", "model": "{{.MODEL}}", "tokens_per_minute": 100_000_000}
    found = charts.one(charts.render({"platform": {"llm_providers": {"big": provider}}}), "ConfigMap", "tarsy-platform")
    assert yaml.safe_load(found["data"]["tarsy.yaml"])["llm_providers"]["big"] == provider


def test_a_change_of_the_platform_file_restarts_nothing_and_one_of_the_mcp_servers_does() -> None:
    before = charts.pod_templates(charts.render())
    assert charts.pod_templates(charts.render({"platform": {"queue": {"slots": 5}}})) == before
    after = charts.pod_templates(charts.render({"mcp": {"deniedResources": [{"kind": "ConfigMap"}]}}))
    assert [name for name, template in after.items() if template != before[name]] == ["Deployment/tarsy-mcp"]


def test_two_releases_share_no_name_but_that_of_the_kinds() -> None:
    """In one namespace under two names, and in two namespaces under one."""

    def named(name: str, namespace: str) -> set[tuple[str, str, str]]:
        found = charts.render(
            SPLIT | TRIAL | {"chains": {"kubernetes-agent-chain": None, "kubernetes-troubleshooting-chain": None}},
            name=name,
            namespace=namespace,
        )
        return {(one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]) for one in found}

    for other in (named("second", "tarsy"), named("tarsy", "elsewhere")):
        assert {kind for kind, _, _ in named("tarsy", "tarsy") & other} == {"CustomResourceDefinition"}


def test_long_names_stay_names() -> None:
    for one in charts.render(SPLIT | TRIAL, name="r" * 53):
        assert len(one["metadata"]["name"]) <= 63 or one["kind"] in CLUSTER_WIDE


def test_secrets_are_mounted_as_files_by_those_who_need_them() -> None:
    templates = charts.pod_templates(charts.render(SPLIT))
    mounted = {
        name.removeprefix("Deployment/tarsy-"): {
            one["secret"]["secretName"] for one in found["spec"]["volumes"] if "secret" in one
        }
        for name, found in templates.items()
    }
    assert mounted["controller"] == {"tarsy-database"}
    assert mounted["worker"] == {"tarsy-database", "tarsy-llm-keys"}
    assert mounted["api"] == {"tarsy-database", "tarsy-webhook"}
    assert mounted["mcp"] == set()
    for name in ("controller", "worker", "api"):
        found = templates[f"Deployment/tarsy-{name}"]["spec"]
        assert all(one["secret"]["optional"] for one in found["volumes"] if "secret" in one)
        environment = {one["name"]: one["value"] for one in found["containers"][0]["env"]}
        files = {value for key, value in environment.items() if key.endswith("_FILE")}
        folders = {one["mountPath"] for one in found["containers"][0]["volumeMounts"]}
        assert {value.rpartition("/")[0] for value in files} <= folders


def test_nothing_that_is_rendered_is_a_secret_but_the_trials_own() -> None:
    for given in ({}, SPLIT):
        assert not [one for one in charts.render(given) if one["kind"] == "Secret"]
    (found,) = (one for one in charts.render(TRIAL) if one["kind"] == "Secret")
    password = found["stringData"]["password"]
    assert re.fullmatch(r"[A-Za-z0-9]{32}", password)
    assert found["stringData"]["uri"] == f"postgresql://tarsy:{password}@tarsy-postgres:5432/tarsy"
    assert found["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_one_process_or_three_play_all_roles() -> None:
    for given in ({}, SPLIT):
        found = charts.pod_templates(charts.render(given))
        flags = [
            flag for one in found.values() for flag in one["spec"]["containers"][0].get("args", ()) if "--role" in flag
        ]
        assert sorted(flags) == (["--role=api", "--role=controller", "--role=worker"] if given else ["--role=all"])


def test_only_who_asks_the_api_server_has_a_token() -> None:
    found = charts.pod_templates(charts.render(SPLIT | TRIAL))
    tokens = {name: one["spec"]["automountServiceAccountToken"] for name, one in found.items()}
    assert {name for name, mounted in tokens.items() if mounted} == {
        "Deployment/tarsy-api", "Deployment/tarsy-controller", "Deployment/tarsy-mcp", "Pod/tarsy-test"
    }  # fmt: skip


def test_a_role_replaces_what_is_said_of_all() -> None:
    given = SPLIT | {
        "pods": {"priorityClassName": "low", "nodeSelector": {"a": "b"}},
        "operator": {"priorityClassName": "middle", "extraEnv": [{"name": "A", "value": "b"}]},
        "worker": {"priorityClassName": "high", "extraEnv": []},
    }
    found = {name: one["spec"] for name, one in charts.pod_templates(charts.render(given)).items()}
    classes = {name: one["priorityClassName"] for name, one in found.items()}
    assert classes["Deployment/tarsy-mcp"] == "low"
    assert classes["Deployment/tarsy-api"] == "middle"
    assert classes["Deployment/tarsy-worker"] == "high"
    assert all(one["nodeSelector"] == {"a": "b"} for one in found.values())
    assert "A" in {one["name"] for one in found["Deployment/tarsy-api"]["containers"][0]["env"]}
    assert "A" not in {one["name"] for one in found["Deployment/tarsy-worker"]["containers"][0]["env"]}


@pytest.mark.parametrize(
    ("image", "told"),
    [
        ({}, "tarsy:0.1.0"),
        ({"tag": "1.2"}, "tarsy:1.2"),
        ({"registry": "registry.example:5000", "repository": "a/b"}, "registry.example:5000/a/b:0.1.0"),
        ({"tag": "1.2", "digest": f"sha256:{'0' * 64}"}, f"tarsy@sha256:{'0' * 64}"),
    ],
)
def test_an_image_is_named_by_digest_else_by_tag(image: Object, told: str) -> None:
    for name, found in charts.pod_templates(charts.render({"image": image})).items():
        assert [one["image"] for one in containers(found)] == [told], name


def test_probes_tell_dead_from_not_ready() -> None:
    for found in charts.pod_templates(charts.render(SPLIT)).values():
        (container,) = found["spec"]["containers"]
        if container["name"] == "tarsy":
            assert container["startupProbe"]["httpGet"] == container["livenessProbe"]["httpGet"]
            assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
            assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}


def test_the_database_is_migrated_after_installations_and_before_upgrades_or_before_each_pod() -> None:
    job = charts.one(charts.render(), "Job", "tarsy-migrate")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "post-install,pre-upgrade"
    assert job["spec"]["template"]["spec"]["containers"][0]["command"] == ["tarsy", "migrate"]
    for mode, commands in (("Init", [["tarsy", "migrate"]]), ("Manual", [])):
        found = charts.render({"migrate": {"mode": mode}})
        assert not [one for one in found if one["kind"] == "Job"]
        first = charts.pod_templates(found)["Deployment/tarsy"]["spec"].get("initContainers", [])
        assert [one["command"] for one in first] == commands


def test_the_kinds_are_those_of_crds_and_stay_unless_told_otherwise() -> None:
    for one in (schema.agent_chain(), schema.alert_investigation()):
        found = charts.one(charts.render(), one["kind"], one["metadata"]["name"])
        assert found["spec"] == one["spec"]
        assert found["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    gone = charts.one(charts.render({"crds": {"keep": False}}), "CustomResourceDefinition", "agentchains.tarsy.dev")
    assert "annotations" not in gone["metadata"]
    assert not [one for one in charts.render({"crds": {"enabled": False}}) if one["kind"] == "CustomResourceDefinition"]


def test_what_looks_like_a_template_in_a_kind_is_text(tmp_path: Path) -> None:
    folder = tmp_path / "tarsy"
    shutil.copytree(chart.CHART, folder)
    crd = schema.agent_chain()
    crd["spec"]["names"]["singular"] = 'as {{ .Values.mode }} or {{"{{.VAR}}"}} {{- end }}'
    (folder / "templates/crds/agentchains.tarsy.dev.yaml").write_text(chart.templated(crd))
    found = chart.objects(chart.rendered({}, name="tarsy", namespace="tarsy", folder=folder))
    assert charts.one(found, crd["kind"], crd["metadata"]["name"])["spec"] == crd["spec"]


def test_the_builtin_chains_are_there_unless_taken_out() -> None:
    shipped = [yaml.safe_load(path.read_text()) for path in sorted((tools.ROOT / "manifests/chains").glob("*.yaml"))]
    found = [one for one in charts.render() if one["kind"] == "AgentChain"]
    assert [(one["metadata"]["name"], one["spec"]) for one in found] == [
        (one["metadata"]["name"], one["spec"]) for one in shipped
    ]
    one = charts.render({"chains": {"kubernetes-agent-chain": None}})
    assert [one["metadata"]["name"] for one in one if one["kind"] == "AgentChain"] == [
        "kubernetes-troubleshooting-chain"
    ]


def test_the_notes_have_a_receiver_that_reaches_the_service() -> None:
    text = charts.notes(
        {"service": {"port": 80}, "webhook": {"existingSecret": "hook", "key": "secret"}}, name="r", namespace="ns"
    )
    snippet = re.search(r"^     receivers:\n(     .*\n)+", text, re.MULTILINE)
    assert snippet is not None
    (receiver,) = yaml.safe_load(snippet[0])["receivers"]
    (webhook,) = receiver["webhook_configs"]
    assert webhook["url"] == "http://r-tarsy.ns.svc:80/api/v1/webhooks/alertmanager"
    assert webhook["http_config"]["authorization"]["credentials_file"].endswith("/hook/secret")
    assert "kubectl -n ns get inv" in text


class TestNetwork:
    """The policies, read as the cluster reads them: what no rule lets through does not go."""

    def reaches(self, objects: list[Object], component: str, *, address: str = "", pod: str = "", port: int) -> bool:
        """Whether the pods of a component may call that address, or those pods, on that port."""
        (policy,) = (one for one in objects if self.selects(one, component))
        return any(
            any(each["port"] == port for each in rule["ports"])
            and ("to" not in rule or any(self.is_meant(each, address, pod) for each in rule["to"]))
            for rule in policy["spec"]["egress"]
        )

    def selects(self, one: Object, component: str) -> bool:
        return one["kind"] == "NetworkPolicy" and (
            one["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == component
        )

    def is_meant(self, peer: Object, address: str, pod: str) -> bool:
        if "ipBlock" not in peer:
            return bool(pod) and peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == pod
        block = peer["ipBlock"]
        return (
            bool(address)
            and self.is_in(address, block["cidr"])
            and not any(self.is_in(address, one) for one in block.get("except", ()))
        )

    def is_in(self, address: str, network: str) -> bool:
        return ipaddress.ip_address(address) in ipaddress.ip_network(network)

    def test_every_pod_has_one(self) -> None:
        for given in (TRIAL, SPLIT | TRIAL):
            found = charts.render(given)
            for template in charts.pod_templates(found).values():
                component = template["metadata"]["labels"]["app.kubernetes.io/component"]
                (policy,) = (one for one in found if self.selects(one, component))
                assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        assert not [
            one for one in charts.render({"networkPolicy": {"enabled": False}}) if one["kind"] == "NetworkPolicy"
        ]

    def test_a_worker_reaches_models_and_tools_and_nothing_private(self) -> None:
        found = charts.render(SPLIT | TRIAL)
        assert self.reaches(found, "worker", address="142.250.1.1", port=443)
        assert self.reaches(found, "worker", address="2a00:1450::1", port=443)
        assert self.reaches(found, "worker", pod="mcp", port=8080)
        assert self.reaches(found, "worker", pod="postgres", port=5432)
        assert self.reaches(found, "worker", address="10.96.0.10", port=53)
        for private in ("10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.1.1", "fd00::1", "fe80::1"):
            assert not self.reaches(found, "worker", address=private, port=443)
        assert not self.reaches(found, "worker", address="142.250.1.1", port=80)
        assert not self.reaches(found, "worker", address="10.0.0.1", port=6443)
        assert not self.reaches(found, "worker", pod="api", port=8080)

    def test_the_others_reach_what_they_ask_and_no_models(self) -> None:
        found = charts.render(SPLIT | TRIAL | {"networkPolicy": {"apiServer": {"cidrs": ["10.0.0.1/32"]}}})
        for component in ("controller", "api", "mcp", "test"):
            assert self.reaches(found, component, address="10.0.0.1", port=6443)
            assert not self.reaches(found, component, address="142.250.1.1", port=443)
            assert not self.reaches(found, component, address="10.0.0.2", port=443)
        for component in ("controller", "api", "migrate"):
            assert self.reaches(found, component, pod="postgres", port=5432)
        for component in ("controller", "api", "mcp", "migrate"):
            assert not self.reaches(found, component, pod="worker", port=8080)
        assert not self.reaches(found, "mcp", pod="postgres", port=5432)
        assert not self.reaches(found, "migrate", address="10.0.0.1", port=6443)
        (postgres,) = (one for one in found if self.selects(one, "postgres"))
        assert postgres["spec"]["egress"] == []

    def test_tools_and_database_are_called_by_those_who_use_them_alone(self) -> None:
        found = charts.render(SPLIT | TRIAL)
        callers = {}
        for component in ("mcp", "postgres"):
            (policy,) = (one for one in found if self.selects(one, component))
            ((peer,),) = [rule["from"] for rule in policy["spec"]["ingress"]]
            (expression,) = peer["podSelector"]["matchExpressions"]
            callers[component] = set(expression["values"])
        assert callers["mcp"] == {"operator", "worker"}
        assert callers["postgres"] == {"api", "controller", "worker", "migrate"}
        for component in ("controller", "worker", "migrate", "test"):
            (policy,) = (one for one in found if self.selects(one, component))
            assert policy["spec"]["ingress"] == []
