//! What the image has to know of a program: for which machine it is, and that it needs no other file.

use anyhow::{Context as _, Result, bail, ensure};

/// The machine in the words of container images, if this is a Linux program that is linked statically.
pub(crate) fn architecture(program: &[u8]) -> Result<&'static str> {
    // The ELF header of a 64-bit, little-endian program: elf(5).
    ensure!(program.starts_with(b"\x7fELF\x02\x01"), "it is not a 64-bit Linux program");
    if interpreter(program)? {
        bail!("it is linked dynamically, and the image has no loader and no libraries; link it statically");
    }
    match number(program, 18, 2)? {
        62 => Ok("amd64"),
        183 => Ok("arm64"),
        other => bail!("it is for a machine that is not known here (ELF machine {other})"),
    }
}

/// Whether the kernel would start another program to load this one.
fn interpreter(program: &[u8]) -> Result<bool> {
    const PT_INTERP: usize = 3;
    let (start, size, count) = (number(program, 32, 8)?, number(program, 54, 2)?, number(program, 56, 2)?);
    for index in 0..count {
        let at =
            index.checked_mul(size).and_then(|offset| offset.checked_add(start)).context("its header is broken")?;
        if number(program, at, 4)? == PT_INTERP {
            return Ok(true);
        }
    }
    Ok(false)
}

fn number(program: &[u8], at: usize, size: usize) -> Result<usize> {
    let bytes = at.checked_add(size).and_then(|end| program.get(at..end)).context("it ends within its header")?;
    Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The smallest file that passes for a program.
    pub(crate) fn program(machine: u8, segment: u8) -> Vec<u8> {
        let mut program = vec![0; 120];
        program[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (program[18], program[32], program[54], program[56]) = (machine, 64, 56, 1);
        program[64] = segment;
        program
    }

    #[test]
    fn static_programs_are_told_from_others() {
        assert_eq!(architecture(&program(62, 1)).expect("a static program"), "amd64");
        assert_eq!(architecture(&program(183, 1)).expect("a static program"), "arm64");
        let refusal = |program: &[u8]| architecture(program).expect_err("a refusal").to_string();
        assert!(refusal(&program(62, 3)).contains("linked dynamically"));
        assert!(refusal(&program(7, 1)).contains("machine 7"));
        assert!(refusal(&program(62, 1)[..66]).contains("ends within"));
        assert!(refusal(b"#!/bin/sh\n").contains("not a 64-bit Linux program"));
    }
}
