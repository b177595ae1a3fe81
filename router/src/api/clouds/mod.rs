//! The routes that hosting services call: SageMaker's and Vertex AI's.

pub mod invocations;
pub mod vertex;
