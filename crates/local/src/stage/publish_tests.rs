use super::*;

fn parse(text: &str) -> Result<Publish, NotAPublish> {
    text.parse()
}

#[test]
fn what_is_typed() {
    for (text, means) in [
        ("8080=shop/web:80", "127.0.0.1:8080=shop/web:80"),
        ("0.0.0.0:80=a/b:1", "0.0.0.0:80=a/b:1"),
        ("[::1]:0=a/b:1", "[::1]:0=a/b:1"),
    ] {
        assert_eq!(parse(text).unwrap().to_string(), means);
    }
    for text in [
        "8080",
        "8080=web:80",
        "8080=shop/web",
        "8080=shop/web:http",
        "8080=/web:80",
        "x=a/b:1",
        "localhost:1=a/b:1",
        "8080=a/b:0",
    ] {
        assert!(parse(text).unwrap_err().to_string().contains("8080=shop/web:80"), "{text}");
    }
}

#[test]
fn a_port_in_use_is_told_with_the_next_step() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let refused = parse(&format!("{port}=a/b:1")).unwrap().open().unwrap_err().to_string();
    for words in [format!("127.0.0.1:{port}"), format!("sport = :{port}"), "choose another port".to_owned()] {
        assert!(refused.contains(&words), "{refused}");
    }
    let free = parse("0=a/b:1").unwrap().open().unwrap();
    assert_ne!(free.listing().address.port(), 0);
    // An address of documentation (RFC 5737), which no machine has.
    let refused = parse("192.0.2.1:0=a/b:1").unwrap().open().unwrap_err().to_string();
    assert!(refused.contains("no address 192.0.2.1"), "{refused}");
}

#[test]
fn a_service_that_there_is_not_is_refused_with_those_that_there_are() {
    let text = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {a: b}, ports: [{name: a, port: 80}, {name: b, port: 53, protocol: UDP}]}
";
    let files = crate::files::parse("a.yaml", text).unwrap();
    let check = |text: &str| parse(text).unwrap().check(&files).map_err(|reason| reason.to_string());
    assert_eq!(check("1=shop/web:80"), Ok(()));
    assert!(check("1=shop/wep:80").unwrap_err().ends_with("there are: shop/web"));
    for port in [81, 53] {
        assert!(check(&format!("1=shop/web:{port}")).unwrap_err().ends_with("it has: 80"));
    }
}
