//! The mesh's own configuration among the manifests: a ConfigMap whose entry is YAML.
//!
//! A control plane knows no YAML, so it gets the entry as JSON.

use leno_control::translate::{MESH_CONFIG, MESH_CONFIG_ENTRY, Options};
use leno_objects::Object;

/// The mesh's configuration as a control plane reads it; `None` for every other object, which stays as it is. So does an entry
/// that is no YAML: the control plane says that it can't be read.
pub fn mesh_config(object: &Object) -> Option<Object> {
    let Object::ConfigMap(config) = object else { return None };
    let metadata = &config.metadata;
    if *metadata.name != *MESH_CONFIG || metadata.namespace != Options::default().root_namespace {
        return None;
    }
    let read: serde_json::Value = serde_saphyr::from_str(config.data.get(MESH_CONFIG_ENTRY)?).ok()?;
    let mut config = config.clone();
    config.data.insert(MESH_CONFIG_ENTRY.into(), read.to_string());
    Some(Object::ConfigMap(config))
}

#[cfg(test)]
mod tests {
    use leno_objects::{Kind, Mode, decode};

    use super::*;

    fn entry(name: &str, text: &str) -> String {
        let object = format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}, namespace: istio-system}}, data: {{mesh: {text:?}}}}}"
        );
        let decoded =
            serde_saphyr::with_deserializer_from_str(&object, |from| decode(Kind::ConfigMap, Mode::Strict, from));
        let object = decoded.expect("an object").object;
        match mesh_config(&object).unwrap_or(object) {
            Object::ConfigMap(config) => config.data["mesh"].clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn its_yaml_becomes_json_and_nothing_else_does() {
        let yaml = "extensionProviders:\n- name: opa\n  envoyExtAuthzGrpc: {port: 1, failOpen: true, timeout: 0.5s}\n";
        let json = r#"{"extensionProviders":[{"envoyExtAuthzGrpc":{"failOpen":true,"port":1,"timeout":"0.5s"},"name":"opa"}]}"#;
        assert_eq!(entry("istio", yaml), json);
        assert_eq!(entry("other", yaml), yaml);
        assert_eq!(entry("istio", "a: ["), "a: [");
    }
}
