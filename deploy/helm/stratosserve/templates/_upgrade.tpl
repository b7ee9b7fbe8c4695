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

{{/* What the cluster has of both, as JSON: older, and ready, the number of pods of these gateways that are. */}}
{{- define "stratos.gatewaysThere" -}}
{{- $older := include "stratos.olderGateways" (dict "root" . "found" (lookup "apps/v1" "Deployment" .Release.Namespace "").items) | fromJsonArray -}}
{{- $ours := lookup "apps/v1" "Deployment" .Release.Namespace (include "stratos.name" (list . "gateway")) -}}
{{- dict "older" $older "ready" ((($ours).status).readyReplicas | default 0) | toJson -}}
{{- end }}

{{/* What leads to older gateways stays as it is in the cluster while no pod of these is ready; empty otherwise: dict older, ready, live
     (a selector, or rules). */}}
{{- define "stratos.keptLive" -}}
{{- if and .older .live (not (int .ready)) }}{{ toYaml .live }}{{ end -}}
{{- end }}

{{/* What a Service of the API selects: dict root, name. */}}
{{- define "stratos.gatewayServiceSelector" -}}
{{- $live := ((lookup "v1" "Service" .root.Release.Namespace .name).spec).selector | default dict -}}
{{- with include "stratos.keptLive" (merge (dict "live" $live) (include "stratos.gatewaysThere" .root | fromJson)) -}}
{{- . -}}
{{- else -}}
{{- include "stratos.selector" (merge (dict "root" .root) (include "stratos.gateways" .root | fromJson)) -}}
{{- end -}}
{{- end }}

{{/* Rules of the Ingress as the cluster has them, where they stay. */}}
{{- define "stratos.keptRules" -}}
{{- $live := ((lookup "networking.k8s.io/v1" "Ingress" .Release.Namespace (include "stratos.name" (list . "gateway"))).spec).rules | default list -}}
{{- include "stratos.keptLive" (merge (dict "live" $live) (include "stratos.gatewaysThere" . | fromJson)) -}}
{{- end }}
