use super::*;
use crate::files;

fn report(status: &str, message: &str) -> Report {
    Report { status: status.to_owned(), message: message.to_owned(), ..Report::default() }
}

#[test]
fn what_changes_of_a_pod_is_told_in_one_line() {
    let begun = Report::default();
    assert_eq!(of_pod(&begun, &begun), None);
    let ready = Report { ready: true, enrolled: true, ..report("Running", "") };
    assert_eq!(of_pod(&begun, &ready).as_deref(), Some("joined the mesh, ready, Running"));
    let failed = Report { enrolled: true, ..report("CrashLoopBackOff", "ended with exit code 3: boom") };
    assert_eq!(of_pod(&ready, &failed).as_deref(), Some("not ready, CrashLoopBackOff: ended with exit code 3: boom"));
    let again = Report { restarts: 1, ..ready.clone() };
    assert_eq!(of_pod(&failed, &again).as_deref(), Some("started again (restart 1), ready, Running"));
    let out = Report { enrolled: false, ..again.clone() };
    assert_eq!(of_pod(&again, &out).as_deref(), Some("left the mesh"));
    assert_eq!(of_pod(&out, &report("Terminating", "")).as_deref(), Some("Terminating"));
}

fn objects(text: &str) -> Objects {
    let read = files::parse("a.yaml", text).unwrap().objects;
    read.into_iter().map(|(key, sourced)| (key, sourced.object)).collect()
}

fn deployment(replicas: u32) -> String {
    format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, namespace: shop}}
spec: {{replicas: {replicas}, selector: {{matchLabels: {{a: b}}}}, template: {{metadata: {{labels: {{a: b}}}}, spec: {{containers: [{{name: c, command: [x]}}]}}}}}}
"
    )
}

#[test]
fn an_edit_is_told_by_names() {
    let service = "---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {a: b}, ports: [{port: 80}]}
";
    let (one, three) = (objects(&deployment(1)), objects(&(deployment(3) + service)));
    assert_eq!(of_edit(&one, &one), [""; 0]);
    assert_eq!(
        of_edit(&one, &three),
        [
            "objects: added Service shop/web; changed Deployment shop/web",
            "Deployment shop/web: scaled from 1 to 3 by its file"
        ]
    );
    assert_eq!(of_edit(&three, &objects(&deployment(3))), ["objects: removed Service shop/web"]);
}

#[test]
fn a_large_edit_is_counted() {
    let pod = |number| format!("---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: n{number}}}\n");
    let many = objects(&(10..30).map(pod).collect::<String>());
    let told = of_edit(&Objects::new(), &many);
    assert!(told.len() == 1 && told[0].ends_with("and 12 more"), "{told:?}");
}
