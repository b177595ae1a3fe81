{{/* Names and labels that all objects share. */}}
{{- define "penstock.name" -}}
{{- if contains "penstock" .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-penstock" (.Release.Name | trunc 43 | trimSuffix "-") -}}
{{- end -}}
{{- end }}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "penstock.metadata" -}}
metadata:
  name: {{ include "penstock.name" . }}
  labels: {{- include "penstock.labels" . | nindent 4 }}
{{- end }}

{{/* "true" where a replica is several machines, each a pod of a LeaderWorkerSet. */}}
{{- define "penstock.hasNodes" -}}
{{- if gt (int .Values.nodes) 1 }}true{{ end -}}
{{- end }}

{{/* The name of the LeaderWorkerSet. Behind it stand the numbers of group and pod, and a hash: 63 characters in all. */}}
{{- define "penstock.set" -}}
{{ printf "%s-nodes" (include "penstock.name" . | trunc 42 | trimSuffix "-") }}
{{- end }}

{{/* Labels of the pods that serve. */}}
{{- define "penstock.serving" -}}
{{ include "penstock.selector" . }}
{{- if include "penstock.hasNodes" . }}
leaderworkerset.sigs.k8s.io/worker-index: "0"
{{- end }}
{{- end }}

{{/* What has replicas, for autoscalers. */}}
{{- define "penstock.scaled" -}}
{{- if include "penstock.hasNodes" . -}}
{apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, name: {{ include "penstock.set" . }}}
{{- else -}}
{apiVersion: apps/v1, kind: Deployment, name: {{ include "penstock.name" . }}}
{{- end -}}
{{- end }}

{{/* The claim of the model's volume. */}}
{{- define "penstock.claim" -}}
{{ .Values.model.volume.existingClaim | default (printf "%s-data" (include "penstock.name" .)) }}
{{- end }}

{{/* "true" where a claim is made that only one node can mount. */}}
{{- define "penstock.isOfOneNode" -}}
{{- with .Values.model.volume -}}
{{- and (eq .kind "persistentVolumeClaim") (not .existingClaim) (hasPrefix "ReadWriteOnce" .accessMode) -}}
{{- end -}}
{{- end }}

{{/* A flag from its name and its value. Helm reads numbers as floats, and would write a million as 1e+06. */}}
{{- define "penstock.flag" -}}
{{- $name := index . 0 -}}
{{- $value := index . 1 -}}
{{- $isWhole := and (kindIs "float64" $value) (eq (floor $value) $value) -}}
--{{ $name }}={{ if $isWhole }}{{ int64 $value }}{{ else }}{{ $value }}{{ end }}
{{- end }}
