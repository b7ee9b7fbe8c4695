{{/* From releases in which each model had gateways of its own, Deployments NAME-gateway-MODEL: docs/operations.md, "From gateways of
     each model". All of it needs a cluster that Helm can ask. */}}

{{/* Those that are there, as a JSON list: dict root, found (Deployments of the namespace). */}}
{{- define "stratos.olderGateways" -}}
{{- $older := list -}}
{{- range $found := .found | default list -}}
{{- $labels := ($found.metadata).labels | default dict -}}
{{- $isGateway := and (eq (get $labels "app.kubernetes.io/instance" | default "") $.root.Release.Name) (eq (get $labels "app.kubernetes.io/component" | default "") "gateway") -}}
{{- if and $isGateway (hasKey $labels "stratosserve.io/model") }}{{ $older = append $older $found }}{{ end -}}
{{- end -}}
{{- toJson $older -}}
{{- end }}

{{/* Why they would end before others serve; empty where they stay: dict root, found. */}}
{{- define "stratos.upgradeRefusal" -}}
{{- $ending := list -}}
{{- range include "stratos.olderGateways" . | fromJsonArray -}}
{{- if ne (get ((.metadata).annotations | default dict) "helm.sh/resource-policy" | default "") "keep" }}{{ $ending = append $ending .metadata.name }}{{ end -}}
{{- end -}}
{{- if $ending -}}
gateways of each model ({{ join ", " $ending }}) would end before those of all models serve. Let them stay, then upgrade twice: kubectl --namespace {{ .root.Release.Namespace }} annotate deployment {{ join " " $ending }} helm.sh/resource-policy=keep (docs/operations.md, "From gateways of each model")
{{- end -}}
{{- end }}

{{- define "stratos.checkUpgrade" -}}
{{- $found := (lookup "apps/v1" "Deployment" .Release.Namespace "").items -}}
{{- with include "stratos.upgradeRefusal" (dict "root" . "found" $found) | trim }}{{ fail . }}{{ end -}}
{{- end }}

{{/* What a Service selects: the gateways; while older ones are there and no pod of these is ready, what it selects now:
     dict root, older, ready (number of pods), selector (of the Service in the cluster). */}}
{{- define "stratos.keptSelector" -}}
{{- if and .older .selector (not (int .ready)) -}}
{{- toYaml .selector -}}
{{- else -}}
{{- include "stratos.selector" (merge (dict "root" .root) (include "stratos.gateways" .root | fromJson)) -}}
{{- end -}}
{{- end }}

{{/* dict root, name (of the Service). */}}
{{- define "stratos.gatewayServiceSelector" -}}
{{- $namespace := .root.Release.Namespace -}}
{{- $older := include "stratos.olderGateways" (dict "root" .root "found" (lookup "apps/v1" "Deployment" $namespace "").items) | fromJsonArray -}}
{{- $ours := lookup "apps/v1" "Deployment" $namespace (include "stratos.name" (list .root "gateway")) -}}
{{- $service := lookup "v1" "Service" $namespace .name -}}
{{- include "stratos.keptSelector" (dict "root" .root "older" $older "ready" ((($ours).status).readyReplicas | default 0) "selector" ((($service).spec).selector | default dict)) -}}
{{- end }}
