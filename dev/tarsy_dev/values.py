"""The chart's values: one model, of which values.yaml, its schema and the README's table are made (`tarsy_dev.chart`).

A model says more than comments in a values.yaml could: bounds, choices, and that an unknown key is refused. What goes
to Kubernetes as it stands (affinity, volumes) is checked by the API server, which knows it better than we do.
"""

from __future__ import annotations

from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field
from tarsy.config.load import builtin
from tarsy.resources import base

from tarsy_dev import forms, tools

BUILTIN_CHAINS = tools.ROOT / "manifests" / "chains"
KEYS = "/etc/tarsy/keys"
"""Where the chart mounts the Secret with the providers' keys."""


class Part(BaseModel):
    """A part of the values: camel case, unknown keys refused."""

    model_config = ConfigDict(alias_generator=base.camel, populate_by_name=True, extra="forbid")


class Image(Part):
    """An image, by digest where one is given."""

    registry: forms.Registry = ""
    """The registry's host; empty leaves the choice to the nodes."""
    repository: forms.Repository
    """Its name there."""
    tag: forms.Tag = ""
    """Empty is the chart's appVersion."""
    digest: forms.Digest = ""
    """sha256:..., which goes before the tag."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When nodes pull it."""


class PostgresImage(Part):
    """The image of the trial Postgres, by digest where one is given."""

    registry: forms.Registry = ""
    """The registry's host; empty leaves the choice to the nodes."""
    repository: forms.Repository = "postgres"
    """Its name there."""
    tag: Annotated[forms.Tag, Field(min_length=1)] = "18"
    """Postgres's version; another major version does not open the data that are there."""
    digest: forms.Digest = ""
    """sha256:..., which goes before the tag."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When nodes pull it."""


class PullSecret(Part):
    """A Secret with credentials for a registry."""

    name: forms.Name
    """Its name."""


class Amounts(Part):
    """Amounts of what a node has."""

    cpu: forms.Quantity | None = None
    """Cores."""
    memory: forms.Quantity | None = None
    """Bytes."""
    ephemeral_storage: Annotated[forms.Quantity | None, Field(alias="ephemeral-storage")] = None
    """Bytes on the node."""


class Resources(Part):
    """The resources that a container is promised, and those that it may have at most."""

    requests: Amounts = Amounts()
    """Promised."""
    limits: Amounts = Amounts()
    """At most; no CPU limit, which would only make it late."""


class Pods(Part):
    """Settings of any pod."""

    labels: forms.Labels = {}
    """Labels of the pods, beside those that select them."""
    annotations: forms.Annotations = {}
    """Annotations of the pods."""
    node_selector: forms.Labels = {}
    """The nodes that they may run on, by labels."""
    tolerations: list[forms.Anything] = []
    """Taints that do not keep them away."""
    affinity: forms.Anything = {}
    """Where they would rather run."""
    topology_spread_constraints: list[forms.Anything] = [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    ]
    """How they are spread; one without a labelSelector gets that of its pods."""
    priority_class_name: forms.Name | forms.NoName = ""
    """Their priority class."""
    pod_security_context: forms.Anything = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    """The security context of the pods; as it stands it satisfies Pod Security `restricted`. runAsUser, runAsGroup and
    fsGroup are 65532 (of the trial Postgres 999) unless they say otherwise; null leaves one to the cluster, as
    OpenShift wants it.
    """
    security_context: forms.Anything = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    """The security context of the containers."""
    extra_egress: list[forms.Anything] = []
    """More of what they may call, as rules of a NetworkPolicy: MCP servers or models in the cluster, proxies."""


class Autoscaling(Part):
    """A HorizontalPodAutoscaler; none without maxReplicas."""

    min_replicas: forms.Positive | None = None
    """At least, 1 if missing."""
    max_replicas: forms.Positive | None = None
    """At most."""
    metrics: list[forms.Anything] | None = None
    """The metrics that decide; a CPU use of 80 % if missing."""
    behavior: forms.Anything | None = None
    """How fast."""


class Budget(Part):
    """A PodDisruptionBudget."""

    max_unavailable: forms.Share | None = None
    """The most pods that may be away for maintenance."""
    min_available: forms.Share | None = None
    """The fewest pods that stay through maintenance; goes before maxUnavailable."""


class Strategy(Part):
    """How pods are replaced by new ones."""

    type: Literal["RollingUpdate", "Recreate"] = "RollingUpdate"
    """One after the other, or all at once."""
    rolling_update: forms.Anything | None = None
    """How many at once."""


class Account(Part):
    """Settings of one ServiceAccount."""

    annotations: forms.Annotations = {}
    """Such as a cloud's identity, for Vertex AI."""


class Probe(Part):
    """How often a pod is asked, in seconds, and how often it may fail."""

    period_seconds: forms.Positive
    """Between two questions."""
    timeout_seconds: forms.Positive
    """For an answer."""
    failure_threshold: forms.Positive
    """Failures in a row that count."""


class Process(Pods):
    """Pods of the operator's own process; and every key of `pods`, which replaces that one whole."""

    replicas: forms.Count = 1
    """How many pods; the autoscaler's where there is one."""
    strategy: Strategy = Strategy(rolling_update={"maxSurge": 1, "maxUnavailable": 0})
    """How they are replaced. Two versions side by side share the work by leases."""
    resources: Resources = Resources(requests=Amounts(cpu="100m", memory="320Mi"), limits=Amounts(memory="1Gi"))
    """The resources that they get."""
    startup_probe: Probe = Probe(period_seconds=2, timeout_seconds=5, failure_threshold=60)
    """Until the first answer of /healthz; then the pod is started again."""
    liveness_probe: Probe = Probe(period_seconds=10, timeout_seconds=5, failure_threshold=6)
    """/healthz, which answers as long as the process lives; else the pod is started again."""
    readiness_probe: Probe = Probe(period_seconds=5, timeout_seconds=5, failure_threshold=2)
    """/readyz, which says what is missing; until nothing is, the pod gets no requests."""
    termination_grace_period_seconds: forms.Positive = 45
    """A pod that ends stops taking work, lets requests end (10 s) and gives its investigations back."""
    autoscaling: Autoscaling = Autoscaling()
    """By how much work there is; {} is not at all."""
    pod_disruption_budget: Budget | None = Budget(max_unavailable=1)
    """The limit of maintenance on them; null is none."""
    service_account: Account = Account()
    """Their account."""
    extra_args: list[str] = []
    """More flags of `tarsy operator`."""
    extra_env: list[forms.Anything] = []
    """More variables of their environment, as a container has them."""
    extra_env_from: list[forms.Anything] = []
    """More sources of their environment."""
    extra_volumes: list[forms.Anything] = []
    """More volumes."""
    extra_volume_mounts: list[forms.Anything] = []
    """Where they are."""


class Role(Process):
    """Pods of one role, with `mode: split`; every key of `operator`, which replaces that one whole."""


class Service(Part):
    """How the API is reached in the cluster."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Its type."""
    port: forms.Port = 8080
    """Its port."""
    annotations: forms.Annotations = {}
    """Its annotations."""


class TLS(Part):
    """A certificate of the Ingress."""

    secret_name: forms.Name | None = None
    """Its Secret; without one the controller's own certificate."""
    hosts: list[forms.Host] = []
    """The hosts that it is for."""


class Web(Part):
    """The pages for browsers, which the API serves."""

    enabled: bool = True
    """Whether there are any; `web` of `platform` goes before. A change of it needs a restart."""


class PodMonitor(Part):
    """A PodMonitor of the Prometheus operator, by which Prometheus scrapes each process."""

    enabled: bool = False
    """Whether there is one; policies then open the pods' port for metrics."""
    labels: forms.Labels = {}
    """Its labels, by which a Prometheus selects it."""
    interval: Annotated[str, Field(pattern=r"^[0-9]+(ms|s|m)$")] = "30s"
    """The time between two scrapes."""


class PrometheusRule(Part):
    """A PrometheusRule of the Prometheus operator: alerts about TARSy itself (docs/alerts)."""

    enabled: bool = False
    """Whether there is one."""
    labels: forms.Labels = {}
    """Its labels, by which a Prometheus selects it."""
    disabled: list[Annotated[str, Field(pattern=r"^TARSy[A-Za-z]+$")]] = []
    """The names of alerts that are left out."""
    runbook_base: Annotated[str, Field(pattern=r"^(https?://\S+)?$")] = ""
    """The address of a copy of docs/alerts, for the alerts' annotation runbook_url; empty leaves it out."""


class Dashboard(Part):
    """A dashboard of Grafana, in a ConfigMap that Grafana's sidecar finds."""

    enabled: bool = False
    """Whether there is one."""
    labels: forms.Labels = {"grafana_dashboard": "1"}
    """Its labels, by which the sidecar selects it."""
    annotations: forms.Annotations = {}
    """Its annotations, such as the folder in Grafana."""


class Metrics(Part):
    """The metrics of the processes (docs/metrics.md), which each of them serves on port 9464."""

    pod_monitor: PodMonitor = PodMonitor()
    """How Prometheus finds them."""
    prometheus_rule: PrometheusRule = PrometheusRule()
    """Alerts about TARSy itself."""
    dashboard: Dashboard = Dashboard()
    """A dashboard."""
    scrape_from: list[forms.Anything] = []
    """The callers that may scrape, as a policy's `from`; with a PodMonitor any, if empty."""


class Ingress(Part):
    """How the API and the pages are reached from outside."""

    enabled: bool = False
    """Whether there is one."""
    class_name: forms.Name | forms.NoName = ""
    """Its class; empty is the cluster's default."""
    annotations: forms.Annotations = {}
    """Its annotations."""
    hosts: list[forms.Host] = []
    """Its hosts, of which it has all paths; any host if there are none."""
    tls: list[TLS] = []
    """Its certificates."""


class Database(Part):
    """The Postgres database, by URL, from a Secret that exists; `postgres.trial` goes before it."""

    existing_secret: forms.Name = "tarsy-database"
    """The Secret; of CloudNativePG, `<cluster>-app`."""
    key: forms.Key = "uri"
    """The key of it with the URL, such as postgresql://user:password@host:5432/tarsy."""


class Webhook(Part):
    """The token that webhooks bring, from a Secret that exists."""

    existing_secret: forms.Name = "tarsy-webhook"
    """The Secret."""
    key: forms.Key = "token"
    """The key of it with the token."""
    tokens_secret: forms.Name = "tarsy-webhook-tokens"
    """The Secret with further tokens, such as one for each team, if there is one: each of its keys is a file in
    /etc/tarsy/webhook-tokens, to which `ingest.tokens` of `platform` refers by token_file."""


class LLMKeys(Part):
    """The providers' keys, from a Secret that exists: each of its keys is a file in /etc/tarsy/keys."""

    existing_secret: forms.Name = "tarsy-llm-keys"
    """The Secret; `platform` refers to its keys by api_key_file."""


class Deliveries(Part):
    """The secrets of receivers of messages, from a Secret: each of its keys is a file in /etc/tarsy/deliveries."""

    existing_secret: forms.Name = "tarsy-deliveries"
    """The Secret, if there is one; only the controller has it. `deliveries` of `platform` refers to its keys by
    url_file and secret_file."""


class Storage(Part):
    """A volume."""

    size: forms.Quantity = "8Gi"
    """Its size."""
    class_name: forms.Name | forms.NoName = ""
    """Its storage class; empty is the cluster's default."""


class Postgres(Pods):
    """A small Postgres for trials: one pod, no backups; and every key of `pods`."""

    trial: bool = False
    """Whether there is one; `database` is not used then."""
    image: PostgresImage = PostgresImage()
    """Its image."""
    storage: Storage = Storage()
    """Where its data are."""
    resources: Resources = Resources(requests=Amounts(cpu="100m", memory="256Mi"), limits=Amounts(memory="512Mi"))
    """The resources that it gets."""


class Migrate(Pods):
    """`tarsy migrate`, which brings the database to this version's schema; and every key of `pods`."""

    mode: Literal["Job", "Init", "Manual"] = "Job"
    """Job: one that comes with the installation and waits for the database, and one before each upgrade, which waits
    two minutes. Init: a container before each pod's own, which waits. Manual: you run it."""
    active_deadline_seconds: forms.Positive = 600
    """After which the Job before an upgrade has failed."""
    resources: Resources = Resources(requests=Amounts(cpu="50m", memory="128Mi"), limits=Amounts(memory="512Mi"))
    """The resources that it gets."""


class DeniedResource(Part):
    """A kind that is shown to no client."""

    group: forms.Name | forms.NoName = ""
    """Its API group."""
    version: Annotated[str, Field(pattern=r"^v[0-9a-z]+$")] = "v1"
    """Its version."""
    kind: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9]*$")]
    """The kind."""


class MCP(Pods):
    """kubernetes-mcp-server, read-only, which agents look at the cluster through; and every key of `pods`."""

    enabled: bool = True
    """Whether there is one. The platform file's `kubernetes-server` is it, unless that file names another."""
    replicas: forms.Positive = 1
    """How many pods."""
    toolsets: Annotated[
        list[Literal["core", "helm", "kcp", "kiali", "kubevirt", "netobserv", "tekton"]], Field(min_length=1)
    ] = ["core"]
    """Its sets of tools; `config` would tell its own credentials. All but `core` need `extraRules` or `extraConfig`."""
    extra_rules: list[forms.Anything] = []
    """More of what its account may do in all namespaces, as rules of a ClusterRole: kinds of other operators."""
    extra_config: str = ""
    """More of its configuration, in TOML, such as where `kiali` is: [toolset_configs.kiali]."""
    denied_resources: list[DeniedResource] = [DeniedResource(kind="Secret")]
    """The kinds that it refuses, whatever its account may read; its ClusterRole has no Secrets either."""
    instructions: str = builtin.PLATFORM["mcp_servers"]["kubernetes-server"]["instructions"]
    """Added to the system prompt of every agent that has it."""
    log_level: Annotated[int, Field(ge=0, le=9)] = 0
    """How much it logs."""
    resources: Resources = Resources(requests=Amounts(cpu="50m", memory="96Mi"), limits=Amounts(memory="512Mi"))
    """The resources that it gets."""
    pod_disruption_budget: Budget | None = Budget(max_unavailable=1)
    """The limit of maintenance on it; null is none."""


class Block(Part):
    """Addresses."""

    cidr: forms.CIDR
    """A network."""
    except_: Annotated[list[forms.CIDR], Field(alias="except")] = []
    """Networks in it that are not meant."""


class Egress(Part):
    """Where models and MCP servers outside are reached."""

    ports: list[forms.Port] = [443]
    """On these ports,"""
    cidrs: list[Block | forms.CIDR] = [
        Block(
            cidr="0.0.0.0/0",
            except_=[
                "10.0.0.0/8",
                "100.64.0.0/10",
                "127.0.0.0/8",
                "169.254.0.0/16",
                "172.16.0.0/12",
                "192.168.0.0/16",
            ],
        ),
        Block(cidr="::/0", except_=["::1/128", "fc00::/7", "fe80::/10"]),
    ]
    """at these addresses: all but private ones, because a policy knows no names of hosts."""


class APIServer(Part):
    """Where the API server is, whose address a chart cannot know."""

    ports: list[forms.Port] = [443, 6443, 8443, 16443]
    """On these ports,"""
    cidrs: list[Block | forms.CIDR] = []
    """at these addresses; any, if there are none."""


class DatabaseServer(Part):
    """Where the database is, which only the Secret knows; the trial's is its pod alone."""

    ports: list[forms.Port] = [5432]
    """On these ports,"""
    cidrs: list[Block | forms.CIDR] = []
    """at these addresses; any, if there are none."""


class DNS(Part):
    """The servers that all pods ask for names: a query can carry data out, so they are no others."""

    ports: list[forms.Port] = [53]
    """On these ports, by UDP and TCP,"""
    to: list[forms.Anything] = [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
        },
        {"ipBlock": {"cidr": "169.254.20.10/32"}},
    ]
    """as a policy's `to`: the cluster's DNS pods, and the address of NodeLocal DNSCache; anywhere, if empty."""


class Collector(Part):
    """The collector of traces."""

    ports: list[forms.Port] = [4318]
    """On these ports,"""
    to: list[forms.Anything] = []
    """as a policy's `to`; anywhere, if empty."""


class NetworkPolicy(Part):
    """Permitted connections. Pods reach DNS, the API server, Postgres, the MCP server, and what `egress` says."""

    enabled: bool = True
    """Whether there are policies."""
    ingress_from: list[forms.Anything] = []
    """The peers that may call the API, as a policy's `from`; any peer, if empty."""
    dns: DNS = DNS()
    """Where names are asked for."""
    egress: Egress = Egress()
    """Models and MCP servers outside."""
    collector: Collector = Collector()
    """The collector of traces, if `platform.traces.endpoint` is set."""
    api_server: APIServer = APIServer()
    """The API server."""
    database: DatabaseServer = DatabaseServer()
    """The database."""


class CRDs(Part):
    """The two kinds, AgentChain and AlertInvestigation."""

    enabled: bool = True
    """Whether this release brings them; of several in a cluster one does."""
    keep: bool = True
    """Whether they stay, with all their objects, when the release is uninstalled."""
    annotations: forms.Annotations = {}
    """Their annotations."""


class RBAC(Part):
    """Rights."""

    create: bool = True
    """Whether roles and bindings are made."""
    cluster_wide: bool = False
    """Whether the operator's rights are ClusterRoles that hold in all namespaces, instead of a Role in each served one:
    for served namespaces that are made later. Only those that are listed are served either way."""
    aggregate: bool = False
    """Whether the view, edit and admin roles for the two kinds are added to the cluster's own. Who creates a chain
    borrows the rights of its tools."""
    owners: bool = False
    """Whether the API may get pods, replicasets and jobs in all namespaces, for chains that group alerts by owner."""


class ServiceAccounts(Part):
    """The accounts of the pods."""

    create: bool = True
    """Whether they are made."""


class Test(Pods):
    """`helm test`: posts an alert and waits for its investigation; and every key of `pods`."""

    chain: str = ""
    """The chain whose first alert type is posted; the test passes when that investigation is finished. Empty: any
    chain that is ready; it passes when its investigation has a condition, and cancels it."""
    timeout_seconds: forms.Positive = 300
    """For how long it waits."""
    resources: Resources = Resources(requests=Amounts(cpu="50m", memory="64Mi"), limits=Amounts(memory="128Mi"))
    """The resources that it gets."""


class Values(Part):
    """All values of the chart."""

    enabled: bool = True
    """Not read: for the `condition` of a chart that has this one as a dependency."""
    global_: Annotated[forms.Anything, Field(alias="global")] = {}
    """Not read: for a chart that has this one as a dependency."""
    name_override: forms.NameOrNothing = ""
    """Instead of the chart's name."""
    fullname_override: forms.ServiceNameOrNothing = ""
    """Instead of the release's and the chart's name, in the names of all objects."""
    common_labels: forms.Labels = {}
    """Labels of all objects."""
    image: Image = Image(repository="tarsy")
    """The image of everything but the trial Postgres."""
    image_pull_secrets: list[PullSecret] = []
    """Credentials for registries, of all pods."""
    mode: Literal["single", "split"] = "single"
    """single: one Deployment does everything. split: controller, worker and api apart."""
    log_format: Literal["text", "json"] = "json"
    """The format of a log line."""
    log_level: Literal["DEBUG", "INFO", "WARNING"] = "INFO"
    """How much is logged."""
    pods: Pods = Pods()
    """All pods."""
    operator: Process = Process()
    """The operator's pods."""
    controller: Role = Role()
    """The controller's pods, with `mode: split`: it keeps objects and database in step."""
    worker: Role = Role()
    """The workers' pods, with `mode: split`: they run investigations, and ask no API server."""
    api: Role = Role()
    """The API's pods, with `mode: split`: webhooks in, transcripts out."""
    service: Service = Service()
    """How the API is reached in the cluster."""
    ingress: Ingress = Ingress()
    """How the API and the pages are reached from outside."""
    web: Web = Web()
    """The pages for browsers, which the API serves."""
    namespaces: Annotated[list[forms.Namespace], Field(max_length=100)] = []
    """The namespaces that are served beside the release's own, which have to exist unless `rbac.clusterWide`;
    `namespaces` of `platform` goes before. A change of it needs a restart."""
    database: Database = Database()
    """The database."""
    webhook: Webhook = Webhook()
    """The webhooks' token."""
    llm_keys: LLMKeys = LLMKeys()
    """The providers' keys."""
    deliveries: Deliveries = Deliveries()
    """The secrets of receivers of messages (`deliveries` of `platform`)."""
    platform: forms.Anything = {
        "defaults": {"llm_provider": "google-default"},
        "llm_providers": {
            "google-default": builtin.PLATFORM["llm_providers"]["google-default"]
            | {"api_key_file": f"{KEYS}/GOOGLE_API_KEY"}
        },
        "ingest": {"default_alert_type": "kubernetes"},
    }
    """The platform file (docs/platform-file.md): providers, MCP servers, agents. A change of it needs no restart."""
    chains: dict[base.Name, forms.Anything] = {
        chain["metadata"]["name"]: chain["spec"]
        for chain in (
            yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(BUILTIN_CHAINS.glob("*.yaml"))
        )
    }
    """AgentChains: names to specs. null instead of a spec leaves out one that is built in."""
    mcp: MCP = MCP()
    """kubernetes-mcp-server."""
    postgres: Postgres = Postgres()
    """A Postgres for trials."""
    migrate: Migrate = Migrate()
    """How the database gets its schema."""
    metrics: Metrics = Metrics()
    """The metrics, for Prometheus and Grafana."""
    network_policy: NetworkPolicy = NetworkPolicy()
    """Permitted connections."""
    crds: CRDs = CRDs()
    """The two kinds."""
    rbac: RBAC = RBAC()
    """Rights."""
    service_accounts: ServiceAccounts = ServiceAccounts()
    """Accounts."""
    test: Test = Test()
    """`helm test`."""
    extra_objects: list[forms.Anything | str] = []
    """More objects, as YAML or as text; both may hold templates."""
