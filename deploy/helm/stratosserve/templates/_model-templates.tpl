{{/* Models to come: those that objects of kind Model name (model-resources.yaml). The autoscaler makes their objects from those that the
     chart's own named templates render for an entry of models, with words in place of what a Model says:

       __MODEL__         name of the Model, in labels
       __NAME_END__      name of an object, where END has the name of the Model; long ones are shortened as in _names.tpl
       __SERVED_NAME__, __OWNER__, __TERMS__, __CACHE_FOLDER__ and the words of its source, below */}}

{{/* What a source says, by its kind, as JSON: (template). Another kind of source is another line here. */}}
{{- define "stratos.templateSources" -}}
{{- $cache := merge dict (.cache | default dict) -}}
{{- dict
  "objectStore" (dict "prefix" "__PREFIX__" "digest" "__DIGEST__" "cache" $cache)
  "registry" (dict "name" "__PUBLISHED__" "digest" "__DIGEST__" "cache" (.registryCache | default dict))
  "claim" (dict "name" "__CLAIM__" "path" "__CLAIM_PATH__")
  "image" (dict "reference" "__IMAGE__" "path" "__IMAGE_PATH__" "sizeLimit" (.sizeLimit | default ""))
  "imageVolume" (dict "reference" "__IMAGE__" "path" "__FOLDER__")
  | toJson -}}
{{- end }}

{{/* An entry of models for a template and a kind of source, as JSON: dict name, template, kind. */}}
{{- define "stratos.templateModel" -}}
{{- $sources := include "stratos.templateSources" .template | fromJson -}}
{{- $source := dict .kind (get $sources .kind) -}}
{{- dict "name" "__MODEL__" "servedName" "__SERVED_NAME__" "owner" "__OWNER__" "termsJson" "__TERMS__" "cacheFolder" "__CACHE_FOLDER__" "source" $source "prefill" (.template.prefill | default dict) "decode" (.template.decode | default dict) "where" (printf "modelResources.templates.%s" .name) | toJson -}}
{{- end }}

{{/* One entry for each template, with a source of any kind, as a JSON list: for checks. */}}
{{- define "stratos.templateModels" -}}
{{- $found := list -}}
{{- if .Values.modelResources.enabled -}}
{{- range $name, $template := .Values.modelResources.templates -}}
{{- $found = append $found (include "stratos.templateModel" (dict "name" $name "template" ($template | default dict) "kind" "claim") | fromJson) -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}

{{/* All objects of a model, as a JSON list: dict root, model. */}}
{{- define "stratos.modelObjects" -}}
{{- $root := .root -}}
{{- $model := .model -}}
{{- $texts := list -}}
{{- range include "stratos.poolsOf" (dict "root" $root "models" (list $model)) | fromJsonArray -}}
{{- if gt (int .values.replicas) 0 -}}
{{- $texts = append $texts (include "stratos.workerPool" (merge (dict "root" $root) .)) -}}
{{- with include "stratos.poolHpa" (dict "root" $root "model" $model "role" .role) }}{{ $texts = append $texts . }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $texts = append $texts (include "stratos.recordJob" (dict "root" $root "model" $model)) -}}
{{- $found := list -}}
{{- range $texts -}}
{{- range splitList "\n---\n" . }}{{ $found = append $found (fromYaml .) }}{{ end -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}

{{/* The job that removes all records of a Model. */}}
{{- define "stratos.modelRetireJob" -}}
{{- $labels := include "stratos.selector" (dict "root" . "component" "tools") -}}
{{- $pod := include "stratos.retirePod" (dict "root" . "owner" "__OWNER__" "keep" list) -}}
{{ include "stratos.job" (dict "root" . "component" "tools" "name" "retire-__MODEL__" "spec" (include "stratos.jobSpec" (dict "backoff" 30 "labels" $labels "pod" $pod))) }}
{{- end }}

{{/* What the autoscaler has to know besides, as JSON: names that values have, and names of terms in records. Another format for
     words that an autoscaler of the version before does not fill: it waits for the one that does. */}}
{{- define "stratos.modelFacts" -}}
{{- $known := (get (.Files.Get "files/settings.json" | fromJson) "gateway").config -}}
{{- $terms := dict -}}
{{- range $path, $name := $known -}}
{{- if and (hasPrefix "model." $path) (ne $path "model.digest") }}{{ $_ := set $terms (trimPrefix "model." $path) (trimPrefix "MODEL__" $name | lower) }}{{ end -}}
{{- end -}}
{{- $names := list -}}
{{- $served := list -}}
{{- range .Values.models }}{{ $names = append $names .name }}{{ $served = append $served (include "stratos.servedName" .) }}{{ end -}}
{{- $pools := list -}}
{{- range include "stratos.workerPools" . | fromJsonArray }}{{ $pools = append $pools (printf "%s-%s" .role .id) }}{{ end -}}
{{- dict "format" 1 "head" (include "stratos.fullname" .) "owner" (printf "Model of %s/%s" .Release.Namespace .Release.Name) "names" $names "served_names" $served "pools" $pools "terms" $terms | toJson -}}
{{- end }}

{{/* Image volumes are on from Kubernetes 1.35. */}}
{{- define "stratos.checkModelTemplates" -}}
{{- with .Values.modelResources -}}
{{- if and .enabled (has "imageVolume" .sources) (semverCompare "<1.35.0-0" $.Capabilities.KubeVersion.Version) -}}
{{- fail (printf "modelResources.sources: imageVolume needs Kubernetes 1.35, this is %s" $.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and .enabled (eq (int $.Values.autoscaler.replicas) 0) }}{{ fail "autoscaler.replicas: 0 leaves modelResources without the autoscaler, which acts on them" }}{{ end -}}
{{- end -}}
{{- end }}

{{/* What the autoscaler may do for Models, as rules. Kubernetes limits no creation to names, and names of Models are not known before. */}}
{{- define "stratos.modelRights" -}}
{{- if .Values.modelResources.enabled -}}
- apiGroups: [stratosserve.io]
  resources: [models]
  verbs: [list, watch, patch]
- apiGroups: [stratosserve.io]
  resources: [models/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [list, watch]
  resourceNames: [{{ include "stratos.name" (list . "model-templates") }}]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments/scale]
  verbs: [get, update]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
{{- end -}}
{{- end }}
