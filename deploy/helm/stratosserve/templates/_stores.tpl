{{/* Whether the release's own Redis speaks TLS. */}}
{{- define "stratos.hasRedisTls" -}}
{{- if and .Values.redis.enabled .Values.redis.tls.enabled }}yes{{ end -}}
{{- end }}

{{/* Secret and key of Redis' authority, as JSON, which is empty where none is given. */}}
{{- define "stratos.redisCa" -}}
{{- $own := dict "name" (printf "%s-redis" (include "stratos.tlsPrefix" .)) "key" "ca.crt" -}}
{{- if include "stratos.hasRedisTls" . -}}
{{- toJson $own -}}
{{- else -}}
{{- toJson (ternary .Values.redis.external.caSecret dict (and (not .Values.redis.enabled) (not (empty .Values.redis.external.caSecret.name)))) -}}
{{- end -}}
{{- end }}

{{/* It as a volume of a pod. */}}
{{- define "stratos.redisCaMount" -}}
{{- if include "stratos.redisCa" . | fromJson }}
- {name: redis-ca, mountPath: /etc/stratos/redis, readOnly: true}
{{- end }}
{{- end }}

{{- define "stratos.redisCaVolume" -}}
{{- with include "stratos.redisCa" . | fromJson }}
- name: redis-ca
  secret:
    secretName: {{ .name | quote }}
    items: [{key: {{ .key | quote }}, path: ca.crt}]
{{- end }}
{{- end }}

{{/* What a volume needs that outlives its release: Helm, Argo CD and Flux leave it where it is. */}}
{{- define "stratos.keepAnnotations" -}}
{{- if .Values.keepOnUninstall }}
annotations:
  helm.sh/resource-policy: keep
  argocd.argoproj.io/sync-options: Delete=false,Prune=false
  kustomize.toolkit.fluxcd.io/prune: disabled
{{- end }}
{{- end }}

{{/* The modes of a claim that is there, or those of the values: dict live (the claim in the cluster), modes. */}}
{{- define "stratos.accessModes" -}}
{{- toJson (((.live).spec).accessModes | default .modes) -}}
{{- end }}
