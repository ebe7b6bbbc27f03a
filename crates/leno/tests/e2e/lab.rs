//! `leno lab run`, as a user types it.

use parking_lot::Mutex;
use serde_json::Value;

use crate::stage::{eventually, leno};

/// Two labs would measure each other, and the second one is refused.
static ONE_LAB: Mutex<()> = Mutex::new(());

/// A quick run with these arguments, as JSON. The error is what it wrote.
pub(crate) fn lab(arguments: &[&str]) -> Result<Value, String> {
    let _one = ONE_LAB.lock();
    // Somebody else on this machine may be measuring.
    eventually("a place for a lab", || {
        let mut lab = leno();
        lab.args(["lab", "run", "--quick", "-o", "json"]).args(arguments);
        let output = lab.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.success() {
            true => Ok(Ok(serde_json::from_slice(&output.stdout).unwrap())),
            false if errors.contains("another lab is at work") => Err(errors),
            false => Ok(Err(errors)),
        }
    })
}
