//! Where the shards spend the time of a step.

use std::time::Duration;

use metrics::Histogram;
use penstock_scheduler::StepTimings;

use super::names::Names;

/// The parts of a step, each a histogram.
pub(super) struct StepDurations {
    upload: Histogram,
    forward: Histogram,
    sample: Histogram,
    download: Histogram,
}

impl StepDurations {
    pub fn register(names: &Names<'_>) -> Self {
        Self {
            upload: names.histogram("tgi_step_upload_duration", "Applying a plan, seconds"),
            forward: names.histogram("tgi_step_forward_duration", "The model in a step, seconds"),
            sample: names.histogram("tgi_step_sample_duration", "Choosing tokens, seconds"),
            download: names.histogram("tgi_step_download_duration", "Reading tokens, seconds"),
        }
    }

    pub fn record(&self, timings: &StepTimings) {
        self.upload.record(micros(timings.upload_us));
        self.forward.record(micros(timings.forward_us));
        self.sample.record(micros(timings.sample_us));
        self.download.record(micros(timings.download_us));
    }
}

pub(super) fn micros(us: u32) -> Duration {
    Duration::from_micros(us.into())
}
