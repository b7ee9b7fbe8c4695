{{/* Parts of every pod of the chart. Each holds what the Pod Security level "restricted" asks for. */}}

{{- define "stratos.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  {{- with int .Values.podSecurity.user }}
  runAsUser: {{ . }}
  runAsGroup: {{ . }}
  fsGroup: {{ . }}
  fsGroupChangePolicy: OnRootMismatch
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "stratos.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Where pods go: dict root, scheduling, component, model, serves. */}}
{{- define "stratos.scheduling" -}}
{{- $values := .scheduling | default dict -}}
{{- if $values.priorityClassName }}
priorityClassName: {{ $values.priorityClassName | quote }}
{{- else if and .root.Values.priorityClasses.create (ne .component "spare") }}
priorityClassName: {{ include "stratos.clusterName" (list .root "serving") }}
{{- end }}
{{- with $values.schedulerName }}
schedulerName: {{ . | quote }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "stratos.tolerations" . | fromJsonArray }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
{{- if hasKey $values "topologySpreadConstraints" }}
  {{- toYaml $values.topologySpreadConstraints | nindent 2 }}
{{- else }}
{{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    {{- if and (eq $key "kubernetes.io/hostname") (has $.component (list "gateway" "router")) }}
    # Never all on one node where there are others; nodes that it could not run on do not count.
    whenUnsatisfiable: DoNotSchedule
    nodeTaintsPolicy: Honor
    {{- else }}
    whenUnsatisfiable: ScheduleAnyway
    {{- end }}
    labelSelector:
      matchLabels:
        {{- include "stratos.selector" $ | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
{{- end }}
{{- end }}
{{- end }}

{{/* Tolerations as JSON: those of the values, and a short one of dead nodes for pods that have no volume of their own. */}}
{{- define "stratos.tolerations" -}}
{{- $found := (.scheduling | default dict).tolerations | default list -}}
{{- $seconds := int .root.Values.deadNodeSeconds -}}
{{- if and $seconds (not (has .component (list "redis" "object-store"))) -}}
{{- $keys := list -}}
{{- range $found }}{{ $keys = append $keys (.key | default "") }}{{ end -}}
{{- range $key := list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" -}}
{{- if not (has $key $keys) }}{{ $found = append $found (dict "key" $key "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" $seconds) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}

{{/* startup: the model is loaded and one real step was made; readiness: steps go on, and it is not draining; liveness: a
     thread of its own answers. dict seconds: the longest start. */}}
{{- define "stratos.probes" -}}
startupProbe:
  httpGet: {path: /startedz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: {{ div (int .seconds) 2 }}
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}

{{/* A pause before SIGTERM, in which endpoints are withdrawn while the pod still serves. Every image of a service has Python. */}}
{{- define "stratos.preStop" -}}
{{- if gt (int .) 0 }}
lifecycle:
  preStop:
    exec:
      command: [python, -c, "import time; time.sleep({{ int . }})"]
{{- end }}
{{- end }}

{{/* Pause, endpoint lag, drain, grace of open streams, and 15 s to close: dict pool, config. */}}
{{- define "stratos.gracePeriod" -}}
{{- int (ceil (addf .pool.preStopSeconds .config.endpointLagS .config.drainTimeoutS .config.stopGraceS 15)) -}}
{{- end }}

{{/* A Deployment of ours: dict root, component, service, name, model, pool, config, env, volumes, mounts, initContainers, ports,
     notes (its annotations). */}}
{{- define "stratos.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "stratos.metadata" . | nindent 2 }}
  {{- $replicas := include "stratos.replicas" . }}
  {{- with merge (ternary (dict "stratosserve.io/replicas" "rendered") dict (not (empty $replicas))) (.notes | default dict) }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- with $replicas }}
  replicas: {{ . }}
  {{- end }}
  revisionHistoryLimit: 5
  {{- $rollout := .pool.rollout | default (dict "maxSurge" 1 "maxUnavailable" 0) }}
  strategy:
    type: RollingUpdate
    rollingUpdate: {maxSurge: {{ toJson $rollout.maxSurge }}, maxUnavailable: {{ toJson $rollout.maxUnavailable }}}
  progressDeadlineSeconds: {{ add (int .pool.startupSeconds) 300 }}
  selector:
    matchLabels:
      {{- include "stratos.selector" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "stratos.selector" . | nindent 8 }}
        {{- with (.pool.scheduling).labels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- $scrape := ternary (dict "prometheus.io/scrape" "true" "prometheus.io/path" "/metrics" "prometheus.io/port" (print .root.Values.ports.metrics)) dict .root.Values.monitoring.annotations }}
      {{- $secrets := include "stratos.secretsDigest" . }}
      {{- $read := ternary (dict "stratosserve.io/secrets" $secrets) dict (not (empty $secrets)) }}
      {{- with merge dict ((.pool.scheduling).annotations | default dict) $scrape $read }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: {{ include "stratos.serviceAccount" . }}
      {{- include "stratos.podSecurity" .root | replace "automountServiceAccountToken: false" (printf "automountServiceAccountToken: %t" (eq .component "autoscaler")) | nindent 6 }}
      {{- include "stratos.scheduling" (dict "root" .root "scheduling" .pool.scheduling "component" .component "model" .model "serves" .serves) | nindent 6 }}
      {{- with (.pool.gpu).runtimeClassName }}
      runtimeClassName: {{ . | quote }}
      {{- end }}
      {{- with (.pool.gpu).resourceClaims }}
      resourceClaims:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      terminationGracePeriodSeconds: {{ include "stratos.gracePeriod" . }}
      {{- with .initContainers }}
      initContainers:
        {{- . | nindent 8 }}
      {{- end }}
      containers:
        - name: {{ .component }}
          image: {{ include "stratos.image" (list .root .pool.image) | quote }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          {{- /* What a container said last is in its pod's status. */}}
          terminationMessagePolicy: FallbackToLogsOnError
          command: [python, -m, {{ printf "stratos_%s" (.component | replace "-" "_") }}]
          env:
            {{- include "stratos.commonEnv" . | nindent 12 }}
            {{- include "stratos.tlsEnv" . | nindent 12 }}
            {{- with .env }}
            {{- . | nindent 12 }}
            {{- end }}
            {{- include "stratos.serviceEnv" (dict "root" .root "service" .service "config" .config "secretConfig" .pool.secretConfig) | trim | nindent 12 }}
            {{- with .pool.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          ports:
            {{- with .ports }}
            {{- . | nindent 12 }}
            {{- end }}
            - {name: grpc, containerPort: {{ .root.Values.ports.grpc }}}
            - {name: metrics, containerPort: {{ .root.Values.ports.metrics }}}
          {{- include "stratos.probes" (dict "seconds" .pool.startupSeconds) | nindent 10 }}
          {{- include "stratos.preStop" .pool.preStopSeconds | nindent 10 }}
          {{- include "stratos.containerSecurity" . | nindent 10 }}
          resources:
            {{- include "stratos.resources" .pool | nindent 12 }}
            {{- with (.pool.gpu).resourceClaims }}
            claims:
              {{- range . }}
              - {name: {{ .name | quote }}}
              {{- end }}
            {{- end }}
          volumeMounts:
            - {name: tmp, mountPath: /tmp}
            {{- if .root.Values.mtls.enabled }}
            - {name: tls, mountPath: /etc/stratos/tls, readOnly: true}
            {{- end }}
            {{- with .mounts }}
            {{- . | nindent 12 }}
            {{- end }}
            {{- with .pool.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
        {{- with .pool.sidecars }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      volumes:
        - {name: tmp, emptyDir: {}}
        {{- if .root.Values.mtls.enabled }}
        - {name: tls, secret: {secretName: {{ include "stratos.tlsPrefix" .root }}-{{ .component }}, defaultMode: 288}}
        {{- end }}
        {{- with .volumes }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- with .pool.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end }}

{{/* Resources of a pool, its devices included. */}}
{{- define "stratos.resources" -}}
{{- $resources := deepCopy .resources -}}
{{- if gt (int (.gpu).count) 0 -}}
{{- $_ := set $resources "limits" (merge (dict .gpu.resourceName (int .gpu.count)) ($resources.limits | default dict)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end }}

{{/* Keeps pods when nodes are drained: dict root, component, name, model, pool, where. */}}
{{- define "stratos.budget" -}}
{{- if .root.Values.podDisruptionBudgets.enabled }}
{{- if and (eq (include "stratos.scalingMode" .pool) "none") (gt (int .pool.floor) 0) (gt (int .pool.replicas) 0) (le (int .pool.replicas) (int .pool.floor)) }}
{{- fail (printf "%s.replicas: %d must be larger than %s.floor (%d), or no node could ever be drained" .where (int .pool.replicas) .where (int .pool.floor)) }}
{{- end }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "stratos.metadata" . | nindent 2 }}
spec:
  {{- if gt (int .pool.floor) 0 }}
  minAvailable: {{ int .pool.floor }}
  {{- else }}
  maxUnavailable: 1
  {{- end }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "stratos.selector" . | nindent 6 }}
{{- end }}
{{- end }}

{{/* A Service of ours: dict root, component, name, model, ports, isHeadless. */}}
{{- define "stratos.service" -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "stratos.metadata" . | nindent 2 }}
spec:
  {{- if .isHeadless }}
  clusterIP: None
  publishNotReadyAddresses: true
  {{- end }}
  selector:
    {{- include "stratos.selector" . | nindent 4 }}
  ports:
    - {name: grpc, port: {{ .root.Values.ports.grpc }}, targetPort: grpc, protocol: TCP, appProtocol: grpc}
{{- end }}
