use std::sync::mpsc;

use parking_lot::Mutex;

use super::*;

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Sink {
    fn lines(&self) -> Vec<String> {
        String::from_utf8(self.0.lock().clone()).unwrap().lines().map(str::to_owned).collect()
    }
}

fn log(format: Format, level: Level) -> (AccessLog, Sink) {
    let sink = Sink::default();
    let log = AccessLog::new(sink.clone(), format, level, 100, Counter::default()).unwrap();
    (log, sink)
}

const LIMIT: Duration = Duration::from_secs(10);

fn full() -> Record {
    let mut workload = Workload::new("uid", "shop", "web-1");
    workload.cluster_id = "Kubernetes".into();
    let mut record = Record::new(Direction::Outbound);
    record.source.workload = Some(Arc::new(workload));
    record.source.address = Some("10.0.0.1:4000".parse().unwrap());
    record.source.identity = Some(Identity::new("cluster.local", "shop", "web").unwrap());
    record.destination.address = Some("[fd00::1]:80".parse().unwrap());
    record.hbone_address = Some(HboneAddress::Address("10.0.0.2:8080".parse().unwrap()));
    record.service = Some("db.shop.svc.cluster.local".into());
    record.bytes_sent = 12;
    record.bytes_received = 34;
    record.duration = Duration::from_millis(56);
    record.trace_id = Some(0xab);
    record.dry_run = vec!["a would deny".to_owned(), "b would allow".to_owned()];
    record.fail_open = vec!["c gave no answer".to_owned()];
    record
}

#[test]
fn plain_line_has_istios_fields() {
    let (log, sink) = log(Format::Plain, Level::Info);
    log.completed(full());
    assert!(log.flush(LIMIT));
    let lines = sink.lines();
    assert_eq!(lines.len(), 1);
    let (time, rest) = lines[0].split_once('\t').unwrap();
    assert!(time.len() == 27 && time.ends_with('Z'), "{time}");
    assert_eq!(
        rest,
        "info\taccess\tconnection complete\tsrc.addr=10.0.0.1:4000 src.workload=\"web-1\" src.namespace=\"shop\" \
         src.identity=\"spiffe://cluster.local/ns/shop/sa/web\" src.cluster=\"Kubernetes\" dst.addr=[fd00::1]:80 \
         dst.hbone_addr=10.0.0.2:8080 dst.service=\"db.shop.svc.cluster.local\" direction=\"outbound\" \
         bytes_sent=12 bytes_recv=34 duration=\"56ms\" trace_id=\"000000000000000000000000000000ab\" \
         dry_run=\"a would deny; b would allow\" fail_open=\"c gave no answer\""
    );
}

#[test]
fn json_line_has_the_same_fields() {
    let (log, sink) = log(Format::Json, Level::Info);
    let mut record = full();
    record.error = Some("policy shop/deny-all denied it".to_owned());
    log.completed(record);
    assert!(log.flush(LIMIT));
    let json: serde_json::Value = serde_json::from_str(&sink.lines()[0]).unwrap();
    for (key, value) in [
        ("level", "error"),
        ("scope", "access"),
        ("message", "connection complete"),
        ("src.addr", "10.0.0.1:4000"),
        ("dst.addr", "[fd00::1]:80"),
        ("dst.hbone_addr", "10.0.0.2:8080"),
        ("direction", "outbound"),
        ("duration", "56ms"),
        ("error", "policy shop/deny-all denied it"),
    ] {
        assert_eq!(json[key], value, "{key}");
    }
    assert_eq!(json["bytes_sent"], 12);
}

#[test]
fn level_decides_what_is_told() {
    let (log, sink) = log(Format::Plain, Level::Error);
    log.opened(full());
    log.completed(full());
    log.refused(full());
    let mut failed = full();
    failed.error = Some("refused".to_owned());
    log.completed(failed);
    log.set_level(Level::Debug);
    assert!(log.enabled(Level::Debug));
    log.opened(full());
    log.set_level(Level::Off);
    log.refused(full());
    assert!(log.flush(LIMIT));
    let messages: Vec<String> = sink.lines().iter().map(|line| line.split('\t').nth(3).unwrap().to_owned()).collect();
    assert_eq!(messages, ["connection failed", "connection complete", "connection opened"]);
    assert!(!sink.lines()[2].contains("bytes_sent"));
}

#[test]
fn hostile_values_stay_one_line_and_one_field() {
    let hostile = "x\" error=\"no\"\r\n\u{1b}[31mforged\u{2028}\u{202e}\\\t\0";
    for format in [Format::Plain, Format::Json] {
        let (log, sink) = log(format, Level::Info);
        let mut record = full();
        record.error = Some(hostile.to_owned());
        record.service = Some(hostile.into());
        record.hbone_address = Some(HboneAddress::Name("a b=c\n\"".into()));
        log.completed(record);
        assert!(log.flush(LIMIT));
        let lines = sink.lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(!lines[0].contains('\u{1b}') && !lines[0].contains('\r') && !lines[0].contains('\0'));
        if format == Format::Json {
            let json: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
            assert_eq!(json["error"], hostile);
        } else {
            assert!(!lines[0].contains('\u{2028}') && !lines[0].contains('\u{202e}'));
            assert!(lines[0].contains(r#"dst.hbone_addr="a b=c\n\"" "#), "{}", lines[0]);
            assert!(lines[0].ends_with(r#"error="x\" error=\"no\"\r\n\u{1b}[31mforged\u{2028}\u{202e}\\\t\u{0}""#));
        }
    }
}

/// A sink that blocks until it is released.
struct Stuck {
    entered: mpsc::Sender<()>,
    go: mpsc::Receiver<()>,
    sink: Sink,
}

impl Write for Stuck {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        let _ = self.entered.send(());
        let _ = self.go.recv();
        self.sink.write(buf)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_stuck_log_drops_lines_counts_them_and_says_so() {
    let (entered, is_stuck) = mpsc::channel();
    let (go, may_go) = mpsc::channel();
    let sink = Sink::default();
    let dropped = Counter::default();
    let stuck = Stuck { entered, go: may_go, sink: sink.clone() };
    let log = AccessLog::new(stuck, Format::Plain, Level::Info, 10, dropped.clone()).unwrap();
    log.completed(full());
    is_stuck.recv_timeout(LIMIT).unwrap();
    for _ in 0..25 {
        log.completed(full());
    }
    assert_eq!(dropped.get(), 15);
    assert!(!log.flush(Duration::from_millis(1)), "nothing is written yet");
    drop(go);
    assert!(log.flush(LIMIT));
    let lines = sink.lines();
    assert_eq!(lines.len(), 12);
    assert!(lines[1].contains("access log lines dropped") && lines[1].ends_with("dropped=15"), "{}", lines[1]);
}

#[test]
fn what_is_queued_is_written_after_the_last_handle_is_gone() {
    let (log, sink) = log(Format::Plain, Level::Info);
    for _ in 0..50 {
        log.completed(full());
    }
    let queue = log.shared.queue.clone();
    drop(log);
    assert!(queue.flush(LIMIT));
    assert_eq!(sink.lines().len(), 50);
}

#[test]
fn a_broken_log_blocks_nobody() {
    struct Broken;
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let dropped = Counter::default();
    let log = AccessLog::new(Broken, Format::Plain, Level::Info, 10, dropped.clone()).unwrap();
    log.completed(full());
    log.flush(LIMIT);
    for _ in 0..100 {
        log.completed(full());
    }
    assert_eq!(dropped.get(), 100);
}

#[test]
fn a_record_is_not_too_large() {
    // Times the capacity, this is what a full queue costs.
    let size = size_of::<Line>();
    assert!(size <= 512, "{size}");
}
