//! The `penstock-bench` command; its code is in the crate `penstock-load`.

use std::process::ExitCode;

fn main() -> ExitCode {
    penstock_load::main()
}
