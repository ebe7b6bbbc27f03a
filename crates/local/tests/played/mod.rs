//! What real manifests have besides Deployments: init containers, sidecars, ConfigMaps, Secrets, volumes, StatefulSets, Jobs.

use std::path::Path;

use crate::support::{LIMIT, Playing, manifests};

/// A server that counts its requests. It starts slowly, so an init container that asks it must wait.
const SLOW: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: slow, labels: {app: slow}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    command: [sh, -c, "sleep 1; exec python3 -m http.server 8080 --bind ::"]
    workingDir: /usr/share/doc
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: slow}
spec: {ipFamilyPolicy: PreferDualStack, selector: {app: slow}, ports: [{port: 80, targetPort: 8080}]}
"#;

const STEPS: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: steps}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: log, emptyDir: {}}]
  initContainers:
  - name: first
    command: [sh, -c, "echo first >> /leno-test-log/order; echo said by first"]
    volumeMounts: [{name: log, mountPath: /leno-test-log}]
  - name: beside
    restartPolicy: Always
    command: [sh, -c, "trap 'echo beside ends >> /leno-test-log/order; exit' TERM; echo beside >> /leno-test-log/order; while :; do sleep 0.1; done"]
    volumeMounts: [{name: log, mountPath: /leno-test-log}]
  - name: second
    command: [sh, -c, "until curl -4 -sf -m 5 -o /dev/null http://slow/ && curl -6 -sf -m 5 -o /dev/null http://slow/; do echo not yet; sleep 0.1; done; echo second >> /leno-test-log/order"]
    volumeMounts: [{name: log, mountPath: /leno-test-log}]
  containers:
  - name: main
    command: [sh, -c, "echo main >> /leno-test-log/order; exec sleep 3600"]
    volumeMounts: [{name: log, mountPath: /leno-test-log}]
---
apiVersion: v1
kind: Pod
metadata: {name: ends}
spec:
  restartPolicy: Never
  initContainers:
  - {name: beside, restartPolicy: Always, command: [sleep, "3600"]}
  containers:
  - {name: main, command: ["true"]}
"#;

pub(crate) async fn steps() {
    let dir = manifests(&[("slow.yaml", SLOW), ("steps.yaml", STEPS)]);
    let stage = Playing::start("steps", dir.path(), 2).await;
    let order = stage.exec("default", "steps", "cat /leno-test-log/order").await;
    // The sidecar runs beside the others, so its line may come anywhere among theirs.
    let steps: Vec<&str> = order.lines().filter(|line| *line != "beside").collect();
    assert_eq!((steps, order.contains("beside\n")), (vec!["first", "second", "main"], true), "{order}");
    assert!(!Path::new("/leno-test-log").exists(), "nothing is made on the machine");
    let listing = stage.listing();
    let pod = |name: &str| listing.pods.iter().find(|pod| pod.name == name).unwrap().clone();
    assert_eq!((pod("steps").status.as_str(), pod("steps").ready), ("Running", true));
    // A sidecar does not keep a pod from completing.
    assert_eq!(pod("ends").status, "Completed", "{}", pod("ends").message);
    stage.stop().await;
}

const BROKEN: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: broken}
spec:
  terminationGracePeriodSeconds: 1
  initContainers: [{name: check, command: [sh, -c, "echo no database; exit 3"]}]
  containers: [{name: main, command: [sleep, "3600"]}]
"#;

/// A failing init container is named, with its last output, and the containers after it do not start.
pub(crate) async fn broken_step() {
    let dir = manifests(&[("broken.yaml", BROKEN)]);
    let stage = Playing::start_unready("broken-step", dir.path(), 1).await;
    let told = "init container check: ended with exit code 3: no database";
    let mut listing = stage.stage().watch_listing();
    let failing = listing.wait_for(|listing| listing.pods.iter().any(|pod| pod.message == told));
    let seen = tokio::time::timeout(LIMIT, failing).await.expect("it is told").unwrap().clone();
    assert_eq!(seen.pods[0].status, "Init:CrashLoopBackOff");
    assert!(seen.missing().contains(told), "{}", seen.missing());
    stage.stop().await;
}

const CONFIG: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data:
  COLOUR: blue
  app.conf: |
    listen 8080
---
apiVersion: v1
kind: Secret
metadata: {name: db}
data: {password: c2VjcmV0}
stringData: {user: admin}
"#;

const CONFIGURED: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: configured}
spec:
  terminationGracePeriodSeconds: 1
  volumes:
  - {name: conf, configMap: {name: settings, items: [{key: app.conf, path: app.conf}]}}
  - {name: all, projected: {sources: [{configMap: {name: settings}}, {secret: {name: db}}]}}
  - {name: keys, secret: {secretName: db}}
  - {name: cache, emptyDir: {}}
  containers:
  - name: main
    command: [sh, -c, "echo started with $COLOUR $DB_user $PASSWORD; exec sleep 3600"]
    envFrom: [{configMapRef: {name: settings}}, {prefix: DB_, secretRef: {name: db}}]
    env: [{name: PASSWORD, valueFrom: {secretKeyRef: {name: db, key: password}}}, {name: NONE, valueFrom: {configMapKeyRef: {name: settings, key: none, optional: true}}}]
    volumeMounts:
    - {name: conf, mountPath: /etc/leno-test/conf.d}
    - {name: keys, mountPath: /leno-test-keys, readOnly: true}
    - {name: conf, mountPath: /etc/leno-test.conf, subPath: app.conf}
    - {name: cache, mountPath: /var/lib/leno-test/cache}
"#;

pub(crate) async fn configured() {
    let dir = manifests(&[("config.yaml", CONFIG), ("pod.yaml", CONFIGURED)]);
    let stage = Playing::start("config", dir.path(), 1).await;
    let sh = async |line: &str| stage.exec("default", "configured", line).await.trim().to_owned();
    assert_eq!(
        sh("echo $COLOUR $DB_user $DB_password $PASSWORD ${NONE-unset}").await,
        "blue admin secret secret unset"
    );
    assert_eq!(sh("cat /etc/leno-test/conf.d/app.conf /etc/leno-test.conf").await, "listen 8080\nlisten 8080");
    assert_eq!(sh("cd /leno-test-keys && ls && cat password").await, "password\nuser\nsecret");
    assert_eq!(sh("ls /etc/leno-test/conf.d").await, "app.conf");
    // The machine's own files stay where they were, under the mounts.
    assert!(sh("cat /etc/resolv.conf").await.contains("10.96.0.10"), "the pod's own");
    assert_eq!(sh("cat /etc/passwd | head -1 | cut -d: -f1").await, "root");
    assert_eq!(
        sh("echo x > /leno-test-keys/new && echo written; echo x > /var/lib/leno-test/cache/new && echo kept")
            .await
            .lines()
            .last(),
        Some("kept")
    );
    assert!(!sh("ls /leno-test-keys").await.contains("new"), "a Secret is not to be written");
    assert!(sh("find /run/leno -name '*.sock' -o -name volumes").await.is_empty(), "the stage's own files stay hidden");
    for made in ["/etc/leno-test", "/etc/leno-test.conf", "/leno-test-keys", "/var/lib/leno-test"] {
        assert!(!Path::new(made).exists(), "{made} is made on the machine");
    }
    // An edit reaches the files of running pods. Environment variables keep the values from the process's start.
    std::fs::write(dir.path().join("config.yaml"), CONFIG.replace("8080", "9090").replace("blue", "red")).unwrap();
    let begun = std::time::Instant::now();
    while sh("cat /etc/leno-test/conf.d/app.conf").await != "listen 9090" {
        assert!(begun.elapsed() < LIMIT, "the edit does not arrive");
        // Another process reads the file, so there is no event to wait for.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    // An edit that removes what a running pod refers to is refused.
    let mut events = stage.stage().events();
    std::fs::write(dir.path().join("config.yaml"), CONFIG.replace("name: db", "name: other")).unwrap();
    let refused = loop {
        let event = tokio::time::timeout(LIMIT, events.recv()).await.expect("an event").unwrap();
        if let leno_local::StageEvent::Refused(text) = event {
            break text;
        }
    };
    assert!(
        refused.contains(
            "pod.yaml:2: Pod default/configured: container main: env PASSWORD: there is no Secret default/db"
        ),
        "{refused}"
    );
    stage.stop().await;
}

const SET: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, selector: {app: db}, ports: [{name: tcp, port: 5432}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 2
  serviceName: db
  selector: {matchLabels: {app: db}}
  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        command: [sh, -c, "echo $HOSTNAME >> /leno-test-data/starts; exec python3 -m http.server 5432 --bind ::"]
        readinessProbe: {tcpSocket: {port: 5432}, periodSeconds: 1}
        volumeMounts: [{name: data, mountPath: /leno-test-data}]
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, command: [sleep, "3600"]}]
"#;

pub(crate) async fn stateful_set() {
    let dir = manifests(&[("db.yaml", SET)]);
    let stage = Playing::start_unready("set", dir.path(), 2).await;
    // The second pod is made only once the first is ready.
    let mut listing = stage.stage().watch_listing();
    let ready = async {
        loop {
            let now = listing.borrow_and_update().clone();
            let pod = |name: &str| now.pods.iter().find(|pod| pod.name == name);
            if pod("db-1").is_some() {
                assert!(pod("db-0").is_some_and(|first| first.ready), "{now:?}");
            }
            if now.is_ready() && pod("db-1").is_some() {
                return;
            }
            listing.changed().await.unwrap();
        }
    };
    tokio::time::timeout(LIMIT, ready).await.expect("ready");
    let names: Vec<String> = stage.listing().pods.iter().map(|pod| pod.name.clone()).collect();
    assert_eq!(names, ["client", "db-0", "db-1"]);
    for pod in ["db-0", "db-1"] {
        let ip = stage.listing().pods.iter().find(|known| known.name == pod).unwrap().ips[0];
        for name in [format!("{pod}.db"), format!("{pod}.db.default.svc.cluster.local")] {
            let found =
                stage.exec("default", "client", &format!("getent ahostsv4 {name} | cut -d' ' -f1 | head -1")).await;
            assert_eq!(found.trim(), ip.to_string(), "{name}");
        }
        assert_eq!(stage.exec("default", pod, "cat /leno-test-data/starts").await.trim(), pod, "each has its own data");
    }
    // Scaling down removes the last pod first. When it comes back, it has the same name and data.
    stage.stage().scale("default", "db", 1).await.unwrap();
    let gone = listing.wait_for(|listing| listing.pods.iter().all(|pod| pod.name != "db-1"));
    tokio::time::timeout(LIMIT, gone).await.expect("it goes").unwrap();
    assert!(stage.listing().pods.iter().any(|pod| pod.name == "db-0" && pod.ready));
    stage.stage().scale("default", "db", 2).await.unwrap();
    let back = listing.wait_for(|listing| listing.pods.iter().any(|pod| pod.name == "db-1" && pod.ready));
    tokio::time::timeout(LIMIT, back).await.expect("it comes back").unwrap();
    assert_eq!(stage.exec("default", "db-1", "cat /leno-test-data/starts").await, "db-1\ndb-1\n");
    stage.stop().await;
    assert!(!Path::new("/leno-test-data").exists());
}

const JOBS: &str = r#"
apiVersion: batch/v1
kind: Job
metadata: {name: three}
spec:
  completions: 3
  parallelism: 2
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, command: [sh, -c, "echo done by $HOSTNAME"]}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: again}
spec:
  backoffLimit: 2
  template:
    spec:
      restartPolicy: Never
      volumes: [{name: count, persistentVolumeClaim: {claimName: count}}]
      containers:
      - name: main
        command: [sh, -c, "echo x >> /leno-test-count/tries; test $(wc -l < /leno-test-count/tries) -gt 1"]
        volumeMounts: [{name: count, mountPath: /leno-test-count}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: in-place}
spec:
  template:
    spec:
      restartPolicy: OnFailure
      volumes: [{name: count, emptyDir: {}}]
      containers:
      - name: main
        command: [sh, -c, "echo x >> /leno-test-count/tries; test $(wc -l < /leno-test-count/tries) -gt 1"]
        volumeMounts: [{name: count, mountPath: /leno-test-count}]
"#;

pub(crate) async fn jobs() {
    let dir = manifests(&[("jobs.yaml", JOBS)]);
    let stage = Playing::start_unready("jobs", dir.path(), 1).await;
    let mut listing = stage.stage().watch_listing();
    let completed = |listing: &leno_local::Listing, job: &str| {
        listing.pods.iter().filter(|pod| pod.name.starts_with(&format!("{job}-")) && pod.status == "Completed").count()
    };
    let all = listing.wait_for(|now| {
        completed(now, "three") == 3 && completed(now, "again") == 1 && completed(now, "in-place") == 1
    });
    tokio::time::timeout(LIMIT, all).await.expect("all end well").unwrap();
    let now = stage.listing();
    assert!(now.is_ready(), "a Job that has ended keeps nobody waiting: {}", now.missing());
    assert_eq!(now.pods.len(), 5, "{now:?}");
    let in_place = now.pods.iter().find(|pod| pod.name.starts_with("in-place-")).unwrap();
    assert_eq!(in_place.restarts, 1);
    stage.stop().await;
}

const FAILING: &str = r#"
apiVersion: batch/v1
kind: Job
metadata: {name: fails}
spec:
  backoffLimit: 1
  template:
    spec:
      restartPolicy: Never
      volumes: [{name: count, persistentVolumeClaim: {claimName: count}}]
      containers:
      - name: main
        command: [sh, -c, "echo x >> /leno-test-count/tries; exit 4"]
        volumeMounts: [{name: count, mountPath: /leno-test-count}]
"#;

/// A failing Job is retried as often as it says. Its last pod stays, so that its log can be read.
pub(crate) async fn failing_job() {
    let dir = manifests(&[("job.yaml", FAILING)]);
    let stage = Playing::start_unready("failing-job", dir.path(), 1).await;
    let tries = stage.run_dir().join("claims/default_count/tries");
    let tried = || std::fs::read_to_string(&tries).map_or(0, |text| text.lines().count());
    let mut listing = stage.stage().watch_listing();
    let given_up = listing.wait_for(|now| tried() == 2 && matches!(&now.pods[..], [pod] if pod.status == "Error"));
    let seen = tokio::time::timeout(LIMIT, given_up).await.expect("the last one stays").unwrap().clone();
    assert_eq!(seen.pods[0].message, "ended with exit code 4");
    assert!(!seen.is_ready());
    stage.stop().await;
}
