//! The mesh's own configuration among the manifests: a ConfigMap whose entry is YAML.
//!
//! A control plane knows no YAML, so it gets the entry as JSON.

use leno_control::translate::{MESH_CONFIG_ENTRY, Options, mesh_config_entry};
use leno_objects::Object;

/// The mesh's configuration as a control plane reads it; `None` for every other object, which stays as it is.
pub fn mesh_config(object: &Object) -> Option<Object> {
    let Object::ConfigMap(config) = object else { return None };
    if object.key() != Options::default().mesh_config {
        return None;
    }
    let read = serde_saphyr::from_str(config.data.get(MESH_CONFIG_ENTRY)?);
    let mut config = config.clone();
    config.data.insert(MESH_CONFIG_ENTRY.into(), mesh_config_entry(read.map_err(|error| error.to_string())));
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
        assert!(entry("istio", "a: [").starts_with("\""), "why it is no YAML");
    }
}
