{{- define "modserve.name" -}}
{{- $name := contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) -}}
{{- $name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "modserve.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: inference-server
{{- end }}

{{- define "modserve.labels" -}}
{{ include "modserve.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "modserve.claim" -}}
{{ .Values.models.claim.name | default (printf "%s-models" (include "modserve.name" .)) }}
{{- end }}

{{- define "modserve.account" -}}
{{ .Values.serviceAccount.name | default (ternary (include "modserve.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- /* Folders below /etc/modserve. Whole secrets, not single files of them: those would never change in a pod that runs. */}}
{{- define "modserve.secrets" -}}
volumes:
  {{- with .Values.keys.secret }}
  - { name: keys, secret: { secretName: {{ . }} } }
  {{- end }}
  {{- with .Values.tls.secret }}
  - { name: tls, secret: { secretName: {{ . }} } }
  {{- end }}
  {{- if .Values.tls.secret }}
  {{- with .Values.tls.clientAuthority }}
  - { name: clients, secret: { secretName: {{ . }} } }
  {{- end }}
  {{- end }}
{{- end }}

{{- /* The port of probes. They have no certificate for mutual TLS. */}}
{{- define "modserve.probe" -}}
{{- if not .Values.tls.secret }}port: http
{{- else if .Values.tls.clientAuthority }}port: metrics
{{- else }}port: http, scheme: HTTPS
{{- end }}
{{- end }}

{{- /* Requests in all pods, waiting or being executed, on average over a minute: also those that never end. */}}
{{- define "modserve.load" -}}
sum(avg_over_time(modserve_requests_in_flight{namespace="{{ .Release.Namespace }}",pod=~"{{ include "modserve.name" . }}-.+"}[1m]))
{{- end }}

{{- /* Up at once, by as many as there are; down by one a minute, after five minutes that wanted fewer. */}}
{{- define "modserve.behavior" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  policies:
    - { type: Percent, value: 100, periodSeconds: 30 }
scaleDown:
  stabilizationWindowSeconds: 300
  policies:
    - { type: Pods, value: 1, periodSeconds: 60 }
{{- end }}
