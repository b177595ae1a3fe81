//! Output for operators: log levels, metrics, traces, the access log, and the interface through which the engine loop
//! reports its steps.

pub mod access_log;
pub mod log_level;
pub mod log_options;
pub mod metrics;
pub mod observer;
pub mod telemetry;
