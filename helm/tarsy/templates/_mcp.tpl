{{/* kubernetes-mcp-server's configuration: what it shows nobody, whatever its account may read. */}}
{{- define "tarsy.mcpConfig" -}}
read_only = true
{{- with .Values.mcp.extraConfig }}

{{ . | trim }}
{{- end }}
{{- range .Values.mcp.deniedResources }}

[[denied_resources]]
group = {{ .group | default "" | quote }}
version = {{ .version | default "v1" | quote }}
kind = {{ .kind | quote }}
{{- end }}
{{- end }}
