{{/* Egress to the servers that are asked for names. */}}
{{- define "tarsy.egressDNS" -}}
{{- with .Values.networkPolicy.dns -}}
{{- if .ports -}}
- ports:
  {{- range .ports }}
  - {port: {{ . }}, protocol: UDP}
  - {port: {{ . }}, protocol: TCP}
  {{- end }}
  {{- with .to }}
  to:
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Egress to the collector of traces, if there is one. */}}
{{- define "tarsy.egressCollector" -}}
{{- if dig "traces" "endpoint" "" (.Values.platform | default dict) -}}
{{- with .Values.networkPolicy.collector -}}
{{- if .ports -}}
- ports:
  {{- range .ports }}
  - {port: {{ . }}, protocol: TCP}
  {{- end }}
  {{- with .to }}
  to:
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Egress to the ports and addresses of a part of the values; anywhere, if it has no addresses. */}}
{{- define "tarsy.egressTo" -}}
- ports:
  {{- range .ports }}
  - {port: {{ . }}, protocol: TCP}
  {{- end }}
  {{- with .cidrs }}
  to:
  {{- range . }}
  - ipBlock:
      {{- toYaml (kindIs "string" . | ternary (dict "cidr" .) .) | nindent 6 }}
  {{- end }}
  {{- end }}
{{- end }}

{{/* Egress to the pods of a component. Takes root, component and port. */}}
{{- define "tarsy.egressToPods" -}}
- ports:
  - {port: {{ .port }}, protocol: TCP}
  to:
  - podSelector:
      matchLabels:
        {{- include "tarsy.selector" . | nindent 8 }}
{{- end }}

{{/* Egress to the database. */}}
{{- define "tarsy.egressDatabase" -}}
{{- if .Values.postgres.trial -}}
{{ include "tarsy.egressToPods" (dict "root" . "component" "postgres" "port" 5432) }}
{{- else -}}
{{ include "tarsy.egressTo" .Values.networkPolicy.database }}
{{- end }}
{{- end }}

{{/* Egress that the values have beside the chart's own for a component's pods. Takes root and component. */}}
{{- define "tarsy.egressExtra" -}}
{{- with (include "tarsy.pod" . | fromYaml).extraEgress }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* What selects the pods of some components. Takes root and components. */}}
{{- define "tarsy.podsOf" -}}
podSelector:
  matchLabels:
    app.kubernetes.io/name: {{ include "tarsy.name" .root | quote }}
    app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
  matchExpressions:
  - key: app.kubernetes.io/component
    operator: In
    values: {{ .components | toJson }}
{{- end }}

{{/* The head of a component's policy. Takes root and component. */}}
{{- define "tarsy.policyFor" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "tarsy.metadata" . | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "tarsy.selector" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
{{- end }}
