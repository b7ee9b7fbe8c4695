{{- define "stratos.tlsPrefix" -}}
{{- .Values.mtls.secretPrefix | default (printf "%s-tls" (include "stratos.fullname" .)) -}}
{{- end }}

{{- define "stratos.tlsDomain" -}}
{{- .Values.mtls.domain | default (printf "%s.%s" .Release.Name .Release.Namespace) -}}
{{- end }}

{{/* Name that the API server and KEDA expect in the autoscaler's certificate. */}}
{{- define "stratos.autoscalerHost" -}}
{{- printf "%s.%s.svc" (include "stratos.name" (list . "autoscaler")) .Release.Namespace -}}
{{- end }}

{{- define "stratos.hasCertificateJob" -}}
{{- if and .Values.mtls.enabled (eq .Values.mtls.source "job") }}yes{{ end -}}
{{- end }}

{{/* Names that clients of the release's own Redis expect in its certificate, as JSON. */}}
{{- define "stratos.redisHosts" -}}
{{- $name := include "stratos.name" (list . "redis") -}}
{{- toJson (list $name (printf "%s.%s.svc" $name .Release.Namespace)) -}}
{{- end }}

{{/* Certificate of a service: dict root, prefix, component. */}}
{{- define "stratos.tlsEnv" -}}
{{- if .root.Values.mtls.enabled -}}
- name: {{ .prefix }}TLS__CERTIFICATE_PATH
  value: /etc/stratos/tls/tls.crt
- name: {{ .prefix }}TLS__KEY_PATH
  value: /etc/stratos/tls/tls.key
- name: {{ .prefix }}TLS__CA_PATH
  value: /etc/stratos/tls/ca.crt
- name: {{ .prefix }}TLS__DOMAIN
  value: {{ include "stratos.tlsDomain" .root | quote }}
{{- end -}}
{{- end }}

{{/* Pod spec of `stratos certificates VERB`: dict root, verb. */}}
{{- define "stratos.certificatesPod" -}}
{{- include "stratos.secretsPod" (dict "root" .root "name" "certificates" "isHook" .isHook "command" (include "stratos.certificatesCommand" .)) -}}
{{- end }}

{{- define "stratos.certificatesCommand" -}}
{{- $job := .root.Values.mtls.job -}}
- stratos
- certificates
- {{ .verb }}
- --secrets={{ include "stratos.tlsPrefix" .root }}
- --namespace={{ .root.Release.Namespace }}
{{- if ne .verb "remove" }}
- --domain={{ include "stratos.tlsDomain" .root }}
- --lifetime-days={{ $job.lifetimeDays }}
- --ca-lifetime-days={{ $job.caLifetimeDays }}
- --overlap-s={{ int $job.overlapSeconds }}
- --dns-name=autoscaler={{ include "stratos.autoscalerHost" .root }}
{{- range include "stratos.redisHosts" .root | fromJsonArray }}
- --dns-name=redis={{ . }}
{{- end }}
- --label=app.kubernetes.io/name=stratosserve
- --label=app.kubernetes.io/instance={{ .root.Release.Name }}
{{- end }}
{{- end }}
