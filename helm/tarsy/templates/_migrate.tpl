{{/*
The container that brings the database to this version's schema, and says what it waits for. Takes root, and wait where
that has an end.
*/}}
{{- define "tarsy.migrateContainer" -}}
{{- $pod := include "tarsy.pod" (dict "root" .root "component" "migrate") | fromYaml -}}
name: migrate
{{ include "tarsy.container" (dict "root" .root "pod" $pod) }}
command: [tarsy, migrate, --wait{{ with .wait }}={{ . }}{{ end }}]
terminationMessagePolicy: FallbackToLogsOnError
env:
- name: DATABASE_URL_FILE
  value: /etc/tarsy/database/uri
volumeMounts:
- {name: tmp, mountPath: /tmp}
- {name: database, mountPath: /etc/tarsy/database, readOnly: true}
{{- end }}
