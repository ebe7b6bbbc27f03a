//! Objects from an API server: decoding. What can be read strictly can be read leniently, and means the same.
#![no_main]

use leno_objects::{Kind, Mode, Object, decode};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((kind, body)) = input.split_first() else { return };
    let Some(kind) = Kind::ALL.get(usize::from(*kind) % Kind::ALL.len()) else { return };
    let read = |mode| decode(*kind, mode, &mut serde_json::Deserializer::from_slice(body)).map(|decoded| decoded.object);
    let lenient = read(Mode::Lenient);
    if let Ok(strict) = read(Mode::Strict) {
        let lenient = lenient.expect("lenient reads what strict reads");
        assert_eq!(strict.key(), lenient.key());
        // Of a pod, what only concerns who starts it is left out.
        if !matches!(strict, Object::Pod(_)) {
            assert_eq!(strict, lenient);
        }
    }
});
