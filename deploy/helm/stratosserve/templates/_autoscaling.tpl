{{/* Who decides how many pods a pool has: hpa, planner, external or none. A pool with no replicas is switched off. (its values) */}}
{{- define "stratos.scalingMode" -}}
{{- $mode := dig "autoscaling" "mode" "none" . -}}
{{- ternary "none" $mode (eq (int .replicas) 0) -}}
{{- end }}

{{- define "stratos.metricsApiName" -}}v1beta1.external.metrics.k8s.io{{- end }}

{{/* Who serves external metrics in this cluster: release, keda, other; none where the values name nobody and no HPA asks. */}}
{{- define "stratos.metricsApiOwner" -}}
{{- .Values.autoscaling.metricsApi.owner | default (ternary "release" "none" (eq (include "stratos.usesHpa" .) "yes")) -}}
{{- end }}

{{- define "stratos.hasMetricsApi" -}}
{{- if eq (include "stratos.metricsApiOwner" .) "release" }}yes{{ end -}}
{{- end }}

{{/* Whether a model may sleep: both of its pools may be empty, and it has no others. dict root, model. */}}
{{- define "stratos.maySleep" -}}
{{- $may := true -}}
{{- range $role := list "prefill" "decode" -}}
{{- $pool := include "stratos.pool" (dict "root" $.root "model" $.model "role" $role) | fromJson -}}
{{- $mode := include "stratos.scalingMode" $pool -}}
{{- if and (gt (int $pool.replicas) 0) (or (eq $mode "none") (gt (int $pool.autoscaling.minReplicas) 0)) }}{{ $may = false }}{{ end -}}
{{- end -}}
{{- range $_, $roles := .model.pools | default dict }}{{ if $roles }}{{ $may = false }}{{ end }}{{ end -}}
{{- if $may }}yes{{ end -}}
{{- end }}

{{/* Whether any model may sleep, so that requests may have to wait for its start. */}}
{{- define "stratos.anySleeps" -}}
{{- $found := "" -}}
{{- range concat .Values.models (include "stratos.templateModels" . | fromJsonArray) }}{{ if include "stratos.maySleep" (dict "root" $ "model" .) }}{{ $found = "yes" }}{{ end }}{{ end -}}
{{- $found -}}
{{- end }}

{{/* A pool as the autoscaler knows it, as JSON; empty of one that is switched off: dict root, model, role, pool (its values). */}}
{{- define "stratos.scaledPool" -}}
{{- if gt (int .pool.replicas) 0 -}}
{{- $scaling := .pool.autoscaling -}}
{{- $mode := include "stratos.scalingMode" .pool -}}
{{- $size := ternary (list .pool.replicas .pool.replicas) (list $scaling.minReplicas $scaling.maxReplicas) (eq $mode "none") -}}
{{- dict "role" .role "model_name" .model.name "served_name" (include "stratos.servedName" .model) "deployment" (include "stratos.name" (list .root (printf "%s-%s" .role .model.name))) "mode" $mode "min_workers" (index $size 0 | int) "max_workers" (index $size 1 | int) "floor" (int .pool.floor) | toJson -}}
{{- else -}}
{}
{{- end -}}
{{- end }}

{{/* A HorizontalPodAutoscaler: dict root, component, name, model, scaling (values), metrics (YAML). Up at once, by half of
     what is there or 4 pods; down by half of it every 15 s, once a lower number was enough for scaleDownSeconds: that window,
     not small steps, is what keeps it from swinging. */}}
{{- define "stratos.hpa" -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "stratos.metadata" . | nindent 2 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ .name }}}
  minReplicas: {{ max 1 (int .scaling.minReplicas) }}
  maxReplicas: {{ int .scaling.maxReplicas }}
  metrics:
    {{- .metrics | nindent 4 }}
    {{- with .scaling.metrics }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  behavior:
    {{- if .scaling.behavior }}
    {{- toYaml .scaling.behavior | nindent 4 }}
    {{- else }}
    scaleUp:
      stabilizationWindowSeconds: 0
      selectPolicy: Max
      policies:
        - {type: Pods, value: 4, periodSeconds: 15}
        - {type: Percent, value: 50, periodSeconds: 15}
    scaleDown:
      stabilizationWindowSeconds: {{ int .root.Values.autoscaling.scaleDownSeconds }}
      selectPolicy: Max
      policies:
        - {type: Pods, value: 1, periodSeconds: 15}
        - {type: Percent, value: 50, periodSeconds: 15}
    {{- end }}
{{- end }}

{{/* That of a model's main pool; empty where its size has another owner: dict root, model, role. */}}
{{- define "stratos.poolHpa" -}}
{{- $pool := include "stratos.pool" . | fromJson -}}
{{- if eq (include "stratos.scalingMode" $pool) "hpa" -}}
{{- $metrics := include "stratos.poolMetrics" (dict "root" .root "model" .model.name "role" .role "scaling" $pool.autoscaling) | trim -}}
{{ include "stratos.hpa" (dict "root" .root "component" (printf "%s-worker" .role) "model" .model.name "name" (include "stratos.name" (list .root (printf "%s-%s" .role .model.name))) "scaling" $pool.autoscaling "metrics" $metrics) }}
{{- end -}}
{{- end }}

{{/* Metrics of a pool's HPA, which takes the one that asks for most: dict root, model, role, scaling. */}}
{{- define "stratos.poolMetrics" -}}
{{- $labels := dict "release" .root.Release.Name "model" .model "role" .role -}}
{{ include "stratos.externalMetric" (dict "metric" "stratos_queue_depth" "labels" $labels "average" (.scaling.queueDepth | toString)) }}
{{- with int .scaling.batchPercent }}
{{ include "stratos.externalMetric" (dict "metric" "stratos_batch_load" "labels" $labels "average" (printf "%dm" (mul . 10))) }}
{{- end }}
{{- with int .scaling.kvPercent }}
{{ include "stratos.externalMetric" (dict "metric" "stratos_kv_load" "labels" $labels "average" (printf "%dm" (mul . 10))) }}
{{- end }}
{{- with int .scaling.batchLinesPerHour }}
{{ include "stratos.externalMetric" (dict "metric" "stratos_batch_lines_due" "labels" (omit $labels "role") "average" (toString .)) }}
{{- end }}
{{- with int .scaling.missedPromisesPercent }}
- type: External
  external:
    metric:
      name: stratos_sla_violations
      selector:
        matchLabels:
          {{- toYaml (omit $labels "role") | nindent 10 }}
    target: {type: Value, value: {{ printf "%dm" (mul . 10) | quote }}}
{{- end }}
{{- end }}

{{/* One external metric of an HPA: dict metric, labels, average. */}}
{{- define "stratos.externalMetric" -}}
- type: External
  external:
    metric:
      name: {{ .metric }}
      selector:
        matchLabels:
          {{- toYaml .labels | nindent 10 }}
    target: {type: AverageValue, averageValue: {{ .average | quote }}}
{{- end }}

{{/* Why the cluster's one API of external metrics cannot be this release's, or its HPAs have no numbers; empty where all is
     well. dict root, isAsked (a cluster answers), found (its APIService). */}}
{{- define "stratos.metricsApiRefusal" -}}
{{- $values := .root.Values -}}
{{- $owner := include "stratos.metricsApiOwner" .root -}}
{{- $choices := "Set autoscaling.metricsApi.owner: release (this release serves it), keda (with autoscaling.mode external, planner or none in every pool), or other (a provider such as Prometheus Adapter feeds the HPAs); or set autoscaling.mode of every pool to planner, external or none: docs/operations.md, Autoscaling" -}}
{{- if and (eq $owner "keda") (include "stratos.usesHpa" .root) -}}
autoscaling.metricsApi.owner: KEDA feeds no HPA but those that it makes itself, and these pools have autoscaling.mode hpa: {{ include "stratos.hpaPools" .root }}. Set it to external with a ScaledObject each, to planner, or to none
{{- else if eq $owner "release" -}}
{{- $service := ((.found).spec).service | default dict -}}
{{- $isOurs := and (eq ($service.namespace | default "") .root.Release.Namespace) (eq ($service.name | default "") (include "stratos.name" (list .root "autoscaler"))) -}}
{{- if not $values.mtls.enabled -}}
autoscaling.metricsApi.owner: the API needs the certificates of mtls.enabled. {{ $choices }}
{{- else if eq (int $values.autoscaler.replicas) 0 -}}
autoscaler.replicas: 0 leaves the API external.metrics.k8s.io without a server. {{ $choices }}
{{- else if and .found (not $isOurs) -}}
autoscaling.metricsApi.owner: this cluster has an APIService {{ include "stratos.metricsApiName" .root }} already, of {{ $service.namespace | default "?" }}/{{ $service.name | default "?" }}, and there is one a cluster. {{ $choices }}
{{- else if and (not .isAsked) (not $values.autoscaling.metricsApi.owner) -}}
autoscaling.metricsApi.owner: no cluster answers here, so whether another serves external.metrics.k8s.io is not known, and applying this would take it away. {{ $choices }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* What cannot work: an HPA without numbers, an API that is another's, bounds that contradict each other. */}}
{{- define "stratos.checkScaling" -}}
{{- $isAsked := false -}}
{{- $found := dict -}}
{{- if include "stratos.hasMetricsApi" . -}}
{{- $isAsked = not (empty (include "stratos.asksCluster" .)) -}}
{{- $found = lookup "apiregistration.k8s.io/v1" "APIService" "" (include "stratos.metricsApiName" .) -}}
{{- end -}}
{{- with include "stratos.metricsApiRefusal" (dict "root" . "isAsked" $isAsked "found" $found) | trim }}{{ fail . }}{{ end -}}
{{- range include "stratos.sizedPools" . | fromJsonArray -}}
{{- $pool := .values -}}
{{- $scaling := $pool.autoscaling -}}
{{- if ne (include "stratos.scalingMode" $pool) "none" -}}
{{- $where := printf "%s.autoscaling" .where -}}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) }}{{ fail (printf "%s: minReplicas (%d) is above maxReplicas (%d)" $where (int $scaling.minReplicas) (int $scaling.maxReplicas)) }}{{ end -}}
{{- if and (gt (int $pool.floor) 0) (le (int $scaling.minReplicas) (int $pool.floor)) }}{{ fail (printf "%s.minReplicas: %d must be larger than floor (%d), or no node could ever be drained" $where (int $scaling.minReplicas) (int $pool.floor)) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* All that may have an owner of their size, as a JSON list of name, where and values: main pools, and the gateways. */}}
{{- define "stratos.sizedPools" -}}
{{- $found := list -}}
{{- range include "stratos.allPools" . | fromJsonArray -}}
{{- if not (hasPrefix (printf "models[%s].pools" .model.name) .where) }}{{ $found = append $found (dict "name" (ternary .where (printf "%s-%s" .role .id) (hasKey .model "where")) "where" .where "values" .values) }}{{ end -}}
{{- end -}}
{{- append $found (dict "name" "gateway" "where" "gateway" "values" .Values.gateway) | toJson -}}
{{- end }}

{{/* Pools that an HPA scales, by name. */}}
{{- define "stratos.hpaPools" -}}
{{- $found := list -}}
{{- range include "stratos.sizedPools" . | fromJsonArray -}}
{{- if eq (include "stratos.scalingMode" .values) "hpa" }}{{ $found = append $found .name }}{{ end -}}
{{- end -}}
{{- join ", " $found -}}
{{- end }}

{{- define "stratos.usesHpa" -}}
{{- if include "stratos.hpaPools" . }}yes{{ end -}}
{{- end }}

{{/* The size that a pool keeps in an upgrade that gives it an owner, or empty: a field that the last revision set and this one
     leaves out would become 1. dict live (its Deployment in the cluster). */}}
{{- define "stratos.keptReplicas" -}}
{{- $annotations := ((.live).metadata).annotations | default dict -}}
{{- if eq (get $annotations "stratosserve.io/replicas" | default "") "rendered" }}{{ .live.spec.replicas }}{{ end -}}
{{- end }}

{{/* Replicas of a Deployment as text; empty leaves them to the pool's owner: dict root, name, pool. */}}
{{- define "stratos.replicas" -}}
{{- if eq (include "stratos.scalingMode" .pool) "none" -}}
{{- int .pool.replicas -}}
{{- else -}}
{{- include "stratos.keptReplicas" (dict "live" (lookup "apps/v1" "Deployment" .root.Release.Namespace .name)) -}}
{{- end -}}
{{- end }}
