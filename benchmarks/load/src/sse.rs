//! Server-sent events from bytes: finds the data of each event, wherever the network cut the stream.
//!
//! It knows nothing of JSON. Buffers are reused, so a stream costs no allocation per event.

use memchr::memchr2;

/// An incremental parser of one `text/event-stream` body.
#[derive(Debug, Default)]
pub struct SseParser {
    /// The start of a line whose end has not arrived yet.
    partial_line: Vec<u8>,
    /// The data lines of the event being read, joined by newlines.
    data: Vec<u8>,
    has_data: bool,
    /// The last byte was a carriage return: a newline right after it belongs to the same line end.
    after_cr: bool,
}

impl SseParser {
    /// Reads the next bytes of the body and calls `on_data` with the data of each event they complete.
    pub fn feed(&mut self, bytes: &[u8], mut on_data: impl FnMut(&[u8])) {
        let mut rest = self.skip_split_newline(bytes);
        while let Some(end) = memchr2(b'\n', b'\r', rest) {
            self.end_line(&rest[..end], &mut on_data);
            self.after_cr = rest[end] == b'\r';
            rest = self.skip_split_newline(&rest[end + 1..]);
        }
        self.partial_line.extend_from_slice(rest);
    }

    /// The body ended: hands out an event whose closing blank line never came.
    pub fn finish(&mut self, mut on_data: impl FnMut(&[u8])) {
        self.end_line(&[], &mut on_data);
        self.dispatch(&mut on_data);
    }

    fn skip_split_newline<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        if bytes.is_empty() || !std::mem::take(&mut self.after_cr) {
            return bytes;
        }
        bytes.strip_prefix(b"\n").unwrap_or(bytes)
    }

    fn end_line(&mut self, tail: &[u8], on_data: &mut impl FnMut(&[u8])) {
        if self.partial_line.is_empty() {
            return self.take_line(tail, on_data);
        }
        let mut line = std::mem::take(&mut self.partial_line);
        line.extend_from_slice(tail);
        self.take_line(&line, on_data);
        line.clear();
        self.partial_line = line;
    }

    fn take_line(&mut self, line: &[u8], on_data: &mut impl FnMut(&[u8])) {
        if line.is_empty() {
            self.dispatch(on_data);
        } else if let Some(value) = line.strip_prefix(b"data:") {
            self.push_data(value.strip_prefix(b" ").unwrap_or(value));
        }
    }

    fn push_data(&mut self, value: &[u8]) {
        if self.has_data {
            self.data.push(b'\n');
        }
        self.data.extend_from_slice(value);
        self.has_data = true;
    }

    fn dispatch(&mut self, on_data: &mut impl FnMut(&[u8])) {
        if std::mem::take(&mut self.has_data) {
            on_data(&self.data);
            self.data.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(pieces: &[&[u8]]) -> Vec<String> {
        let (mut parser, mut events) = (SseParser::default(), Vec::new());
        let mut keep = |data: &[u8]| events.push(String::from_utf8_lossy(data).into_owned());
        pieces.iter().for_each(|piece| parser.feed(piece, &mut keep));
        parser.finish(&mut keep);
        events
    }

    #[test]
    fn reads_data_with_and_without_a_space() {
        assert_eq!(parse(&[b"data: {\"a\":1}\n\ndata:[DONE]\n\n"]), ["{\"a\":1}", "[DONE]"]);
    }

    #[test]
    fn skips_comments_and_other_fields() {
        assert_eq!(parse(&[b":\n\nevent: x\nid: 3\n: ping\ndata: a\nretry: 9\n\n"]), ["a"]);
    }

    #[test]
    fn joins_data_lines_with_newlines() {
        assert_eq!(parse(&[b"data: a\ndata: b\ndata:\n\n"]), ["a\nb\n"]);
    }

    #[test]
    fn hands_out_an_event_left_open_at_the_end() {
        assert_eq!(parse(&[b"data: a\n\ndata: [DONE]"]), ["a", "[DONE]"]);
    }

    #[test]
    fn every_split_point_gives_the_same_events() {
        let body =
            "data: é\r\n\r\n:\n\ndata: {\"x\":\"\\n\"}\n\rdata: b\rdata:c\r\rdata: [DONE]\n\n".as_bytes();
        let whole = parse(&[body]);
        assert_eq!(whole, ["é", "{\"x\":\"\\n\"}", "b\nc", "[DONE]"]);
        for first in 0..=body.len() {
            for second in first..=body.len() {
                assert_eq!(parse(&[&body[..first], &body[first..second], &body[second..]]), whole);
            }
        }
    }

    proptest! {
        #[test]
        fn any_body_parses_the_same_byte_by_byte(body in "(data: ?|:|event:|[a-c\"{}\\\\]|\r\n|\n|\r){0,40}") {
            let bytes = body.as_bytes();
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            prop_assert_eq!(parse(&single), parse(&[bytes]));
        }
    }
}
