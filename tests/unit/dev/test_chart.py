"""The chart: what it renders of the value files in tests/charts, what it refuses, and what its pods may and reach."""

from __future__ import annotations

import ipaddress
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support import charts
from support.charts import Object
from tarsy.config.load import loader
from tarsy.resources import schema
from tarsy_dev import chart, tools

FILES = charts.FILES
CHAINS = tools.ROOT / "manifests" / "chains"
SPLIT = {"mode": "split"}
TRIAL = {"postgres": {"trial": True}}
CLUSTER_WIDE = {"CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}
SELECTING = {"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"}
ENVIRONMENT = {"GATEWAY_MODEL": "qwen3", "TEAM": "sre"}


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    """What a file of values renders."""
    return charts.of_file(request.param.stem)


def containers(template: Object) -> Iterator[Object]:
    """The containers of a pod, first those that come first."""
    yield from template["spec"].get("initContainers", [])
    yield from template["spec"]["containers"]


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
        for container in containers(template):
            assert {one["name"] for one in container["volumeMounts"]} <= volumes.keys()
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
    loaded = loader.platform_file(path, environment=ENVIRONMENT)
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


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, None),
        ({"web": {"enabled": False}}, {"enabled": False}),
        ({"web": {"enabled": False}, "platform": {"web": {"enabled": True}}}, {"enabled": True}),
    ],
)
def test_pages_are_left_out_by_a_value_unless_the_platform_file_has_them(values: Object, expected: Object) -> None:
    platform = charts.one(charts.render(values), "ConfigMap", "tarsy-platform")["data"]["tarsy.yaml"]

    assert yaml.safe_load(platform).get("web") == expected
    assert ("tarsy open" in charts.notes(values)) is not ("web" in values)


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
            SPLIT | TRIAL | {"chains": dict.fromkeys(path.stem for path in CHAINS.glob("*.yaml"))},
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
    assert mounted["controller"] == {"tarsy-database", "tarsy-deliveries"}
    assert mounted["worker"] == {"tarsy-database", "tarsy-llm-keys"}
    assert mounted["api"] == {"tarsy-database", "tarsy-webhook", "tarsy-webhook-tokens"}
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
    assert all(one["topologySpreadConstraints"][0]["topologyKey"] == "kubernetes.io/hostname" for one in found.values())
    assert "A" in {one["name"] for one in found["Deployment/tarsy-api"]["containers"][0]["env"]}
    assert "A" not in {one["name"] for one in found["Deployment/tarsy-worker"]["containers"][0]["env"]}


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({}, {"runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532, "runAsNonRoot": True}),
        ({"runAsUser": 1000680000}, {"runAsUser": 1000680000, "runAsGroup": 65532, "runAsNonRoot": True}),
        ({"runAsUser": None, "runAsGroup": None, "fsGroup": None}, {"runAsNonRoot": True}),
        ({"runAsNonRoot": None, "seccompProfile": None}, {"fsGroup": 65532}),
    ],
    ids=["as it is", "another", "the cluster's", "less"],
)
def test_user_and_groups_are_what_the_values_say(said: Object, wanted: Object) -> None:
    """OpenShift gives each namespace users of its own, and refuses pods that name another."""
    everywhere = TRIAL | SPLIT | {"pods": {"podSecurityContext": said}}
    for name, found in charts.pod_templates(charts.render(everywhere)).items():
        own = {"runAsUser": 999, "runAsGroup": 999, "fsGroup": 999} if "postgres" in name else {}
        context = found["spec"]["securityContext"]
        for key in {"runAsUser", "runAsGroup", "fsGroup", "runAsNonRoot"} & wanted.keys() - said.keys():
            assert context[key] == (own | said).get(key, wanted[key])
        assert {key: context.get(key) for key in said} == said


def test_what_is_empty_for_one_part_is_no_broken_yaml() -> None:
    empty: Object = {
        "podSecurityContext": {}, "securityContext": {}, "resources": {}, "strategy": {}, "autoscaling": {},
        "podDisruptionBudget": {}, "labels": {}, "annotations": {}, "serviceAccount": {},
        "topologySpreadConstraints": [{}], "tolerations": [{}], "affinity": {}, "nodeSelector": {}, "extraEnv": [],
    }  # fmt: skip
    found = charts.render(SPLIT | {"worker": empty})
    worker = charts.pod_templates(found)["Deployment/tarsy-worker"]["spec"]
    labels = {
        f"app.kubernetes.io/{key}": value for key, value in zip(("name", "instance"), ("tarsy",) * 2, strict=True)
    }
    own = {"matchLabels": labels | {"app.kubernetes.io/component": "worker"}}
    assert worker["topologySpreadConstraints"] == [{"labelSelector": own}]
    assert worker["securityContext"].keys() == {"runAsUser", "runAsGroup", "fsGroup", "fsGroupChangePolicy"}


def test_without_the_charts_server_none_is_started_beside_the_operator(tmp_path: Path) -> None:
    """The one that is built in would have the operator's own account."""
    path = tmp_path / "tarsy.yaml"
    for own in ({}, {"mine": {"transport": {"type": "http", "url": "http://mine:1/mcp"}}}):
        given = {"mcp": {"enabled": False}, "platform": {"mcp_servers": own}}
        path.write_text(charts.one(charts.render(given), "ConfigMap", "tarsy-platform")["data"]["tarsy.yaml"])
        assert loader.platform_file(path, environment={}).mcp_servers.keys() == own.keys()


def test_more_toolsets_come_with_their_rights_and_their_way() -> None:
    rule = {"apiGroups": ["kubevirt.io"], "resources": ["virtualmachines"], "verbs": ["get", "list"]}
    egress = [{"ports": [{"port": 20001, "protocol": "TCP"}]}]
    more = '[toolset_configs.kiali]\nurl = "http://kiali:20001"\n'
    given = {
        "toolsets": ["core", "kubevirt", "kiali"],
        "extraRules": [rule],
        "extraConfig": more,
        "extraEgress": egress,
    }
    found = charts.render({"mcp": given})
    (role,) = (one for one in found if one["kind"] == "ClusterRole" and one["metadata"]["name"].endswith("-mcp"))
    assert role["rules"][-1] == rule
    config = tomllib.loads(charts.one(found, "ConfigMap", "tarsy-mcp")["data"]["config.toml"])
    assert config == {
        "read_only": True,
        "toolset_configs": {"kiali": {"url": "http://kiali:20001"}},
        "denied_resources": [{"group": "", "version": "v1", "kind": "Secret"}],
    }
    assert charts.one(found, "NetworkPolicy", "tarsy-mcp")["spec"]["egress"][-1:] == egress


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
    command = ["tarsy", "migrate", "--wait"]
    job = charts.one(charts.render(), "Job", "tarsy-migrate-0-1-0")
    assert "annotations" not in job["metadata"], "helm would wait for a hook that waits for a Secret"
    assert job["spec"].keys() == {"template"}, "it waits as long as it takes, and stays: with a ttl it would come again"
    assert job["spec"]["template"]["spec"]["containers"][0]["command"] == command
    job = charts.one(charts.render(is_upgrade=True), "Job", "tarsy-migrate")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
    assert job["spec"]["template"]["spec"]["containers"][0]["command"] == [*command[:2], "--wait=2m"]
    for mode, commands in (("Init", [command]), ("Manual", [])):
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
    shipped = [yaml.safe_load(path.read_text()) for path in sorted(CHAINS.glob("*.yaml"))]
    found = [one for one in charts.render() if one["kind"] == "AgentChain"]
    assert [(one["metadata"]["name"], one["spec"]) for one in found] == [
        (one["metadata"]["name"], one["spec"]) for one in shipped
    ]
    one = charts.render({"chains": {"kubernetes-agent-chain": None}})
    assert [one["metadata"]["name"] for one in one if one["kind"] == "AgentChain"] == [
        "kubernetes-troubleshooting-chain",
        "tarsy-chain",
    ]


def test_the_notes_have_a_webhook_that_reaches_the_service_and_leave_the_route_alone() -> None:
    text = charts.notes(
        {"service": {"port": 80}, "webhook": {"existingSecret": "hook", "key": "secret"}}, name="r", namespace="ns"
    )
    snippet = re.search(r"^       webhook_configs:\n(       .*\n)+", text, re.MULTILINE)
    assert snippet is not None
    (webhook,) = yaml.safe_load(snippet[0])["webhook_configs"]
    assert "route:" not in text
    assert webhook["url"] == "http://r-tarsy.ns.svc:80/api/v1/webhooks/alertmanager"
    assert webhook["http_config"]["authorization"]["credentials_file"].endswith("/hook/secret")
    assert "kubectl -n ns get inv" in text


def test_controller_knows_its_own_deployment_and_may_read_it_alone() -> None:
    for mode, name in (("single", "tarsy"), ("split", "tarsy-controller")):
        made = charts.render({"mode": mode}, name="tarsy")
        told = {
            one["metadata"]["name"]: variable["value"]
            for one in made
            if one["kind"] == "Deployment"
            for container in one["spec"]["template"]["spec"]["containers"]
            for variable in container.get("env", ())
            if variable["name"] == "TARSY_DEPLOYMENT"
        }
        assert told == {name: name}
        rules = [rule for one in made if one["kind"] == "Role" for rule in one["rules"]]
        (rule,) = [rule for rule in rules if "deployments" in rule["resources"]]
        assert (rule["resourceNames"], rule["verbs"]) == ([name], ["get"])


def test_the_notes_say_that_an_agent_has_no_tools() -> None:
    told = "KubernetesAgent has no tools"
    own: Object = {"agents": {"KubernetesAgent": {"mcp_servers": ["mine"]}}}
    assert told in charts.notes({"mcp": {"enabled": False}})
    for given in ({}, {"mcp": {"enabled": False}, "platform": own}):
        assert told not in charts.notes(given)


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
        if one["kind"] != "NetworkPolicy":
            return False
        return bool(one["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == component)

    def is_meant(self, peer: Object, address: str, pod: str) -> bool:
        if "namespaceSelector" in peer:
            (space,) = peer["namespaceSelector"]["matchLabels"].values()
            return pod == f"{space}/{peer['podSelector']['matchLabels']['k8s-app']}"
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

    def test_receivers_are_reached_by_the_controller_once_one_is_named(self) -> None:
        receiver = {"type": "webhook", "url": "https://n8n.example/hook"}
        for named, is_open in (({}, False), ({"hook": receiver}, True)):
            policy = {"apiServer": {"cidrs": ["10.0.0.1/32"]}}
            found = charts.render(SPLIT | {"networkPolicy": policy, "platform": {"deliveries": named}})
            assert self.reaches(found, "controller", address="142.250.1.1", port=443) is is_open
            assert not self.reaches(found, "api", address="142.250.1.1", port=443)

    def test_the_collector_of_traces_is_reached_by_what_sends_them_once_it_is_named(self) -> None:
        to = [{"ipBlock": {"cidr": "10.9.0.1/32"}}]
        policy = {"networkPolicy": {"collector": {"to": to}, "apiServer": {"cidrs": ["10.0.0.1/32"]}}}
        named = {"platform": {"traces": {"endpoint": "http://collector.observability.svc:4318"}}}
        for given, reached in ((named, True), ({}, False)):
            for kind, sending in ((SPLIT, ("api", "controller", "worker")), ({}, ("operator",))):
                found = charts.render(kind | TRIAL | policy | given)
                for component in sending:
                    assert self.reaches(found, component, address="10.9.0.1", port=4318) is reached
                    assert not self.reaches(found, component, address="10.9.0.2", port=4318)
                for component in ("mcp", "migrate", "test"):
                    assert not self.reaches(found, component, address="10.9.0.1", port=4318)

    def test_names_are_asked_of_the_clusters_servers_alone(self) -> None:
        every = ("api", "controller", "worker", "mcp", "migrate", "test")
        found = charts.render(SPLIT | TRIAL)
        for component in every:
            assert self.reaches(found, component, pod="kube-system/kube-dns", port=53)
            assert self.reaches(found, component, address="169.254.20.10", port=53)
            for address in ("10.96.0.10", "8.8.8.8", "2001:4860:4860::8888", "169.254.169.254"):
                assert not self.reaches(found, component, address=address, port=53)
                assert not self.reaches(found, component, address=address, port=5353)
        server = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "openshift-dns"}}}
        given: Object = {"networkPolicy": {"dns": {"ports": [53, 5353], "to": [server]}}}
        for policy in (one for one in charts.render(SPLIT | given) if one["kind"] == "NetworkPolicy"):
            names, *_ = policy["spec"]["egress"]
            assert names["to"] == [server]
            assert [(one["port"], one["protocol"]) for one in names["ports"]] == [
                (port, protocol) for port in (53, 5353) for protocol in ("UDP", "TCP")
            ]

    def test_ways_that_stay_open_are_told_at_the_installation(self) -> None:
        told = "the policies let the pods that call the API server use ports 443, 6443, 8443, 16443 to any address"
        assert told in charts.notes()
        assert told in charts.notes(SPLIT)
        assert told not in charts.notes({"networkPolicy": {"apiServer": {"cidrs": ["10.0.0.1/32"]}}})
        assert told not in charts.notes({"networkPolicy": {"enabled": False}})

    def test_each_part_has_ways_of_its_own_beside_those_of_all(self) -> None:
        parts = ("api", "controller", "worker", "mcp", "migrate", "postgres", "test")
        rules = {part: [{"ports": [{"port": port, "protocol": "TCP"}]}] for port, part in enumerate(parts, 1)}
        own = {part: {"extraEgress": rule} for part, rule in rules.items()}
        own["postgres"]["trial"] = True  # type: ignore[assignment]
        found = charts.render(SPLIT | own)
        for port, part in enumerate(parts, 1):
            assert [one for one in parts if self.reaches(found, one, port=port)] == [part]
        found = charts.render(SPLIT | TRIAL | {"pods": {"extraEgress": rules["api"]}})
        assert all(self.reaches(found, part, port=1) for part in parts)

    def test_the_api_server_is_reached_where_clusters_have_it(self) -> None:
        found = charts.render()
        for port in (443, 6443, 8443, 16443):
            assert self.reaches(found, "operator", address="10.0.0.1", port=port)

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
