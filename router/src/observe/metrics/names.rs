//! How metrics are registered, and the buckets of their histograms.

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, SharedString};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusRecorder};

const METADATA: Metadata<'static> = Metadata::new("penstock", Level::INFO, None);

/// A recorder with the buckets of all histograms; the limits, in tokens, are the last buckets of the length histograms.
pub(crate) fn recorder(
    max_input_tokens: u32,
    max_total_tokens: u32,
) -> Result<PrometheusRecorder, BuildError> {
    Ok(PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_duration".into()), &duration_buckets())?
        .set_buckets_for_metric(Matcher::Suffix("_length".into()), &length_buckets(max_input_tokens))?
        .set_buckets_for_metric(Matcher::Suffix("_tokens".into()), &length_buckets(max_total_tokens))?
        .set_buckets_for_metric(Matcher::Full("tgi_batch_next_size".into()), &SIZE_BUCKETS)?
        .build_recorder())
}

/// Name and value of a label.
pub(super) type StaticLabel = (&'static str, &'static str);

/// Name and value of a label that is not known beforehand.
type NamedLabel<'a> = (&'static str, &'a str);

fn named(name: &'static str, labels: &[NamedLabel]) -> Key {
    let labels = labels.iter().map(|(label, value)| Label::new(*label, (*value).to_owned()));
    Key::from_parts(name, labels.collect::<Vec<_>>())
}

fn labelled(name: &'static str, (label, value): StaticLabel) -> Key {
    Key::from_parts(name, vec![Label::new(label, value)])
}

/// Registers and describes each metric under one name.
pub(crate) struct Names<'a>(pub &'a PrometheusRecorder);

impl Names<'_> {
    pub fn counter(&self, name: &'static str, help: &'static str) -> Counter {
        self.0.describe_counter(name.into(), None, SharedString::const_str(help));
        self.0.register_counter(&Key::from_static_name(name), &METADATA)
    }

    pub fn labelled_counter(&self, name: &'static str, help: &'static str, label: StaticLabel) -> Counter {
        self.0.describe_counter(name.into(), None, SharedString::const_str(help));
        self.0.register_counter(&labelled(name, label), &METADATA)
    }

    /// A counter whose labels have values that are not known beforehand.
    pub fn named_counter(&self, name: &'static str, help: &'static str, labels: &[NamedLabel]) -> Counter {
        self.0.describe_counter(name.into(), None, SharedString::const_str(help));
        self.0.register_counter(&named(name, labels), &METADATA)
    }

    /// A gauge whose labels have values that are not known beforehand.
    pub fn named_gauge(&self, name: &'static str, help: &'static str, labels: &[NamedLabel]) -> Gauge {
        self.0.describe_gauge(name.into(), None, SharedString::const_str(help));
        self.0.register_gauge(&named(name, labels), &METADATA)
    }

    pub fn labelled_histogram(
        &self,
        name: &'static str,
        help: &'static str,
        label: StaticLabel,
    ) -> Histogram {
        self.0.describe_histogram(name.into(), None, SharedString::const_str(help));
        self.0.register_histogram(&labelled(name, label), &METADATA)
    }

    pub fn gauge(&self, name: &'static str, help: &'static str) -> Gauge {
        self.0.describe_gauge(name.into(), None, SharedString::const_str(help));
        self.0.register_gauge(&Key::from_static_name(name), &METADATA)
    }

    pub fn histogram(&self, name: &'static str, help: &'static str) -> Histogram {
        self.0.describe_histogram(name.into(), None, SharedString::const_str(help));
        self.0.register_histogram(&Key::from_static_name(name), &METADATA)
    }
}

/// Sequences in a step, up to more than any device holds.
const SIZE_BUCKETS: [f64; 13] =
    [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0];

/// TGI's: 35 of them, 0.15 ms to 146 s.
fn duration_buckets() -> Vec<f64> {
    (0..35).map(|i| 0.000_15 * 1.5f64.powi(i)).collect()
}

/// TGI's: 100 of them, evenly up to the limit.
fn length_buckets(limit: u32) -> Vec<f64> {
    (1..=100).map(|i| f64::from(limit) * f64::from(i) / 100.0).collect()
}
