//! Writes lines from a thread of its own. Handing a line over never blocks: if the reader of the log is slow and the
//! queue is full, the line is dropped and counted.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use metrics::Counter;
use tokio::sync::oneshot;

use super::line::Line;
use super::options::{AccessLogFormat, AccessLogOptions};

/// Most lines that wait to be written; further ones are dropped.
const QUEUE_LEN: usize = 8192;
/// Most lines in one write.
const MAX_BATCH: usize = 256;
/// Longest time that a flush waits.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// A handle on the log. The default is off. Cheap to clone.
#[derive(Clone, Default)]
pub struct AccessLog(Option<Arc<Shared>>);

struct Shared {
    queue: SyncSender<Message>,
    dropped: Counter,
    has_addresses: bool,
}

enum Message {
    Line(Box<Line>),
    Flush(oneshot::Sender<()>),
}

impl AccessLog {
    /// Starts the thread, unless the log is off. It writes to `target`, each line after `prefix`; `dropped` counts lines
    /// that were not written.
    pub fn start<W: io::Write + Send + 'static>(
        options: AccessLogOptions,
        prefix: &'static str,
        target: W,
        dropped: Counter,
    ) -> io::Result<Self> {
        let format = options.access_log;
        if format == AccessLogFormat::Off {
            return Ok(Self::default());
        }
        let (queue, messages) = sync_channel(QUEUE_LEN);
        let thread = std::thread::Builder::new().name("access-log".to_owned());
        thread.spawn(move || write_all(&messages, format, prefix, target))?;
        Ok(Self(Some(Arc::new(Shared { queue, dropped, has_addresses: options.access_log_addresses }))))
    }

    /// Whether lines have addresses of clients; `None` if the log is off.
    pub(super) fn has_addresses(&self) -> Option<bool> {
        self.0.as_ref().map(|shared| shared.has_addresses)
    }

    /// Waits until all lines handed over so far are written, for a bounded time.
    pub async fn flush(&self) {
        let Some(shared) = &self.0 else { return };
        let (done, written) = oneshot::channel();
        if shared.queue.try_send(Message::Flush(done)).is_ok() {
            let _ = tokio::time::timeout(FLUSH_TIMEOUT, written).await;
        }
    }

    /// Hands a line over to the thread.
    pub(super) fn write(&self, line: Line) {
        if let Some(shared) = &self.0
            && shared.queue.try_send(Message::Line(Box::new(line))).is_err()
        {
            shared.dropped.increment(1);
        }
    }
}

/// Writes until no handle is left. Errors are ignored: there is no better place to report them than the log itself.
fn write_all(
    messages: &Receiver<Message>,
    format: AccessLogFormat,
    prefix: &'static str,
    mut target: impl io::Write,
) {
    let (mut text, mut waiting) = (String::new(), Vec::new());
    while let Ok(first) = messages.recv() {
        for message in std::iter::once(first).chain(messages.try_iter().take(MAX_BATCH - 1)) {
            match message {
                Message::Line(line) => {
                    text.push_str(prefix);
                    line.write(format, &mut text);
                }
                Message::Flush(done) => waiting.push(done),
            }
        }
        let _ = target.write_all(text.as_bytes()).and_then(|()| target.flush());
        text.clear();
        waiting.drain(..).for_each(|done: oneshot::Sender<()>| {
            let _ = done.send(());
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use metrics::{Key, Label, Level, Metadata, Recorder};
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    const JSON: AccessLogOptions =
        AccessLogOptions { access_log: AccessLogFormat::Json, access_log_addresses: false };

    /// A target that takes nothing until its sender is dropped.
    struct Stuck(Receiver<()>, Sender<()>);

    impl io::Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.1.send(());
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_is_stuck_blocks_nobody_and_lost_lines_are_counted() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let metadata = Metadata::new("test", Level::INFO, None);
        let key = Key::from_parts("dropped", Vec::<Label>::new());
        let dropped = recorder.register_counter(&key, &metadata);
        let ((release, blocked), (begun, has_begun)) = (channel(), channel());
        let log = AccessLog::start(JSON, "", Stuck(blocked, begun), dropped).unwrap();
        log.write(Line::default());
        // The first line is out of the queue now, and the thread is stuck with it.
        has_begun.recv().unwrap();
        for _ in 0..QUEUE_LEN + 3 {
            log.write(Line::default());
        }
        assert!(recorder.handle().render().contains("dropped 3"));
        drop(release);
    }
}
