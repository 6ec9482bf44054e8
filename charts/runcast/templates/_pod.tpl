{{- /* The template of the pods, which both kinds of workload have. */ -}}
{{- define "runcast.pod" -}}
metadata:
  labels:
    {{- include "runcast.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # Pods are replaced when the configuration changes.
    checksum/config: {{ include "runcast.toml" . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "runcast.serviceAccount" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "runcast.grace" . }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    # Who may read the mounted secrets, and write the volume.
    fsGroup: 65532
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  containers:
    - name: runcast
      image: {{ include "runcast.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [serve, --config, /etc/runcast/runcast.toml]
      env:
        # These win over the file, so the pod is as the chart says whatever stands there.
        - name: RUNCAST__SERVER__LISTEN
          value: "0.0.0.0:8080"
        - name: RUNCAST__SERVER__ADMIN_LISTEN
          value: "0.0.0.0:9090"
        - name: RUNCAST__SERVER__PRE_DRAIN_MS
          value: {{ mul 1000 (int .Values.drain.preSeconds) | quote }}
        - name: RUNCAST__SERVER__DRAIN_SPREAD_MS
          value: {{ mul 1000 (int .Values.drain.spreadSeconds) | quote }}
        - name: RUNCAST__SERVER__SHUTDOWN_MS
          value: {{ mul 1000 (int .Values.drain.limitSeconds) | quote }}
        - name: RUNCAST__AUTH__TICKET_KEY_FILE
          value: /run/secrets/ticket-key/key
        - name: RUNCAST__LOG__BACKEND
          value: {{ .Values.log }}
        {{- if eq .Values.log "embedded" }}
        - name: RUNCAST__LOG__PATH
          value: /var/lib/runcast/log
        {{- end }}
        {{- if dig "limits" "memory" "" .Values.resources }}
        - name: RUNCAST__SERVER__MEMORY_BYTES_MAX
          valueFrom:
            resourceFieldRef:
              containerName: runcast
              resource: limits.memory
        {{- end }}
        {{- with .Values.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - name: http
          containerPort: 8080
        - name: admin
          containerPort: 9090
      # A log that was not closed is looked through before the ports are open.
      startupProbe:
        httpGet:
          path: /livez
          port: admin
        periodSeconds: 2
        failureThreshold: 150
      livenessProbe:
        httpGet:
          path: /livez
          port: admin
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet:
          path: /readyz
          port: admin
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 2
      {{- with .Values.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
      volumeMounts:
        - name: config
          mountPath: /etc/runcast
          readOnly: true
        - name: token
          mountPath: /run/secrets/token
          readOnly: true
        - name: ticket-key
          mountPath: /run/secrets/ticket-key
          readOnly: true
        {{- range $name := keys .Values.secrets | sortAlpha }}
        - name: secret-{{ $name }}
          mountPath: /run/secrets/{{ $name }}
          readOnly: true
        {{- end }}
        {{- if eq .Values.log "embedded" }}
        - name: log
          mountPath: /var/lib/runcast
        {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ include "runcast.fullname" . }}
    - name: token
      secret:
        secretName: {{ include "runcast.tokenSecret" . }}
        defaultMode: 0440
        items:
          - key: {{ .Values.token.key }}
            path: token
    - name: ticket-key
      secret:
        secretName: {{ include "runcast.ticketKeySecret" . }}
        defaultMode: 0440
        items:
          - key: {{ .Values.ticketKey.key }}
            path: key
    {{- range $name := keys .Values.secrets | sortAlpha }}
    - name: secret-{{ $name }}
      secret:
        secretName: {{ (get $.Values.secrets $name).secretName }}
        defaultMode: 0440
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  topologySpreadConstraints:
    {{- with .Values.topologySpreadConstraints }}
    {{- toYaml . | nindent 4 }}
    {{- else }}
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "runcast.selector" . | nindent 10 }}
    {{- end }}
{{- end }}
