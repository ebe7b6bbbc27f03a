//! What one connection costs before it carries a byte: the size of its task. A future that grows
//! by a buffer grows by that for every idle connection of the node.

use crate::{inbound, inbound_plaintext, outbound};

/// Most that the task of one connection may take, bytes. With HTTP/2's own state, the kernel
/// apart, an idle connection is to stay below 16 KiB.
const MOST: usize = 8 << 10;

fn two<A, B, F>(_: fn(A, B) -> F) -> usize {
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
    for (task, size) in [
        ("outbound", five(outbound::carry)),
        ("inbound", two(inbound::carry)),
        ("inbound tunnel", five(inbound::serve)),
        ("inbound plaintext", four(inbound_plaintext::carry)),
    ] {
        println!("{task}: {size}");
        assert!(size <= MOST, "{task}: {size} bytes");
    }
}
