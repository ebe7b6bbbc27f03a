use super::*;

#[test]
fn a_flow_mapping_in_another_is_no_template() {
    assert_eq!(template(&["spec: {{a: b}: c}"], None), None);
    assert_eq!(template(&["# {{ .Values.x }}"], None), None);
    assert_eq!(template(&["args: [\"{{ .Name }}\"]"], None), None, "programs have templates of their own");
    assert!(template(&["args: [\"{{ .Name }}\"]"], Some(1)).is_some(), "but here the value was refused");
}

#[test]
fn text_in_a_block_is_not_looked_at() {
    let lines = ["data:", "  script: |", "     a: b", "    c: d", "      e", "  other: x", "   third: y"];
    let found = indentation(&lines, 1, 7).map(|found| (found.line, found.column));
    assert_eq!(found, Some((7, 4)));
}

#[test]
fn lists_open_two_levels_in_one_line() {
    assert_eq!(levels_before(&["a:", "- - b: c", "    d: e", "  - f"], 1, 4), [0, 2, 4]);
}
