{{/* What a schema of values cannot say: refused with its path, as the rest is. */}}
{{- define "tarsy.check" -}}
{{- $told := list }}
{{- $name := include "tarsy.fullname" . }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) }}
{{- $told = append $told (printf "at '/fullnameOverride': the release's name makes %s, which no Service can be called: give another, which begins with a letter and has letters, digits and dashes" $name) }}
{{- end }}
{{- range $component := splitList " " (include "tarsy.processes" .) }}
{{- $scaled := (include "tarsy.pod" (dict "root" $ "component" $component) | fromYaml).autoscaling | default dict }}
{{- if and $scaled.maxReplicas (gt (int $scaled.minReplicas) (int $scaled.maxReplicas)) }}
{{- $told = append $told (printf "at '/%s/autoscaling/minReplicas': %d is more than maxReplicas, %d" $component (int $scaled.minReplicas) (int $scaled.maxReplicas)) }}
{{- end }}
{{- end }}
{{- if .Values.mcp.enabled }}
{{- $more := without .Values.mcp.toolsets "core" }}
{{- if and $more (not .Values.mcp.extraRules) (not .Values.mcp.extraConfig) }}
{{- $told = append $told (printf "at '/mcp/toolsets': %s can do nothing with the rights that the chart gives: say what it may read in mcp.extraRules, or where its server is in mcp.extraConfig" (join ", " $more)) }}
{{- end }}
{{- range .Values.mcp.deniedResources }}
{{- if and (has "helm" $more) (eq .kind "Secret") (not .group) }}
{{- $told = append $told "at '/mcp/toolsets': helm keeps its releases in Secrets, which mcp.deniedResources refuses" }}
{{- end }}
{{- end }}
{{- end }}
{{- with $told }}
{{- fail (join "\n- " (prepend . "values don't go together:")) }}
{{- end }}
{{- end }}
