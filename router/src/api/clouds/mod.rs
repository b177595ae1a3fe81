//! The routes for hosting services: SageMaker and Vertex AI.

pub mod invocations;
pub mod platform;
pub mod vertex;
