{{/* Redis' authority and the object store as volumes of a pod. */}}
{{- define "stratos.redisCaMount" -}}
{{- if and (not .Values.redis.enabled) .Values.redis.external.caSecret.name }}
- {name: redis-ca, mountPath: /etc/stratos/redis, readOnly: true}
{{- end }}
{{- end }}

{{- define "stratos.redisCaVolume" -}}
{{- $secret := .Values.redis.external.caSecret -}}
{{- if and (not .Values.redis.enabled) $secret.name }}
- name: redis-ca
  secret:
    secretName: {{ $secret.name | quote }}
    items: [{key: {{ $secret.key | quote }}, path: ca.crt}]
{{- end }}
{{- end }}

{{/* dict root, readOnly */}}
{{- define "stratos.objectMount" -}}
{{- if include "stratos.hasObjectVolume" .root }}
- {name: objects, mountPath: /objects{{ if .readOnly }}, readOnly: true{{ end }}}
{{- end }}
{{- end }}

{{- define "stratos.objectVolume" -}}
{{- $volume := .root.Values.objectStore.volume -}}
{{- if include "stratos.hasObjectVolume" .root }}
- {name: objects, persistentVolumeClaim: {claimName: {{ $volume.existingClaim | default (include "stratos.name" (list .root "objects")) | quote }}{{ if .readOnly }}, readOnly: true{{ end }}}}
{{- end }}
{{- end }}
