{{- define "imap-wal.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* Names of pods and objects are made from it; they have at most 63 characters. */ -}}
{{- define "imap-wal.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "imap-wal.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "imap-wal.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "imap-wal.selector" -}}
app.kubernetes.io/name: {{ include "imap-wal.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: member
{{- end -}}

{{- define "imap-wal.labels" -}}
app.kubernetes.io/name: {{ include "imap-wal.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* dict "root" "image" */ -}}
{{- define "imap-wal.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "imap-wal.rewriteImage" -}}
{{- $image := empty .Values.rewrite.image.repository | ternary .Values.agent.image .Values.rewrite.image -}}
{{ include "imap-wal.image" (dict "root" . "image" $image) }}
{{- end -}}

{{- /* Where the volume of the logs is mounted. Hazelcast's chart fixes the path. */ -}}
{{- define "imap-wal.root" -}}
{{- ternary "/data/external" "/var/lib/imap-wal" (eq .Values.mode "sidecar-only") -}}
{{- end -}}

{{- define "imap-wal.url" -}}
{{- .Values.log.url | default (printf "file://%s" (include "imap-wal.root" .)) -}}
{{- end -}}

{{- define "imap-wal.claim" -}}
{{- .Values.log.volume.existingClaim | default (printf "%s-log" (include "imap-wal.fullname" .)) -}}
{{- end -}}

{{- /* Whether members append to the agents of other pods too. */ -}}
{{- define "imap-wal.copies" -}}
{{- if gt (int .Values.cluster.copies) 1 -}}true{{- end -}}
{{- end -}}

{{- /* Whether each pod has a disk of its own for segments: by default with copies. */ -}}
{{- define "imap-wal.localDisk" -}}
{{- $enabled := .Values.log.localDisk.enabled -}}
{{- if kindIs "bool" $enabled -}}
{{- if $enabled -}}true{{- end -}}
{{- else if and (include "imap-wal.copies" .) (not .Values.log.walDir) -}}true
{{- end -}}
{{- end -}}

{{- define "imap-wal.serviceAccount" -}}
{{- if or .Values.serviceAccount.create .Values.serviceAccount.name -}}
{{- .Values.serviceAccount.name | default (include "imap-wal.fullname" .) -}}
{{- else -}}
default
{{- end -}}
{{- end -}}

{{- /* What every pod has. */ -}}
{{- define "imap-wal.anyPod" -}}
enableServiceLinks: false
automountServiceAccountToken: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The pod of a job that uses the log. */ -}}
{{- define "imap-wal.jobPod" -}}
restartPolicy: Never
serviceAccountName: {{ include "imap-wal.serviceAccount" . }}
{{ include "imap-wal.anyPod" . }}
securityContext:
  {{- include "imap-wal.podSecurityContext" . | nindent 2 }}
{{- end -}}

{{- define "imap-wal.jobVolumes" -}}
- name: tmp
  emptyDir: {}
{{- if include "imap-wal.onVolume" . }}
- name: log
  persistentVolumeClaim: { claimName: {{ include "imap-wal.claim" . }} }
{{- end }}
{{- with include "imap-wal.credentialsSecret" . }}
- name: credentials
  secret: { secretName: {{ . }}, defaultMode: 0440 }
{{- end }}
{{- end -}}

{{- /* Where an agent listens. */ -}}
{{- define "imap-wal.endpoint" -}}
{{- if include "imap-wal.copies" . -}}
tcp://0.0.0.0:7701
{{- else if .Values.curve.enabled -}}
tcp://127.0.0.1:7701
{{- else if eq .Values.mode "sidecar-only" -}}
ipc:///data/custom/agent.sock
{{- else -}}
ipc:///run/imap-wal/agent.sock
{{- end -}}
{{- end -}}

{{- define "imap-wal.credentialsSecret" -}}
{{- if .Values.log.credentials.existingSecret -}}
{{ .Values.log.credentials.existingSecret }}
{{- else if .Values.log.credentials.content -}}
{{ include "imap-wal.fullname" . }}-credentials
{{- end -}}
{{- end -}}

{{- /* Checks that the schema cannot express. */ -}}
{{- define "imap-wal.check" -}}
{{- $root := include "imap-wal.root" . -}}
{{- range $name, $place := dict "log.url" .Values.log.url "log.walDir" .Values.log.walDir -}}
{{- if and $place (not (contains "://" $place)) -}}
{{- fail (printf "%s is %s, which is not a URL: write file://%s for the volume of the logs, or s3://bucket/maps for an object store" $name $place $root) -}}
{{- end -}}
{{- if regexMatch "^(local|memory|objects\\+file)://" $place -}}
{{- fail (printf "%s is %s, which only one pod can read, and all agents must read it: write file://%s for the volume of the logs" $name $place $root) -}}
{{- end -}}
{{- if and (hasPrefix "file://" $place) (not (hasPrefix (printf "file://%s/" $root) (printf "%s/" $place))) -}}
{{- fail (printf "%s is %s, which is not on the volume of the logs: with mode %s, it is mounted at %s" $name $place $.Values.mode $root) -}}
{{- end -}}
{{- end -}}
{{- $file := or (not .Values.log.url) (hasPrefix "file:" .Values.log.url) (hasPrefix "file:" .Values.log.walDir) -}}
{{- if and $file (not .Values.log.volume.enabled) -}}
{{- fail "there is no root for the logs: set log.url to an object store (s3://bucket/maps), or log.volume.enabled to true. All agents read the logs of all nodes, so a pod's own disk alone is not enough (log.localDisk needs such a root too)." -}}
{{- end -}}
{{- if and .Values.log.volume.enabled $file (gt (int .Values.cluster.replicas) 1) (not .Values.log.volume.existingClaim) (ne .Values.log.volume.accessMode "ReadWriteMany") -}}
{{- fail (printf "log.volume.accessMode is %s, and %d members need one volume: set ReadWriteMany, or cluster.replicas to 1, or log.url to an object store" .Values.log.volume.accessMode (int .Values.cluster.replicas)) -}}
{{- end -}}
{{- if include "imap-wal.copies" . -}}
{{- if eq .Values.mode "sidecar-only" -}}
{{- fail "cluster.copies: not with mode sidecar-only, whose agents listen for their own pods only" -}}
{{- end -}}
{{- if not .Values.curve.enabled -}}
{{- fail "cluster.copies needs curve.enabled: members use the agents of other pods over the network" -}}
{{- end -}}
{{- end -}}
{{- if and (include "imap-wal.localDisk" .) (not .Values.curve.enabled) -}}
{{- fail "log.localDisk needs curve.enabled: agents read each other's disks over the network" -}}
{{- end -}}
{{- if and .Values.cluster.partitionGroup (eq .Values.mode "sidecar-only") -}}
{{- fail "cluster.partitionGroup: not with mode sidecar-only: Hazelcast's chart gives its members the zones itself; set cluster.config.partition-group" -}}
{{- end -}}
{{- if and .Values.cluster.partitionGroup (ne .Values.topologySpread.zones "DoNotSchedule") -}}
{{- fail "cluster.partitionGroup is zone: set topologySpread.zones to DoNotSchedule; if all members were in one zone, Hazelcast would keep no backups" -}}
{{- end -}}
{{- if and (eq .Values.service.type "LoadBalancer") (not .Values.service.loadBalancerSourceRanges) -}}
{{- fail "service.type is LoadBalancer: name the addresses that may connect in service.loadBalancerSourceRanges, because whoever connects can read and change all maps" -}}
{{- end -}}
{{- if and .Values.service.nodePort (eq .Values.service.type "ClusterIP") -}}
{{- fail "service.nodePort: set service.type to NodePort or LoadBalancer" -}}
{{- end -}}
{{- if and .Values.service.loadBalancerSourceRanges (ne .Values.service.type "LoadBalancer") -}}
{{- fail (printf "service.loadBalancerSourceRanges has no effect with service.type %s: use networkPolicy.clients" .Values.service.type) -}}
{{- end -}}
{{- if and (not .Values.serviceAccount.create) .Values.serviceAccount.annotations -}}
{{- fail "serviceAccount.annotations: the chart creates no account with serviceAccount.create=false; annotate the one that exists" -}}
{{- end -}}
{{- if and (eq .Values.mode "sidecar-only") .Values.managementCenter.enabled -}}
{{- fail "managementCenter.enabled: not with mode sidecar-only: Hazelcast's chart has one, mancenter.enabled" -}}
{{- end -}}
{{- if gt (int .Values.cluster.copies) (int .Values.cluster.replicas) -}}
{{- fail (printf "cluster.copies is %d, and there are %d agents (cluster.replicas)" (int .Values.cluster.copies) (int .Values.cluster.replicas)) -}}
{{- end -}}
{{- if gt (int .Values.cluster.acks) (int .Values.cluster.copies) -}}
{{- fail (printf "cluster.acks is %d, and a change is in %d logs (cluster.copies)" (int .Values.cluster.acks) (int .Values.cluster.copies)) -}}
{{- end -}}
{{- /* A map that no list names would lose its entries without a word. */ -}}
{{- range $section, $ignored := (get .Values.cluster.config "map" | default dict) -}}
{{- $named := or (eq $section "default") (hasPrefix "__" $section) -}}
{{- range concat $.Values.cluster.durableMaps $.Values.cluster.transientMaps -}}
{{- $named = or $named (regexMatch (printf "^%s$" (regexQuoteMeta . | replace "\\*" ".*")) $section) -}}
{{- end -}}
{{- if not $named -}}
{{- fail (printf "cluster.config.map.%s is in no list: add it to cluster.durableMaps, or to cluster.transientMaps if its entries may be lost" $section) -}}
{{- end -}}
{{- end -}}
{{- range list "copies" "acks" "copy-agents" -}}
{{- if hasKey $.Values.cluster.mapStoreProperties . -}}
{{- fail (printf "cluster.mapStoreProperties.%s: the chart writes this property; use cluster.copies and cluster.acks" .) -}}
{{- end -}}
{{- end -}}
{{- range list "durable-maps" "transient-maps" "durable-queues" "durable-ringbuffers" "durable-topics" "durable-structures" -}}
{{- if hasKey $.Values.cluster.mapStoreProperties . -}}
{{- fail (printf "cluster.mapStoreProperties.%s: the chart writes this property; use cluster.durableMaps, cluster.transientMaps, cluster.durableQueues, cluster.durableRingbuffers, cluster.durableTopics and cluster.durableStructures" .) -}}
{{- end -}}
{{- end -}}
{{- if and (include "imap-wal.localDisk" .) .Values.rewrite.enabled -}}
{{- fail "rewrite.enabled: the job reads the root alone, and with log.localDisk it fails while agents run. Run imap-wal rewrite --partial instead" -}}
{{- end -}}
{{- if hasPrefix "file:" (.Values.agent.log.encryption_keys | default "") -}}
{{- fail (printf "agent.log.encryption_keys is %s: pods mount no file of keys. Use env:NAME, and set the variable from a Secret (agent.env, agent.envFrom)" .Values.agent.log.encryption_keys) -}}
{{- end -}}
{{- range list "storage_options" "wal_dir_options" -}}
{{- if and $.Values.rewrite.enabled (get $.Values.agent.settings .) -}}
{{- fail (printf "agent.settings.%s: the rewrite job does not get these options. Put them into log.credentials, or into variables of agent.env that the driver reads (AWS_ENDPOINT_URL)" .) -}}
{{- end -}}
{{- end -}}
{{- if and (include "imap-wal.localDisk" .) (or .Values.log.walDir (eq .Values.mode "sidecar-only")) -}}
{{- fail "log.localDisk has the segments: it excludes log.walDir, and mode sidecar-only, whose pods are of another chart" -}}
{{- end -}}
{{- if and .Values.curve.enabled (not (and .Values.curve.existingSecret .Values.curve.agentPublicKey)) -}}
{{- fail "curve.enabled needs curve.existingSecret (agent.key, member.key, clients.toml) and curve.agentPublicKey (public-key of agent.pub)" -}}
{{- end -}}
{{- if and (eq .Values.mode "sidecar-only") (or .Values.curve.enabled .Values.token.existingSecret (include "imap-wal.credentialsSecret" .)) -}}
{{- fail "sidecar-only: Hazelcast's chart mounts no Secrets, so curve, token and log.credentials are not possible. Pass credentials of a storage by agent.envFrom." -}}
{{- end -}}
{{- if and (eq .Values.mode "sidecar-only") (eq (int .Values.sidecarOnly.runAsUser) 0) -}}
{{- fail "sidecarOnly.runAsUser is 0: the agent does not run as root" -}}
{{- end -}}
{{- range list "url" "wal_dir" "wal_dir_is_local" "tail_endpoint" "tail_address" "node" "cluster" "endpoint" "http_address" "credentials" "key" "clients" "log" -}}
{{- if hasKey $.Values.agent.settings . -}}
{{- fail (printf "agent.settings.%s: the chart writes this setting" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* For pods that this chart creates. In `sidecar-only`, the logs belong to the user of the other
chart's pods. */ -}}
{{- define "imap-wal.podSecurityContext" -}}
{{- $context := deepCopy .Values.podSecurityContext -}}
{{- if eq .Values.mode "sidecar-only" -}}
{{- $_ := set $context "runAsUser" .Values.sidecarOnly.runAsUser -}}
{{- $_ := set $context "runAsGroup" .Values.sidecarOnly.runAsGroup -}}
{{- $_ := set $context "fsGroup" .Values.sidecarOnly.runAsGroup -}}
{{- end -}}
{{- toYaml $context -}}
{{- end -}}

{{- /* Whether pods mount the volume of the logs. */ -}}
{{- define "imap-wal.onVolume" -}}
{{- if and .Values.log.volume.enabled (or (not .Values.log.url) (hasPrefix "file:" .Values.log.url) (hasPrefix "file:" .Values.log.walDir)) -}}true{{- end -}}
{{- end -}}

{{- /* The headless service of the members, as DNS knows it. */ -}}
{{- define "imap-wal.serviceName" -}}
{{ include "imap-wal.fullname" . }}.{{ .Release.Namespace }}.svc.{{ .Values.cluster.dnsDomain }}
{{- end -}}

{{- define "imap-wal.agentToml" -}}
{{- /* The node is the name of the pod, which a StatefulSet keeps. */ -}}
url = {{ include "imap-wal.url" . | quote }}
{{- with .Values.log.walDir }}
wal_dir = {{ . | quote }}
{{- end }}
{{- if include "imap-wal.localDisk" . }}
wal_dir = "file:///var/lib/wal-segments"
wal_dir_is_local = true
tail_endpoint = "tcp://0.0.0.0:7702"
# The name of the pod in the headless service.
tail_address = "tcp://{node}.{{ include "imap-wal.serviceName" . }}:7702"
{{- end }}
cluster = {{ .Values.cluster.name | quote }}
endpoint = {{ include "imap-wal.endpoint" . | quote }}
http_address = "0.0.0.0:9413"
{{- if include "imap-wal.credentialsSecret" . }}
credentials = "/etc/imap-wal/credentials/credentials.toml"
{{- end }}
{{- if .Values.curve.enabled }}
key = "/etc/imap-wal/keys/agent.key"
clients = "/etc/imap-wal/keys/clients.toml"
{{- end }}
{{- range $name, $value := .Values.agent.settings }}
{{- if not (kindIs "invalid" $value) }}
{{ $name }} = {{ include "imap-wal.tomlValue" $value }}
{{- end }}
{{- end }}

[log]
{{- range $name, $value := .Values.agent.log }}
{{- if not (kindIs "invalid" $value) }}
{{ $name }} = {{ include "imap-wal.tomlValue" $value }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* Numbers of YAML are floats to Helm: 600 and not 600.0 or 6e+02; one that int64 does not hold
stays a float. Strings of JSON are strings of TOML, and one character that would end a line of YAML
is escaped; its objects are not tables. TOML has no null: a field that is null is left out. */ -}}
{{- define "imap-wal.tomlValue" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) (lt . 9.2e18) (gt . -9.2e18) -}}
{{ int64 . }}
{{- else if kindIs "map" . -}}
{{- $fields := list -}}
{{- range $name, $value := . -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $fields = append $fields (printf "%s = %s" (include "imap-wal.tomlValue" $name) (include "imap-wal.tomlValue" $value)) -}}
{{- end -}}
{{- end -}}
{ {{ join ", " $fields }} }
{{- else if kindIs "slice" . -}}
{{- $items := list -}}
{{- range . -}}
{{- if kindIs "invalid" . -}}
{{- fail "agent.settings, agent.log: a list has null, which TOML cannot write; leave it out" -}}
{{- end -}}
{{- $items = append $items (include "imap-wal.tomlValue" .) -}}
{{- end -}}
[{{ join ", " $items }}]
{{- else if kindIs "string" . -}}
{{ toJson . | replace "\u0085" "\\u0085" }}
{{- else -}}
{{ toJson . }}
{{- end -}}
{{- end -}}

{{- /* The plug-in's properties of a member. They are for every map, whatever section it has. */ -}}
{{- define "imap-wal.memberProperties" -}}
{{- $properties := dict "agent" (include "imap-wal.endpoint" .) -}}
{{- if include "imap-wal.copies" . -}}
{{- /* One list for all pods; in each, the member begins after its own agent. */ -}}
{{- $agents := list -}}
{{- range $number := until (int .Values.cluster.replicas) -}}
{{- $agents = append $agents (printf "tcp://%s-%d.%s:7701 %s" (include "imap-wal.fullname" $) $number (include "imap-wal.serviceName" $) $.Values.curve.agentPublicKey) -}}
{{- end -}}
{{- $properties = dict "agent" "${imap-wal.agent}" "copies" (.Values.cluster.copies | toString) "copy-agents" (join ", " $agents) -}}
{{- with .Values.cluster.acks -}}
{{- $_ := set $properties "acks" (. | toString) -}}
{{- end -}}
{{- end -}}
{{- if .Values.curve.enabled -}}
{{- $properties = merge $properties (dict "agent-key-file" "/etc/imap-wal/keys/member.key" "agent-public-key" .Values.curve.agentPublicKey) -}}
{{- end -}}
{{- if .Values.token.existingSecret -}}
{{- $properties = merge $properties (dict "cluster-token-file" "/etc/imap-wal/token/cluster.token") -}}
{{- end -}}
{{- $properties = merge $properties .Values.cluster.mapStoreProperties -}}
{{- $lists := dict "durable-maps" (join ", " .Values.cluster.durableMaps) "durable-structures" .Values.cluster.durableStructures -}}
{{- range $name, $names := dict "transient-maps" .Values.cluster.transientMaps "durable-queues" .Values.cluster.durableQueues "durable-ringbuffers" .Values.cluster.durableRingbuffers "durable-topics" .Values.cluster.durableTopics -}}
{{- if $names -}}
{{- $_ := set $lists $name (join ", " $names) -}}
{{- end -}}
{{- end -}}
{{- range $name, $value := merge $properties $lists }}
imap-wal.{{ $name }}: {{ $value | quote }}
{{- end -}}
{{- end -}}

{{- /* The times of a probe of an agent, whose start waits for the log. */ -}}
{{- define "imap-wal.agentStartup" -}}
{{- $period := int (default 10 .Values.agent.probes.startup.periodSeconds) -}}
{{- $seconds := add 300 (int (default 300 .Values.agent.settings.ready_timeout_s)) -}}
{{- toYaml (merge (deepCopy .Values.agent.probes.startup) (dict "failureThreshold" (div (add $seconds $period -1) $period))) -}}
{{- end -}}

{{- /* What both modes configure. */ -}}
{{- define "imap-wal.hazelcastCommon" -}}
cluster-name: {{ .Values.cluster.name | quote }}
properties:
  # A store waits for the disk; with few operation threads, all other operations would wait too.
  hazelcast.operation.thread.count: "64"
  hazelcast.phone.home.enabled: "false"
  hazelcast.shutdownhook.policy: GRACEFUL
  hazelcast.graceful.shutdown.max.wait: {{ .Values.cluster.shutdownSeconds | quote }}
  {{- include "imap-wal.memberProperties" . | trim | nindent 2 }}
serialization:
  # As `imap-wal plugin config` prints it: reading a Java-serialised value runs code.
  java-serialization-filter:
    defaults-disabled: false
    whitelist:
      package: [io.imapwal.hazelcast, io.imapwal.wire]
    blacklist:
      class: [java.net.URL]
      prefix: [java.rmi., javax.management., javax.naming.]
{{- end -}}

{{- define "imap-wal.hazelcastYaml" -}}
{{- $own := include "imap-wal.hazelcastCommon" . | fromYaml -}}
{{- $join := dict "auto-detection" (dict "enabled" false) "multicast" (dict "enabled" false) "kubernetes" (dict "enabled" true "service-dns" (include "imap-wal.serviceName" .)) -}}
{{- $health := dict "enabled" true "endpoint-groups" (dict "HEALTH_CHECK" (dict "enabled" true)) -}}
{{- $network := dict "port" (dict "port" 5701 "auto-increment" false) "join" $join "rest-api" $health -}}
{{- $all := mergeOverwrite $own (dict "network" $network) -}}
{{- if .Values.member.metrics.enabled -}}
{{- $_ := set $all.properties "hazelcast.jmx" "true" -}}
{{- end -}}
{{- if .Values.cluster.partitionGroup -}}
{{- /* Not ZONE_AWARE: where members find each other by DNS, Hazelcast says that every zone is
"unknown". */ -}}
{{- $_ := set $all "partition-group" (dict "enabled" true "group-type" "PLACEMENT_AWARE") -}}
{{- $_ := set $all "member-attributes" (dict "hazelcast.partition.group.placement" (dict "type" "string" "value" "${imap-wal.zone}")) -}}
{{- end -}}
{{- $all = mergeOverwrite $all (deepCopy .Values.cluster.config) -}}
{{- toYaml (dict "hazelcast" $all) -}}
{{- end -}}

{{- /* The agent: dict "root" "config" "mounts". In both modes a sidecar of Kubernetes: it starts
before the member and stops after it. */ -}}
{{- define "imap-wal.agentContainer" -}}
{{- $root := .root -}}
name: agent
image: {{ include "imap-wal.image" (dict "root" $root "image" $root.Values.agent.image) | quote }}
imagePullPolicy: {{ $root.Values.agent.image.pullPolicy }}
restartPolicy: Always
command: [imap-wal, agent]
args: ["--config", {{ .config | quote }}]
ports:
  - { name: metrics, containerPort: 9413 }
  {{- if include "imap-wal.copies" $root }}
  - { name: agent, containerPort: 7701 }
  {{- end }}
  {{- if include "imap-wal.localDisk" $root }}
  - { name: tails, containerPort: 7702 }
  {{- end }}
env:
  # The home folder of drivers of storages; the root file system cannot be written.
  - { name: HOME, value: /tmp }
  {{- with $root.Values.agent.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $root.Values.agent.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
# The member starts when this one passes. An agent that waits for other nodes is ready. An agent
# that was restarted beside its member is ready after ready_timeout_s at the latest.
startupProbe:
  httpGet: { path: /readyz, port: metrics }
  {{- include "imap-wal.agentStartup" $root | nindent 2 }}
readinessProbe:
  httpGet: { path: /readyz, port: metrics }
  {{- with $root.Values.agent.probes.readiness }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
livenessProbe:
  httpGet: { path: /livez, port: metrics }
  {{- with $root.Values.agent.probes.liveness }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
resources:
  {{- toYaml $root.Values.agent.resources | nindent 2 }}
securityContext:
  {{- toYaml $root.Values.securityContext | nindent 2 }}
volumeMounts:
  {{- .mounts | nindent 2 }}
  {{- with $root.Values.agent.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "imap-wal.agentMounts" -}}
- { name: config, mountPath: /etc/imap-wal/agent.toml, subPath: agent.toml, readOnly: true }
- { name: run, mountPath: /run/imap-wal }
- { name: tmp, mountPath: /tmp, subPath: agent }
{{- if include "imap-wal.onVolume" . }}
- { name: log, mountPath: /var/lib/imap-wal }
{{- end }}
{{- if include "imap-wal.localDisk" . }}
- { name: disk, mountPath: /var/lib/wal-segments }
{{- end }}
{{- if include "imap-wal.credentialsSecret" . }}
- { name: credentials, mountPath: /etc/imap-wal/credentials, readOnly: true }
{{- end }}
{{- if .Values.curve.enabled }}
- { name: agent-keys, mountPath: /etc/imap-wal/keys, readOnly: true }
{{- end }}
{{- end -}}

{{- define "imap-wal.jobContainer" -}}
image: {{ include "imap-wal.rewriteImage" . | quote }}
imagePullPolicy: {{ .Values.agent.image.pullPolicy }}
env:
  - { name: HOME, value: /tmp }
  {{- if include "imap-wal.credentialsSecret" . }}
  - { name: IMAP_WAL_CREDENTIALS, value: /etc/imap-wal/credentials/credentials.toml }
  {{- end }}
  {{- with .Values.agent.log.encryption_keys }}
  - { name: IMAP_WAL_ENCRYPTION_KEYS, value: {{ . | quote }} }
  {{- end }}
  {{- with .Values.agent.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.agent.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
resources:
  {{- toYaml .Values.rewrite.resources | nindent 2 }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
volumeMounts:
  - { name: tmp, mountPath: /tmp }
  {{- if include "imap-wal.onVolume" . }}
  - { name: log, mountPath: {{ include "imap-wal.root" . }} }
  {{- end }}
  {{- if include "imap-wal.credentialsSecret" . }}
  - { name: credentials, mountPath: /etc/imap-wal/credentials, readOnly: true }
  {{- end }}
{{- end -}}
