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
