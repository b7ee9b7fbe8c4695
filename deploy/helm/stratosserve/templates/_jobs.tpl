{{/* A Job that is named by the digest of its spec, which Kubernetes lets nobody change: an equal one is the same Job wherever and
     however often it is rendered, a changed one is another. dict root, component, name, spec. */}}
{{- define "stratos.job" -}}
apiVersion: batch/v1
kind: Job
metadata:
  {{- include "stratos.metadata" (dict "root" .root "component" .component "name" (include "stratos.name" (list .root (printf "%s-%s" .name (sha256sum .spec | trunc 10))))) | nindent 2 }}
spec:
  {{- with int .root.Values.jobs.ttlSecondsAfterFinished }}
  ttlSecondsAfterFinished: {{ . }}
  {{- end }}
  {{- .spec | trim | nindent 2 }}
{{- end }}

{{/* Keys of the credentials that a job makes, where no Secret is supplied, as JSON. */}}
{{- define "stratos.credentialKeys" -}}
{{- $keys := list "key-pepper" "api-key" -}}
{{- if not .Values.credentials.platformKeySecret.name }}{{ $keys = append $keys "platform-key" }}{{ end -}}
{{- if .Values.redis.enabled }}{{ $keys = append $keys "redis-password" }}{{ end -}}
{{- if include "stratos.hasOwnObjects" . }}{{ $keys = append $keys "object-store-key" }}{{ end -}}
{{- if .Values.gateway.admin.enabled }}{{ $keys = append $keys "admin-key" }}{{ end -}}
{{- toJson $keys -}}
{{- end }}

{{- define "stratos.hasCredentialsJob" -}}
{{- if not .Values.credentials.existingSecret }}yes{{ end -}}
{{- end }}

{{/* Whether Helm made an object in the cluster for this release: dict root, live. */}}
{{- define "stratos.isOfRelease" -}}
{{- if eq (get (((.live).metadata).annotations | default dict) "meta.helm.sh/release-name" | default "") .root.Release.Name }}yes{{ end -}}
{{- end }}

{{/* Whether a job of the chart writes Secrets. */}}
{{- define "stratos.hasSecretsJob" -}}
{{- if or (include "stratos.hasCertificateJob" .) (include "stratos.hasCredentialsJob" .) }}yes{{ end -}}
{{- end }}

{{/* Priority of a job without which nothing serves, or Helm waits: it goes before ordinary pods where nodes are full. */}}
{{- define "stratos.jobPriority" -}}
{{- if .Values.priorityClasses.create }}
priorityClassName: {{ include "stratos.clusterName" (list . "serving") }}
{{- end }}
{{- end }}

{{/* Pod spec of a job that calls the API server: dict root, name, command (YAML list), isHook. */}}
{{- define "stratos.secretsPod" -}}
restartPolicy: OnFailure
{{- include "stratos.jobPriority" .root }}
serviceAccountName: {{ include "stratos.serviceAccount" (dict "root" .root "component" "certificates") }}
{{ include "stratos.podSecurity" .root | replace "automountServiceAccountToken: false" "automountServiceAccountToken: true" }}
containers:
  - name: {{ .name }}
    {{- include (ternary "stratos.hookTool" "stratos.tool" (not (empty .isHook))) .root | nindent 4 }}
    command:
      {{- .command | trim | nindent 6 }}
    env:
      - {name: HOME, value: /tmp}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
volumes:
  - {name: tmp, emptyDir: {}}
{{- end }}

{{/* Spec of a Job: dict backoff, labels, pod, annotations. */}}
{{- define "stratos.jobSpec" -}}
backoffLimit: {{ .backoff }}
template:
  metadata:
    labels:
      {{- .labels | nindent 6 }}
    {{- with .annotations }}
    annotations:
      {{- . | nindent 6 }}
    {{- end }}
  spec:
    {{- .pod | trim | nindent 4 }}
{{- end }}

{{/* A Job that Helm runs and waits for; one that cannot run ends in time: dict root, component, name, at, deadlineS, pod. */}}
{{- define "stratos.hook" -}}
{{- $about := dict "root" .root "component" .component "name" (include "stratos.name" (list .root .name)) -}}
apiVersion: batch/v1
kind: Job
metadata:
  {{- include "stratos.metadata" $about | nindent 2 }}
  annotations:
    helm.sh/hook: {{ .at }}
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
spec:
  activeDeadlineSeconds: {{ .deadlineS }}
  {{- include "stratos.jobSpec" (dict "backoff" 3 "labels" (include "stratos.selector" $about) "pod" .pod) | nindent 2 }}
{{- end }}

{{/* One that Helm runs before it removes the release: dict root, name, pod. */}}
{{- define "stratos.removal" -}}
{{- include "stratos.hook" (merge (dict "component" "certificates" "at" "pre-delete" "deadlineS" 240) .) -}}
{{- end }}

{{/* Image, security and room of a container with the `stratos` command. */}}
{{- define "stratos.tool" -}}
{{ include "stratos.toolImage" . }}
resources:
  {{- include "stratos.toolRoom" (dict "root" .) | nindent 2 }}
{{- end }}

{{/* The same for a hook. */}}
{{- define "stratos.hookTool" -}}
{{ include "stratos.toolImage" . }}
resources:
  {{- include "stratos.toolRoom" (dict "root" . "isHook" true) | nindent 2 }}
{{- end }}

{{/* Room of such a container: dict root, isHook. */}}
{{- define "stratos.toolRoom" -}}
{{ toYaml (ternary .root.Values.tools.hookResources .root.Values.tools.resources (not (empty .isHook))) }}
{{- end }}

{{- define "stratos.toolImage" -}}
image: {{ include "stratos.image" (list . .Values.tools.image) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
terminationMessagePolicy: FallbackToLogsOnError
{{ include "stratos.containerSecurity" . }}
{{- end }}
