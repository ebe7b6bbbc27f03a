//! What one connection costs before it carries a byte: the size of its task. A future that grows
//! by a buffer grows by that for every idle connection of the node.

use leno_proxy::tunnels;

use crate::inbound::{plaintext, tunnel};
use crate::outbound;
use crate::pod::Pod;

fn three<A, B, C, F>(_: fn(A, B, C) -> F) -> usize {
    size_of::<F>()
}

fn four<A, B, C, D, F>(_: fn(A, B, C, D) -> F) -> usize {
    size_of::<F>()
}

fn five<A, B, C, D, E, F>(_: fn(A, B, C, D, E) -> F) -> usize {
    size_of::<F>()
}

#[test]
fn the_task_of_a_connection_is_small() {
    // Bytes, and the most there may be: a tenth more than there were (1664, 1872, 2912, 2768).
    for (task, size, most) in [
        ("outbound", five(outbound::carry), 1840),
        ("inbound", three(tunnel::carry), 2064),
        ("inbound tunnel", four(tunnels::serve::<Pod>), 3208),
        ("inbound plaintext", five(plaintext::carry), 3048),
    ] {
        println!("{task}: {size}");
        assert!(size <= most, "{task}: {size} bytes, at most {most} are meant");
    }
}
