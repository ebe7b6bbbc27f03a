//! HAProxy's configuration.

use std::fmt::Write as _;

use super::setting::{Setting, Side, Start, WORKERS};
use crate::scenario::{RULE_HEADER, RULE_PATH, route_prefix};

pub(super) fn start(setting: &Setting<'_>) -> Start {
    let path = setting.directory.join("haproxy.cfg");
    let mut files = vec![("haproxy.cfg", configuration(setting))];
    if setting.hop.routes > 0 {
        let map = (0..setting.hop.routes).map(|number| format!("{} next\n", route_prefix(number)));
        files.push((ROUTES, map.collect()));
    }
    let arguments = ["-db", "-f"].map(str::to_owned).into_iter().chain([path.display().to_string()]);
    Start { files, arguments: arguments.collect(), environment: Vec::new() }
}

const ROUTES: &str = "routes.map";

fn configuration(setting: &Setting<'_>) -> String {
    let directory = setting.directory.display();
    let certificates = setting.certificates;
    let tls = format!(
        "ssl crt {} ca-file {} verify required alpn h2 ssl-min-ver TLSv1.3",
        certificates.both.display(),
        certificates.root.display()
    );
    let bind = match (setting.side, setting.is_http2()) {
        (Side::Second, _) => tls.as_str(),
        (_, true) => "proto h2",
        (_, false) => "",
    };
    let server = match (setting.side, setting.next_is_http2()) {
        (Side::First, _) => tls.as_str(),
        (_, true) => "proto h2",
        (_, false) => "",
    };
    let mut text = format!(
        "global\n  nbthread {WORKERS}\n  maxconn 4000\n  stats socket {directory}/haproxy.sock mode 600\n\
         defaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n  \
         option http-keep-alive\n  http-reuse always\n\
         frontend hop\n  bind {} {bind}\n",
        setting.listen
    );
    // Writing to a String can't fail.
    if setting.hop.rule {
        let (name, value) = RULE_HEADER;
        let _ = writeln!(
            text,
            "  http-request deny unless {{ method GET }} {{ path_beg {RULE_PATH} }} {{ req.hdr({name}) -m str {value} }}\n  \
             http-request add-header x-hop lab"
        );
    }
    if setting.hop.routes > 0 {
        let _ = writeln!(text, "  use_backend %[path,map_beg({directory}/{ROUTES})]");
    } else {
        text.push_str("  default_backend next\n");
    }
    let _ = writeln!(text, "backend next\n  server next {} {server}", setting.next);
    text
}
