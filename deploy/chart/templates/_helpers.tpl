{{/* The image of every container. */}}
{{- define "windlass.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Labels of every object; those by which a DaemonSet knows its Pods are fewer, and never change. */}}
{{- define "windlass.labels" -}}
app.kubernetes.io/name: windlass
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{/* The agent's configuration: what was asked for, and what only the chart can know. */}}
{{- define "windlass.configuration" -}}
{{- $fixed := dict
  "apiServer" .Values.apiServer
  "runDirectory" "/run/windlass"
  "stateDirectory" "/var/lib/windlass"
  "ovsRunDirectory" "/run/openvswitch"
  "ipamPlugin" "/usr/lib/cni/host-local" }}
{{- merge (dict) $fixed .Values.config | toYaml }}
{{- end }}

{{/* Of Windows Nodes: their paths are the agent's own defaults. */}}
{{- define "windlass.windowsConfiguration" -}}
{{- merge (dict) (dict "apiServer" .Values.apiServer) .Values.config | toYaml }}
{{- end }}

{{/* What holds for both DaemonSets: they are the network, so they wait for nothing that needs one. */}}
{{- define "windlass.pod" -}}
hostNetwork: true
# Not by a Service: the Node's own name servers.
dnsPolicy: Default
priorityClassName: system-node-critical
nodeSelector:
  kubernetes.io/os: linux
  {{- with .Values.nodeSelector }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
tolerations:
  - operator: Exists
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/*
The securityContext of a container: these capabilities and no others. Usage:
  include "windlass.confined" (list $ "NET_ADMIN" ...)
RuntimeDefault is the runtime's own list of system calls; it allows those that go with the capabilities (setns with
SYS_ADMIN). Without it there is no list at all, unless the kubelet runs with --seccomp-default.
spc_t is SELinux's word for a container that works on its Node's files; elsewhere it says nothing.
*/}}
{{- define "windlass.confined" -}}
{{- $root := first . }}
{{- if $root.Values.privileged -}}
privileged: true
{{- else -}}
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  {{- with rest . }}
  add: [{{ join ", " . }}]
  {{- end }}
seccompProfile:
  type: RuntimeDefault
seLinuxOptions:
  level: s0
  type: spc_t
{{- end }}
{{- end }}
