{{/*
The pod of a replica, or of one of its machines. It is given the chart's context and `serves`: whether this machine has
the port. Of several machines, only the first does.
*/}}
{{- define "penstock.pod" -}}
metadata:
  labels:
    {{- include "penstock.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  # A service called `grpc` would set GRPC_PORT, which is a variable of the launcher.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ .serves | ternary (add .Values.drain.preStopSeconds .Values.drain.seconds 30) 30 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 1000
    runAsGroup: 1000
    fsGroup: 1000
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  {{- range $name := list "serviceAccountName" "runtimeClassName" "priorityClassName" "imagePullSecrets" "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" }}
  {{- with index $.Values $name }}
  {{ dict $name . | toYaml | nindent 2 | trim }}
  {{- end }}
  {{- end }}
  containers:
    - name: penstock
      image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: {{- include "penstock.args" . | nindent 8 }}
      env:
        {{- if .Values.hfToken.existingSecret }}
        - name: HF_TOKEN
          valueFrom:
            secretKeyRef: {name: {{ .Values.hfToken.existingSecret }}, key: {{ .Values.hfToken.key }}}
        {{- end }}
        - {name: HF_HOME, value: /data}
        {{- with .Values.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if .serves }}
      {{- include "penstock.probes" . | nindent 6 }}
      {{- end }}
      resources:
        requests: {{- toYaml .Values.resources.requests | nindent 10 }}
        limits:
          {{- toYaml .Values.resources.limits | nindent 10 }}
          {{- if gt (int .Values.gpus) 0 }}
          {{ .Values.gpuResource }}: {{ .Values.gpus }}
          {{- end }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: data, mountPath: /data}
        - {name: tmp, mountPath: /tmp}
        - {name: shm, mountPath: /dev/shm}
        {{- range include "penstock.secrets" . | fromYamlArray }}
        - {name: {{ .name }}, mountPath: /secrets/{{ .name }}, readOnly: true}
        {{- end }}
  volumes:
    - name: data
      {{- if eq .Values.model.volume.kind "emptyDir" }}
      emptyDir: {sizeLimit: {{ .Values.model.volume.size }}}
      {{- else }}
      persistentVolumeClaim: {claimName: {{ include "penstock.claim" . }}}
      {{- end }}
    - {name: tmp, emptyDir: {sizeLimit: {{ .Values.temporaryStorage }}}}
    - {name: shm, emptyDir: {medium: Memory, sizeLimit: {{ .Values.sharedMemory }}}}
    {{- with include "penstock.secrets" . | fromYamlArray }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* The launcher's arguments. */}}
{{- define "penstock.args" -}}
{{- $isOnGpu := gt (int .Values.gpus) 0 -}}
- --hostname={{ .Values.listen }}
- --port={{ .Values.port }}
{{- with .Values.grpcPort }}
- --grpc-port={{ . }}
{{- end }}
{{- with .Values.model.id }}
- {{ printf "--model-id=%s" . | quote }}
{{- end }}
{{- with .Values.model.revision }}
- {{ printf "--revision=%s" . | quote }}
{{- end }}
- --device={{ ternary "cuda" "cpu" $isOnGpu }}
{{- if $isOnGpu }}
- --num-shard={{ .Values.gpus }}
{{- end }}
- --startup-timeout={{ .Values.startup.loadSeconds }}
- --graceful-termination-timeout={{ .Values.drain.seconds }}
{{- if include "penstock.hasNodes" . }}
- --replica-secret-file=/secrets/nodes/secret
{{- end }}
{{- if .Values.nodeTls.existingSecret }}
- --replica-tls-cert=/secrets/node-tls/tls.crt
- --replica-tls-key=/secrets/node-tls/tls.key
- --replica-tls-ca=/secrets/node-tls/ca.crt
{{- end }}
{{- if and .serves .Values.apiKeys.existingSecret }}
- --api-key-file=/secrets/api-keys/keys
{{- end }}
{{- if and .serves .Values.tls.existingSecret }}
- --tls-cert=/secrets/tls/tls.crt
- --tls-key=/secrets/tls/tls.key
{{- end }}
{{- range $name, $value := .Values.flags }}
- {{ include "penstock.flag" (list $name $value) | quote }}
{{- end }}
{{- end }}

{{/* Ports, and what Kubernetes does there. */}}
{{- define "penstock.probes" -}}
{{- $scheme := ternary "HTTPS" "HTTP" (ne .Values.tls.existingSecret "") -}}
ports:
  - {name: http, containerPort: {{ .Values.port }}}
  {{- with .Values.grpcPort }}
  - {name: grpc, containerPort: {{ . }}}
  {{- end }}
# The port opens when the model is there and loaded.
startupProbe:
  httpGet: {path: /health/ready, port: http, scheme: {{ $scheme }}}
  periodSeconds: 5
  failureThreshold: {{ div (add .Values.startup.downloadSeconds .Values.startup.loadSeconds 4) 5 }}
readinessProbe:
  httpGet: {path: /health/ready, port: http, scheme: {{ $scheme }}}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 2
# Not /health, which is 503 while the launcher restarts the shards.
livenessProbe:
  httpGet: {path: /health/live, port: http, scheme: {{ $scheme }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
lifecycle:
  preStop:
    exec: {command: [sleep, {{ .Values.drain.preStopSeconds | quote }}]}
{{- end }}

{{/* The secrets that it needs, as volumes, each below /secrets by its name. A machine without a port has no keys. */}}
{{- define "penstock.secrets" -}}
{{- if include "penstock.hasNodes" . }}
- name: nodes
  secret: {secretName: {{ .Values.nodeSecret.existingSecret }}, items: [{key: {{ .Values.nodeSecret.key }}, path: secret}]}
{{- end }}
{{- with .Values.nodeTls.existingSecret }}
- name: node-tls
  secret: {secretName: {{ . }}}
{{- end }}
{{- if and .serves .Values.apiKeys.existingSecret }}
- name: api-keys
  secret: {secretName: {{ .Values.apiKeys.existingSecret }}, items: [{key: {{ .Values.apiKeys.key }}, path: keys}]}
{{- end }}
{{- if and .serves .Values.tls.existingSecret }}
- name: tls
  secret: {secretName: {{ .Values.tls.existingSecret }}}
{{- end }}
{{- end }}
