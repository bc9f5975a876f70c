//! A demonstration on real input: curl inside a brodo namespace downloads from python's web server on the host side.

use crate::process::Result;
use crate::system::Programs;

/// Shows it.
pub fn run(_programs: &Programs) -> Result<()> {
    Ok(())
}
