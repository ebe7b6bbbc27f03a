use super::*;

/// What a supervisor left that was killed.
fn killed(base: &Path) -> StageName {
    let stage = StageName::new("x").unwrap().in_dir(base);
    let dir = run_dir::make(&stage).unwrap();
    for file in
        ["stage.log", "node-1/proxy.log", "pods/shop_web/main.log", "pods/shop_web/side.log", "pods/shop_db/main.log"]
    {
        let path = dir.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, file).unwrap();
    }
    stage
}

fn pod(name: &str, container: Option<&str>) -> Source {
    Source::Pod { namespace: "shop".to_owned(), name: name.to_owned(), container: container.map(str::to_owned) }
}

#[tokio::test]
async fn the_logs_of_a_killed_stage_are_found() {
    let base = tempfile::tempdir().unwrap();
    let stage = killed(base.path());
    let found = async |source| {
        let found = find_logs(&stage, &source).await?;
        assert!(found.note.is_some_and(|note| note.contains("leno down --name x")));
        let read = |log: &LogFiles| std::fs::read_to_string(&log.current).unwrap();
        Ok::<_, Error>(found.files.iter().map(|log| (log.container.clone(), read(log))).collect::<Vec<_>>())
    };
    assert_eq!(found(Source::Stage).await.unwrap(), [(None, "stage.log".to_owned())]);
    assert_eq!(found(Source::Node("node-1".to_owned())).await.unwrap(), [(None, "node-1/proxy.log".to_owned())]);
    let of = |container: &str| format!("pods/shop_web/{container}.log");
    let both = ["main", "side"].map(|container| (Some(container.to_owned()), of(container)));
    assert_eq!(found(pod("web", None)).await.unwrap(), both);
    assert_eq!(found(pod("web", Some("side"))).await.unwrap(), [(None, of("side"))]);
    for (source, words) in [
        (pod("wep", None), "shop/db, shop/web"),
        (pod("web", Some("sidecar")), "main, side"),
        (Source::Node("node-7".to_owned()), "the nodes are node-1"),
    ] {
        let refused = found(source).await.unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
    }
}

#[tokio::test]
async fn of_no_stage_there_is_no_log() {
    let base = tempfile::tempdir().unwrap();
    let stage = StageName::new("x").unwrap().in_dir(base.path());
    let refused = find_logs(&stage, &Source::Stage).await.unwrap_err();
    assert!(matches!(refused, Error::NotRunning { .. }), "{refused}");
}
