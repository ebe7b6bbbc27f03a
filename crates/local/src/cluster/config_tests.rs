use super::*;
use crate::files::parse;

const TEXT: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: shop}
data: {port: \"80\", motd: hello}
binaryData: {logo: AP8=}
---
apiVersion: v1
kind: Secret
metadata: {name: db, namespace: shop}
data: {password: c2Vjcm\n  V0, user: cm9vdA==}
stringData: {user: admin}
";

fn config() -> Config {
    let found = parse("a.yaml", TEXT).unwrap();
    Config::of(found.objects.iter().map(|(key, sourced)| (key, &sourced.object)))
}

fn pod(spec: &str) -> PodSpec {
    let text = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: a, namespace: shop}}\nspec: {spec}\n");
    let found = parse("a.yaml", &text).unwrap_or_else(|error| panic!("{error}"));
    match &*found.objects.into_values().next().unwrap().object {
        Object::Pod(pod) => pod.spec.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn entries_become_variables() {
    let config = config();
    let from = |text: &str| {
        pod(&format!("{{containers: [{{name: c, envFrom: [{text}]}}]}}")).containers[0].env_from[0].clone()
    };
    let variables = |text: &str| config.variables("shop", &from(text));
    let pairs =
        |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<Vec<_>>();
    assert_eq!(
        variables("{prefix: DB_, secretRef: {name: db}}"),
        Ok(pairs(&[("DB_password", "secret"), ("DB_user", "admin")])),
        "stringData counts before data"
    );
    assert_eq!(
        variables("{configMapRef: {name: settings}}"),
        Err("ConfigMap shop/settings: entry logo: it is no text, and a variable can be nothing else; mount it as a volume"
            .to_owned())
    );
    assert_eq!(variables("{configMapRef: {name: none, optional: true}}"), Ok(Vec::new()));
}

#[test]
fn what_leads_nowhere_is_named() {
    let spec = pod("{containers: [{name: c, envFrom: [{secretRef: {name: other}}], env: [\
         {name: A, valueFrom: {configMapKeyRef: {name: settings, key: prt}}},\
         {name: B, valueFrom: {secretKeyRef: {name: db, key: x, optional: true}}}]}],\
         volumes: [{name: v, configMap: {name: gone}}, {name: w, secret: {secretName: db, items: [{key: x, path: file}]}}]}");
    let fix = "in the manifests; add it, or write `optional: true` where it is referred to";
    assert_eq!(
        config().dangling("shop", &spec),
        [
            "container c: env A: ConfigMap shop/settings has no entry prt; it has: logo, motd, port".to_owned(),
            format!("container c: envFrom: there is no Secret shop/other {fix}"),
            format!("volume v: there is no ConfigMap shop/gone {fix}"),
            "volume w: Secret shop/db has no entry x; it has: password, user".to_owned(),
        ]
    );
    assert_eq!(config().dangling("elsewhere", &spec).len(), 4, "references stay in their namespace");
}

#[test]
fn entries_become_files() {
    let spec =
        pod("{containers: [{name: c}], volumes: [{name: all, configMap: {name: settings}}, {name: e, emptyDir: {}},\
         {name: some, projected: {sources: [{secret: {name: db, items: [{key: user, path: a/name}]}},\
         {configMap: {name: settings, items: [{key: logo, path: logo.png}]}}]}}]}");
    let files = |index: usize| {
        let files = config().files("shop", &spec.volumes[index]).unwrap();
        files.map(|files| {
            files
                .into_iter()
                .map(|(path, bytes)| format!("{path}={}", String::from_utf8_lossy(&bytes)))
                .collect::<Vec<_>>()
        })
    };
    assert_eq!(files(0).unwrap(), ["logo=\0\u{fffd}", "motd=hello", "port=80"]);
    assert_eq!(files(1), None);
    assert_eq!(files(2).unwrap(), ["a/name=admin", "logo.png=\0\u{fffd}"]);
}
