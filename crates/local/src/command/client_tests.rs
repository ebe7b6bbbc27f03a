use super::*;

#[tokio::test(start_paused = true)]
async fn a_supervisor_that_does_not_answer_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let name = StageName::new("stuck").unwrap().in_dir(dir.path());
    run_dir::make(&name).unwrap();
    // It accepts, as the kernel does for a stopped process, and says nothing.
    let _listener = tokio::net::UnixListener::bind(name.run_dir().join(SOCKET)).unwrap();
    let _lock = Lock::take(&name.run_dir(), &name).unwrap();
    let error = Client::connect(&name).await.unwrap().ps().await.unwrap_err();
    assert!(matches!(error, Error::Timeout(_)), "{error:?}");
    let said = error.to_string();
    for word in [&format!("pid {}", std::process::id()), "kill -CONT", "leno down --name stuck"] {
        assert!(said.contains(word), "no {word} in {said}");
    }
}
