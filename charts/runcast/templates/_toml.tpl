{{- /*
TOML of a table, since Helm's toToml writes whole numbers of values as floats. `path`: where the table is ("" at the root),
`table`: its members. Plain members come first, then tables, then lists of tables.
*/ -}}
{{- define "runcast.table" -}}
{{- $path := .path -}}
{{- $table := .table -}}
{{- range $key := keys $table | sortAlpha -}}
{{- $value := get $table $key -}}
{{- if not (or (kindIs "map" $value) (kindIs "invalid" $value) (eq (include "runcast.isTables" $value) "yes")) }}
{{ include "runcast.key" $key }} = {{ include "runcast.value" $value }}
{{- end -}}
{{- end -}}
{{- range $key := keys $table | sortAlpha -}}
{{- $value := get $table $key -}}
{{- $here := include "runcast.key" $key -}}
{{- if $path -}}
{{- $here = printf "%s.%s" $path $here -}}
{{- end -}}
{{- if kindIs "map" $value }}

[{{ $here }}]
{{- include "runcast.table" (dict "path" $here "table" $value) -}}
{{- else if eq (include "runcast.isTables" $value) "yes" -}}
{{- range $value }}

[[{{ $here }}]]
{{- include "runcast.table" (dict "path" $here "table" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "runcast.isTables" -}}
{{- if and (kindIs "slice" .) . -}}
{{- if kindIs "map" (first .) -}}yes{{- end -}}
{{- end -}}
{{- end }}

{{- define "runcast.key" -}}
{{- if regexMatch "^[A-Za-z0-9_-]+$" . -}}{{ . }}{{- else -}}{{ toJson . }}{{- end -}}
{{- end }}

{{- /* Strings of JSON are strings of TOML, but for one character. */ -}}
{{- define "runcast.value" -}}
{{- if kindIs "slice" . -}}
[{{- range $at, $value := . -}}{{- if $at }}, {{ end -}}{{- include "runcast.value" $value -}}{{- end -}}]
{{- else if kindIs "map" . -}}
{ {{- range $at, $key := keys . | sortAlpha -}}{{- if $at }},{{ end }} {{ include "runcast.key" $key }} = {{ include "runcast.value" (get $ $key) }}{{- end }} }
{{- else if kindIs "float64" . -}}
{{- if eq . (floor .) -}}{{- printf "%.0f" . -}}{{- else -}}{{- . -}}{{- end -}}
{{- else if kindIs "string" . -}}
{{- toJson . | replace "\u007f" "\\u007f" -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end }}
