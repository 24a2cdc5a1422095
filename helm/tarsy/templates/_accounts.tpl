{{/* The name of a part's ServiceAccount: that of all parts in one where they are not apart. */}}
{{- define "tarsy.account" -}}
{{- $name := include "tarsy.fullname" .root -}}
{{- if or (eq .part "mcp") (eq .root.Values.mode "split") }}{{ $name }}-{{ .part }}{{ else }}{{ $name }}{{ end }}
{{- end }}

{{/* Cluster-scoped names carry the namespace: two releases of one name may stand in two namespaces. */}}
{{- define "tarsy.clusterName" -}}
{{ .Release.Namespace }}:{{ include "tarsy.fullname" . }}
{{- end }}

{{/* The namespaces that are served beside the release's own, as JSON. */}}
{{- define "tarsy.otherNamespaces" -}}
{{ without (.Values.platform.namespaces | default .Values.namespaces | default list | uniq) .Release.Namespace | toJson }}
{{- end }}

{{/* What a part does in each namespace that is served. Takes the part. */}}
{{- define "tarsy.servedRules" -}}
{{- if eq . "controller" -}}
- apiGroups: [tarsy.dev]
  resources: [alertinvestigations]
  verbs: [get, list, watch, delete]
- apiGroups: [tarsy.dev]
  resources: [agentchains]
  verbs: [list, watch]
- apiGroups: [tarsy.dev]
  resources: [alertinvestigations/status, agentchains/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- else -}}
- apiGroups: [tarsy.dev]
  resources: [alertinvestigations]
  verbs: [create, get, delete]
- apiGroups: [tarsy.dev]
  resources: [agentchains]
  verbs: [list]
{{- end }}
{{- end }}
