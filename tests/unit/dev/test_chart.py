"""The chart: what it renders of the value files in tests/charts, what it refuses, and what its pods may and reach."""

from __future__ import annotations

import ipaddress
import re
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
    """Render the chart with a file of values."""
    return charts.of_file(request.param.stem)


def containers(template: Object) -> Iterator[Object]:
    """The containers of a pod, first those that come first."""
    yield from template["spec"].get("initContainers", [])
    yield from template["spec"]["containers"]


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    import helm_python

    lint_report = helm_python.lint(str(chart.CHART))
    assert not lint_report["errors"]
    assert [finding["error"] for finding in lint_report["messages"]] == ["icon is recommended"]


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


def test_volumes_mounted_by_pods_exist_and_are_mounted_without_subpath(objects: list[Object]) -> None:
    """No subPath: a change of the Secret or ConfigMap would never reach the process."""
    configured = {manifest["metadata"]["name"] for manifest in charts.of_kind(objects, "ConfigMap")}
    for template in charts.pod_templates(objects).values():
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        for container in containers(template):
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys()
            assert not any("subPath" in mount for mount in container["volumeMounts"])
        assert {volume["configMap"]["name"] for volume in volumes.values() if "configMap" in volume} <= configured


def test_every_object_is_named_labelled_and_placed(objects: list[Object]) -> None:
    seen = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in objects]
    assert len(seen) == len(set(seen))
    extra = {
        manifest["metadata"]["name"]
        for manifest in objects
        if "helm.sh/chart" not in manifest["metadata"].get("labels", {})
    }
    assert extra <= {"tarsy-investigator-extra", "tarsy-text", "alerts"}  # extraObjects are as they are written
    for manifest in objects:
        assert manifest["metadata"].get("namespace") == (None if manifest["kind"] in CLUSTER_WIDE else charts.NAME)
        if manifest["metadata"]["name"] not in extra:
            assert manifest["metadata"]["labels"]["app.kubernetes.io/instance"] == charts.NAME


def test_selectors_of_pods_select_their_own(objects: list[Object]) -> None:
    """And by three labels alone, which no upgrade changes: selectors are immutable."""
    templates = charts.pod_templates(objects)
    labels = {name: template["metadata"]["labels"] for name, template in templates.items()}
    for manifest in objects:
        spec = manifest.get("spec", {})
        match manifest["kind"]:
            case "Deployment" | "StatefulSet" | "PodDisruptionBudget":
                selector = spec["selector"]["matchLabels"]
            case "Service":
                selector = spec["selector"]
            case "NetworkPolicy" if manifest["metadata"]["name"].endswith("-migrate") and "Job" not in str(labels):
                continue  # of the Job that an upgrade may bring
            case "NetworkPolicy":
                selector = spec["podSelector"]["matchLabels"]
            case _:
                continue
        assert selector.keys() == SELECTING
        owners = [name for name, pod_labels in labels.items() if selector.items() <= pod_labels.items()]
        assert len(owners) == 1, manifest
        if manifest["kind"] in ("Deployment", "StatefulSet"):
            assert owners == [f"{manifest['kind']}/{manifest['metadata']['name']}"]


def test_services_and_policies_name_ports_that_pods_have(objects: list[Object]) -> None:
    ports = {
        (frozenset(template["metadata"]["labels"].items()), port["name"])
        for template in charts.pod_templates(objects).values()
        for container in containers(template)
        for port in container.get("ports", [])
    }
    services = charts.of_kind(objects, "Service")
    assert services
    for service in services:
        for port in service["spec"]["ports"]:
            assert any(
                service["spec"]["selector"].items() <= labels and port["targetPort"] == name for labels, name in ports
            )


def test_the_platform_file_that_is_rendered_loads(objects: list[Object], tmp_path: Path) -> None:
    (config_map,) = (manifest for manifest in objects if manifest["metadata"]["name"].endswith("-platform"))
    path = tmp_path / "tarsy.yaml"
    path.write_text(config_map["data"]["tarsy.yaml"])
    loaded = loader.platform_file(path, environment=ENVIRONMENT)
    if any(manifest["metadata"]["name"].endswith("-mcp") for manifest in charts.of_kind(objects, "Service")):
        (service,) = (
            manifest for manifest in charts.of_kind(objects, "Service") if "-mcp" in manifest["metadata"]["name"]
        )
        transport = loaded.mcp_servers["kubernetes-server"].transport
        assert transport.type == "http"
        assert transport.url == f"http://{service['metadata']['name']}:8080/mcp"


def test_a_server_of_the_platform_file_goes_before_the_charts_own() -> None:
    own = {"transport": {"type": "http", "url": "http://elsewhere:1/mcp"}}
    config_map = charts.one(
        charts.render({"platform": {"mcp_servers": {"kubernetes-server": own}}}), "ConfigMap", "tarsy-platform"
    )
    assert yaml.safe_load(config_map["data"]["tarsy.yaml"])["mcp_servers"] == {"kubernetes-server": own}


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
    config_map = charts.one(
        charts.render({"platform": {"llm_providers": {"big": provider}}}), "ConfigMap", "tarsy-platform"
    )
    assert yaml.safe_load(config_map["data"]["tarsy.yaml"])["llm_providers"]["big"] == provider


def test_platform_file_change_restarts_no_pod_and_mcp_value_change_restarts_mcp_pod() -> None:
    before = charts.pod_templates(charts.render())
    assert charts.pod_templates(charts.render({"platform": {"queue": {"slots": 5}}})) == before
    after = charts.pod_templates(charts.render({"mcp": {"deniedResources": [{"kind": "ConfigMap"}]}}))
    assert [name for name, template in after.items() if template != before[name]] == ["Deployment/tarsy-mcp"]


def test_two_releases_share_no_name_but_that_of_the_kinds() -> None:
    """In one namespace under two names, and in two namespaces under one."""

    def named(name: str, namespace: str) -> set[tuple[str, str, str]]:
        manifests = charts.render(
            SPLIT | TRIAL | {"chains": dict.fromkeys(path.stem for path in CHAINS.glob("*.yaml"))},
            name=name,
            namespace=namespace,
        )
        return {
            (manifest["kind"], manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"])
            for manifest in manifests
        }

    for other in (named("second", "tarsy"), named("tarsy", "elsewhere")):
        assert {kind for kind, _, _ in named("tarsy", "tarsy") & other} == {"CustomResourceDefinition"}


def test_long_names_stay_names() -> None:
    for manifest in charts.render(SPLIT | TRIAL, name="r" * 53):
        assert len(manifest["metadata"]["name"]) <= 63 or manifest["kind"] in CLUSTER_WIDE


def test_secrets_are_mounted_as_files_only_into_pods_that_need_them() -> None:
    templates = charts.pod_templates(charts.render(SPLIT))
    mounted = {
        name.removeprefix("Deployment/tarsy-"): {
            volume["secret"]["secretName"] for volume in template["spec"]["volumes"] if "secret" in volume
        }
        for name, template in templates.items()
    }
    assert mounted["controller"] == {"tarsy-database", "tarsy-deliveries"}
    assert mounted["worker"] == {"tarsy-database", "tarsy-llm-keys"}
    assert mounted["api"] == {"tarsy-database", "tarsy-webhook", "tarsy-webhook-tokens"}
    assert mounted["mcp"] == set()
    for name in ("controller", "worker", "api"):
        pod_spec = templates[f"Deployment/tarsy-{name}"]["spec"]
        assert all(volume["secret"]["optional"] for volume in pod_spec["volumes"] if "secret" in volume)
        environment = {variable["name"]: variable["value"] for variable in pod_spec["containers"][0]["env"]}
        files = {value for key, value in environment.items() if key.endswith("_FILE")}
        folders = {mount["mountPath"] for mount in pod_spec["containers"][0]["volumeMounts"]}
        assert {value.rpartition("/")[0] for value in files} <= folders


def test_chart_renders_no_secret_but_the_trials_own() -> None:
    for values in ({}, SPLIT):
        assert not charts.of_kind(charts.render(values), "Secret")
    (secret,) = charts.of_kind(charts.render(TRIAL), "Secret")
    password = secret["stringData"]["password"]
    assert re.fullmatch(r"[A-Za-z0-9]{32}", password)
    assert secret["stringData"]["uri"] == f"postgresql://tarsy:{password}@tarsy-postgres:5432/tarsy"
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_all_roles_are_run_by_one_process_or_by_three() -> None:
    for values in ({}, SPLIT):
        templates = charts.pod_templates(charts.render(values))
        flags = [
            flag
            for template in templates.values()
            for flag in template["spec"]["containers"][0].get("args", ())
            if "--role" in flag
        ]
        assert sorted(flags) == (["--role=api", "--role=controller", "--role=worker"] if values else ["--role=all"])


def test_pods_that_ask_the_api_server_alone_have_a_token() -> None:
    templates = charts.pod_templates(charts.render(SPLIT | TRIAL))
    tokens = {name: template["spec"]["automountServiceAccountToken"] for name, template in templates.items()}
    assert {name for name, mounted in tokens.items() if mounted} == {
        "Deployment/tarsy-api", "Deployment/tarsy-controller", "Deployment/tarsy-mcp", "Pod/tarsy-test"
    }  # fmt: skip


def test_role_values_override_values_for_all_pods() -> None:
    values = SPLIT | {
        "pods": {"priorityClassName": "low", "nodeSelector": {"a": "b"}},
        "operator": {"priorityClassName": "middle", "extraEnv": [{"name": "A", "value": "b"}]},
        "worker": {"priorityClassName": "high", "extraEnv": []},
    }
    pod_specs = {name: template["spec"] for name, template in charts.pod_templates(charts.render(values)).items()}
    classes = {name: pod_spec["priorityClassName"] for name, pod_spec in pod_specs.items()}
    assert classes["Deployment/tarsy-mcp"] == "low"
    assert classes["Deployment/tarsy-api"] == "middle"
    assert classes["Deployment/tarsy-worker"] == "high"
    assert all(pod_spec["nodeSelector"] == {"a": "b"} for pod_spec in pod_specs.values())
    assert all(
        pod_spec["topologySpreadConstraints"][0]["topologyKey"] == "kubernetes.io/hostname"
        for pod_spec in pod_specs.values()
    )
    assert "A" in {variable["name"] for variable in pod_specs["Deployment/tarsy-api"]["containers"][0]["env"]}
    assert "A" not in {variable["name"] for variable in pod_specs["Deployment/tarsy-worker"]["containers"][0]["env"]}


@pytest.mark.parametrize(
    ("security_context", "wanted"),
    [
        ({}, {"runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532, "runAsNonRoot": True}),
        ({"runAsUser": 1000680000}, {"runAsUser": 1000680000, "runAsGroup": 65532, "runAsNonRoot": True}),
        ({"runAsUser": None, "runAsGroup": None, "fsGroup": None}, {"runAsNonRoot": True}),
        ({"runAsNonRoot": None, "seccompProfile": None}, {"fsGroup": 65532}),
    ],
    ids=["as it is", "another", "the cluster's", "less"],
)
def test_user_and_groups_are_what_the_values_say(security_context: Object, wanted: Object) -> None:
    """OpenShift gives each namespace users of its own, and refuses pods that name another."""
    everywhere = TRIAL | SPLIT | {"pods": {"podSecurityContext": security_context}}
    for name, template in charts.pod_templates(charts.render(everywhere)).items():
        own = {"runAsUser": 999, "runAsGroup": 999, "fsGroup": 999} if "postgres" in name else {}
        context = template["spec"]["securityContext"]
        for key in {"runAsUser", "runAsGroup", "fsGroup", "runAsNonRoot"} & wanted.keys() - security_context.keys():
            assert context[key] == (own | security_context).get(key, wanted[key])
        assert {key: context.get(key) for key in security_context} == security_context


def test_empty_setting_of_component_renders_valid_yaml() -> None:
    empty: Object = {
        "podSecurityContext": {}, "securityContext": {}, "resources": {}, "strategy": {}, "autoscaling": {},
        "podDisruptionBudget": {}, "labels": {}, "annotations": {}, "serviceAccount": {},
        "topologySpreadConstraints": [{}], "tolerations": [{}], "affinity": {}, "nodeSelector": {}, "extraEnv": [],
    }  # fmt: skip
    manifests = charts.render(SPLIT | {"worker": empty})
    worker = charts.pod_templates(manifests)["Deployment/tarsy-worker"]["spec"]
    labels = {
        f"app.kubernetes.io/{key}": value for key, value in zip(("name", "instance"), ("tarsy",) * 2, strict=True)
    }
    own = {"matchLabels": labels | {"app.kubernetes.io/component": "worker"}}
    assert worker["topologySpreadConstraints"] == [{"labelSelector": own}]
    assert worker["securityContext"].keys() == {"runAsUser", "runAsGroup", "fsGroup", "fsGroupChangePolicy"}


def test_no_server_is_started_beside_the_operator_without_the_charts_own(tmp_path: Path) -> None:
    """The one that is built in would have the operator's own account."""
    path = tmp_path / "tarsy.yaml"
    for own in ({}, {"mine": {"transport": {"type": "http", "url": "http://mine:1/mcp"}}}):
        values = {"mcp": {"enabled": False}, "platform": {"mcp_servers": own}}
        path.write_text(charts.one(charts.render(values), "ConfigMap", "tarsy-platform")["data"]["tarsy.yaml"])
        assert loader.platform_file(path, environment={}).mcp_servers.keys() == own.keys()


def test_more_toolsets_come_with_their_rights_and_their_way() -> None:
    rule = {"apiGroups": ["kubevirt.io"], "resources": ["virtualmachines"], "verbs": ["get", "list"]}
    egress = [{"ports": [{"port": 20001, "protocol": "TCP"}]}]
    more = '[toolset_configs.kiali]\nurl = "http://kiali:20001"\n'
    mcp_values = {
        "toolsets": ["core", "kubevirt", "kiali"],
        "extraRules": [rule],
        "extraConfig": more,
        "extraEgress": egress,
    }
    manifests = charts.render({"mcp": mcp_values})
    (role,) = (
        manifest
        for manifest in charts.of_kind(manifests, "ClusterRole")
        if manifest["metadata"]["name"].endswith("-mcp")
    )
    assert role["rules"][-1] == rule
    config = tomllib.loads(charts.one(manifests, "ConfigMap", "tarsy-mcp")["data"]["config.toml"])
    assert config == {
        "read_only": True,
        "toolset_configs": {"kiali": {"url": "http://kiali:20001"}},
        "denied_resources": [{"group": "", "version": "v1", "kind": "Secret"}],
    }
    assert charts.one(manifests, "NetworkPolicy", "tarsy-mcp")["spec"]["egress"][-1:] == egress


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ({}, "tarsy:0.1.0"),
        ({"tag": "1.2"}, "tarsy:1.2"),
        ({"registry": "registry.example:5000", "repository": "a/b"}, "registry.example:5000/a/b:0.1.0"),
        ({"tag": "1.2", "digest": f"sha256:{'0' * 64}"}, f"tarsy@sha256:{'0' * 64}"),
    ],
)
def test_an_image_is_named_by_digest_else_by_tag(image: Object, expected: str) -> None:
    for name, template in charts.pod_templates(charts.render({"image": image})).items():
        assert [container["image"] for container in containers(template)] == [expected], name


def test_probes_tell_dead_from_not_ready() -> None:
    for template in charts.pod_templates(charts.render(SPLIT)).values():
        (container,) = template["spec"]["containers"]
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
        manifests = charts.render({"migrate": {"mode": mode}})
        assert not charts.of_kind(manifests, "Job")
        first = charts.pod_templates(manifests)["Deployment/tarsy"]["spec"].get("initContainers", [])
        assert [container["command"] for container in first] == commands


def test_chart_renders_the_crds_and_keeps_them_on_uninstall_by_default() -> None:
    for definition in (schema.agent_chain(), schema.alert_investigation()):
        rendered = charts.one(charts.render(), definition["kind"], definition["metadata"]["name"])
        assert rendered["spec"] == definition["spec"]
        assert rendered["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    gone = charts.one(charts.render({"crds": {"keep": False}}), "CustomResourceDefinition", "agentchains.tarsy.dev")
    assert "annotations" not in gone["metadata"]
    assert not charts.of_kind(charts.render({"crds": {"enabled": False}}), "CustomResourceDefinition")


def test_the_builtin_chains_are_there_unless_taken_out() -> None:
    shipped = [yaml.safe_load(path.read_text()) for path in sorted(CHAINS.glob("*.yaml"))]
    rendered = charts.of_kind(charts.render(), "AgentChain")
    assert [(manifest["metadata"]["name"], manifest["spec"]) for manifest in rendered] == [
        (manifest["metadata"]["name"], manifest["spec"]) for manifest in shipped
    ]
    manifests = charts.render({"chains": {"kubernetes-agent-chain": None}})
    assert [manifest["metadata"]["name"] for manifest in charts.of_kind(manifests, "AgentChain")] == [
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


def test_controller_knows_its_deployment_and_is_allowed_to_read_only_that_deployment() -> None:
    for mode, name in (("single", "tarsy"), ("split", "tarsy-controller")):
        made = charts.render({"mode": mode}, name="tarsy")
        deployment_names = {
            manifest["metadata"]["name"]: variable["value"]
            for manifest in charts.of_kind(made, "Deployment")
            for container in manifest["spec"]["template"]["spec"]["containers"]
            for variable in container.get("env", ())
            if variable["name"] == "TARSY_DEPLOYMENT"
        }
        assert deployment_names == {name: name}
        rules = [rule for manifest in charts.of_kind(made, "Role") for rule in manifest["rules"]]
        (rule,) = [rule for rule in rules if "deployments" in rule["resources"]]
        assert (rule["resourceNames"], rule["verbs"]) == ([name], ["get"])


class TestNetwork:
    """The policies, read as the cluster reads them: what no rule lets through does not go."""

    def reaches(self, objects: list[Object], component: str, *, address: str = "", pod: str = "", port: int) -> bool:
        """Whether the pods of a component may call that address, or those pods, on that port."""
        (policy,) = (manifest for manifest in objects if self.selects(manifest, component))
        return any(
            any(each["port"] == port for each in rule["ports"])
            and ("to" not in rule or any(self.is_meant(each, address, pod) for each in rule["to"]))
            for rule in policy["spec"]["egress"]
        )

    def selects(self, manifest: Object, component: str) -> bool:
        if manifest["kind"] != "NetworkPolicy":
            return False
        return bool(manifest["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == component)

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
            and not any(self.is_in(address, excluded) for excluded in block.get("except", ()))
        )

    def is_in(self, address: str, network: str) -> bool:
        return ipaddress.ip_address(address) in ipaddress.ip_network(network)

    def test_every_pod_has_exactly_one_network_policy(self) -> None:
        for values in (TRIAL, SPLIT | TRIAL):
            manifests = charts.render(values)
            for template in charts.pod_templates(manifests).values():
                component = template["metadata"]["labels"]["app.kubernetes.io/component"]
                (policy,) = (manifest for manifest in manifests if self.selects(manifest, component))
                assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        assert not charts.of_kind(charts.render({"networkPolicy": {"enabled": False}}), "NetworkPolicy")

    def test_a_worker_reaches_models_and_tools_and_nothing_private(self) -> None:
        manifests = charts.render(SPLIT | TRIAL)
        assert self.reaches(manifests, "worker", address="142.250.1.1", port=443)
        assert self.reaches(manifests, "worker", address="2a00:1450::1", port=443)
        assert self.reaches(manifests, "worker", pod="mcp", port=8080)
        assert self.reaches(manifests, "worker", pod="postgres", port=5432)
        for private in ("10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.1.1", "fd00::1", "fe80::1"):
            assert not self.reaches(manifests, "worker", address=private, port=443)
        assert not self.reaches(manifests, "worker", address="142.250.1.1", port=80)
        assert not self.reaches(manifests, "worker", address="10.0.0.1", port=6443)
        assert not self.reaches(manifests, "worker", pod="api", port=8080)

    def test_the_others_reach_what_they_ask_and_no_models(self) -> None:
        manifests = charts.render(SPLIT | TRIAL | {"networkPolicy": {"apiServer": {"cidrs": ["10.0.0.1/32"]}}})
        for component in ("controller", "api", "mcp", "test"):
            assert self.reaches(manifests, component, address="10.0.0.1", port=6443)
            assert not self.reaches(manifests, component, address="142.250.1.1", port=443)
            assert not self.reaches(manifests, component, address="10.0.0.2", port=443)
        for component in ("controller", "api", "migrate"):
            assert self.reaches(manifests, component, pod="postgres", port=5432)
        for component in ("controller", "api", "mcp", "migrate"):
            assert not self.reaches(manifests, component, pod="worker", port=8080)
        assert not self.reaches(manifests, "mcp", pod="postgres", port=5432)
        assert not self.reaches(manifests, "migrate", address="10.0.0.1", port=6443)
        (postgres,) = (manifest for manifest in manifests if self.selects(manifest, "postgres"))
        assert postgres["spec"]["egress"] == []

    def test_controller_can_reach_receivers_once_a_receiver_is_configured(self) -> None:
        receiver = {"type": "webhook", "url": "https://n8n.example/hook"}
        for named, is_open in (({}, False), ({"hook": receiver}, True)):
            policy = {"apiServer": {"cidrs": ["10.0.0.1/32"]}}
            manifests = charts.render(SPLIT | {"networkPolicy": policy, "platform": {"deliveries": named}})
            assert self.reaches(manifests, "controller", address="142.250.1.1", port=443) is is_open
            assert not self.reaches(manifests, "api", address="142.250.1.1", port=443)

    def test_the_collector_of_traces_is_reached_by_what_sends_them_once_it_is_named(self) -> None:
        to = [{"ipBlock": {"cidr": "10.9.0.1/32"}}]
        policy = {"networkPolicy": {"collector": {"to": to}, "apiServer": {"cidrs": ["10.0.0.1/32"]}}}
        named = {"platform": {"traces": {"endpoint": "http://collector.observability.svc:4318"}}}
        for values, reached in ((named, True), ({}, False)):
            for kind, sending in ((SPLIT, ("api", "controller", "worker")), ({}, ("operator",))):
                manifests = charts.render(kind | TRIAL | policy | values)
                for component in sending:
                    assert self.reaches(manifests, component, address="10.9.0.1", port=4318) is reached
                    assert not self.reaches(manifests, component, address="10.9.0.2", port=4318)
                for component in ("mcp", "migrate", "test"):
                    assert not self.reaches(manifests, component, address="10.9.0.1", port=4318)

    def test_names_are_asked_of_the_clusters_servers_alone(self) -> None:
        every = ("api", "controller", "worker", "mcp", "migrate", "test")
        manifests = charts.render(SPLIT | TRIAL)
        for component in every:
            assert self.reaches(manifests, component, pod="kube-system/kube-dns", port=53)
            assert self.reaches(manifests, component, address="169.254.20.10", port=53)
            for address in ("10.96.0.10", "8.8.8.8", "2001:4860:4860::8888", "169.254.169.254"):
                assert not self.reaches(manifests, component, address=address, port=53)
                assert not self.reaches(manifests, component, address=address, port=5353)
        server = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "openshift-dns"}}}
        values: Object = {"networkPolicy": {"dns": {"ports": [53, 5353], "to": [server]}}}
        for policy in charts.of_kind(charts.render(SPLIT | values), "NetworkPolicy"):
            names, *_ = policy["spec"]["egress"]
            assert names["to"] == [server]
            assert [(dns_port["port"], dns_port["protocol"]) for dns_port in names["ports"]] == [
                (port, protocol) for port in (53, 5353) for protocol in ("UDP", "TCP")
            ]

    def test_each_component_has_own_extra_egress_rules_besides_common_ones(self) -> None:
        parts = ("api", "controller", "worker", "mcp", "migrate", "postgres", "test")
        rules = {part: [{"ports": [{"port": port, "protocol": "TCP"}]}] for port, part in enumerate(parts, 1)}
        own = {part: {"extraEgress": rule} for part, rule in rules.items()}
        own["postgres"]["trial"] = True  # type: ignore[assignment]
        manifests = charts.render(SPLIT | own)
        for port, part in enumerate(parts, 1):
            assert [caller for caller in parts if self.reaches(manifests, caller, port=port)] == [part]
        manifests = charts.render(SPLIT | TRIAL | {"pods": {"extraEgress": rules["api"]}})
        assert all(self.reaches(manifests, part, port=1) for part in parts)

    def test_the_api_server_is_reached_where_clusters_have_it(self) -> None:
        manifests = charts.render()
        for port in (443, 6443, 8443, 16443):
            assert self.reaches(manifests, "operator", address="10.0.0.1", port=port)

    def test_only_components_that_use_mcp_servers_and_database_can_call_them(self) -> None:
        manifests = charts.render(SPLIT | TRIAL)
        callers = {}
        for component in ("mcp", "postgres"):
            (policy,) = (manifest for manifest in manifests if self.selects(manifest, component))
            ((peer,),) = [rule["from"] for rule in policy["spec"]["ingress"]]
            (expression,) = peer["podSelector"]["matchExpressions"]
            callers[component] = set(expression["values"])
        assert callers["mcp"] == {"operator", "worker"}
        assert callers["postgres"] == {"api", "controller", "worker", "migrate"}
        for component in ("controller", "worker", "migrate", "test"):
            (policy,) = (manifest for manifest in manifests if self.selects(manifest, component))
            assert policy["spec"]["ingress"] == []
