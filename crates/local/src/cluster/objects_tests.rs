use leno_objects::Kind;

use super::*;

fn pod(labels: &[(&str, &str)]) -> ObjectMeta {
    let labels = labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    ObjectMeta { name: "p".into(), namespace: "shop".into(), labels, ..ObjectMeta::default() }
}

#[test]
fn replicas_name_their_deployment() {
    let key = ObjectKey::new(Kind::Deployment, "shop", "web");
    let pod = replica(&key, &Deployment::default(), "abc", "web-abc-x".into());
    assert_eq!(pod.metadata.label(TEMPLATE_LABEL), Some("abc"));
    assert_eq!(pod.metadata.owner_references[0].name, "web-abc");
    assert_eq!(&*pod.metadata.namespace, "shop");
}

#[test]
fn pods_of_sets_and_jobs_name_their_owners() {
    let pod = set_pod(&ObjectKey::new(Kind::StatefulSet, "shop", "db"), &StatefulSet::default(), "abc", 2);
    assert_eq!(&*pod.metadata.name, "db-2");
    assert_eq!(pod.metadata.label("statefulset.kubernetes.io/pod-name"), Some("db-2"));
    assert_eq!(pod.metadata.label("apps.kubernetes.io/pod-index"), Some("2"));
    let owner = &pod.metadata.owner_references[0];
    assert_eq!((&*owner.kind, &*owner.name, owner.controller), ("StatefulSet", "db", true));
    let pod = job_pod(&ObjectKey::new(Kind::Job, "shop", "load"), &Job::default(), "load-x".into());
    assert_eq!(pod.metadata.label("job-name"), Some("load"));
    assert_eq!(pod.metadata.owner_references[0].kind, "Job");
}

#[test]
fn ids_are_never_the_same() {
    let metadata = pod(&[]);
    let (one, other) = (unique_id(&metadata, 1), unique_id(&metadata, 2));
    assert_ne!(one, other);
    assert_eq!(one.len(), 36);
}
