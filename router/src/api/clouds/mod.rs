//! The routes for hosting services: SageMaker and Vertex AI.

pub mod invocations;
pub mod vertex;
