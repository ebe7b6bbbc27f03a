use std::fs;

use super::*;

fn problems(text: &str) -> String {
    parse("a.yaml", text).expect_err("must be refused").to_string()
}

const NAMESPACE: &str = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n";

#[test]
fn several_documents_and_comments() {
    let text = format!("# only a comment\n---\n{NAMESPACE}---\n# nothing\n---\n{}", NAMESPACE.replace("shop", "bank"));
    let found = parse("a.yaml", &text).unwrap();
    assert_eq!(found.objects.len(), 2);
    assert!(found.warnings.is_empty());
    let lines: Vec<_> = found.objects.values().map(|s| s.origin.as_ref().unwrap().line).collect();
    assert_eq!(lines, [9, 3]);
}

#[test]
fn mistakes_have_file_line_and_column() {
    let text = format!("{NAMESPACE}---\napiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec:\n  nodeNam: x\n");
    let said = problems(&text);
    assert!(said.starts_with("a.yaml:9:"), "{said}");
    assert!(said.contains("nodeNam") && said.contains("did you mean nodeName?"), "{said}");

    let said = problems("apiVersion: v1\nkind: Pod\nmetadata: {name: [\n");
    assert!(said.starts_with("a.yaml:"), "{said}");
}

#[test]
fn every_bad_document_is_told() {
    let bad = "apiVersion: v1\nkind: Pod\nmetadata: {name: A_B}\nspec: {containers: [{name: c}]}\n";
    assert_eq!(problems(&format!("{bad}---\n{bad}")).lines().count(), 2);
}

#[test]
fn unknown_kinds_are_named() {
    let found = parse("a.yaml", "apiVersion: example.com/v1\nkind: Moon\nmetadata: {name: a}\n").unwrap();
    assert_eq!(found.warnings, ["a.yaml:1: Moon default/a (example.com/v1) is not understood and ignored"]);
    let found = parse("a.yaml", "apiVersion: v1\nkind: Deployment\nmetadata: {name: a}\n").unwrap();
    assert!(found.warnings[0].ends_with("did you mean apiVersion apps/v1?"), "{:?}", found.warnings);
}

#[test]
fn duplicates_name_both_places() {
    let said = problems(&format!("{NAMESPACE}---\n{NAMESPACE}"));
    assert_eq!(said, "a.yaml:5: Namespace shop is defined twice; the first one is at a.yaml:1");
}

#[test]
fn kustomize_has_to_do_its_part_first() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kustomization.yaml");
    fs::write(&file, "resources: [a.yaml]\n").unwrap();
    fs::write(dir.path().join("a.yaml"), NAMESPACE).unwrap();
    let found = read(&[dir.path().to_owned()]).unwrap();
    let said = format!(
        "{}: tells kustomize how to put these manifests together, and is passed over: the files are read as they are, without \
         its patches, names and generators; for those write `kustomize build {} > manifests.yaml` and give Leno that file",
        file.display(),
        dir.path().display()
    );
    assert_eq!((found.objects.len(), found.warnings), (1, vec![said.clone()]));
    assert_eq!(read(&[file]).unwrap_err().to_string(), said, "named by itself there is nothing else to read");
}

#[test]
fn lists_and_json() {
    let text = r#"{"apiVersion":"v1","kind":"List","items":[
        {"apiVersion":"v1","kind":"Namespace","metadata":{"name":"a"}},
        {"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"b","namespace":"a"}}]}"#;
    assert_eq!(parse("a.json", text).unwrap().objects.len(), 2);
    let said = problems(r#"{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Pod"}]}"#);
    assert!(said.contains("items[0]"), "{said}");
}

#[test]
fn directories_are_walked() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("deep/er")).unwrap();
    fs::write(dir.path().join("deep/er/a.yml"), NAMESPACE).unwrap();
    fs::write(dir.path().join("README.md"), "not: [yaml").unwrap();
    fs::write(dir.path().join(".hidden.yaml"), "not: [yaml").unwrap();
    let found = read(&[dir.path().to_owned()]).unwrap();
    assert_eq!(found.objects.len(), 1);

    let chart = dir.path().join("deep/Chart.yaml");
    fs::write(&chart, "apiVersion: v2\nname: shop\n").unwrap();
    let (said, deep) = (read(&[dir.path().to_owned()]).unwrap_err().to_string(), dir.path().join("deep"));
    assert_eq!(
        said,
        format!(
            "{}: this is a Helm chart, and its files are templates: Leno reads finished manifests; write them with `helm \
             template {} > manifests.yaml` and give Leno that file",
            chart.display(),
            deep.display()
        )
    );

    let empty = tempfile::tempdir().unwrap();
    assert!(read(&[empty.path().to_owned()]).unwrap_err().to_string().contains("holds no .yaml"));
    let missing = empty.path().join("x.yaml");
    let said = read(std::slice::from_ref(&missing)).unwrap_err().to_string();
    assert!(said.starts_with(&missing.display().to_string()) && said.contains("name files of Kubernetes"), "{said}");
    fs::write(&missing, [0xff, 0xfe, b'a']).unwrap();
    let said = read(std::slice::from_ref(&missing)).unwrap_err().to_string();
    assert!(said.ends_with("it is not text in UTF-8, as manifests in YAML or JSON are"), "{said}");
}
