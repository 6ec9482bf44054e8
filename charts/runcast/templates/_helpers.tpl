{{- define "runcast.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- define "runcast.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "runcast.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "runcast.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "runcast.selector" -}}
app.kubernetes.io/name: {{ include "runcast.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "runcast.labels" -}}
{{ include "runcast.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "runcast.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "runcast.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "runcast.tokenSecret" -}}
{{- default (printf "%s-token" (include "runcast.fullname" .)) .Values.token.existingSecret -}}
{{- end }}

{{- define "runcast.ticketKeySecret" -}}
{{- default (printf "%s-ticket-key" (include "runcast.fullname" .)) .Values.ticketKey.existingSecret -}}
{{- end }}

{{- define "runcast.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end }}

{{- /* Whether the port for clients is encrypted by runcast itself: "yes", or nothing. */ -}}
{{- define "runcast.isEncrypted" -}}
{{- if or (dig "server" "tls" "certificate_file" "" .Values.config) .Values.service.encrypted -}}yes{{- end -}}
{{- end }}

{{- /* The file runcast.toml. */ -}}
{{- define "runcast.toml" -}}
{{- if .Values.configText -}}
{{- .Values.configText -}}
{{- else -}}
{{- include "runcast.table" (dict "path" "" "table" .Values.config) -}}
{{- end -}}
{{- end }}

{{- /*
How long the kubelet waits: the pre-drain delay, limitSeconds for all that follows, what the log takes to close, and some
more.
*/ -}}
{{- define "runcast.grace" -}}
{{- add (int .Values.drain.preSeconds) (int .Values.drain.limitSeconds) 15 -}}
{{- end }}

{{- /* What no schema can say of the values. */ -}}
{{- define "runcast.check" -}}
{{- if gt (mul 4 (int .Values.drain.spreadSeconds)) (mul 3 (int .Values.drain.limitSeconds)) -}}
{{- fail "drain.spreadSeconds is larger than three quarters of drain.limitSeconds: streams would be cut before they are told to come back" -}}
{{- end -}}
{{- if not .Values.configText -}}
{{- $log := default dict .Values.config.log -}}
{{- if and (eq .Values.log "nats") (not (default dict $log.nats).servers) -}}
{{- fail "log is \"nats\", but config.log.nats.servers does not say where NATS is" -}}
{{- end -}}
{{- if and (not (default dict .Values.config.auth).tokens) (not (default dict .Values.config.server).insecure) -}}
{{- fail "there is no token in config.auth.tokens, and runcast does not serve others without one: add one, or set config.server.insecure to let everybody see every run" -}}
{{- end -}}
{{- end -}}
{{- end }}
