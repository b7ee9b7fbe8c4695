{{/* Puts "over" into "base", map by map; false, 0 and "" count, unlike with mergeOverwrite. */}}
{{- define "stratos.mergeInto" -}}
{{- range $key, $value := .over -}}
{{- if and (kindIs "map" $value) (kindIs "map" (get $.base $key)) -}}
{{- include "stratos.mergeInto" (dict "base" (get $.base $key) "over" $value) -}}
{{- else -}}
{{- $_ := set $.base $key $value -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* A value as its variable holds it: text as it is, everything else as JSON, which keeps large numbers whole. */}}
{{- define "stratos.text" -}}
{{- if kindIs "string" . }}{{ . }}{{ else }}{{ toJson . }}{{ end -}}
{{- end }}

{{/* Variables of a service: dict root, service ("gateway"), config, secretConfig. */}}
{{- define "stratos.serviceEnv" -}}
{{- $known := get (.root.Files.Get "files/settings.json" | fromJson) .service -}}
{{- include "stratos.configEnv" (dict "known" $known.config "prefix" $known.prefix "config" .config "path" "" "where" (printf "%s.config" .service)) }}
{{- with .secretConfig }}
{{- include "stratos.configEnv" (dict "known" $known.secretConfig "prefix" $known.prefix "config" . "path" "" "where" (printf "%s.secretConfig" $.service) "isSecret" true) }}
{{- end }}
{{- end }}

{{- define "stratos.configEnv" -}}
{{- range $key, $value := .config }}
{{- $path := ternary $key (printf "%s.%s" $.path $key) (empty $.path) }}
{{- if hasKey $.known $path }}
{{- if not (kindIs "invalid" $value) }}
- name: {{ $.prefix }}{{ get $.known $path }}
  {{- if $.isSecret }}
  valueFrom:
    secretKeyRef: {name: {{ $value.name | quote }}, key: {{ $value.key | quote }}}
  {{- else }}
  value: {{ include "stratos.text" $value | quote }}
  {{- end }}
{{- end }}
{{- else if kindIs "map" $value }}
{{- include "stratos.configEnv" (merge (dict "config" $value "path" $path) (omit $ "config" "path")) }}
{{- else }}
{{- fail (printf "%s.%s: unknown setting, see docs/configuration-all.md" $.where $path) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Variables of the address of the pod and of what the chart decides for every service: dict root, prefix. */}}
{{- define "stratos.commonEnv" -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: {{ .prefix }}LISTEN
  value: "0.0.0.0:{{ .root.Values.ports.grpc }}"
- name: {{ .prefix }}ADVERTISE_HOST
  value: $(POD_IP)
- name: {{ .prefix }}METRICS_LISTEN
  value: "0.0.0.0:{{ .root.Values.ports.metrics }}"
- name: HOME
  value: /tmp
{{- end }}

{{/* Where a pod is, from its labels, but for what is given by hand: dict prefix, config, pool. */}}
{{- define "stratos.placeEnv" -}}
{{- $given := list -}}
{{- range .pool.extraEnv }}{{ $given = append $given .name }}{{ end -}}
{{- range $place := list "zone" "region" }}
{{- $name := printf "%s%s" $.prefix (upper $place) }}
{{- if not (or (dig $place "" $.config) (has $name $given)) }}
- name: {{ $name }}
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['topology.kubernetes.io/{{ $place }}']"}}
{{- end }}
{{- end }}
{{- end }}

{{/* dict root, prefix: where the records are; the URL is a secret, since it holds the password. */}}
{{- define "stratos.redisEnv" -}}
{{- $external := .root.Values.redis.external.urlSecret -}}
{{- $isOwn := .root.Values.redis.enabled -}}
{{- if $isOwn }}
- name: REDIS_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ include "stratos.credentials" .root }}, key: redis-password}
{{- end }}
- name: {{ .prefix }}REDIS_URL
  {{- if $isOwn }}
  {{- $tls := include "stratos.hasRedisTls" .root }}
  value: redis{{ if $tls }}s{{ end }}://:$(REDIS_PASSWORD)@{{ include "stratos.name" (list .root "redis") }}:6379/0{{ if $tls }}?ssl_ca_certs=/etc/stratos/redis/ca.crt{{ end }}
  {{- else }}
  valueFrom:
    secretKeyRef: {name: {{ $external.name | quote }}, key: {{ $external.key | quote }}}
  {{- end }}
{{- end }}

{{/* dict root, prefix: where adapters are. */}}
{{- define "stratos.objectStoreEnv" -}}
{{- $store := .root.Values.objectStore -}}
- name: {{ .prefix }}OBJECT_STORE__URL
  value: {{ include "stratos.objectStoreUrl" .root | quote }}
{{- with include "stratos.s3Endpoint" .root }}
- name: {{ $.prefix }}OBJECT_STORE__S3_ENDPOINT_URL
  value: {{ . | quote }}
{{- end }}
{{- with $store.s3.region }}
- name: {{ $.prefix }}OBJECT_STORE__S3_REGION
  value: {{ . | quote }}
{{- end }}
{{- include "stratos.s3Credentials" .root }}
{{- end }}

{{/* Where its server is; empty is Amazon's. */}}
{{- define "stratos.s3Endpoint" -}}
{{- if include "stratos.hasOwnObjects" . -}}
http://{{ include "stratos.name" (list . "object-store") }}:{{ .Values.ports.objects }}
{{- else -}}
{{- .Values.objectStore.s3.endpointUrl -}}
{{- end -}}
{{- end }}

{{/* What boto3 reads itself: keys, and the region, for which the commands of jobs and of the toolbox have no option. */}}
{{- define "stratos.s3Credentials" -}}
{{- if include "stratos.hasOwnObjects" . }}
- {name: AWS_ACCESS_KEY_ID, value: stratos}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom:
    secretKeyRef: {name: {{ include "stratos.credentials" . }}, key: object-store-key}
{{- end }}
{{- with .Values.objectStore.s3.region }}
- {name: AWS_DEFAULT_REGION, value: {{ . | quote }}}
{{- end }}
{{- with .Values.objectStore.s3.credentialsSecret }}
{{- range (list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY") }}
- name: {{ . }}
  valueFrom:
    secretKeyRef: {name: {{ $.Values.objectStore.s3.credentialsSecret | quote }}, key: {{ . }}}
{{- end }}
{{- end }}
{{- end }}

{{- define "stratos.objectStoreUrl" -}}
{{- .Values.objectStore.url | default "s3://stratos" -}}
{{- end }}

{{/* Whether the release has an object store of its own. */}}
{{- define "stratos.hasOwnObjects" -}}
{{- if not .Values.objectStore.url }}yes{{ end -}}
{{- end }}

{{/* What the chart sets where the values do not: dict root, service, and pool where it is one of workers. */}}
{{- define "stratos.defaultConfig" -}}
{{- $root := .root -}}
{{- $router := include "stratos.host" (list $root "routers") -}}
{{- $config := dict "logFormat" "json" "stopGraceS" 1 -}}
{{- if eq .service "gateway" -}}
{{- $_ := set $config "endpointLagS" 2 -}}
{{- $_ := set $config "drainTimeoutS" 600 -}}
{{- $_ := set $config "routerAddresses" (list $router) -}}
{{- $_ := set $config "snapshot" (dict "copyPath" "/var/lib/stratos/snapshot.jsonl" "peers" (list (include "stratos.host" (list $root "gateways")))) -}}
{{- $_ := set $config "ledger" (dict "spoolPath" "/var/lib/stratos/ledger.spool") -}}
{{- $_ := set $config "model" ((first $root.Values.models).terms | default dict) -}}
{{- $_ := set $config "modelRecords" (dict "folder" "/var/lib/stratos/models") -}}
{{- if include "stratos.anySleeps" $root -}}
{{- /* A request that wakes a model waits for its start, wherever it waits. */ -}}
{{- $wake := add (int $root.Values.autoscaling.wakeTimeoutSeconds) 30 -}}
{{- $_ := set $config "http" (dict "maxDeadlineS" $wake) -}}
{{- $_ := set $config "requests" (dict "placementTimeoutS" $wake) -}}
{{- end -}}
{{- else if eq .service "router" -}}
{{- $_ := set $config "endpointLagS" 1 -}}
{{- $_ := set $config "drainTimeoutS" 10 -}}
{{- $_ := set $config "discovery" (include "stratos.discovery" $root) -}}
{{- if include "stratos.anySleeps" $root -}}
{{- $_ := set $config "queue" (dict "wakeTimeoutS" $root.Values.autoscaling.wakeTimeoutSeconds) -}}
{{- end -}}
{{- else if eq .service "loraRegistry" -}}
{{- $_ := set $config "endpointLagS" 1 -}}
{{- $_ := set $config "drainTimeoutS" 30 -}}
{{- $_ := set $config "registrar" (dict "reservedNames" (list (include "stratos.servedName" (first $root.Values.models))) "workFolder" "/tmp") -}}
{{- /* One store has one head of its keys. */ -}}
{{- with (($root.Values.gateway.config).records).prefix -}}
{{- $_ := set $config "records" (dict "prefix" .) -}}
{{- end -}}
{{- else if eq .service "autoscaler" -}}
{{- $_ := set $config "drainTimeoutS" 5 -}}
{{- $_ := set $config "routerAddresses" (list $router) -}}
{{- $_ := set $config "startTimeoutS" 1800 -}}
{{- /* Its pools are what their Deployments say, so that a further one is no restart. */ -}}
{{- $_ := set $config "pools" list -}}
{{- $selector := printf "app.kubernetes.io/name=stratosserve,app.kubernetes.io/instance=%s,app.kubernetes.io/component in (prefill-worker,decode-worker)" $root.Release.Name -}}
{{- $_ := set $config "kubernetes" (dict "namespace" $root.Release.Namespace "leaseName" (include "stratos.serviceAccount" (dict "root" $root "component" "autoscaler")) "podSelector" $selector "release" $root.Release.Name "workerPort" $root.Values.ports.grpc "followPools" true) -}}
{{- if $root.Values.modelResources.enabled -}}
{{- $_ := set $config.kubernetes "modelTemplates" (include "stratos.name" (list $root "model-templates")) -}}
{{- $_ := set $config.kubernetes "modelSelector" $root.Values.modelResources.selector -}}
{{- end -}}
{{- if include "stratos.hasMetricsApi" $root -}}
{{- $_ := set $config "metricsApi" (dict "listen" (printf "0.0.0.0:%v" $root.Values.ports.metricsApi) "apiService" (include "stratos.metricsApiName" $root) "serviceName" (include "stratos.name" (list $root "autoscaler"))) -}}
{{- end -}}
{{- else -}}
{{- $_ := set $config "endpointLagS" 0 -}}
{{- $_ := set $config "drainTimeoutS" 30 -}}
{{- /* Not shm: pods of one node share no memory. */ -}}
{{- $_ := set $config "transport" (dict "names" (list (ternary "tls" "gloo" $root.Values.mtls.enabled))) -}}
{{- $_ := set $config "adapterCache" (dict "directory" "/var/cache/stratos/adapters") -}}
{{- if .pool.kvDisk.gib -}}
{{- /* A sixteenth is left for the file system: a kubelet evicts a pod that is above the limit of its emptyDir. */ -}}
{{- $_ := set $config "diskTier" (dict "directory" "/var/cache/stratos-kv/blocks" "maxBytes" (mul (int .pool.kvDisk.gib) 1006632960)) -}}
{{- end -}}
{{- $hasGpu := or (gt (int .pool.gpu.count) 0) .pool.gpu.resourceClaims -}}
{{- if $hasGpu -}}
{{- $_ := set $config "device" "cuda" -}}
{{- end -}}
{{- if gt (int .pool.kvHost) 0 -}}
{{- $_ := set $config "runner" (dict "hostPoolBytes" (mul (int .pool.kvHost) 1073741824)) -}}
{{- else if and $hasGpu (eq (toString .pool.kvHost) "auto") (dig "limits" "memory" "" (.pool.resources | default dict)) -}}
{{- /* Without a limit it would be a share of the node's memory, of which others live as well. */ -}}
{{- $_ := set $config "runner" (dict "hostMemoryShare" 0.25) -}}
{{- end -}}
{{- end -}}
{{- toJson $config -}}
{{- end }}

{{/* The settings of a workload, as JSON: dict root, service, pool (its values). */}}
{{- define "stratos.config" -}}
{{- $config := include "stratos.defaultConfig" . | fromJson -}}
{{- include "stratos.mergeInto" (dict "base" $config "over" (.pool.config | default dict)) -}}
{{- toJson $config -}}
{{- end }}

{{/* What clients call a model. (model) */}}
{{- define "stratos.servedName" -}}
{{- .servedName | default .name -}}
{{- end }}

{{/* Where routers find workers: the addresses of the pods behind one headless Service for each role, whatever their model. */}}
{{- define "stratos.discovery" -}}
{{- $found := list -}}
{{- range $role := list "decode" "prefill" -}}
{{- $found = append $found (printf "%s@%s" $role (include "stratos.host" (list $ (printf "%s-workers" $role)))) -}}
{{- end -}}
dns://{{ join "," $found }}
{{- end }}

{{/* Values of a pool, as JSON: dict root, model, role. */}}
{{- define "stratos.pool" -}}
{{- $defaults := ternary .root.Values.prefillWorker .root.Values.decodeWorker (eq .role "prefill") -}}
{{- $pool := deepCopy $defaults -}}
{{- if and .model.speculation (eq .role "decode") -}}
{{- include "stratos.mergeInto" (dict "base" $pool "over" (dict "config" (dict "scheduler" (dict "speculation" (deepCopy .model.speculation))))) -}}
{{- end -}}
{{- include "stratos.mergeInto" (dict "base" $pool "over" (get .model .role | default dict)) -}}
{{- toJson $pool -}}
{{- end }}

{{/* All pools of workers, as JSON. Each has model, role, id (the end of its names), label (what selects its pods) and
     where (in the values), its values, and scaled: its part of the autoscaler's pools, of main ones that are not switched
     off. models[].pools are beside the main ones, and have fixed sizes. */}}
{{- define "stratos.workerPools" -}}
{{- include "stratos.poolsOf" (dict "root" . "models" .Values.models) -}}
{{- end }}

{{/* The same, and those of templates of models to come. */}}
{{- define "stratos.allPools" -}}
{{- include "stratos.poolsOf" (dict "root" . "models" (concat .Values.models (include "stratos.templateModels" . | fromJsonArray))) -}}
{{- end }}

{{/* The same of any models: dict root, models. */}}
{{- define "stratos.poolsOf" -}}
{{- $root := .root -}}
{{- $found := list -}}
{{- range $model := .models -}}
{{- $in := $model.where | default (printf "models[%s]" $model.name) -}}
{{- range $role := list "prefill" "decode" -}}
{{- $main := include "stratos.pool" (dict "root" $root "model" $model "role" $role) | fromJson -}}
{{- $found = append $found (dict "model" $model "role" $role "id" $model.name "label" $model.name "values" $main "scaled" (include "stratos.scaledPool" (dict "root" $root "model" $model "role" $role "pool" $main) | fromJson) "where" (printf "%s.%s" $in $role)) -}}
{{- range $name, $roles := $model.pools | default dict -}}
{{- if hasKey $roles $role -}}
{{- $pool := deepCopy $main -}}
{{- include "stratos.mergeInto" (dict "base" $pool "over" (get $roles $role | default dict)) -}}
{{- $_ := set $pool "config" (merge (dict "pool" $name) ($pool.config | default dict)) -}}
{{- $_ := set $pool "autoscaling" (merge (dict "mode" "none") $pool.autoscaling) -}}
{{- $found = append $found (dict "model" $model "role" $role "id" (printf "%s-%s" $model.name $name) "label" (printf "%s.%s" $model.name $name) "values" $pool "where" (printf "models[%s].pools.%s.%s" $model.name $name $role)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}
