{{/* Secrets of yours that a component reads as variables, and so at its start alone: when one changes, its pods are replaced. Those
     that the chart's own job makes are not among them, since they appear after the pods. */}}

{{/* Their names, as JSON: dict root, component, pool. */}}
{{- define "stratos.readSecrets" -}}
{{- $values := .root.Values -}}
{{- $names := list -}}
{{- if has .component (list "gateway" "lora-registry" "prefill-worker" "decode-worker") -}}
{{- $names = append $names $values.objectStore.s3.credentialsSecret -}}
{{- end -}}
{{- if and (not $values.redis.enabled) (has .component (list "gateway" "lora-registry")) -}}
{{- $names = append $names $values.redis.external.urlSecret.name -}}
{{- end -}}
{{- $readers := list "gateway" -}}
{{- if $values.redis.enabled }}{{ $readers = concat $readers (list "lora-registry" "redis") }}{{ end -}}
{{- if include "stratos.hasOwnObjects" .root }}{{ $readers = concat $readers (list "lora-registry" "prefill-worker" "decode-worker" "object-store") }}{{ end -}}
{{- if has .component $readers }}{{ $names = append $names $values.credentials.existingSecret }}{{ end -}}
{{- if eq .component "gateway" -}}
{{- $names = append $names $values.credentials.platformKeySecret.name -}}
{{- $names = concat $names (include "stratos.referredSecrets" (dict "found" .pool.secretConfig) | fromJsonArray) -}}
{{- end -}}
{{- compact $names | uniq | sortAlpha | toJson -}}
{{- end }}

{{/* Names of Secrets below a tree of references, as JSON: dict found. */}}
{{- define "stratos.referredSecrets" -}}
{{- $names := list -}}
{{- range $_, $value := .found | default dict -}}
{{- if and (hasKey $value "name") (hasKey $value "key") -}}
{{- $names = append $names $value.name -}}
{{- else -}}
{{- $names = concat $names (include "stratos.referredSecrets" (dict "found" $value) | fromJsonArray) -}}
{{- end -}}
{{- end -}}
{{- toJson $names -}}
{{- end }}

{{/* A digest of what those that are there hold; empty where Helm can ask no cluster: dict root, component, pool. */}}
{{- define "stratos.secretsDigest" -}}
{{- $found := dict -}}
{{- range $name := include "stratos.readSecrets" . | fromJsonArray -}}
{{- with (lookup "v1" "Secret" $.root.Release.Namespace $name).data }}{{ $_ := set $found $name . }}{{ end -}}
{{- end -}}
{{- include "stratos.digestOf" (dict "found" $found "component" .component) -}}
{{- end }}

{{/* Keys that gateways and jobs alone read replace no other pod: dict found, component. */}}
{{- define "stratos.digestOf" -}}
{{- $read := dict -}}
{{- range $name, $data := .found -}}
{{- $_ := set $read $name (ternary $data (omit $data "admin-key" "api-key" "key-pepper" "platform-key") (eq $.component "gateway")) -}}
{{- end -}}
{{- if $read }}{{ $read | toJson | sha256sum | trunc 16 }}{{ end -}}
{{- end }}
