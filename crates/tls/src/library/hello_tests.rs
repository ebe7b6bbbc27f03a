use super::*;

/// A client's first message, as a client of TLS 1.2 sends it, in records of at most `most` bytes.
fn hello(name: Option<&str>, most: usize) -> Vec<u8> {
    let sized = |bytes: &[u8]| [&u16::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat();
    let extension = |kind: u16, bytes: &[u8]| [&kind.to_be_bytes()[..], &sized(bytes)].concat();
    let mut extensions = extension(13, &sized(&[4, 3, 8, 4]));
    if let Some(name) = name {
        extensions.extend(extension(0, &sized(&[&[0], &sized(name.as_bytes())[..]].concat())));
    }
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.push(0);
    body.extend(sized(&[0xc0, 0x2f]));
    body.extend([1, 0]);
    body.extend(sized(&extensions));
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    let message = [&[1], &length[1..], &body].concat();
    message.chunks(most).flat_map(|part| [&[22, 3, 1][..], &sized(part)].concat()).collect()
}

#[test]
fn the_server_name_is_read_however_the_bytes_come() {
    for most in [16_000, 20] {
        let bytes = hello(Some("a.example"), most);
        let mut whole = ClientHello::default();
        assert_eq!(whole.read(&bytes).unwrap(), Some(Some("a.example".to_owned())));
        let mut slow = ClientHello::default();
        let (last, before) = bytes.split_last().unwrap();
        for byte in before {
            assert_eq!(slow.read(&[*byte]).unwrap(), None);
        }
        assert_eq!(slow.read(&[*last]).unwrap(), Some(Some("a.example".to_owned())));
    }
    assert_eq!(ClientHello::default().read(&hello(None, 16_000)).unwrap(), Some(None));
}

#[test]
fn what_is_no_tls_is_told_at_once() {
    for other in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"SSH-2.0-x\r\n", &[0; 5]] {
        assert!(ClientHello::default().read(other).is_err(), "{other:?}");
    }
    let mut broken = hello(Some("a.example"), 16_000);
    let last = broken.len() - 12;
    broken[last] = 0xff;
    assert!(ClientHello::default().read(&broken).is_err());
}
