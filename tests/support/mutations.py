"""A good chain and a good platform file, and what people get wrong in them: a change of one line, and what is told."""

# ruff: noqa: E501 - a table
from __future__ import annotations

CHAIN = """\
apiVersion: tarsy.dev/v1alpha1
kind: AgentChain
metadata:
  name: pod-crash
spec:
  description: Pods that restart.
  alertTypes:
  - KubePodCrashLooping
  - KubePodNotReady
  llmProvider: google-default
  iterationStrategy: native-thinking
  maxIterations: 20
  activeDeadlineSeconds: 1800
  onResolved: Continue
  ttlSecondsAfterFinished: 86400
  mcpServers: [kubernetes-server]
  fallbackProviders: [openai-default]
  failurePolicy: Stop
  agents:
  - name: Analyst
    customInstructions: Name one root cause.
    nativeTools: [google_search]
  stages:
  - name: data-collection
    agent: KubernetesAgent
    replicas: 2
    timeoutSeconds: 300
    tools: {deny: ["*.pods_log"]}
    synthesis:
      agent: SynthesisAgent
      iterationStrategy: synthesis
  - name: analysis
    agents:
    - name: Analyst
    - name: KubernetesAgent
      llmProvider: anthropic-default
    successPolicy: any
  executiveSummary:
    enabled: true
    llmProvider: xai-default
  chat:
    enabled: true
    agent: ChatAgent
"""

PROVIDERS = "anthropic-default, google-default, openai-default, vertexai-default, xai-default"
STRATEGIES = (
    "'react', 'react-stage', 'react-final-analysis', 'native-thinking', 'synthesis' or 'synthesis-native-thinking'"
)
AGENTS = "Analyst, ChatAgent, KubernetesAgent, SynthesisAgent"

SHAPES: list[tuple[str, str, str]] = [
    ("  description: Pods", "  descripton: Pods", "spec: unknown: descripton. Available: alertTypes, description,"),
    ("  description: Pods that restart.", "  description: [Pods]", "spec.description: Input should be a valid string"),
    ("  - KubePodNotReady", "  - KubePodCrashLooping", "spec.alertTypes.1: 'KubePodCrashLooping' appears twice"),
    ("  description: Pods that restart.", "  grouping: {by: Labels}", "spec.grouping: labels goes with by: Labels, and by: Labels needs them"),
    ("  - KubePodNotReady", '  - ""', "spec.alertTypes.1: String should have at least 1 character"),
    ("  llmProvider: google-default", "  llm_provider: google-default", "spec: unknown: llm_provider. Available: "),
    ("  llmProvider: google-default", '  llmProvider: ""', "spec.llmProvider: String should have at least 1 character"),
    ("  iterationStrategy: native", "  iterationStrategy: nativ", f"spec.iterationStrategy: Input should be {STRATEGIES}"),
    ("  maxIterations: 20", "  maxIterations: 0", "spec.maxIterations: Input should be greater than or equal to 1"),
    ("  maxIterations: 20", '  maxIterations: "20"', "spec.maxIterations: Input should be a valid integer"),
    ("  activeDeadlineSeconds: 1800", "  activeDeadlineSeconds: 30m", "spec.activeDeadlineSeconds: expected seconds, a whole number: write 1800"),
    ("  onResolved: Continue", "  onResolved: continue", "spec.onResolved: Input should be 'Continue' or 'Cancel'"),
    ("  ttlSecondsAfterFinished: 86400", "  ttlSecondsAfterFinished: -1", "spec.ttlSecondsAfterFinished: Input should be"),
    ("  mcpServers: [kubernetes-server]", "  mcpServers: kubernetes-server", "spec.mcpServers: expected a list"),
    ("  fallbackProviders: [openai-default]", "  fallbackProviders: [a, b, c, d, e, f]", "spec.fallbackProviders: List should"),
    ("  failurePolicy: Stop", "  failurePolicy: Halt", "spec.failurePolicy: Input should be 'Continue' or 'Stop'"),
    ("  - name: Analyst\n    custom", "  - name: An analyst\n    custom", "spec.agents.0.name: Input should match "),
    ("    customInstructions: Name", "    instructions: Name", "spec.agents.0: unknown: instructions. Available: name, mcpServers,"),
    ("    nativeTools: [google_search]", "    nativeTools: [search]", "spec.agents.0.nativeTools.0: Input should be 'google_search'"),
    ("  - name: data-collection", "  - name: Data-Collection", "spec.stages.0.name: Input should match ^[a-z0-9]"),
    ("    agent: KubernetesAgent\n    repl", "    agnt: KubernetesAgent\n    repl", "spec.stages.0: unknown: agnt. Available: name, agent, "),
    ("    replicas: 2", "    replicas: 11", "spec.stages.0.replicas: Input should be less than or equal to 10"),
    ("    timeoutSeconds: 300", "    timeoutSeconds: 5m", "spec.stages.0.timeoutSeconds: expected seconds, a whole number: write 300"),
    ('    tools: {deny: ["*.pods_log"]}', "    tools: {deny: [pods_log]}", "spec.stages.0.tools.deny.0: 'pods_log' is not server.tool: write 'kubernetes-server.pods_log' or '*.pods_log'"),
    ('    tools: {deny: ["*.pods_log"]}', "    tools: {allow: ['*', '*.[nodes_*']}", "spec.stages.0.tools.allow.1: a [ is never closed"),
    ('    tools: {deny: ["*.pods_log"]}', '    tools: {forbid: ["*"]}', "spec.stages.0.tools: unknown: forbid. Available: allow, deny"),
    ("      iterationStrategy: synthesis", "      iterationStrategy: react", "spec.stages.0.synthesis.iterationStrategy: Input should be "),
    ("  - name: analysis", "  - name: data-collection", "spec.stages.1: 'data-collection' appears twice"),
    ("    - name: KubernetesAgent", "    - name: [KubernetesAgent]", "spec.stages.1.agents.1.name: Input should be a valid string"),
    ("    successPolicy: any", "    successPolicy: most", "spec.stages.1.successPolicy: Input should be 'any' or 'all'"),
    ("    successPolicy: any", "    replicas: 2", "spec.stages.1: replicas goes with agent: list agents as often as"),
    ("    enabled: true\n    llm", "    enabled: perhaps\n    llm", "spec.executiveSummary.enabled: Input should be a valid boolean"),
    ("    agent: ChatAgent", "    agents: [ChatAgent]", "spec.chat: unknown: agents. Available: enabled, agent, llmProvider"),
    ("apiVersion: tarsy.dev/v1alpha1", "apiVersion: tarsy.dev/v1", "apiVersion: expected tarsy.dev/v1alpha1"),
    ("  name: pod-crash", "  name: Pod_Crash", "metadata.name: expected lower-case letters, digits, - and ."),
]  # fmt: skip
"""The changes that the API server refuses, too."""

NAMES: list[tuple[str, str, str]] = [
    ("  llmProvider: google-default", "  llmProvider: google", f"Chain 'pod-crash' references unknown LLM provider 'google'. Available LLM providers: {PROVIDERS}"),
    ("  mcpServers: [kubernetes-server]", "  mcpServers: [k8s]", "Chain 'pod-crash' references unknown MCP server 'k8s'. Available MCP servers: kubernetes-server"),
    ("  fallbackProviders: [openai-default]", "  fallbackProviders: [open]", "Chain 'pod-crash' fallbackProviders references unknown LLM provider 'open'. "),
    ("    agent: KubernetesAgent\n    repl", "    agent: KubernetesAgnt\n    repl", f"Chain 'pod-crash' stage 'data-collection' references unknown agent 'KubernetesAgnt'. Available agents: {AGENTS}"),
    ("      agent: SynthesisAgent", "      agent: Synthesis", "Chain 'pod-crash' stage 'data-collection' synthesis references unknown agent 'Synthesis'. "),
    ("    - name: KubernetesAgent", "    - name: Kubernetes", "Chain 'pod-crash' stage 'analysis' references unknown agent 'Kubernetes'. "),
    ("    - name: Analyst\n    - ", "    - name: Analist\n    - ", f"Chain 'pod-crash' stage 'analysis' references unknown agent 'Analist'. Available agents: {AGENTS}"),
    ("      llmProvider: anthropic-default", "      llmProvider: claude", "Chain 'pod-crash' stage 'analysis' references unknown LLM provider 'claude'. "),
    ("    llmProvider: xai-default", "    llmProvider: grok", "Chain 'pod-crash' executiveSummary references unknown LLM provider 'grok'. "),
    ("    agent: ChatAgent", "    agent: Chatter", "Chain 'pod-crash' chat references unknown agent 'Chatter'. "),
    ("    nativeTools: [google_search]", "    mcpServers: [logs]", "Chain 'pod-crash' agent 'Analyst' references unknown MCP server 'logs'. "),
    ("    - name: Analyst\n    - ", "    - {name: Analyst, llmProvider: openai-default}\n    - ", "Chain 'pod-crash' stage 'analysis': LLM provider 'openai-default' has no native tool 'google_search'. "),
    ("kind: AgentChain", "kind: AgentChains", "no AgentChain in it"),
]  # fmt: skip
"""The changes that the API server takes, and TARSy would refuse."""

PLATFORM = """\
defaults:
  llm_provider: google-default
  fallback_providers: [local]
  iteration_strategy: native-thinking
  max_iterations: 20
llm_providers:
  google-default:
    type: google
    model: gemini-2.5-flash
    api_key_env: GOOGLE_API_KEY
    thinking: {budget: 8192}
    native_tools: [google_search]
    price: {input: 0.3, output: 2.5}
    requests_per_minute: 60
  local:
    type: openai
    model: qwen3
    api_key_env: null
    base_url: http://127.0.0.1:11434/v1
mcp_servers:
  kubernetes-server:
    transport:
      type: stdio
      command: kubernetes-mcp-server
      args: [--read-only]
      env: {KUBECONFIG: "{{.KUBECONFIG}}"}
    instructions: Prefer queries of one namespace.
    data_masking:
      enabled: true
      pattern_groups: [kubernetes, security]
  logs-server:
    transport: {type: http, url: "http://{{.LOGS}}:8080/mcp"}
agents:
  KubernetesAgent:
    mcp_servers: [kubernetes-server, logs-server]
    custom_instructions: Name one root cause.
    llm_provider: google-default
    iteration_strategy: react
    max_iterations: 10
    native_tools: [google_search]
limits:
  iteration: 120s
  tool_output: 65536
  retries: 100
queue:
  slots: 50
  lease: 20s
  heartbeat: 5s
ingest:
  alert_type_label: alert_type
  default_alert_type: kubernetes
  cooldown: 5m
api:
  trusted_proxies: [10.0.0.5, 10.1.0.0/16]
  burst: 2000
"""

ENVIRONMENT = {"KUBECONFIG": "/etc/kubeconfig", "LOGS": "logs.example"}
_PROVIDERS = "anthropic-default, google-default, local, openai-default, vertexai-default, xai-default"

SETTINGS: list[tuple[str, str, str]] = [
    ("  llm_provider: google-default\n  fall", "  llm_provider: google\n  fall", f"defaults.llm_provider: unknown provider. Available: {_PROVIDERS}"),
    ("  llm_provider: google-default\n  fall", "  provider: google-default\n  fall", "defaults: unknown: provider. Available: llm_provider, fallback_providers, "),
    ("  fallback_providers: [local]", "  fallback_providers: [near]", f"defaults.fallback_providers.0: unknown provider. Available: {_PROVIDERS}"),
    ("  fallback_providers: [local]", "  fallback_providers: local", "defaults.fallback_providers: expected a list"),
    ("  iteration_strategy: native-thinking", "  iteration_strategy: thinking", f"defaults.iteration_strategy: Input should be {STRATEGIES}"),
    ("  max_iterations: 20", "  max_iterations: 0", "defaults.max_iterations: Input should be greater than or equal to 1"),
    ("    type: google", "    type: gemini", "llm_providers.google-default: expected one of 'google', 'vertexai', "),
    ("    model: gemini-2.5-flash", "    modell: gemini-2.5-flash", "llm_providers.google-default: unknown: modell. Available: model, price, "),
    ("    model: gemini-2.5-flash", "    model: [gemini]", "llm_providers.google-default.model: Input should be a valid string"),
    ("    api_key_env: GOOGLE_API_KEY", "    api_key_env: AIzaSyD3m0", "llm_providers.google-default.api_key_env: not an environment variable's name"),
    ("    thinking: {budget: 8192}", "    thinking: {budget: 99999}", "llm_providers.google-default: thinking: gemini-2.5-flash takes a budget from 1"),
    ("    thinking: {budget: 8192}", "    thinking: {tokens: 8192}", "llm_providers.google-default.thinking: unknown: tokens. Available: budget, level"),
    ("    native_tools: [google_search]\n    price", "    native_tools: [web_search]\n    price", "llm_providers.google-default.native_tools.0: Input should be 'google_search'"),
    ("    price: {input: 0.3, output: 2.5}", "    price: {input: 0.3}", "llm_providers.google-default.price.output: Field required"),
    ("    requests_per_minute: 60", "    requests_per_minute: 0", "llm_providers.google-default.requests_per_minute: Input should be greater"),
    ("    base_url: http://127.0.0.1:11434/v1", "    base_url: 127.0.0.1:11434", "llm_providers.local.base_url: not a URL: write one with http or https"),
    ("    base_url: http://127.0.0.1:11434/v1", "    base_url: http://me:S3cret@host/v1", "llm_providers.local.base_url: a URL with a user or a password is refused"),
    ("    base_url: http://127.0.0.1:11434/v1", "    native_tools: [web_search]", "llm_providers.local: native_tools: web_search needs api: responses"),
    ("    type: openai", "    kind: openai", "llm_providers.local: type is missing"),
    ("  kubernetes-server:\n", "  kubernetes__server:\n", "mcp_servers.kubernetes__server: invalid name: expected letters"),
    ("      type: stdio", "      type: pipe", "mcp_servers.kubernetes-server.transport: expected one of 'stdio', 'http'"),
    ("      command: kubernetes-mcp-server", '      command: ""', "mcp_servers.kubernetes-server.transport.command: String should have at least"),
    ("      args: [--read-only]", "      args: --read-only", "mcp_servers.kubernetes-server.transport.args: expected a list"),
    ('"{{.KUBECONFIG}}"', '"{{.KUBECONFG}}"', "mcp_servers.kubernetes-server.transport.env.KUBECONFIG: the variable KUBECONFG is not set"),
    ('      env: {KUBECONFIG: "{{.KUBECONFIG}}"}', '      env: {"{{.LOGS}}": x}', "mcp_servers.kubernetes-server.transport.env: a key that names a variable"),
    ("    instructions: Prefer", "    instruction: Prefer", "mcp_servers.kubernetes-server: unknown: instruction. Available: transport, "),
    ("      enabled: true", "      enabled: maybe", "mcp_servers.kubernetes-server.data_masking.enabled: Input should be a valid boolean"),
    ("[kubernetes, security]", "[kubernetes, secure]", "mcp_servers.kubernetes-server.data_masking.pattern_groups.1: Input should be 'all'"),
    ("      enabled: true", "      patterns: [base64_short]", "mcp_servers.kubernetes-server.data_masking.patterns.0: Input should be 'api_key'"),
    ("      enabled: true", "      custom_patterns: [{name: a, pattern: '(x'}]", "data_masking.custom_patterns.0: pattern: RE2 refuses it: missing )"),
    ("      enabled: true", "      custom_patterns: [{name: a, pattern: 'x*'}]", "data_masking.custom_patterns.0: pattern: it matches the empty text"),
    ("      enabled: true", "      custom_patterns: [{name: a, pattern: x, replacement: $2}]", "data_masking.custom_patterns.0: replacement: an unknown group"),
    ("      enabled: true", "      custom_patterns: [{name: email, pattern: x}]", "data_masking.custom_patterns.0: name: one of the built-in patterns has it"),
    ("      enabled: true", "      custom_patterns: [{name: a, pattern: x}, {name: a, pattern: y}]", "data_masking: custom_patterns.1.name: another pattern has this name"),
    ("http://{{.LOGS}}:8080/mcp", "http://{{.LOG}}:8080/mcp", "mcp_servers.logs-server.transport.url: the variable LOG is not set"),
    ("http://{{.LOGS}}:8080/mcp", "{{.LOGS}}:8080/mcp", "mcp_servers.logs-server.transport.url: not a URL"),
    ("    mcp_servers: [kubernetes-server, logs-server]", "    mcp_servers: [kubernetes-server, logs]", "agents.KubernetesAgent.mcp_servers.1: unknown MCP server. Available: kubernetes-server, logs-server"),
    ("    custom_instructions: Name", "    instructions: Name", "agents.KubernetesAgent: unknown: instructions. Available: mcp_servers, custom_instructions, "),
    ("    llm_provider: google-default", "    llm_provider: gogle", f"agents.KubernetesAgent.llm_provider: unknown provider. Available: {_PROVIDERS}"),
    ("    llm_provider: google-default", "    llmProvider: google-default", "agents.KubernetesAgent: unknown: llmProvider. Available: mcp_servers, "),
    ("    iteration_strategy: react", "    iteration_strategy: REACT", f"agents.KubernetesAgent.iteration_strategy: Input should be {STRATEGIES}"),
    ("    native_tools: [google_search]\nlimits", "    native_tools: [web_search]\nlimits", "agents.KubernetesAgent.native_tools.0: unknown tool of google-default. Available: code_execution, "),
    ("  iteration: 120s", "  iteration: 120", "limits.iteration: not a duration: write a number and ms, s, m, h or d, such as 20s"),
    ("  tool_output: 65536", "  tool_output: 64", "limits.tool_output: Input should be greater than or equal to 1024"),
    ("  retries: 100", "  retry: 100", "limits: unknown: retry. Available: iteration, first_byte, "),
    ("  slots: 50", "  slots: -1", "queue.slots: Input should be greater than or equal to 1"),
    ("  heartbeat: 5s", "  heartbeat: 15s", "queue: heartbeat: must be at most half of lease"),
    ("  lease: 20s", "  lease: 2h", "queue.lease: must be from 200ms to 1h"),
    ("  alert_type_label: alert_type", '  alert_type_label: ""', "ingest.alert_type_label: String should have at least 1 character"),
    ("  default_alert_type: kubernetes", "  default_type: kubernetes", "ingest: unknown: default_type. Available: alert_type_label, "),
    ("  cooldown: 5m", "  cooldown: 5 minutes", "ingest.cooldown: not a duration: write a number and ms"),
    ("[10.0.0.5, 10.1.0.0/16]", "[10.0.0.5, 10.1.0.0/8]", "api.trusted_proxies.1: not an address or a network"),
    ("[10.0.0.5, 10.1.0.0/16]", "[0.0.0.0/0]", "api.trusted_proxies.0: this network has all addresses"),
    ("  burst: 2000", "  bust: 2000", "api: unknown: bust. Available: trusted_proxies, allowed_origins, requests_per_second, burst"),
    ("ingest:\n", "intake:\n", "the file: unknown: intake. Available: defaults, llm_providers, mcp_servers, agents, limits, "),
    ("  burst: 2000", "  1: 2000", "YAML reads this key as a number, a date or the like: write it in quotes"),
    ("  heartbeat: 5s", "  slots: 5", "not YAML: a key appears twice, first on line "),
    ("  slots: 50", "\tslots: 50", "not YAML: column 1: a tab: YAML is indented with spaces"),
    ("  slots: 50", "  slots: 50: 51", "not YAML: column 12: mapping values are not allowed here"),
]  # fmt: skip


def mutated(text: str, old: str, new: str) -> tuple[str, int]:
    """The text with the one change, and the line where it is."""
    assert text.count(old) == 1, old
    return text.replace(old, new), text[: text.index(old)].count("\n") + 1
