//! The output of a template, with a size limit: a template can make a list of itself again and again.

use std::{fmt, io};

/// Most bytes that a template may write; far above what any limit on prompts allows.
const MAX_OUTPUT: usize = 16 << 20;

/// The output of a template; a write beyond [`MAX_OUTPUT`] bytes fails.
#[derive(Default)]
pub(super) struct BoundedOutput {
    pub bytes: Vec<u8>,
}

impl io::Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_OUTPUT {
            return Err(io::Error::other("too much output"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A text; a write beyond [`MAX_OUTPUT`] bytes fails.
#[derive(Default)]
pub(super) struct BoundedText(String);

impl BoundedText {
    /// The text that was written.
    pub fn into_text(self) -> String {
        self.0
    }
}

impl fmt::Write for BoundedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_OUTPUT {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}
