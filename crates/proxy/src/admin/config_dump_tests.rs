use super::*;

#[test]
fn serial_numbers_are_decimal() {
    for (hex, expected) in [
        ("00", "0"),
        ("0a", "10"),
        ("ff", "255"),
        ("7fffffffffffffff", "9223372036854775807"),
        ("e5dfb59150b2ba7f108d93dcec5aa613", "305554775863395697262503895661564044819"),
        ("no", "no"),
    ] {
        assert_eq!(decimal(hex), expected, "{hex}");
    }
}
