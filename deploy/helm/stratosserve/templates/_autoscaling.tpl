{{/* Who decides how many pods a pool has: hpa, planner or none. A pool with no replicas is switched off. (its values) */}}
{{- define "stratos.scalingMode" -}}
{{- $mode := dig "autoscaling" "mode" "none" . -}}
{{- ternary "none" $mode (eq (int .replicas) 0) -}}
{{- end }}

{{- define "stratos.metricsApiName" -}}v1beta1.external.metrics.k8s.io{{- end }}

{{- define "stratos.hasMetricsApi" -}}
{{- if and .Values.autoscaling.metricsApi.create .Values.mtls.enabled (gt (int .Values.autoscaler.replicas) 0) }}yes{{ end -}}
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
{{- range .Values.models }}{{ if include "stratos.maySleep" (dict "root" $ "model" .) }}{{ $found = "yes" }}{{ end }}{{ end -}}
{{- $found -}}
{{- end }}

{{/* The autoscaler's pools, as JSON. */}}
{{- define "stratos.scaledPools" -}}
{{- $pools := list -}}
{{- range $model := .Values.models -}}
{{- range $role := list "prefill" "decode" -}}
{{- $pool := include "stratos.pool" (dict "root" $ "model" $model "role" $role) | fromJson -}}
{{- if gt (int $pool.replicas) 0 -}}
{{- $scaling := $pool.autoscaling -}}
{{- $pools = append $pools (dict "role" $role "model_name" $model.name "deployment" (include "stratos.name" (list $ (printf "%s-%s" $role $model.name))) "mode" (include "stratos.scalingMode" $pool) "min_workers" (int $scaling.minReplicas) "max_workers" (int $scaling.maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $pools -}}
{{- end }}

{{/* A HorizontalPodAutoscaler: dict root, component, name, model, scaling (values), metrics (YAML). Up at once, by half of
     what is there or 4 pods; down one pod a minute, once a lower number was enough for scaleDownSeconds. */}}
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
  behavior:
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
        - {type: Pods, value: 1, periodSeconds: 60}
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

{{/* What cannot work: an HPA without numbers, an API that is another's. */}}
{{- define "stratos.checkScaling" -}}
{{- $api := .Values.autoscaling.metricsApi -}}
{{- if and $api.create (not .Values.mtls.enabled) (include "stratos.usesHpa" .) -}}
{{- fail "autoscaling.metricsApi.create: the API needs the certificates of mtls.enabled; without them set it to false and give the metrics another way, or set the pools' autoscaling.mode to planner or none" -}}
{{- end -}}
{{- if and $api.create (eq (int .Values.autoscaler.replicas) 0) (include "stratos.usesHpa" .) -}}
{{- fail "autoscaler.replicas: 0 leaves autoscaling.metricsApi without a server; set autoscaling.metricsApi.create to false" -}}
{{- end -}}
{{- if include "stratos.hasMetricsApi" . -}}
{{- $found := lookup "apiregistration.k8s.io/v1" "APIService" "" (include "stratos.metricsApiName" .) -}}
{{- if $found -}}
{{- $owner := $found.metadata.annotations | default dict -}}
{{- if not (and (eq (get $owner "meta.helm.sh/release-name" | default "") .Release.Name) (eq (get $owner "meta.helm.sh/release-namespace" | default "") .Release.Namespace)) -}}
{{- fail (printf "autoscaling.metricsApi.create: this cluster has an APIService %s already, of %s/%s, and there is one a cluster. Set autoscaling.metricsApi.create to false, and either the pools' autoscaling.mode to planner, which needs no such API, or feed the HPAs by KEDA's external scaler or Prometheus Adapter: docs/operations.md, Autoscaling" (include "stratos.metricsApiName" .) (($found.spec.service).namespace | default "?") (($found.spec.service).name | default "?")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $model := .Values.models -}}
{{- range $role := list "prefill" "decode" "gateway" -}}
{{- $pool := include "stratos.pool" (dict "root" $ "model" $model "role" $role) | fromJson -}}
{{- $scaling := $pool.autoscaling | default dict -}}
{{- if and $scaling (ne (include "stratos.scalingMode" $pool) "none") -}}
{{- $where := printf "models[%s].%s.autoscaling" $model.name $role -}}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) }}{{ fail (printf "%s: minReplicas (%d) is above maxReplicas (%d)" $where (int $scaling.minReplicas) (int $scaling.maxReplicas)) }}{{ end -}}
{{- if and (gt (int $pool.floor) 0) (le (int $scaling.minReplicas) (int $pool.floor)) }}{{ fail (printf "%s.minReplicas: %d must be larger than floor (%d), or no node could ever be drained" $where (int $scaling.minReplicas) (int $pool.floor)) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "stratos.usesHpa" -}}
{{- $found := "" -}}
{{- range $model := .Values.models -}}
{{- range $role := list "prefill" "decode" "gateway" -}}
{{- $pool := include "stratos.pool" (dict "root" $ "model" $model "role" $role) | fromJson -}}
{{- if eq (include "stratos.scalingMode" $pool) "hpa" }}{{ $found = "yes" }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $found -}}
{{- end }}
