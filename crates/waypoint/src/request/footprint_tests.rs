//! What a connection and an open request cost before a byte is carried: the sizes of their tasks. A future that grows by a
//! buffer grows by that for every one of them.

use crate::downstream::dispatch;
use crate::downstream::http::serve;
use crate::pipeline::forward::forward;

fn two<A, B, F>(_: fn(A, B) -> F) -> usize {
    size_of::<F>()
}

fn three<A, B, C, F>(_: fn(A, B, C) -> F) -> usize {
    size_of::<F>()
}

#[test]
fn the_task_of_a_connection_and_of_a_request_is_small() {
    let mut large = Vec::new();
    // Bytes, and the most there may be: a tenth more than there were (5680, 2424, 1744).
    for (task, size, most) in [
        ("connection", three(dispatch::carry), 6248),
        ("HTTP on it", three(serve), 2672),
        ("request", two(forward), 1920),
    ] {
        println!("{task}: {size}");
        if size > most {
            large.push(format!("{task}: {size} bytes, at most {most} are meant"));
        }
    }
    assert!(large.is_empty(), "{large:#?}");
}
