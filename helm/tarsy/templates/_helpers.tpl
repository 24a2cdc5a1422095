{{/* The chart's name, as a label. */}}
{{- define "tarsy.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 43 | trimSuffix "-" }}
{{- end }}

{{/*
What the names of all objects begin with: the release and the chart, once if one is in the other. A StatefulSet's name
is in a label with a hash behind it, so 43 characters are left.
*/}}
{{- define "tarsy.fullname" -}}
{{- $name := include "tarsy.name" . }}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 43 | trimSuffix "-" }}
{{- else if contains $name .Release.Name -}}
{{ .Release.Name | trunc 43 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 43 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* What selects the pods of a component; never changes for a release. Takes root and component. */}}
{{- define "tarsy.selector" -}}
app.kubernetes.io/name: {{ include "tarsy.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* The labels of every object; ours go before those of the values. Takes the root. */}}
{{- define "tarsy.labels" -}}
{{- $own := dict
  "app.kubernetes.io/name" (include "tarsy.name" .)
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service
  "app.kubernetes.io/part-of" "tarsy"
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_")
-}}
{{ merge $own .Values.commonLabels | toYaml }}
{{- end }}

{{/* Name, namespace and labels of an object of a component. Takes root, component, and name where it is another. */}}
{{- define "tarsy.metadata" -}}
name: {{ .name | default (include "tarsy.componentName" .) | quote }}
namespace: {{ .root.Release.Namespace | quote }}
labels:
  {{- include "tarsy.labels" .root | fromYaml | merge (include "tarsy.selector" . | fromYaml) | toYaml | nindent 2 }}
{{- end }}

{{/* The name of a component's objects; the one process that does everything has the release's own. */}}
{{- define "tarsy.componentName" -}}
{{ include "tarsy.fullname" .root }}{{ if ne .component "operator" }}-{{ .component }}{{ end }}
{{- end }}

{{/* What of the process there is, as words: one that does everything, or three. */}}
{{- define "tarsy.processes" -}}
{{ ternary "operator" "api controller worker" (eq .Values.mode "single") }}
{{- end }}

{{/* The component whose pods serve the API. */}}
{{- define "tarsy.apiComponent" -}}
{{ ternary "operator" "api" (eq .Values.mode "single") }}
{{- end }}

{{/*
The values of a component's pods, as YAML: those of `pods`, then for the process's those of `operator`, then its own.
A key of a later one replaces that of an earlier one whole. Takes root and component.
*/}}
{{- define "tarsy.pod" -}}
{{- $found := dict }}
{{- $own := get .root.Values .component }}
{{- $base := ternary .root.Values.operator dict (has .component (list "controller" "worker" "api")) }}
{{- range $values := list .root.Values.pods $base $own }}
{{- range $key, $value := $values }}
{{- $_ := set $found $key $value }}
{{- end }}
{{- end }}
{{- toYaml $found }}
{{- end }}

{{/* Labels and annotations of a component's pods. Takes root, component and pod (as `tarsy.pod` has it). */}}
{{- define "tarsy.podMetadata" -}}
{{- $labels := include "tarsy.labels" .root | fromYaml | merge (include "tarsy.selector" . | fromYaml) -}}
labels:
  {{- merge $labels (.pod.labels | default dict) | toYaml | nindent 2 }}
{{- with .pod.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What all pods have: where they run, as whom, and with whose images. Takes root, component, pod and user. */}}
{{- define "tarsy.podSpec" -}}
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $user := .user | default 65532 }}
{{- $context := dict "runAsUser" $user "runAsGroup" $user "fsGroup" $user "fsGroupChangePolicy" "OnRootMismatch" }}
{{- range $key, $value := .pod.podSecurityContext }}
{{- if kindIs "invalid" $value }}
{{- $context = omit $context $key }}
{{- else }}
{{- $_ := set $context $key $value }}
{{- end }}
{{- end }}
securityContext:
  {{- toYaml $context | nindent 2 }}
{{- with .pod.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .pod.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pod.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pod.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $constraints := list }}
{{- range .pod.topologySpreadConstraints }}
{{- $own := dict "labelSelector" (dict "matchLabels" (include "tarsy.selector" $ | fromYaml)) }}
{{- $constraints = append $constraints (merge (deepCopy .) (hasKey . "labelSelector" | ternary dict $own)) }}
{{- end }}
{{- with $constraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* An image's reference. Takes root and image. */}}
{{- define "tarsy.image" -}}
{{- with .image.registry }}{{ . }}/{{ end }}{{ .image.repository }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{/* A container's image and how it is confined. Takes root, pod, and image where it is another. */}}
{{- define "tarsy.container" -}}
{{- $image := .image | default .root.Values.image -}}
image: {{ include "tarsy.image" (dict "root" .root "image" $image) | quote }}
imagePullPolicy: {{ $image.pullPolicy }}
securityContext:
  {{- toYaml .pod.securityContext | nindent 2 }}
resources:
  {{- toYaml .pod.resources | nindent 2 }}
{{- end }}

{{/* The Secret with the database's URL, as a volume that may come later. */}}
{{- define "tarsy.databaseVolume" -}}
name: database
secret:
  secretName: {{ ternary (printf "%s-postgres" (include "tarsy.fullname" .)) .Values.database.existingSecret .Values.postgres.trial | quote }}
  items:
  - key: {{ ternary "uri" .Values.database.key .Values.postgres.trial | quote }}
    path: uri
  defaultMode: 0440
  optional: true
{{- end }}

{{/* Labels and annotations of a CRD. */}}
{{- define "tarsy.crdMetadata" -}}
labels:
  {{- include "tarsy.labels" . | nindent 2 }}
{{- $annotations := .Values.crds.annotations }}
{{- if .Values.crds.keep }}
{{- $annotations = merge (dict "helm.sh/resource-policy" "keep") $annotations }}
{{- end }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
