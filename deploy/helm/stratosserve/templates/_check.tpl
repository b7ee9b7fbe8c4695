{{/* What values.schema.json cannot say. Each refusal names the value. */}}
{{- define "stratos.check" -}}
{{- $names := list -}}
{{- $served := list -}}
{{- $sources := dict -}}
{{- include "stratos.checkRoom" . -}}
{{- range .Values.models -}}
{{- if eq .name "admin" }}{{ fail "models[admin].name: a Service of the chart ends in gateway-admin; take another name" }}{{ end -}}
{{- if has .name $names }}{{ fail (printf "models: the name %q appears twice" .name) }}{{ end -}}
{{- $names = append $names .name -}}
{{- if has (include "stratos.servedName" .) $served }}{{ fail (printf "models[%s]: another model is served as %q already" .name (include "stratos.servedName" .)) }}{{ end -}}
{{- $served = append $served (include "stratos.servedName" .) -}}
{{- $content := (.source.objectStore).digest | default (.source.registry).digest | default (toJson .source) -}}
{{- if hasKey $sources $content }}{{ fail (printf "models[%s].source: is the one of models[%s], and a model has one name; a further one is an alias (docs/models.md)" .name (get $sources $content)) }}{{ end -}}
{{- $_ := set $sources $content .name -}}
{{- if .gateway }}{{ fail (printf "models[%s].gateway: gateways serve all models now; move it to gateway, its config.model to models[%s].terms (docs/operations.md, \"From gateways of each model\")" .name .name) }}{{ end -}}
{{- if .hosts }}{{ fail (printf "models[%s].hosts: every host leads to all models now; move them to gateway.ingress.hosts or gateway.route.hostnames" .name) }}{{ end -}}
{{- if and .source.imageVolume (semverCompare "<1.35.0-0" $.Capabilities.KubeVersion.Version) -}}
{{- fail (printf "models[%s].source.imageVolume: image volumes need Kubernetes 1.35, this is %s" .name $.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- end -}}
{{- $ids := list -}}
{{- range include "stratos.workerPools" . | fromJsonArray -}}
{{- $id := printf "%s-%s" .role .id -}}
{{- if has $id $ids }}{{ fail (printf "%s: another pool has the name %s already" .where $id) }}{{ end -}}
{{- $ids = append $ids $id -}}
{{- end -}}
{{- $external := .Values.redis.external.urlSecret -}}
{{- if and (not .Values.redis.enabled) (not $external.name) -}}
{{- fail "redis.external.urlSecret.name: is required where redis.enabled is false" -}}
{{- end -}}
{{- if and .Values.objectStore.url (not (hasPrefix "s3://" .Values.objectStore.url)) -}}
{{- fail "objectStore.url: must be s3://BUCKET/PREFIX; leave it empty for a server of the release's own" -}}
{{- end -}}
{{- $keys := list "key-pepper" -}}
{{- if .Values.redis.enabled }}{{ $keys = append $keys "redis-password" }}{{ end -}}
{{- if include "stratos.hasOwnObjects" . }}{{ $keys = append $keys "object-store-key" }}{{ end -}}
{{- if include "stratos.hasDeclaration" . -}}
{{- if not .Values.gateway.admin.enabled }}{{ fail "declaration: needs gateway.admin.enabled" }}{{ end -}}
{{- $own := .Values.declaration.configMap -}}
{{- range $name, $_ := include "stratos.declaration" . | fromJson -}}
{{- if $own.name }}{{ fail (printf "declaration.configMap: takes the place of declaration.%s, which must be empty" $name) }}{{ end -}}
{{- end -}}
{{- with $own.name }}{{ include "stratos.checkNamed" (dict "root" $ "kind" "ConfigMap" "where" "declaration.configMap" "name" . "keys" (list $own.key)) }}{{ end -}}
{{- $keys = append $keys "admin-key" -}}
{{- end -}}
{{- with .Values.credentials.existingSecret -}}
{{- include "stratos.checkSecret" (dict "root" $ "where" "credentials.existingSecret" "name" . "keys" $keys) -}}
{{- end -}}
{{- with .Values.credentials.platformKeySecret }}{{ if .name -}}
{{- include "stratos.checkSecret" (dict "root" $ "where" "credentials.platformKeySecret" "name" .name "keys" (list .key)) -}}
{{- end }}{{ end -}}
{{- if not .Values.redis.enabled -}}
{{- include "stratos.checkSecret" (dict "root" $ "where" "redis.external.urlSecret" "name" $external.name "keys" (list $external.key)) -}}
{{- with .Values.redis.external.caSecret }}{{ if .name -}}
{{- include "stratos.checkSecret" (dict "root" $ "where" "redis.external.caSecret" "name" .name "keys" (list .key)) -}}
{{- end }}{{ end -}}
{{- end -}}
{{- with .Values.objectStore.s3.credentialsSecret -}}
{{- include "stratos.checkSecret" (dict "root" $ "where" "objectStore.s3.credentialsSecret" "name" . "keys" (list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY")) -}}
{{- end -}}
{{- with .Values.gateway.tls.secretName -}}
{{- include "stratos.checkSecret" (dict "root" $ "where" "gateway.tls.secretName" "name" . "keys" (list "tls.crt" "tls.key")) -}}
{{- end -}}
{{- with .Values.gateway.oidc.caSecret }}{{ if .name -}}
{{- include "stratos.checkSecret" (dict "root" $ "where" "gateway.oidc.caSecret" "name" .name "keys" (list .key)) -}}
{{- end }}{{ end -}}
{{- include "stratos.checkReferences" (dict "root" $ "where" "gateway.secretConfig" "found" .Values.gateway.secretConfig) -}}
{{- include "stratos.checkUpgrade" . -}}
{{- include "stratos.checkRoutes" . -}}
{{- include "stratos.checkMonitoring" . -}}
{{- include "stratos.checkPolicies" . -}}
{{- include "stratos.checkScaling" . -}}
{{- include "stratos.checkPairs" . -}}
{{- include "stratos.checkModelTemplates" . -}}
{{- if .Values.networkPolicies.enabled }}{{ include "stratos.checkEdges" . }}{{ end -}}
{{- if and (include "stratos.hasRedisTls" .) (not .Values.mtls.enabled) -}}
{{- fail "redis.tls.enabled: its certificate is one of mtls, which is off" -}}
{{- end -}}
{{- if include "stratos.hasCertificateJob" . }}{{ include "stratos.checkLifetimes" . }}{{ end -}}
{{- if and .Values.mtls.enabled (eq .Values.mtls.source "secrets") -}}
{{- range concat (list "gateway" "router" "prefill-worker" "decode-worker" "lora-registry" "autoscaler") (ternary (list "redis") list (not (empty (include "stratos.hasRedisTls" .)))) -}}
{{- include "stratos.checkSecret" (dict "root" $ "where" "mtls.secretPrefix" "name" (printf "%s-%s" (include "stratos.tlsPrefix" $) .) "keys" (list "tls.crt" "tls.key" "ca.crt")) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Gateways refuse records beyond their bound, and the last four revisions of each entry stay recorded. */}}
{{- define "stratos.checkRoom" -}}
{{- $given := ((.Values.gateway.config).modelRecords).maxModels -}}
{{- $places := ternary 64 $given (kindIs "invalid" $given) | int -}}
{{- $needed := mul 4 (len .Values.models) | int -}}
{{- if gt $needed $places }}{{ fail (printf "gateway.config.modelRecords.maxModels: is %d; models has %d entries, whose revisions need %d" $places (len .Values.models) $needed) }}{{ end -}}
{{- end }}

{{/* Whether a cluster is asked. Who may install into one namespace alone may look at no other, and one that Helm is to make is not there yet. */}}
{{- define "stratos.asksCluster" -}}
{{- if or (lookup "v1" "Namespace" "" .Release.Namespace) (lookup "v1" "Namespace" "" "kube-system") }}yes{{ end -}}
{{- end }}

{{/* A Secret that the values name must be there, with its keys, when a cluster is asked: dict root, where, name, keys. */}}
{{- define "stratos.checkSecret" -}}
{{- include "stratos.checkNamed" (merge (dict "kind" "Secret") .) -}}
{{- end }}

{{/* The same of a kind: dict root, kind, where, name, keys. */}}
{{- define "stratos.checkNamed" -}}
{{- if include "stratos.asksCluster" .root -}}
{{- $found := lookup "v1" .kind .root.Release.Namespace .name -}}
{{- if not $found }}{{ fail (printf "%s: there is no %s %s in namespace %s" .where .kind .name .root.Release.Namespace) }}{{ end -}}
{{- range .keys -}}
{{- if not (hasKey ($found.data | default dict) .) }}{{ fail (printf "%s: the %s %s has no key %s" $.where $.kind $.name .) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Servers outside that settings name are reached by edges that are closed until a peer is named. */}}
{{- define "stratos.checkEdges" -}}
{{- $config := .Values.gateway.config -}}
{{- $named := dict "overflow" (list "overflow.url" ($config.overflow).url) "classifier" (list "policies.classifierUrl" ($config.policies).classifierUrl) -}}
{{- range $edge, $setting := $named -}}
{{- if and (index $setting 1) (empty (get $.Values.networkPolicies $edge)) }}{{ fail (printf "networkPolicies.%s: must name the peers of gateway.config.%s, to which no edge is open without" $edge (index $setting 0)) }}{{ end -}}
{{- end -}}
{{- range $service := list "gateway" "router" "prefillWorker" "decodeWorker" "loraRegistry" "autoscaler" -}}
{{- $endpoint := ((get $.Values $service).config).otlpEndpoint | default "" -}}
{{- $isInPod := regexMatch "^(https?://)?(localhost|127\\.|\\[::1\\])" $endpoint -}}
{{- if and $endpoint (not $isInPod) (empty $.Values.networkPolicies.otlp) }}{{ fail (printf "networkPolicies.otlp: must name the peers of %s.config.otlpEndpoint, to which no edge is open without" $service) }}{{ end -}}
{{- end -}}
{{- end }}

{{/* Runs are less than overlapSeconds apart. A certificate is renewed when a third of its life is left; a CA's successor is announced when
     a fifth is, signs in a run an overlap later, and all that has to happen before the CA ends. */}}
{{- define "stratos.checkLifetimes" -}}
{{- $job := .Values.mtls.job -}}
{{- range $name, $overlaps := dict "lifetimeDays" 3 "caLifetimeDays" 15 -}}
{{- $least := divf (mul $overlaps (int $job.overlapSeconds)) 86400 -}}
{{- if lt (float64 (get $job $name)) $least }}{{ fail (printf "mtls.job.%s: is %d, and must be %v or more where overlapSeconds is %d, or certificates end before others are there" $name (int (get $job $name)) $least (int $job.overlapSeconds)) }}{{ end -}}
{{- end -}}
{{- end }}

{{/* Every {name, key} below a map: dict root, where, found. */}}
{{- define "stratos.checkReferences" -}}
{{- range $part, $value := .found | default dict -}}
{{- $where := printf "%s.%s" $.where $part -}}
{{- if and (hasKey $value "name") (hasKey $value "key") -}}
{{- include "stratos.checkSecret" (dict "root" $.root "where" $where "name" $value.name "keys" (list $value.key)) -}}
{{- else -}}
{{- include "stratos.checkReferences" (dict "root" $.root "where" $where "found" $value) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Names of policies: those that there are, and those of router.config.policies.custom. */}}
{{- define "stratos.checkPolicies" -}}
{{- $policies := (.Values.router.config).policies | default dict -}}
{{- $known := concat (.Files.Get "files/policies.json" | fromJsonArray) (keys ($policies.custom | default dict) | sortAlpha) -}}
{{- with $policies.default -}}
{{- if not (has . $known) }}{{ fail (printf "router.config.policies.default: there is no policy %q; there are %s" . (join ", " $known)) }}{{ end -}}
{{- end -}}
{{- range $pool, $name := $policies.pools | default dict -}}
{{- if not (has $name $known) }}{{ fail (printf "router.config.policies.pools[%s]: there is no policy %q; there are %s" $pool $name (join ", " $known)) }}{{ end -}}
{{- end -}}
{{- end }}

{{/* The source of a pair of workers ends it some idle times after its receiver, so all workers of a model count the same. */}}
{{- define "stratos.checkPairs" -}}
{{- $first := dict -}}
{{- range include "stratos.allPools" . | fromJsonArray -}}
{{- $model := .model.where | default .model.name -}}
{{- $given := ((.values.config).transport).idlePairS -}}
{{- $idle := ternary 300.0 $given (kindIs "invalid" $given) | float64 -}}
{{- $known := get $first $model | default (dict "where" .where "idle" $idle) -}}
{{- if ne $idle $known.idle }}{{ fail (printf "%s.config.transport.idlePairS: is %v, and %v in %s; give all workers of a model the same" .where $idle $known.idle $known.where) }}{{ end -}}
{{- $_ := set $first $model $known -}}
{{- end -}}
{{- end }}

{{/* A Gateway that meets TLS knows what to check. */}}
{{- define "stratos.checkRoutes" -}}
{{- $gateway := .Values.gateway -}}
{{- if and $gateway.route.enabled $gateway.tls.secretName (not $gateway.route.backendTls.hostname) -}}
{{- fail "gateway.route.backendTls.hostname: the gateways speak TLS (gateway.tls), and the Gateway has to know the name in their certificate" -}}
{{- end -}}
{{- if and $gateway.route.inferencePool.enabled (not $gateway.route.inferencePool.endpointPicker.name) -}}
{{- fail "gateway.route.inferencePool.endpointPicker.name: an InferencePool has an endpoint picker; name its Service" -}}
{{- end -}}
{{- if and $gateway.route.inferencePool.enabled $gateway.tls.secretName -}}
{{- fail "gateway.route.inferencePool: leads to the gateways in plain HTTP, and they speak TLS (gateway.tls); use one of the two" -}}
{{- end -}}
{{- end }}

{{/* An operator that was asked to scrape, and policies that let nobody in, would see nothing without a word. */}}
{{- define "stratos.checkMonitoring" -}}
{{- if and (or .Values.monitoring.podMonitor.enabled .Values.monitoring.serviceMonitor.enabled) .Values.networkPolicies.enabled (not .Values.networkPolicies.metricsClients) -}}
{{- fail "networkPolicies.metricsClients: is empty, so the NetworkPolicies let no Prometheus scrape what monitoring.podMonitor or serviceMonitor names; give its peers, such as [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]" -}}
{{- end -}}
{{- end }}
