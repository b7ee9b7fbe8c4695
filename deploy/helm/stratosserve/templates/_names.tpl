{{/* Head of all names. A Service's name begins with a letter and has no dot; a release's may. */}}
{{- define "stratos.fullname" -}}
{{- $name := default .Release.Name .Values.fullnameOverride | replace "." "-" | trimSuffix "-" -}}
{{- if regexMatch "^[0-9]" $name }}{{ $name = printf "r%s" $name | trunc 53 | trimSuffix "-" }}{{ end -}}
{{- $name -}}
{{- end }}

{{/* Name of an object, at most 63 characters: (list $ "decode-base"). A long one keeps its end, and a digest tells it from others. */}}
{{- define "stratos.name" -}}
{{- include "stratos.nameWithin" (append . 63) -}}
{{- end }}

{{/* Name of a CronJob, at most 52: its jobs' names are 11 characters longer. */}}
{{- define "stratos.cronName" -}}
{{- include "stratos.nameWithin" (append . 52) -}}
{{- end }}

{{/* The same of so many characters: (list $ "decode-base" 63). That of a model to come (_model-templates.tpl) is left to the autoscaler,
     which shortens it by the same rule. */}}
{{- define "stratos.nameWithin" -}}
{{- $end := index . 1 -}}
{{- $max := index . 2 -}}
{{- $head := include "stratos.fullname" (index . 0) -}}
{{- $name := printf "%s-%s" $head $end -}}
{{- if contains "__MODEL__" $end -}}
{{- $name = printf "__NAME_%s__" $end -}}
{{- else if gt (len $name) $max -}}
{{- $name = printf "%s-%s-%s" (trunc (int (sub (sub $max 10) (len $end))) $head | trimSuffix "-") (sha256sum $name | trunc 8) $end -}}
{{- end -}}
{{- $name -}}
{{- end }}

{{/* Name of what belongs to the cluster. No namespace has a dot, so two releases never meet. */}}
{{- define "stratos.clusterName" -}}
{{- $root := index . 0 -}}
{{- printf "%s.%s.%s" $root.Release.Namespace (include "stratos.fullname" $root) (index . 1) -}}
{{- end }}

{{/* What selects pods: dict root, component, and what tells it from others: model, or serves of gateways. */}}
{{- define "stratos.selector" -}}
app.kubernetes.io/name: stratosserve
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- with .model }}
stratosserve.io/model: {{ . | quote }}
{{- end }}
{{- with .serves }}
stratosserve.io/serves: {{ . | quote }}
{{- end }}
{{- end }}

{{/* What tells the gateways from other pods, as JSON. */}}
{{- define "stratos.gateways" -}}
{{- dict "component" "gateway" "serves" "all-models" | toJson -}}
{{- end }}

{{- define "stratos.labels" -}}
{{ include "stratos.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* metadata of an object: dict root, component, name, model. */}}
{{- define "stratos.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "stratos.labels" . | nindent 2 }}
{{- end }}

{{/* Reference of an image, by its digest where one is given: (list $ .Values.gateway.image). */}}
{{- define "stratos.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- if $image.reference -}}
{{ $image.reference }}
{{- else -}}
{{- $tag := $image.tag | default $root.Values.image.tag | default $root.Chart.AppVersion -}}
{{- with $root.Values.image.registry }}{{ . | trimSuffix "/" }}/{{ end }}{{ $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $tag }}{{ end }}
{{- end -}}
{{- end }}

{{- define "stratos.serviceAccount" -}}
{{- include "stratos.name" (list .root .component) -}}
{{- end }}

{{- define "stratos.credentials" -}}
{{- .Values.credentials.existingSecret | default (include "stratos.name" (list . "credentials")) -}}
{{- end }}

{{/* host:port of gRPC of a Service, whole and with a final dot: a lookup asks once, not once per search domain. (list $ "routers") */}}
{{- define "stratos.host" -}}
{{- $root := index . 0 -}}
{{- printf "%s.%s.svc.%s.:%v" (include "stratos.name" .) $root.Release.Namespace $root.Values.clusterDomain $root.Values.ports.grpc -}}
{{- end }}
