{{- /* A part's Deployment. dict: root, part, values, args (of its own), mounts and volumes (lists), annotations (of the pod). */ -}}
{{- define "paceline.deployment" -}}
{{- $isSelf := eq .root.Values.certificates.mode "self" -}}
{{- if eq (int .values.port) (int .values.healthPort) -}}
{{- fail (printf "%s.port and %s.healthPort are both %v: a port serves one of them" .part .part .values.port) -}}
{{- end -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "paceline.part" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "paceline.labels" . | nindent 4 }}
spec:
  replicas: {{ .values.replicas }}
  selector:
    matchLabels:
      {{- include "paceline.selector" . | nindent 6 }}
  strategy:
    type: RollingUpdate
    rollingUpdate:
      # Somebody always answers. On the host's network two of them cannot share a node.
      maxUnavailable: {{ ternary 1 0 (default false .values.hostNetwork) }}
      maxSurge: {{ ternary 0 1 (default false .values.hostNetwork) }}
  template:
    metadata:
      labels:
        {{- include "paceline.labels" . | nindent 8 }}
        {{- with .values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        kubectl.kubernetes.io/default-container: {{ .part }}
        {{- with merge (dict) .values.podAnnotations (default dict .annotations) }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "paceline.account" . }}
      {{- with .root.Values.image.pullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- if .values.hostNetwork }}
      hostNetwork: true
      dnsPolicy: ClusterFirstWithHostNet
      {{- end }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        seccompProfile:
          type: RuntimeDefault
      terminationGracePeriodSeconds: 30
      containers:
        - name: {{ .part }}
          image: {{ include "paceline.image" .root }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          command: [/paceline-operator]
          args:
            {{- range .args }}
            - {{ . | quote }}
            {{- end }}
            {{- if not $isSelf }}
            - --cert=/etc/paceline/tls/tls.crt
            - --key=/etc/paceline/tls/tls.key
            {{- end }}
            {{- range .values.extraArgs }}
            - {{ . | quote }}
            {{- end }}
          env:
            - name: POD_NAMESPACE
              valueFrom:
                fieldRef:
                  fieldPath: metadata.namespace
            - name: POD_NAME
              valueFrom:
                fieldRef:
                  fieldPath: metadata.name
            - name: PACELINE_IMAGE
              value: {{ include "paceline.image" .root }}
          ports:
            - name: https
              containerPort: {{ .values.port }}
              protocol: TCP
            - name: health
              containerPort: {{ .values.healthPort }}
              protocol: TCP
          livenessProbe:
            httpGet:
              path: /healthz
              port: health
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            httpGet:
              path: /readyz
              port: health
            periodSeconds: 2
            timeoutSeconds: 2
          resources:
            {{- toYaml .values.resources | nindent 12 }}
          securityContext:
            allowPrivilegeEscalation: false
            capabilities:
              drop: [ALL]
            privileged: false
            readOnlyRootFilesystem: true
          {{- if or .mounts (not $isSelf) }}
          volumeMounts:
            {{- if not $isSelf }}
            - name: tls
              mountPath: /etc/paceline/tls
              readOnly: true
            {{- end }}
            {{- with .mounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          {{- end }}
      {{- if or .volumes (not $isSelf) }}
      volumes:
        {{- if not $isSelf }}
        - name: tls
          secret:
            secretName: {{ include "paceline.secret" . }}
            # 0440: the group is fsGroup.
            defaultMode: 288
            # It may come later than the pod does.
            optional: true
        {{- end }}
        {{- with .volumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      {{- with .values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      affinity:
        {{- if .values.affinity }}
        {{- toYaml .values.affinity | nindent 8 }}
        {{- else }}
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              podAffinityTerm:
                topologyKey: kubernetes.io/hostname
                labelSelector:
                  matchLabels:
                    {{- include "paceline.selector" . | nindent 20 }}
        {{- end }}
{{- end -}}

{{- /* What a part has besides its Deployment and its rights. */ -}}
{{- define "paceline.around" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "paceline.part" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "paceline.labels" . | nindent 4 }}
spec:
  selector:
    {{- include "paceline.selector" . | nindent 4 }}
  ports:
    - name: https
      port: 443
      targetPort: https
      protocol: TCP
{{- if .values.serviceAccount.create }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "paceline.account" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "paceline.labels" . | nindent 4 }}
  {{- with .values.serviceAccount.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- if and .values.podDisruptionBudget (gt (int .values.replicas) 1) }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "paceline.part" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "paceline.labels" . | nindent 4 }}
spec:
  minAvailable: 1
  selector:
    matchLabels:
      {{- include "paceline.selector" . | nindent 6 }}
{{- end }}
{{- if .root.Values.networkPolicy.enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "paceline.part" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "paceline.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "paceline.selector" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress:
    {{- /* The API server comes from no pod, and from an address that nobody here knows. */}}
    - ports:
        - port: {{ .values.port }}
          protocol: TCP
      {{- with .from }}
      from:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    - ports:
        - port: {{ .values.healthPort }}
          protocol: TCP
      {{- with .root.Values.networkPolicy.metricsFrom }}
      from:
        {{- toYaml . | nindent 8 }}
      {{- end }}
  egress:
    - ports:
        - port: 53
          protocol: UDP
        - port: 53
          protocol: TCP
    - ports:
        {{- range .root.Values.networkPolicy.apiServerPorts }}
        - port: {{ . }}
          protocol: TCP
        {{- end }}
      {{- with .root.Values.networkPolicy.apiServer }}
      to:
        {{- toYaml . | nindent 8 }}
      {{- end }}
{{- end }}
{{- end -}}
