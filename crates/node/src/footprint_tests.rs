//! What one connection costs before it carries a byte: the size of its task. A future that grows
//! by a buffer grows by that for every idle connection of the node.

use crate::inbound::{plaintext, tunnel};
use crate::outbound;

fn two<A, B, F>(_: fn(A, B) -> F) -> usize {
    size_of::<F>()
}

fn five<A, B, C, D, E, F>(_: fn(A, B, C, D, E) -> F) -> usize {
    size_of::<F>()
}

fn six<A, B, C, D, E, F, G>(_: fn(A, B, C, D, E, F) -> G) -> usize {
    size_of::<G>()
}

#[test]
fn the_task_of_a_connection_is_small() {
    // Bytes, and the most there may be: a tenth more than there were (1664, 1872, 2912, 2768).
    for (task, size, most) in [
        ("outbound", five(outbound::carry), 1840),
        ("inbound", two(tunnel::carry), 2064),
        ("inbound tunnel", six(tunnel::serve), 3208),
        ("inbound plaintext", five(plaintext::carry), 3048),
    ] {
        println!("{task}: {size}");
        assert!(size <= most, "{task}: {size} bytes, at most {most} are meant");
    }
}
