{{/* The folder of a model in a pod: dict root, model. Each is a part of a pod that serves the model. What is published in the registry
     comes in one of three ways, which "as" says: workers stream it into the cache themselves ("cache"), gateways need its words alone
     ("words"), others get all of it ("whole", also without "as"). */}}

{{- define "stratos.modelReference" -}}
{{- with .model.source.registry }}registry:{{ .name | default $.model.name }}@{{ .digest }}{{ end -}}
{{- end }}

{{- define "stratos.modelPath" -}}
{{- $path := (.model.source.imageVolume).path | default "" -}}
/model{{ with $path | trimAll "/" }}/{{ . }}{{ end }}
{{- end }}

{{- define "stratos.modelMounts" -}}
{{- $source := .model.source -}}
{{- if and $source.registry (eq (.as | default "whole") "cache") }}
- {name: model, mountPath: /model}
{{- else if or $source.objectStore $source.registry }}
- {name: model, mountPath: /model, readOnly: true, subPath: {{ include "stratos.cacheFolder" . }}}
{{- else if $source.claim }}
- {name: model, mountPath: /model, readOnly: true{{ with $source.claim.path }}, subPath: {{ . | trimAll "/" | quote }}{{ end }}}
{{- else }}
- {name: model, mountPath: /model, readOnly: true}
{{- end }}
{{- end }}

{{- define "stratos.modelVolumes" -}}
{{- $source := .model.source -}}
{{- $cache := ternary (($source.registry).cache | default dict) dict (eq (.as | default "whole") "cache") -}}
{{- if $source.claim }}
- {name: model, persistentVolumeClaim: {claimName: {{ $source.claim.name | quote }}, readOnly: true}}
{{- else if $cache.claim }}
- {name: model, persistentVolumeClaim: {claimName: {{ $cache.claim | quote }}}}
{{- else if $cache.hostPath }}
- {name: model, hostPath: {path: {{ $cache.hostPath | quote }}, type: Directory}}
{{- else if $source.imageVolume }}
- name: model
  image:
    reference: {{ include "stratos.image" (list .root $source.imageVolume) | quote }}
    pullPolicy: {{ .root.Values.image.pullPolicy }}
{{- else if (($source.objectStore).cache).claim }}
- {name: model, persistentVolumeClaim: {claimName: {{ $source.objectStore.cache.claim | quote }}}}
{{- else }}
{{- $limit := ($source.image).sizeLimit | default (($source.objectStore).cache).sizeLimit | default $cache.sizeLimit }}
{{- $room := dict -}}
{{- with $limit }}{{ $_ := set $room "sizeLimit" . }}{{ end -}}
{{- with $cache.medium }}{{ $_ := set $room "medium" . }}{{ end }}
- {name: model, emptyDir: {{ toJson $room }}}
{{- end }}
{{- end }}

{{/* Copies the model before the service starts. */}}
{{- define "stratos.modelInit" -}}
{{- with .model.source.image }}
- name: model
  image: {{ include "stratos.image" (list $.root .) | quote }}
  imagePullPolicy: {{ $.root.Values.image.pullPolicy }}
  terminationMessagePolicy: FallbackToLogsOnError
  command: [cp, -R, {{ printf "%s/." (.path | default "/model" | trimSuffix "/") | quote }}, /into/]
  {{- include "stratos.containerSecurity" $ | nindent 2 }}
  resources:
    {{- include "stratos.toolRoom" $ | nindent 4 }}
  volumeMounts:
    - {name: model, mountPath: /into}
{{- end }}
{{- $fetched := .model.source.objectStore -}}
{{- if and .model.source.registry (ne (.as | default "whole") "cache") -}}
{{- $fetched = dict "prefix" (include "stratos.modelReference" .) -}}
{{- end }}
{{- with $fetched }}
- name: model
  image: {{ include "stratos.image" (list $.root $.root.Values.tools.image) | quote }}
  imagePullPolicy: {{ $.root.Values.image.pullPolicy }}
  terminationMessagePolicy: FallbackToLogsOnError
  command:
    - stratos
    - models
    - fetch
    - {{ .prefix | quote }}
    - --object-store={{ include "stratos.objectStoreUrl" $.root }}
    {{- with include "stratos.s3Endpoint" $.root }}
    - --s3-endpoint={{ . }}
    {{- end }}
    {{- with .digest }}
    - --digest={{ . }}
    {{- end }}
    - --into=/into/{{ include "stratos.cacheFolder" $ }}
    {{- if eq ($.as | default "whole") "words" | and $.model.source.registry }}
    - --words
    {{- end }}
  env:
    - {name: HOME, value: /tmp}
    {{- include "stratos.s3Credentials" $.root | nindent 4 }}
  {{- include "stratos.containerSecurity" $ | nindent 2 }}
  resources:
    {{- include "stratos.toolRoom" $ | nindent 4 }}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
    - {name: model, mountPath: /into}
{{- end }}
{{- end }}

{{/* One folder of a shared cache per content: a new digest never meets the files of an old one. */}}
{{- define "stratos.cacheFolder" -}}
{{- $source := .model.source.objectStore | default (dict "prefix" (include "stratos.modelReference" .)) -}}
{{ .model.cacheFolder | default (printf "%s-%s" .model.name (sha256sum (printf "%s %s" $source.prefix ($source.digest | default "")) | trunc 16)) }}
{{- end }}
