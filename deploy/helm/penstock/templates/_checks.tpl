{{/* What the schema cannot say: values that contradict each other. */}}
{{- define "penstock.checks" -}}
{{- $most := ternary (int .Values.replicas) (int .Values.autoscaling.maxReplicas) (eq .Values.autoscaling.kind "none") -}}
{{- if and (eq (include "penstock.isOfOneNode" .) "true") (gt $most 1) -}}
{{- fail (printf "model.volume.accessMode: a claim that is %s serves one replica, not %d; use ReadWriteMany, existingClaim or emptyDir" .Values.model.volume.accessMode $most) -}}
{{- end -}}
{{- if and (eq .Values.autoscaling.kind "keda") (not .Values.autoscaling.prometheusAddress) -}}
{{- fail "autoscaling.prometheusAddress: keda asks Prometheus for the metrics; give its address" -}}
{{- end -}}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) -}}
{{- fail "autoscaling.minReplicas is greater than autoscaling.maxReplicas" -}}
{{- end -}}
{{- if and (eq (toString .Values.strategy.maxSurge) "0") (eq (toString .Values.strategy.maxUnavailable) "0") -}}
{{- fail "strategy: maxSurge and maxUnavailable are both 0, so that no pod could be replaced" -}}
{{- end -}}
{{- end }}
