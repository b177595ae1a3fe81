{{/* What the schema cannot say: values that contradict each other. */}}
{{- define "penstock.checks" -}}
{{- $replicas := ternary (int .Values.replicas) (int .Values.autoscaling.maxReplicas) (eq .Values.autoscaling.kind "none") -}}
{{- $most := mul $replicas .Values.nodes | int -}}
{{- if and (eq (include "penstock.isOfOneNode" .) "true") (gt $most 1) -}}
{{- fail (printf "model.volume.accessMode: a claim that is %s serves one pod, not %d; use ReadWriteMany, existingClaim or emptyDir" .Values.model.volume.accessMode $most) -}}
{{- end -}}
{{- if include "penstock.hasNodes" . -}}
{{- if not .Values.nodeSecret.existingSecret -}}
{{- fail "nodeSecret.existingSecret: with nodes above 1 the pods prove to each other that they know a secret; give the name of one that is there" -}}
{{- end -}}
{{- if eq (toString .Values.flags.executor) "ray" -}}
{{- fail "flags.executor: Ray finds machines by itself; drop it, or nodes" -}}
{{- end -}}
{{- else if .Values.nodeSecret.existingSecret -}}
{{- fail "nodeSecret.existingSecret: one machine needs none; set nodes, or drop it" -}}
{{- else if .Values.nodeTls.existingSecret -}}
{{- fail "nodeTls.existingSecret: one machine needs none; set nodes, or drop it" -}}
{{- else if hasKey .Values.flags "master-port" -}}
{{- fail "flags.master-port: one machine has none; set nodes, or drop it" -}}
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
