{{/* Records of models: the jobs that write and remove them. */}}

{{/* Digest of what an entry's job records, whichever image does: dict root, model. Its workers' Deployments carry it. */}}
{{- define "stratos.recordDigest" -}}
{{- list (include "stratos.servedName" .model) .model.source (include "stratos.modelTerms" .) (include "stratos.recordOwner" .root) | toJson | sha256sum | trunc 10 -}}
{{- end }}

{{/* The job that records an entry before an upgrade: where it fails, nothing is changed. dict root, model. */}}
{{- define "stratos.recordHook" -}}
{{ include "stratos.hook" (dict "root" .root "component" "tools" "name" (printf "record-%s" .model.name) "at" "pre-upgrade" "deadlineS" 900 "pod" (include "stratos.recordPod" (merge (dict "isHook" true) .))) }}
{{- end }}

{{/* Whether Helm records an entry before it changes anything: workers of another record run, and those of a source that gateways do not
     know would take their place and get no request. A Deployment that names no record is of a chart that had none: neither its gateways
     nor its credentials and stores are what the job needs. dict root, model, found (Deployments of the namespace). */}}
{{- define "stratos.recordsFirst" -}}
{{- $wanted := include "stratos.recordDigest" (dict "root" .root "model" .model) -}}
{{- range .found | default list -}}
{{- $labels := (.metadata).labels | default dict -}}
{{- $isOurs := and (eq (get $labels "app.kubernetes.io/instance" | default "") $.root.Release.Name) (eq (get $labels "stratosserve.io/model" | default "") $.model.name) -}}
{{- $isWorker := hasSuffix "-worker" (get $labels "app.kubernetes.io/component" | default "") -}}
{{- $record := get ((.metadata).annotations | default dict) "stratosserve.io/record" | default $wanted -}}
{{- if and $isOurs $isWorker (ne $record $wanted) }}yes{{ end -}}
{{- end -}}
{{- end }}

{{- define "stratos.recordJob" -}}
{{- $labels := include "stratos.selector" (dict "root" .root "component" "tools") -}}
{{ include "stratos.job" (dict "root" .root "component" "tools" "name" (printf "model-%s" .model.name) "spec" (include "stratos.jobSpec" (dict "backoff" 30 "labels" $labels "pod" (include "stratos.recordPod" .)))) }}
{{- end }}
{{/* Records one model: dict root, model, isHook. Of a model whose digest is given it reads no weights. */}}
{{- define "stratos.recordPod" -}}
{{- $source := .model.source -}}
{{- $from := ($source.objectStore).prefix | default (include "stratos.modelReference" .) -}}
{{- $digest := ($source.objectStore).digest | default ($source.registry).digest -}}
{{- $isByDigest := not (empty $digest) -}}
restartPolicy: OnFailure
{{- if .isHook }}
{{- include "stratos.jobPriority" .root }}
{{- end }}
serviceAccountName: {{ include "stratos.serviceAccount" (dict "root" .root "component" "tools") }}
{{- include "stratos.podSecurity" .root | nindent 0 }}
{{- if not $isByDigest }}
{{- with include "stratos.modelInit" . | trim }}
initContainers:
  {{- . | nindent 2 }}
{{- end }}
{{- end }}
containers:
  - name: record
    {{- include (ternary "stratos.hookTool" "stratos.tool" (not (empty .isHook))) .root | nindent 4 }}
    command:
      - stratos
      - admin
      - record-model
      - {{ include "stratos.servedName" .model | quote }}
      {{- if $isByDigest }}
      - --from={{ $from }}
      - --digest={{ $digest }}
      {{- else }}
      - --folder={{ include "stratos.modelPath" . }}
      {{- end }}
      - --owner={{ .model.owner | default (include "stratos.recordOwner" .root) }}
      {{- with .model.termsJson | default (include "stratos.modelTerms" .) }}
      - --terms={{ . }}
      {{- end }}
      {{- include "stratos.recordStores" .root | nindent 6 }}
    env:
      {{- include "stratos.recordEnv" .root | trim | nindent 6 }}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
      {{- include "stratos.redisCaMount" .root | nindent 6 }}
      {{- if not $isByDigest }}
      {{- include "stratos.modelMounts" . | nindent 6 }}
      {{- end }}
volumes:
  - {name: tmp, emptyDir: {}}
  {{- include "stratos.redisCaVolume" .root | nindent 2 }}
  {{- if not $isByDigest }}
  {{- include "stratos.modelVolumes" . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* Removes the records of an owner: dict root, owner, keep (names). */}}
{{- define "stratos.retirePod" -}}
restartPolicy: OnFailure
serviceAccountName: {{ include "stratos.serviceAccount" (dict "root" .root "component" "tools") }}
{{- include "stratos.podSecurity" .root | nindent 0 }}
containers:
  - name: models
    {{- include "stratos.tool" .root | nindent 4 }}
    command:
      - stratos
      - admin
      - retire-models
      - --owner={{ .owner }}
      {{- range .keep }}
      - --keep={{ . }}
      {{- end }}
      {{- include "stratos.recordStores" .root | nindent 6 }}
    env:
      {{- include "stratos.recordEnv" .root | trim | nindent 6 }}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
      {{- include "stratos.redisCaMount" .root | nindent 6 }}
volumes:
  - {name: tmp, emptyDir: {}}
  {{- include "stratos.redisCaVolume" .root | nindent 2 }}
{{- end }}
{{/* Whose the records are: models that were added by hand are never this release's. */}}
{{- define "stratos.recordOwner" -}}
{{- printf "values of %s/%s" .Release.Namespace .Release.Name -}}
{{- end }}

{{- define "stratos.recordStores" -}}
- --wait-s=600
- --object-store={{ include "stratos.objectStoreUrl" . }}
{{- with include "stratos.s3Endpoint" . }}
- --s3-endpoint={{ . }}
{{- end }}
{{- with ((.Values.gateway.config).records).prefix }}
- --prefix={{ . }}
{{- end }}
{{- end }}

{{- define "stratos.recordEnv" -}}
- {name: HOME, value: /tmp}
{{- include "stratos.redisEnv" (dict "root" . "prefix" "") | nindent 0 }}
{{- include "stratos.s3Credentials" . }}
{{- end }}

{{/* Terms of a model as JSON with the names that records have; empty where there are none. The first one's are the gateways', too:
     dict root, model. */}}
{{- define "stratos.modelTerms" -}}
{{- $known := (get (.root.Files.Get "files/settings.json" | fromJson) "gateway").config -}}
{{- $terms := dict -}}
{{- $given := deepCopy (.model.terms | default dict) -}}
{{- if eq .model.name (first .root.Values.models).name -}}
{{- include "stratos.mergeInto" (dict "base" $given "over" (omit ((.root.Values.gateway.config).model | default dict) "digest")) -}}
{{- end -}}
{{- range $name, $value := $given -}}
{{- $_ := set $terms (get $known (printf "model.%s" $name) | trimPrefix "MODEL__" | lower) $value -}}
{{- end -}}
{{- with .model.speculation -}}
{{- $drafts := dict "method" .method -}}
{{- with .modelPath }}{{ $_ := set $drafts "model" . }}{{ end -}}
{{- with .numSpeculativeTokens }}{{ $_ := set $drafts "num_speculative_tokens" . }}{{ end -}}
{{- $_ := set $terms "speculation" $drafts -}}
{{- end -}}
{{- if $terms }}{{ toJson $terms }}{{ end -}}
{{- end }}
