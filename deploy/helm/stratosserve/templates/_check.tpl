{{/* What values.schema.json cannot say. Each refusal names the value. */}}
{{- define "stratos.check" -}}
{{- $names := list -}}
{{- range .Values.models -}}
{{- if has .name $names }}{{ fail (printf "models: the name %q appears twice" .name) }}{{ end -}}
{{- $names = append $names .name -}}
{{- if and .source.imageVolume (semverCompare "<1.35.0-0" $.Capabilities.KubeVersion.Version) -}}
{{- fail (printf "models[%s].source.imageVolume: image volumes need Kubernetes 1.35, this is %s" .name $.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- end -}}
{{- $external := .Values.redis.external.urlSecret -}}
{{- if and (not .Values.redis.enabled) (not $external.name) -}}
{{- fail "redis.external.urlSecret.name: is required where redis.enabled is false" -}}
{{- end -}}
{{- if and .Values.objectStore.url (not (hasPrefix "s3://" .Values.objectStore.url)) -}}
{{- fail "objectStore.url: must be s3://BUCKET/PREFIX; leave it empty for a shared volume" -}}
{{- end -}}
{{- $keys := list "key-pepper" -}}
{{- if .Values.redis.enabled }}{{ $keys = append $keys "redis-password" }}{{ end -}}
{{- if include "stratos.hasDeclaration" . -}}
{{- if not .Values.gateway.admin.enabled }}{{ fail "declaration: needs gateway.admin.enabled" }}{{ end -}}
{{- $keys = append $keys "admin-key" -}}
{{- end -}}
{{- with .Values.credentials.existingSecret -}}
{{- include "stratos.checkSecret" (dict "root" $ "where" "credentials.existingSecret" "name" . "keys" $keys) -}}
{{- end -}}
{{- if not .Values.redis.enabled -}}
{{- include "stratos.checkSecret" (dict "root" $ "where" "redis.external.urlSecret" "name" $external.name "keys" (list $external.key)) -}}
{{- with .Values.redis.external.caSecret }}{{ if .name -}}
{{- include "stratos.checkSecret" (dict "root" $ "where" "redis.external.caSecret" "name" .name "keys" (list .key)) -}}
{{- end }}{{ end -}}
{{- end -}}
{{- with .Values.objectStore.s3.credentialsSecret -}}
{{- include "stratos.checkSecret" (dict "root" $ "where" "objectStore.s3.credentialsSecret" "name" . "keys" (list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY")) -}}
{{- end -}}
{{- with .Values.gateway.tls.secretName -}}
{{- include "stratos.checkSecret" (dict "root" $ "where" "gateway.tls.secretName" "name" . "keys" (list "tls.crt" "tls.key")) -}}
{{- end -}}
{{- include "stratos.checkReferences" (dict "root" $ "where" "gateway.secretConfig" "found" .Values.gateway.secretConfig) -}}
{{- range .Values.models -}}
{{- include "stratos.checkReferences" (dict "root" $ "where" (printf "models[%s].gateway.secretConfig" .name) "found" (.gateway).secretConfig) -}}
{{- end -}}
{{- include "stratos.checkPolicies" . -}}
{{- if and .Values.mtls.enabled (eq .Values.mtls.source "secrets") -}}
{{- range list "gateway" "router" "prefill-worker" "decode-worker" "lora-registry" "autoscaler" -}}
{{- include "stratos.checkSecret" (dict "root" $ "where" "mtls.secretPrefix" "name" (printf "%s-%s" (include "stratos.tlsPrefix" $) .) "keys" (list "tls.crt" "tls.key" "ca.crt")) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* A Secret that the values name must be there, with its keys, when a cluster is asked: dict root, where, name, keys. */}}
{{- define "stratos.checkSecret" -}}
{{- if lookup "v1" "Namespace" "" "kube-system" -}}
{{- $secret := lookup "v1" "Secret" .root.Release.Namespace .name -}}
{{- if not $secret }}{{ fail (printf "%s: there is no Secret %s in namespace %s" .where .name .root.Release.Namespace) }}{{ end -}}
{{- range .keys -}}
{{- if not (hasKey ($secret.data | default dict) .) }}{{ fail (printf "%s: the Secret %s has no key %s" $.where $.name .) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Every {name, key} below a map: dict root, where, found. */}}
{{- define "stratos.checkReferences" -}}
{{- range $part, $value := .found | default dict -}}
{{- $where := printf "%s.%s" $.where $part -}}
{{- if and (kindIs "string" (get $value "name")) (kindIs "string" (get $value "key")) -}}
{{- include "stratos.checkSecret" (dict "root" $.root "where" $where "name" $value.name "keys" (list $value.key)) -}}
{{- else -}}
{{- include "stratos.checkReferences" (dict "root" $.root "where" $where "found" $value) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Names of policies: those that there are, and those of router.config.policies.custom. */}}
{{- define "stratos.checkPolicies" -}}
{{- $policies := (.Values.router.config).policies | default dict -}}
{{- $known := concat (.Files.Get "files/policies.json" | fromJsonArray) (keys ($policies.custom | default dict) | sortAlpha) -}}
{{- with $policies.default -}}
{{- if not (has . $known) }}{{ fail (printf "router.config.policies.default: there is no policy %q; there are %s" . (join ", " $known)) }}{{ end -}}
{{- end -}}
{{- range $pool, $name := $policies.pools | default dict -}}
{{- if not (has $name $known) }}{{ fail (printf "router.config.policies.pools[%s]: there is no policy %q; there are %s" $pool $name (join ", " $known)) }}{{ end -}}
{{- end -}}
{{- end }}
