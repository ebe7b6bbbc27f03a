use http_body_util::Empty;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;

use super::*;

const PODS: &str = "/api/v1/pods";

type Asking = Client<HttpConnector, Full<Bytes>>;

fn server(pods: usize) -> ApiServer {
    let mut objects = Objects::new();
    for number in 0..pods {
        put(&mut objects, &format!("p{number}"), "a");
    }
    ApiServer::start(objects, Tokens::new(1).unwrap()).unwrap()
}

fn put(objects: &mut Objects, name: &str, label: &str) {
    objects.put(PODS, |version| {
        Object::of_value(&json!({"kind": "Pod", "apiVersion": "v1", "spec": {}, "metadata": {
            "name": name, "namespace": "n", "labels": {"app": label}, "resourceVersion": version.to_string(),
        }}))
    });
    objects.tell(PODS);
}

fn client() -> Asking {
    Client::builder(TokioExecutor::new()).build_http()
}

async fn ask(server: &ApiServer, method: Method, path: &str, accept: &str, body: &str) -> (StatusCode, Value) {
    let request = http::Request::builder().method(method).uri(format!("{}{path}", server.url())).header(ACCEPT, accept);
    let answer = client().request(request.body(Bytes::from(body.to_owned()).into()).unwrap()).await.unwrap();
    let status = answer.status();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap())
}

async fn get(server: &ApiServer, path: &str) -> Value {
    let (status, answer) = ask(server, Method::GET, path, "application/json", "").await;
    assert_eq!(status, StatusCode::OK, "{path}: {answer}");
    answer
}

/// A watch, event by event.
struct Watching {
    body: Incoming,
    read: Vec<u8>,
}

impl Watching {
    async fn begin(server: &ApiServer, query: &str) -> Self {
        let connector = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
        let uri = format!("{}{PODS}?watch=1&{query}", server.url()).parse().unwrap();
        Self { body: connector.get(uri).await.unwrap().into_body(), read: Vec::new() }
    }

    /// What happened and to whom; `None` at the end.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                let mut event: Value = serde_json::from_slice(&line).unwrap();
                return Some((event["type"].as_str().unwrap().to_owned(), event["object"].take()));
            }
            let frame = self.body.frame().await?.unwrap();
            self.read.extend_from_slice(&frame.into_data().unwrap());
        }
    }

    async fn names(&mut self, events: usize) -> Vec<(String, String)> {
        let mut names = Vec::new();
        for _ in 0..events {
            let (happened, object) = self.next().await.unwrap();
            names.push((happened, object["metadata"]["name"].as_str().unwrap_or_default().to_owned()));
        }
        names
    }
}

#[tokio::test]
async fn lists_come_in_pages_and_a_watch_goes_on_from_there() {
    let server = server(5);
    let whole = get(&server, PODS).await;
    assert_eq!((&whole["kind"], whole["items"].as_array().unwrap().len()), (&json!("PodList"), 5));
    let mut names = Vec::new();
    let mut next = String::new();
    let mut pages = 0;
    loop {
        let page = get(&server, &format!("{PODS}?limit=2{next}")).await;
        assert_eq!(page["metadata"]["resourceVersion"], whole["metadata"]["resourceVersion"]);
        let items = page["items"].as_array().unwrap();
        names.extend(items.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()));
        pages += 1;
        match page["metadata"]["continue"].as_str() {
            Some(token) => next = format!("&continue={token}"),
            None => break,
        }
    }
    assert_eq!((pages, names), (3, ["p0", "p1", "p2", "p3", "p4"].map(str::to_owned).to_vec()));

    let version = whole["metadata"]["resourceVersion"].as_str().unwrap();
    let mut watching = Watching::begin(&server, &format!("resourceVersion={version}")).await;
    put(&mut server.objects(), "p1", "a");
    put(&mut server.objects(), "p9", "a");
    server.objects().delete(PODS, |version| {
        Object::of_value(&json!({"metadata": {"name": "p0", "namespace": "n", "resourceVersion": version.to_string()}}))
    });
    server.objects().tell(PODS);
    let seen = watching.names(3).await;
    let wanted = [("MODIFIED", "p1"), ("ADDED", "p9"), ("DELETED", "p0")];
    assert_eq!(seen, wanted.map(|(happened, name)| (happened.to_owned(), name.to_owned())));
    assert_eq!(get(&server, PODS).await["items"].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn a_list_as_a_watch_says_when_it_is_over() {
    let server = server(2);
    let mut watching = Watching::begin(&server, "sendInitialEvents=true&allowWatchBookmarks=true").await;
    let seen = watching.names(2).await;
    assert_eq!(seen.iter().map(|(happened, _)| happened.as_str()).collect::<Vec<_>>(), ["ADDED"; 2]);
    let (happened, object) = watching.next().await.unwrap();
    assert_eq!((happened.as_str(), &object["kind"]), ("BOOKMARK", &json!("Pod")));
    assert_eq!(object["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    put(&mut server.objects(), "p3", "a");
    assert_eq!(watching.names(1).await, [("ADDED".to_owned(), "p3".to_owned())]);
}

#[tokio::test]
async fn a_watch_has_what_was_selected_and_ends_in_its_time() {
    let server = server(1);
    let version = server.objects().version();
    let query = format!("resourceVersion={version}&labelSelector=app%21%3Db&timeoutSeconds=1");
    let mut watching = Watching::begin(&server, &query).await;
    put(&mut server.objects(), "other", "b");
    put(&mut server.objects(), "own", "c");
    assert_eq!(watching.names(1).await, [("ADDED".to_owned(), "own".to_owned())]);
    assert_eq!(watching.next().await, None);
}

#[tokio::test]
async fn whoever_comes_from_too_far_back_is_told() {
    let server = server(1);
    for _ in 0..25_000 {
        put(&mut server.objects(), "p0", "a");
    }
    let mut watching = Watching::begin(&server, "resourceVersion=2").await;
    let (happened, object) = watching.next().await.unwrap();
    assert_eq!((happened.as_str(), &object["code"]), ("ERROR", &json!(410)));
    assert_eq!(watching.next().await, None);
}

#[tokio::test]
async fn what_else_is_asked() {
    let server = server(1);
    let (status, answer) = ask(&server, Method::GET, "/apis/example.com/v1/cats", "application/json", "").await;
    assert_eq!((status, &answer["kind"]), (StatusCode::NOT_FOUND, &json!("Status")));
    assert_eq!(get(&server, "/version").await["minor"], "34");
    assert_eq!(get(&server, "/apis/apps/v1/deployments").await["items"], json!([]));
    let accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let (_, partial) = ask(&server, Method::GET, PODS, accept, "").await;
    assert_eq!(partial["kind"], "PartialObjectMetadataList");
    assert_eq!((&partial["items"][0]["metadata"]["name"], &partial["items"][0]["spec"]), (&json!("p0"), &Value::Null));

    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let body = json!({"spec": {"token": server.tokens()[0]}}).to_string();
    let (status, review) = ask(&server, Method::POST, reviews, "application/json", &body).await;
    assert_eq!((status, &review["status"]["authenticated"]), (StatusCode::CREATED, &json!(true)));
    let (status, _) = ask(&server, Method::POST, reviews, "application/json", "k8s\0\n\u{1}").await;
    assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);

    let maps = "/api/v1/namespaces/n/configmaps";
    let map = r#"{"metadata": {"name": "m"}, "data": {"k": "v"}}"#;
    assert_eq!(ask(&server, Method::POST, maps, "application/json", map).await.0, StatusCode::CREATED);
    assert_eq!(find(&server, "/api/v1/configmaps", "n", "m").unwrap().value()["data"]["k"], "v");
}
