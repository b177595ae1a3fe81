//! Compiles `proto/engine.proto` into `OUT_DIR`; plans, outcomes and calls have types of their own (`src/wire.rs`).

use std::error::Error;

const FOLDER: &str = "../proto";
const ENCODED: &str = "crate::wire::Encoded";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={FOLDER}/engine.proto");
    let descriptors = protox::compile(["engine.proto"], [FOLDER])?;
    tonic_prost_build::configure()
        .build_client(false)
        .extern_path(".penstock.engine.v1.Plan", "crate::wire::Plan")
        .extern_path(".penstock.engine.v1.Outcome", ENCODED)
        .extern_path(".penstock.engine.v1.LoadAdapterRequest", ENCODED)
        .extern_path(".penstock.engine.v1.LoadAdapterResponse", ENCODED)
        .extern_path(".penstock.engine.v1.UnloadAdapterRequest", ENCODED)
        .extern_path(".penstock.engine.v1.UnloadAdapterResponse", ENCODED)
        .compile_fds(descriptors)?;
    Ok(())
}
