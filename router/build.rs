//! Compiles `proto/engine.proto` into `OUT_DIR`. Pure Rust (protox): no `protoc` is needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=../proto/engine.proto");
    let descriptors = protox::compile(["engine.proto"], ["../proto"])?;
    tonic_prost_build::configure().build_server(true).compile_fds(descriptors)?;
    Ok(())
}
