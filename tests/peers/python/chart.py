"""Helm's own engine on a chart, and Kubernetes' own schemas on what it makes.

    chart.py CHART < REQUESTS

REQUESTS is a JSON list of values, each an object or a string of YAML. The answer is a JSON list: for each, `error` (why it cannot
be rendered), or `objects` (what is applied, in order), `notes`, `lint` (findings that are warnings or worse) and `invalid`
(what a schema says against an object, for the oldest version of Kubernetes that the chart allows and the newest known here).
"""

import json
import sys

import helm_python as helm
import kubernetes_validate
import yaml

OLDEST = "1.27"
# The Prometheus operator's; Kubernetes does not know them.
FOREIGN = "monitoring.coreos.com/"
WARNING = 2


def answer(path: str, chart: helm.Chart, values: dict | str) -> dict:
    try:
        if isinstance(values, str):
            values = helm.values_from_yaml(values) or {}
        chart.validate_schema(values)
        files = chart.render(values, name="ci", namespace="streams", is_install=True)
    except helm.HelmError as error:
        return {"error": str(error)}
    notes = [text for name, text in files.items() if name.endswith("NOTES.txt")]
    rendered = {name: text for name, text in files.items() if name.endswith(".yaml")}
    objects = [thing for name in sorted(rendered) for thing in yaml.safe_load_all(rendered[name]) if thing]
    lint = helm.lint(path, values, strict=True, namespace="streams", kube_version=f"v{OLDEST}.0")
    return {
        "objects": objects,
        "notes": "".join(notes),
        "templates": sorted(name.split("/", 1)[1] for name, text in files.items() if text.strip()),
        "lint": [f"{m['path']}: {m['error']}" for m in lint["messages"] if m["severity"] >= WARNING] + lint["errors"],
        "invalid": [found for thing in objects for found in against(thing)],
    }


def against(thing: dict) -> list[str]:
    if thing["apiVersion"].startswith(FOREIGN):
        return []
    found = []
    for version in (OLDEST, kubernetes_validate.latest_version()):
        try:
            kubernetes_validate.validate(thing, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            at = "/".join(str(part) for part in error.path)
            found.append(f"{thing['kind']} {thing['metadata']['name']} of {version}: {at}: {error.message}")
        except kubernetes_validate.SchemaNotFoundError as error:
            found.append(error.message)
    return found


def main() -> None:
    path = sys.argv[1]
    requests = json.load(sys.stdin)
    with helm.Chart.load(path) as chart:
        json.dump([answer(path, chart, values) for values in requests], sys.stdout)


main()
