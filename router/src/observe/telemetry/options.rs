//! Settings of traces: the collector, the name of the service, and the fraction that is sampled.

use std::fmt;
use std::str::FromStr;

use axum::http::Uri;
use clap::Args;
use opentelemetry::{Key, KeyValue};
use opentelemetry_sdk::Resource;
use serde::{Deserialize, Serialize};

const SERVICE_NAME: Key = Key::from_static_str("service.name");
/// The service name of TGI's router, so that its dashboards find the traces.
const DEFAULT_NAME: &str = "text-generation-inference.router";

/// Settings of traces.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TelemetryOptions {
    /// OpenTelemetry collector that traces are sent to by OTLP over gRPC, such as http://localhost:4317
    /// [default: there are no traces]
    #[arg(long, env)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_endpoint: Option<OtlpEndpoint>,

    /// Name of the service in traces [default: OTEL_SERVICE_NAME, or text-generation-inference.router]
    #[arg(long, env)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_service_name: Option<String>,

    /// Fraction of the requests that are traced, 0 to 1, where the client's `traceparent` does not decide
    #[arg(long, env, default_value_t = 1.0, value_parser = ratio, value_name = "RATIO")]
    pub otel_traces_sampler_arg: f64,
}

impl TelemetryOptions {
    /// The resource of a process: the attributes in OTEL_RESOURCE_ATTRIBUTES, the service name, and `component`.
    pub(super) fn resource(&self, component: &'static str) -> Resource {
        let found = Resource::builder().build();
        let is_named =
            found.get(&SERVICE_NAME).is_some_and(|name| !name.as_str().starts_with("unknown_service"));
        let resource = Resource::builder().with_attribute(KeyValue::new("penstock.component", component));
        match &self.otlp_service_name {
            Some(name) => resource.with_service_name(name.clone()).build(),
            None if is_named => resource.build(),
            None => resource.with_service_name(DEFAULT_NAME).build(),
        }
    }

    /// The resource of a shard.
    pub(super) fn shard_resource(&self, rank: i64) -> Resource {
        let name = self.resource("shard").get(&SERVICE_NAME).unwrap_or_else(|| DEFAULT_NAME.into());
        let resource = Resource::builder().with_service_name(name);
        let of_shard =
            [KeyValue::new("penstock.component", "shard"), KeyValue::new("penstock.shard.rank", rank)];
        resource.with_attributes(of_shard).build()
    }
}

impl Default for TelemetryOptions {
    /// The defaults of the flags.
    fn default() -> Self {
        Self { otlp_endpoint: None, otlp_service_name: None, otel_traces_sampler_arg: 1.0 }
    }
}

/// Address of a collector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OtlpEndpoint(String);

impl OtlpEndpoint {
    /// The URL of the collector.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the connection uses TLS.
    pub fn is_encrypted(&self) -> bool {
        self.0.starts_with("https:")
    }
}

impl fmt::Display for OtlpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for OtlpEndpoint {
    type Err = String;

    /// Accepts a URL, or `host:port` without TLS.
    fn from_str(text: &str) -> Result<Self, String> {
        let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let parsed = url.parse::<Uri>().ok().filter(|uri| {
            matches!(uri.scheme_str(), Some("http" | "https"))
                && uri.host().is_some_and(|host| !host.is_empty())
        });
        parsed.map(|_| Self(url)).ok_or_else(|| "must be a URL like http://localhost:4317".to_owned())
    }
}

fn ratio(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value| (0.0..=1.0).contains(value));
    value.ok_or_else(|| "must be a number from 0 to 1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_a_url_or_a_host_and_a_port() {
        let read = |text: &str| text.parse::<OtlpEndpoint>().map(|endpoint| endpoint.0);
        assert_eq!(read("localhost:4317").as_deref(), Ok("http://localhost:4317"));
        assert_eq!(read("https://collector:4317").as_deref(), Ok("https://collector:4317"));
        for wrong in ["", "ftp://collector", "http://", "a b"] {
            assert!(read(wrong).is_err_and(|error| error.contains("http://localhost:4317")), "{wrong:?}");
        }
    }

    #[test]
    fn the_sampled_fraction_is_from_0_to_1() {
        assert_eq!(ratio("0.25"), Ok(0.25));
        for wrong in ["-0.1", "1.01", "NaN", "all"] {
            assert!(ratio(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_shard_is_the_same_service_with_its_rank() {
        let options =
            TelemetryOptions { otlp_service_name: Some("mine".into()), ..TelemetryOptions::default() };
        let (router, shard) = (options.resource("router"), options.shard_resource(0));
        let value = |of: &Resource, key: &'static str| of.get(&key.into()).map(|value| value.to_string());
        assert_eq!(value(&router, "service.name").as_deref(), Some("mine"));
        assert_eq!(value(&router, "penstock.component").as_deref(), Some("router"));
        assert_eq!(value(&shard, "service.name").as_deref(), Some("mine"));
        assert_eq!(value(&shard, "penstock.shard.rank").as_deref(), Some("0"));
    }
}
