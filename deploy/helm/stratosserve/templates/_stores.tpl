{{/* Redis' authority as a volume of a pod. */}}
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
