use leno_testkit::api_server::ApiServer;
use tokio::sync::oneshot;

use super::*;

async fn cluster() -> (ApiServer, Client) {
    let server = ApiServer::start().await;
    let client = Client::anonymous(&server.url()).expect("a URL");
    (server, client)
}

fn held(server: &ApiServer) -> Option<Value> {
    server.get("coordination.k8s.io/v1", "leases", "default", "leno-install")
}

/// Work that is never done, of a command that has begun with it.
async fn begun(turns: &Turns, client: &Client) {
    let (begun, began) = oneshot::channel();
    let work = turns.alone(client, async {
        begun.send(()).expect("it is awaited");
        std::future::pending::<Result<(), ClusterError>>().await
    });
    tokio::select! {
        _ = work => panic!("it has no end"),
        began = began => began.expect("the work begins"),
    }
}

#[tokio::test]
async fn the_second_of_two_is_told_who_is_at_it_and_changes_nothing() {
    let (server, client) = cluster().await;
    let first = Turns::of("`leno upgrade` by ann@one, process 7");
    let (end, ended) = oneshot::channel::<()>();
    let first = first.alone(&client, async {
        ended.await.expect("it is told to end");
        Ok::<_, ClusterError>("done")
    });
    let second = async {
        server.requested("POST /apis/coordination.k8s.io/v1/namespaces/default/leases").await;
        let turns = Turns::of("`leno upgrade` by bob@two, process 9");
        let refused = turns.alone(&client, async { panic!("the work of the second began") }).await;
        let refused: ClusterError = refused.map(|(): ()| ()).expect_err("the first is at it");
        end.send(()).expect("the first is at it");
        refused
    };
    let (first, refused) = tokio::join!(first, second);
    assert_eq!(first.expect("nobody disturbs it"), "done");
    assert!(refused.is_retryable());
    let refused = refused.to_string();
    assert!(refused.contains("`leno upgrade` by ann@one, process 7, since 20"), "{refused}");
    assert_eq!(held(&server), None, "it was given back");
}

#[tokio::test]
async fn what_is_cut_off_gives_its_turn_back() {
    let (server, client) = cluster().await;
    let turns = Turns::of("first");
    begun(&turns, &client).await;
    turns.given_back().await;
    assert_eq!(held(&server), None);
}

#[tokio::test]
async fn a_turn_of_a_command_that_was_killed_ends_by_itself() {
    let (server, client) = cluster().await;
    let mut left = lease("`leno install` by ann@one, process 7", None);
    left["spec"]["leaseDurationSeconds"] = 1.into();
    // A clock that is wrong keeps nobody away.
    left["spec"]["renewTime"] = "2999-01-01T00:00:00.000000Z".into();
    server.put(&left);
    let done = Turns::of("second").alone(&client, async { Ok::<_, ClusterError>(()) }).await;
    done.expect("the first is dead");
    assert_eq!(held(&server), None);
}

#[tokio::test]
async fn who_has_lost_the_turn_stops_and_leaves_it_to_the_other() {
    let (server, client) = cluster().await;
    let turns = Turns::of("first");
    let work = turns.alone(&client, async {
        server.put(&lease("second", None));
        std::future::pending::<Result<(), ClusterError>>().await
    });
    let lost = work.await.expect_err("another one has it");
    assert!(matches!(lost, ClusterError::TurnLost), "{lost}");
    assert_eq!(held(&server).expect("the other's")["spec"]["holderIdentity"], "second");
}

#[tokio::test]
async fn a_missing_right_is_named() {
    let (server, client) = cluster().await;
    server.forbid("/apis/coordination.k8s.io/v1/namespaces/default/leases");
    let refused = Turns::of("first").alone(&client, async { Ok::<_, ClusterError>(()) }).await;
    let refused = refused.expect_err("it may not").to_string();
    assert!(refused.contains("Lease leno-install in default"), "{refused}");
}
