use super::*;

const PLAIN: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";

/// What is found, and in which request, if the bytes come in pieces of `size`.
fn look(bytes: &[u8], size: usize) -> (u64, Option<Ambiguity>) {
    let mut framing = Framing::default();
    let found = bytes.chunks(size).find_map(|piece| framing.look(piece).err());
    (framing.requests(), found)
}

#[test]
fn an_ambiguous_request_is_found_however_it_is_cut() {
    let long = "x".repeat(1000);
    for (request, expected) in [
        ("GET /b HTTP/1.1\r\nhost: a\r\n\r\n", None),
        ("POST /b HTTP/1.1\r\nContent-Length: 5\r\nCONTENT-LENGTH:5\r\n\r\nhello", None),
        (
            "POST /b HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5;a=b\r\nhello\r\nA \r\n\r\n34567890\r\n0\r\nx: y\r\n\r\n",
            None,
        ),
        // What a body says is not a head.
        ("POST /b HTTP/1.1\r\ncontent-length: 47\r\n\r\ntransfer-encoding: chunked\ncontent-length: 3\n\n\n", None),
        ("POST /b HTTP/1.1\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\r\n", Some(Ambiguity::TwoLengths)),
        (
            "POST /b HTTP/1.1\r\nTransfer-Encoding:\tchunked\r\ncontent-length:   6  \r\n\r\n",
            Some(Ambiguity::TwoLengths),
        ),
        ("POST /b HTTP/1.1\r\ntransfer-encoding: Chunked \r\n\r\n0\r\n\r\n", None),
        ("POST /b HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n\r\n", Some(Ambiguity::Coding)),
        ("POST /b HTTP/1.1\r\ntransfer-encoding: chunked, chunked\r\n\r\n", Some(Ambiguity::Coding)),
        ("POST /b HTTP/1.1\r\ntransfer-encoding: chunked, identity\r\n\r\n", Some(Ambiguity::Coding)),
        ("POST /b HTTP/1.1\r\ntransfer-encoding:\r\n\r\n", Some(Ambiguity::Coding)),
        (
            "POST /b HTTP/1.1\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
            Some(Ambiguity::Coding),
        ),
        ("GET /b HTTP/1.1\nhost: a\r\n\r\n", Some(Ambiguity::BareLf)),
        ("GET /b HTTP/1.1\r\nhost: a\n\r\n", Some(Ambiguity::BareLf)),
        ("GET /b HTTP/1.1\r\nhost: a\r\n\n", Some(Ambiguity::BareLf)),
        ("POST /b HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: y\n\r\n", Some(Ambiguity::BareLf)),
        ("POST /b HTTP/1.1\r\ncontent-length: +5\r\n\r\n", Some(Ambiguity::Unreadable)),
        ("POST /b HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n", Some(Ambiguity::Unreadable)),
        ("POST /b HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0x5\r\n", Some(Ambiguity::Unreadable)),
        ("POST /b HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n2\r\nabc\r\n", Some(Ambiguity::Unreadable)),
    ] {
        let all = format!("\r\n{PLAIN}GET /{long} HTTP/1.1\r\nx: {long}\r\n\r\n{request}");
        for size in [1, 2, 3, 7, 64, 255, 256, 257, 999, all.len()] {
            assert_eq!(look(all.as_bytes(), size), (3, expected), "{size}: {request:?}");
            if expected.is_none() {
                assert_eq!(look(format!("{all}{PLAIN}").as_bytes(), size), (4, None), "{size}: {request:?}");
            }
        }
    }
}

#[test]
fn a_length_hidden_behind_many_spaces_is_not_overlooked() {
    let spaces = " ".repeat(1000);
    let request = format!("POST / HTTP/1.1\r\ncontent-length:{spaces}6\r\ntransfer-encoding: chunked\r\n\r\n");
    assert_eq!(look(request.as_bytes(), request.len()), (1, Some(Ambiguity::TwoLengths)));
    assert_eq!(look(request.as_bytes(), 10), (1, Some(Ambiguity::Unreadable)));
}

#[test]
fn doubt_begins_with_the_request_that_it_is_about() {
    let doubt = Doubt::default();
    doubt.tell(3, Ambiguity::BareLf);
    doubt.tell(1, Ambiguity::TwoLengths);
    assert_eq!([2, 3, 4].map(|number| doubt.about(number)), [None, Some(Ambiguity::BareLf), Some(Ambiguity::BareLf)]);
}
