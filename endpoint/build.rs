//! Compiles `proto/engine.proto` into `OUT_DIR`; plans, outcomes and calls have types of their own (`src/wire.rs`).

use std::error::Error;

use tonic_prost_build::Builder;

const FOLDER: &str = "../proto";
const ENCODED: &str = "crate::wire::Encoded";
/// The calls that Python answers.
const CALLS: &[&str] = &[
    "LoadAdapter",
    "UnloadAdapter",
    "Sleep",
    "WakeUp",
    "CheckWeights",
    "ReplaceWeights",
    "ReceiveWeights",
    "FetchBlocks",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={FOLDER}/engine.proto");
    let descriptors = protox::compile(["engine.proto"], [FOLDER])?;
    let config = tonic_prost_build::configure()
        .build_client(false)
        .extern_path(".penstock.engine.v1.Plan", "crate::wire::Plan")
        .extern_path(".penstock.engine.v1.Outcome", ENCODED);
    CALLS.iter().fold(config, handed_through).compile_fds(descriptors)?;
    Ok(())
}

fn handed_through(config: Builder, call: &&str) -> Builder {
    let message = |kind| format!(".penstock.engine.v1.{call}{kind}");
    config.extern_path(message("Request"), ENCODED).extern_path(message("Response"), ENCODED)
}
