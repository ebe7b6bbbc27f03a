use crate::files::parse;

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - name: web\n    command: [sleep, infinity]\n";

fn told(text: &str) -> String {
    parse("a.yaml", text).map_or_else(|error| error.to_string(), |found| format!("accepted: {:?}", found.warnings))
}

/// What is written, and the whole of what is said about it.
const CASES: &[(&str, &str, &str)] = &[
    (
        "no line between two objects",
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\napiVersion: v1\nkind: Namespace\nmetadata: {name: b}\n",
        "a.yaml:4:1: apiVersion stands here a second time; the first one is on line 1: where the next object begins, put a line `---` before it",
    ),
    (
        "a duplicate key",
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  labels: {}\n  name: b\nspec: {containers: [{name: c}]}\n",
        "a.yaml:6:3: name stands here a second time in the same group of fields; the first one is on line 4: remove one of the two",
    ),
    (
        "a duplicate in a list",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: a\n    image: x\n    name: b\n",
        "a.yaml:8:5: name stands here a second time in the same group of fields; the first one is on line 6: remove one of the two",
    ),
    (
        "a duplicate label",
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  labels:\n    app: a\n    app: b\nspec: {containers: [{name: c}]}\n",
        "a.yaml:7:5: app stands here a second time in the same group of fields; the first one is on line 6: remove one of the two",
    ),
    (
        "a template's value",
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {{ .Values.name }}\n",
        "a.yaml:4:9: `{{ .Values.name }}` is a template and this file part of a Helm chart: Leno reads finished manifests; write them with `helm template CHART > manifests.yaml` and give Leno that file",
    ),
    (
        "a template in quotes",
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: \"{{ .Values.name }}\"\n",
        "a.yaml:4:10: `{{ .Values.name }}` is a template and this file part of a Helm chart: Leno reads finished manifests; write them with `helm template CHART > manifests.yaml` and give Leno that file",
    ),
    (
        "a template's line",
        "{{- if .Values.enabled }}\napiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n{{- end }}\n",
        "a.yaml:1:1: `{{ if .Values.enabled }}` is a template and this file part of a Helm chart: Leno reads finished manifests; write them with `helm template CHART > manifests.yaml` and give Leno that file",
    ),
    (
        "a template's number",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec:\n  replicas: {{ .Values.replicas }}\n",
        "a.yaml:5:13: `{{ .Values.replicas }}` is a template and this file part of a Helm chart: Leno reads finished manifests; write them with `helm template CHART > manifests.yaml` and give Leno that file",
    ),
    (
        "a template's include",
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  labels:\n    {{- include \"a.labels\" . | nindent 4 }}\nspec: {}\n",
        "a.yaml:6:5: `{{ include \"a.labels\" . | nindent 4 }}` is a template and this file part of a Helm chart: Leno reads finished manifests; write them with `helm template CHART > manifests.yaml` and give Leno that file",
    ),
    (
        "a tab",
        "apiVersion: v1\nkind: Namespace\nmetadata:\n\tname: a\n",
        "a.yaml:4:1: the line is indented with a tab, which YAML does not take: use spaces",
    ),
    (
        "a tab below",
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  labels:\n  \tapp: a\nspec: {}\n",
        "a.yaml:6:3: the line is indented with a tab, which YAML does not take: use spaces",
    ),
    (
        "one space too many",
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n   labels: {}\nspec: {}\n",
        "a.yaml:5:4: labels is indented deeper than name on line 4, which has a value already: begin both in the same column",
    ),
    (
        "one space too many before a list",
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n   namespace: b\nspec: {}\n",
        "a.yaml:5:4: namespace is indented deeper than name on line 4, which has a value already: begin both in the same column",
    ),
    (
        "a column that fits none",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n    containers:\n    - name: c\n  nodeName: a\n",
        "a.yaml:7:3: the line is indented by 2 spaces, which fits none above it: they begin after 0 or 4 or 6",
    ),
    (
        "a container's field too far left",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: c\n   image: a\n",
        "a.yaml:7:4: the line is indented by 3 spaces, which fits none above it: they begin after 0 or 2 or 4",
    ),
    (
        "a field one level too deep",
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  spec:\n    containers: []\n",
        "a.yaml:5:3: unknown field metadata.spec; spec stands at the top of the object: is it indented too far?",
    ),
    (
        "a field of the pod in its container",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: c\n    nodeName: x\n",
        "a.yaml:7:5: unknown field spec.containers[0].nodeName; nodeName is a field of spec: is it indented too far?",
    ),
    (
        "a bracket",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: c\n    command: [sleep, infinity\n    image: a\n",
        "a.yaml:7:14: the list that opens here with `[` is never closed: add a `]`",
    ),
    (
        "a bracket at the end",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: [\n",
        "a.yaml:3:18: the list that opens here with `[` is never closed: add a `]`",
    ),
    (
        "a quote",
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: \"a\n  labels: {}\nspec: {}\n",
        "a.yaml:4:9: the quote that opens here is not closed on its line: add a `\"`",
    ),
    (
        "a star",
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a}\nspec:\n  rules:\n  - from:\n    - source:\n        principals: [*]\n",
        "a.yaml:8:22: a value that begins with `*` has to be in quotes: \"*\"",
    ),
    (
        "a star in a list",
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a}\nspec:\n  rules:\n  - from:\n    - source:\n        principals:\n        - *\n",
        "a.yaml:9:11: a value that begins with `*` has to be in quotes: \"*\"",
    ),
    (
        "a star and more",
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a}\nspec:\n  rules:\n  - from:\n    - source:\n        principals:\n        - */sa/web\n",
        "a.yaml:9:11: a value that begins with `*` has to be in quotes: \"*/sa/web\"",
    ),
    (
        "a colon in a value",
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  annotations:\n    about: web: the front\nspec: {}\n",
        "a.yaml:6:12: the value of about holds a colon and a space, so it has to be in quotes",
    ),
    (
        "no colon",
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name a\nspec: {}\n",
        "a.yaml:4:3: metadata: fields belong here, each as `name: value` on its own line and indented below",
    ),
    (
        "no colon after another",
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  labels\nspec: {}\n",
        "a.yaml:5:3: `labels` is no field: a colon and a value are missing, as in `name: value`",
    ),
    (
        "no space after the colon",
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name:a\nspec: {}\n",
        "a.yaml:4:3: metadata: fields belong here, each as `name: value` on its own line and indented below; a space is missing after the colon of `name:`",
    ),
    (
        "no space after the colon of kind",
        "apiVersion: v1\nkind:Pod\nmetadata:\n  name: a\nspec: {}\n",
        "a.yaml:2:1: a space is missing after the colon of `kind:`",
    ),
    (
        "an at sign",
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: @a\nspec: {}\n",
        "a.yaml:4:9: a value that begins with `@` has to be in quotes",
    ),
    (
        "a number for text",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: c\n    command: [sleep, 10]\n",
        "a.yaml:7:22: spec.containers[0].command[1]: the number 10 stands where a string belongs: put it in quotes, \"10\"",
    ),
    (
        "a number as an environment's value",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: c\n    env:\n    - name: A\n      value: 8080\n",
        "a.yaml:9:7: spec.containers[0].env[0].value: the number 8080 stands where a string belongs: put it in quotes, \"8080\"",
    ),
    (
        "a truth value for text",
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  labels: {on: true}\nspec: {containers: [{name: c}]}\n",
        "a.yaml:5:12: metadata.labels.on: true (a truth value) stands where a string belongs: put it in quotes, \"true\"",
    ),
    (
        "text for a number",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec:\n  replicas: two\n",
        "a.yaml:5:3: spec.replicas: the text \"two\" stands where a whole number from 0 to 2147483647 belongs",
    ),
    (
        "a quoted number",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec:\n  replicas: \"2\"\n",
        "a.yaml:5:3: spec.replicas: the text \"2\" stands where a whole number from 0 to 2147483647 belongs: write it without quotes, 2",
    ),
    (
        "text for a truth value",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  hostNetwork: maybe\n",
        "a.yaml:5:16: spec.hostNetwork: `maybe` is not true or false",
    ),
    (
        "text for a list",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: c\n    command: sleep infinity\n",
        "a.yaml:7:14: spec.containers[0].command: a list belongs here: write each item on its own line as `- item`, or all as `[item, item]`",
    ),
    (
        "a list for fields",
        "apiVersion: v1\nkind: Pod\nmetadata:\n- name: a\nspec: {}\n",
        "a.yaml:4:3: metadata: fields belong here, each as `name: value` on its own line and indented below",
    ),
    (
        "fields for a list",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n    name: c\n",
        "a.yaml:6:5: spec.containers: a list belongs here: write each item on its own line as `- item`, or all as `[item, item]`",
    ),
    (
        "fields for text",
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {a: b}\nspec: {}\n",
        "a.yaml:4:9: metadata.name: a group of fields stands where a string belongs",
    ),
    (
        "a list for text",
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: [a]\nspec: {}\n",
        "a.yaml:4:3: metadata.name: a list stands where a string belongs",
    ),
    (
        "text for fields",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: web\n",
        "a.yaml:4:7: spec: fields belong here, each as `name: value` on its own line and indented below",
    ),
    (
        "nothing for text",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name:\n",
        "a.yaml:6:5: spec.containers[0].name is required",
    ),
    (
        "an unknown field",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: c\n    comand: [a]\n",
        "a.yaml:7:5: unknown field spec.containers[0].comand; did you mean command?",
    ),
    (
        "a port that is none",
        "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  ports:\n  - port: 70000\n",
        "a.yaml:6:5: spec.ports[0].port: the number 70000 is not a port number from 1 to 65535",
    ),
    (
        "a port in quotes",
        "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  ports:\n  - port: \"80\"\n",
        "a.yaml:6:5: spec.ports[0].port: the text \"80\" stands where a port number from 1 to 65535 belongs: write it without quotes, 80",
    ),
    (
        "no kind",
        "apiVersion: v1\nmetadata: {name: a}\n",
        "a.yaml:1: kind is missing beside apiVersion v1: every object begins with both",
    ),
    (
        "no apiVersion",
        "kind: Deployment\nmetadata: {name: a}\n",
        "a.yaml:1: apiVersion is missing: a Deployment begins with `apiVersion: apps/v1`",
    ),
    (
        "no apiVersion of an unknown kind",
        "kind: Foo\nmetadata: {name: a}\n",
        "a.yaml:1: apiVersion is missing beside kind Foo: every object begins with both",
    ),
    (
        "neither",
        "replicas: 2\nimage: nginx\n",
        "a.yaml:1: apiVersion and kind are missing, so this is no Kubernetes object: every object begins with both, such as `apiVersion: v1` and `kind: Service`",
    ),
    (
        "text only",
        "hello world\n",
        "a.yaml:1:1: apiVersion and kind are missing, so this is no Kubernetes object: every object begins with both, such as `apiVersion: v1` and `kind: Service`",
    ),
    (
        "a list only",
        "- a\n- b\n",
        "a.yaml:1:1: apiVersion and kind are missing, so this is no Kubernetes object: every object begins with both, such as `apiVersion: v1` and `kind: Service`",
    ),
    (
        "a kind that is a number",
        "apiVersion: v1\nkind: 5\n",
        "accepted: [\"a.yaml:1: 5 without a name (v1) is not understood and ignored\"]",
    ),
    (
        "an item of the wrong type",
        "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: a}\n  spec: {containers: [{name: c, command: [1]}]}\n",
        "a.yaml:1: items[0]: spec.containers[0].command[0]: the number 1 stands where a string belongs: put it in quotes, \"1\"",
    ),
    (
        "an anchor",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: *a}\nspec: {}\n",
        "a.yaml:3:18: a value that begins with `*` has to be in quotes: \"*a\"",
    ),
    (
        "a windows file",
        "apiVersion: v1\r\nkind: Pod\r\nmetadata:\r\n  name: a\r\n   labels: {}\r\nspec: {}\r\n",
        "a.yaml:5:4: labels is indented deeper than name on line 4, which has a value already: begin both in the same column",
    ),
    (
        "a slip of a kind",
        "apiVersion: v1\nkind: Servise\nmetadata: {name: a}\n",
        "accepted: [\"a.yaml:1: Servise default/a (v1) is not understood and ignored; did you mean kind Service?\"]",
    ),
];

#[test]
fn what_is_said_of_each_mistake() {
    let mut wrong = String::new();
    for (what, text, said) in CASES {
        let told = told(text);
        if told != *said {
            wrong += &format!("--- {what}\n{text}=== said\n{told}\n=== expected\n{said}\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Lines are those of the file, wherever in it the document begins.
#[test]
fn a_mistake_in_a_later_document_has_its_own_line() {
    for (what, text, said) in CASES {
        let later = told(&format!("{POD}---\n{text}"));
        let Some((line, _)) = said.strip_prefix("a.yaml:").and_then(|said| said.split_once(':')) else { continue };
        let line: usize = line.parse().unwrap();
        let moved = format!("a.yaml:{}:", line + POD.lines().count() + 1);
        assert!(later.starts_with(&moved), "{what}: {later} does not begin with {moved}");
    }
}

#[test]
fn every_document_with_a_mistake_is_told() {
    let told = told("apiVersion: v1\nkind: Pod\nmetadata:\n\tname: a\n---\nkind: Pod\nmetadata: {name: a}\n");
    assert_eq!(told.lines().count(), 2, "{told}");
}
