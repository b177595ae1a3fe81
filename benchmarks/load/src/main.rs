//! The `penstock-bench` command; everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    penstock_load::main()
}
