//! Compiles `proto/*.proto` into `OUT_DIR`. Pure Rust (protox): no `protoc` is needed.

use std::error::Error;
use std::path::PathBuf;

use tonic_prost_build::FileDescriptorSet;

const FOLDER: &str = "../proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={FOLDER}");
    compile("engine.proto")?;
    let api = compile("api.proto")?;
    // What reflection tells.
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("api.descriptors.bin"), prost::Message::encode_to_vec(&api))?;
    Ok(())
}

fn compile(file: &str) -> Result<FileDescriptorSet, Box<dyn Error>> {
    let descriptors = protox::compile([file], [FOLDER])?;
    tonic_prost_build::configure().build_server(true).compile_fds(descriptors.clone())?;
    Ok(descriptors)
}
