//! The `penstock-bench` command; everything is in `penstock-load`.

use std::process::ExitCode;

fn main() -> ExitCode {
    penstock_load::main()
}
