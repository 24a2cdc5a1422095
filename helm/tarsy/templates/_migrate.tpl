{{/* The container that brings the database to this version's schema. */}}
{{- define "tarsy.migrateContainer" -}}
{{- $pod := include "tarsy.pod" (dict "root" . "component" "migrate") | fromYaml -}}
name: migrate
{{ include "tarsy.container" (dict "root" . "pod" $pod) }}
command: [tarsy, migrate]
env:
- name: DATABASE_URL_FILE
  value: /etc/tarsy/database/uri
volumeMounts:
- {name: tmp, mountPath: /tmp}
- {name: database, mountPath: /etc/tarsy/database, readOnly: true}
{{- end }}
