{{/* The name of a part's ServiceAccount: that of all parts in one where they are not apart. */}}
{{- define "tarsy.account" -}}
{{- $name := include "tarsy.fullname" .root -}}
{{- if or (eq .part "mcp") (eq .root.Values.mode "split") }}{{ $name }}-{{ .part }}{{ else }}{{ $name }}{{ end }}
{{- end }}

{{/* Cluster-scoped names carry the namespace: two releases of one name may stand in two namespaces. */}}
{{- define "tarsy.clusterName" -}}
{{ .Release.Namespace }}:{{ include "tarsy.fullname" . }}
{{- end }}
