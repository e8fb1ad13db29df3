{{- define "paceline.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* 40 of 63 characters: what is made of it has suffixes. */ -}}
{{- define "paceline.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "paceline.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "paceline.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "paceline.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- /* Of everything. With a dict of root and part: of one of the two programs. */ -}}
{{- define "paceline.labels" -}}
{{- $root := default . .root -}}
app.kubernetes.io/name: {{ include "paceline.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- with .part }}
app.kubernetes.io/component: {{ . }}
{{- end }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* By these a part's pods are found: they never change. */ -}}
{{- define "paceline.selector" -}}
app.kubernetes.io/name: {{ include "paceline.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{- define "paceline.part" -}}
{{- printf "%s-%s" (include "paceline.fullname" .root) .part -}}
{{- end -}}

{{- define "paceline.account" -}}
{{- $account := .values.serviceAccount -}}
{{- if $account.create -}}
{{- default (include "paceline.part" .) $account.name -}}
{{- else -}}
{{- required (printf "%s.serviceAccount.name: whose rights it has, if the chart makes no account" .part) $account.name -}}
{{- end -}}
{{- end -}}

{{- /* The Secret with a part's certificate, whoever makes it. Ours has a name of its own: cert-manager's is of a type that cannot be
changed, and stays when the mode does not. */ -}}
{{- define "paceline.secret" -}}
{{- $certificates := .root.Values.certificates -}}
{{- if eq $certificates.mode "given" -}}
{{- required (printf "certificates.given.%sSecret: the Secret with its certificate" .part) (get $certificates.given (printf "%sSecret" .part)) -}}
{{- else -}}
{{- include "paceline.part" . }}-{{ ternary "own" "tls" (eq $certificates.mode "self") }}
{{- end -}}
{{- end -}}

{{- define "paceline.policy" -}}
mode = {{ .Values.remediator.mode | quote }}
{{- with .Values.remediator.policy }}
{{ . | trim }}
{{- end }}
{{ end -}}

{{- /* Whether pods are told of the remediator. */ -}}
{{- define "paceline.tells" -}}
{{- if and .Values.injector.enabled .Values.injector.tellRemediator .Values.remediator.enabled -}}
true
{{- end -}}
{{- end -}}

{{- /* Whether the remediator may change nodes: a finding gets no more than this, whatever mode the policy gives it. */ -}}
{{- define "paceline.acts" -}}
{{- if eq .Values.remediator.mode "act" -}}
true
{{- end -}}
{{- end -}}

{{- /* Of what is there while the release is uninstalled: its weight. */ -}}
{{- define "paceline.uninstalls" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
